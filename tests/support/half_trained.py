"""Weights that are right now and then."""

from dataclasses import replace
from functools import cache

import torch

from lengthwise.base.rng import stream
from lengthwise.experiment import data
from lengthwise.experiment.layout import FullOutput, NextToken, Pairs
from lengthwise.experiment.lengths import Uniform
from lengthwise.experiment.loops import Constant, ExtraLoops, PerRound
from lengthwise.experiment.recipe import Recipe
from lengthwise.models.transformer import Transformer
from lengthwise.nn.position import Learned, RoPE
from lengthwise.nn.window import Local
from lengthwise.objectives.final import Final
from lengthwise.runners.cpu import choose
from lengthwise.runs.run import Weights
from lengthwise.tasks.addition import Addition
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.strings import Copy

MODEL = Transformer(width=16, heads=2, positions=(Learned(40),), init_std=0.2)
PARITY = Recipe("parity", Parity(), FullOutput(1), Uniform(3), PerRound(), MODEL, Final(), steps=40, batch=32)
SUMS = replace(PARITY, task=Addition(2, "least"), layout=FullOutput(), lengths=Uniform(2), steps=80)
PAIRS = replace(SUMS, layout=Pairs(), steps=20, loops=ExtraLoops(1), model=replace(MODEL, positions=(RoPE(), Local(1))))
NEXT = replace(PARITY, task=Copy(), layout=NextToken(), loops=Constant(2))


@cache
def half_trained(recipe):
    """Weights in float64 that are right now and then."""
    model = recipe.build()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(recipe.steps):
        batch, loops = data.batch(recipe, step)
        recipe.objective(choose(model), batch, loops, stream(0, "x")).value.backward()
        optimizer.step()
        optimizer.zero_grad()
    return Weights("half", recipe, model.double())
