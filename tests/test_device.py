"""The host reads nothing from the device while it trains, and once per batch while it measures, whatever the model.

The meta device stands for a GPU here. It computes nothing, so a number that is read from it is an error, and what is
copied from it is counted.
"""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from conftest import LONG
from test_fast import FORMS, shrunk
from torch.utils._python_dispatch import TorchDispatchMode

from lengthwise import catalog
from lengthwise.base import fields
from lengthwise.evaluation import scores
from lengthwise.recipe.data import batch
from lengthwise.recipe.lengths import Uniform
from lengthwise.recipe.loops import Constant
from lengthwise.recipe.recipe import Watch
from lengthwise.recipe.source import Fresh
from lengthwise.recipe.stopping import After, MaxConfidence, Oracle
from lengthwise.training.loop import Trainee

META = torch.device("meta")
aten = torch.ops.aten


class Reads(TorchDispatchMode):
    """Counts what is read from the meta device; a copy of it on the CPU is zeros."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
        masks = [one for part in args if isinstance(part, (list, tuple)) for one in part if is_mask(one)]
        if any(one.is_meta for one in tensors):
            if operation is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
                self.found["copy"] += 1
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
            if masks or operation in (aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default):
                self.found[str(operation)] += 1
        return operation(*args, **kwargs)


def is_mask(index):
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def small(name):
    """A shipped recipe with its form of model and its objective, but with short problems."""
    recipe = catalog.recipe(name)
    bottom = max(recipe.task.smallest, min(recipe.lengths.bottom, 4))
    lengths = Uniform(top=bottom + 1, bottom=bottom)
    model = replace(shrunk(recipe.model), layers=1)
    loops = recipe.loops if recipe.loops.adapts else Constant(2)
    return replace(recipe, model=model, lengths=lengths, loops=loops, batch=2, source=Fresh(), families=0.0, hard=0.0,
                   ema=0.9, ema_start=0, watch=Watch(), keep="last")  # fmt: skip


def on_meta(recipe):
    trainee = Trainee(recipe, torch.device("cpu"))
    trainee.model.to(META)
    trainee.average.module.to(META)
    trainee.optimizer = torch.optim.AdamW(trainee.model.parameters(), foreach=True)  # a fused one knows no meta device
    return trainee


def parts_of(name):
    """What could read: the kinds of the model's parts, and of what is computed with it."""
    recipe = catalog.recipe(name)
    text = json.dumps([fields.encode(part) for part in (recipe.model, recipe.objective, recipe.layout)])
    return {*re.findall(r'"kind": "(\w+)"', text)}


def covering(names):
    """Few recipes that have all of their parts."""
    left, chosen = {name: parts_of(name) for name in names}, []
    while any(left.values()):
        name = max(sorted(left), key=lambda name: len(left[name]))
        chosen.append(name)
        left = {other: parts - left[name] for other, parts in left.items()}
    return chosen


NAMES = sorted(FORMS.values())


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", NAMES if LONG else covering(NAMES))
def test_no_read_in_a_step_and_one_per_batch_of_evaluation(name):
    recipe = small(name)
    trainee = on_meta(recipe)
    with Reads() as reads:
        trainee.advance()
    assert not reads.found
    rows, _ = batch(recipe, 0)
    for asked in [[Oracle()]] + [[MaxConfidence(1), After(1)]] * (not recipe.layout.decodes):
        with Reads() as reads:
            scores.answers(trainee.model, recipe, rows, asked)
        assert reads.found == {"copy": 1}


def test_a_read_is_seen():
    """Of each kind that could stand in a step."""
    there, here = torch.zeros(3, device=META), torch.tensor([True, False, True])
    for read in (there.tolist, there.sum().item, lambda: bool(there.any()), there.nonzero, lambda: there[there > 0],
                 lambda: there.where(there > 0, 1).cpu(), lambda: there[here]):  # fmt: skip
        with Reads() as reads:
            try:
                read()
            except (RuntimeError, NotImplementedError):
                continue
        assert sum(reads.found.values()) == 1
