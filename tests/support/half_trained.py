"""Recipes, and a function that trains their weights until some answers are right and others wrong."""

from dataclasses import replace
from functools import cache

import torch

import lengthwise as lw
from lengthwise.experiment import data
from lengthwise.runners.cpu import choose_runner

MODEL = lw.Transformer(width=16, heads=2, positions=(lw.Learned(40),), init_std=0.2)
PARITY = lw.Recipe(
    "parity", lw.Parity(), lw.FullOutput(1), lw.Uniform(3), lw.PerRound(), MODEL, lw.Final(), steps=40, batch=32
)
SUMS = replace(PARITY, task=lw.Addition(2, "least"), layout=lw.FullOutput(), lengths=lw.Uniform(2), steps=80)
PAIRS = replace(
    SUMS, layout=lw.Pairs(), steps=20, loops=lw.ExtraLoops(1), model=replace(MODEL, positions=(lw.RoPE(), lw.Local(1)))
)
NTP_COPY = replace(PARITY, task=lw.Copy(), layout=lw.NextToken(), loops=lw.Constant(2))


@cache
def train_briefly(recipe):
    """Train weights of a recipe so briefly that some answers are right and some wrong; return them in float64."""
    model = recipe.build()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(recipe.steps):
        batch, loops = data.draw_batch(recipe, step)
        recipe.objective(choose_runner(model), batch, loops, lw.stream(0, "x")).value.backward()
        optimizer.step()
        optimizer.zero_grad()
    return lw.Weights("half", recipe, model.double())
