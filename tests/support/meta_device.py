"""Helpers that train on torch's meta device and count the reads that, on a GPU, would make the host wait."""

import json
import re
from collections import Counter
from dataclasses import replace

import torch
from shipped_specs import SHIPPED_SPECS, shrink_spec
from specs import choose_covering
from torch.utils._python_dispatch import TorchDispatchMode

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base import fields
from lengthwise.experiment.data import draw_batch
from lengthwise.training.loop import Trainer

META_DEVICE = torch.device("meta")


aten = torch.ops.aten


class MetaReadCounter(TorchDispatchMode):
    """A counter of reads from the meta device. Copies from the device to the CPU become zeros."""

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
        if makes_host_wait(operation, args, kwargs):
            self.found["waits"] += 1
        return operation(*args, **kwargs)


def makes_host_wait(operation, args, kwargs):
    """Return whether an operation is a blocking copy from the host to the meta device."""
    if operation is aten.copy_.default:  # arguments: target, source, non_blocking
        return args[0].is_meta and not args[1].is_meta and args[2:] != (True,)
    to = operation is aten._to_copy.default and kwargs.get("device") == META_DEVICE and not args[0].is_meta
    return to and not kwargs.get("non_blocking")


def is_mask(index):
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def build_small_recipe(name):
    """Return a small version of a shipped recipe, with the same kind of model and objective, and with short
    problems."""
    recipe = catalog.find_recipe(name)
    bottom = max(recipe.task.smallest, min(recipe.lengths.bottom, 4))
    lengths = lw.Uniform(top=bottom + 1, bottom=bottom)
    model = shrink_spec(recipe.model)
    model = replace(model, layers=1) if hasattr(model, "layers") else model
    loops = recipe.loops if recipe.loops.adapts else lw.Constant(2)
    return replace(recipe, model=model, lengths=lengths, loops=loops, batch=2, source=lw.Fresh(), families=0.0,
                   hard=0.0, ema=0.9, ema_start=0, watch=lw.Watch(), keep="last")  # fmt: skip


def build_meta_trainer(recipe):
    trainee = Trainer(recipe, torch.device("cpu"))
    trainee.model.to(META_DEVICE)
    trainee.average.module.to(META_DEVICE)
    trainee.optimizer = torch.optim.AdamW(trainee.model.parameters(), foreach=True)  # fused AdamW does not run on meta
    return trainee


def list_part_kinds(name):
    """Return the kinds of all parts in a recipe's model, objective and layout: these may read from the device."""
    recipe = catalog.find_recipe(name)
    text = json.dumps([fields.encode(part) for part in (recipe.model, recipe.objective, recipe.layout)])
    return {*re.findall(r'"kind": "(\w+)"', text)}


RECIPE_NAMES = sorted(SHIPPED_SPECS.values())


# Recipes of formal languages are left out because their mixers take many small operations and their states grow in
# 16 bits; Sudoku is left out because its batches take several steps.
TRANSFORMER_RECIPES = [
    name
    for name in RECIPE_NAMES
    if isinstance(catalog.find_recipe(name).model, lw.Transformer) and not re.search("formal|exact-parity|sudoku", name)
]
FEW_RECIPES = choose_covering({name: list_part_kinds(name) for name in TRANSFORMER_RECIPES})


def compute_gradient(runner, recipe):
    rows, loops = draw_batch(recipe, 0)
    runner.model.zero_grad()
    loss = recipe.objective(runner, rows, loops, lw.stream(0, "objective"))
    loss.value.backward()
    return loss.value.detach(), torch.cat([one.grad.flatten() for one in runner.model.parameters()])
