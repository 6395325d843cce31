"""Training on torch's meta device, and a counter of reads from it."""

import json
import re
from collections import Counter
from dataclasses import replace

import torch
from forms import covering
from runner_forms import FORMS, shrunk
from torch.utils._python_dispatch import TorchDispatchMode

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base import fields
from lengthwise.experiment.data import draw_batch
from lengthwise.training.loop import Trainer

META = torch.device("meta")


aten = torch.ops.aten


class Reads(TorchDispatchMode):
    """Counts reads from the meta device; copies from it to the CPU are zeros."""

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
        if sends(operation, args, kwargs):
            self.found["waits"] += 1
        return operation(*args, **kwargs)


def sends(operation, args, kwargs):
    """Return whether the operation copies to the meta device and makes the host wait."""
    if operation is aten.copy_.default:  # arguments: target, source, non_blocking
        return args[0].is_meta and not args[1].is_meta and args[2:] != (True,)
    to = operation is aten._to_copy.default and kwargs.get("device") == META and not args[0].is_meta
    return to and not kwargs.get("non_blocking")


def is_mask(index):
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def small(name):
    """Return a shipped recipe with its kind of model and its objective, but small, and with short problems."""
    recipe = catalog.recipe(name)
    bottom = max(recipe.task.smallest, min(recipe.lengths.bottom, 4))
    lengths = lw.Uniform(top=bottom + 1, bottom=bottom)
    model = shrunk(recipe.model)
    model = replace(model, layers=1) if hasattr(model, "layers") else model
    loops = recipe.loops if recipe.loops.adapts else lw.Constant(2)
    return replace(recipe, model=model, lengths=lengths, loops=loops, batch=2, source=lw.Fresh(), families=0.0,
                   hard=0.0, ema=0.9, ema_start=0, watch=lw.Watch(), keep="last")  # fmt: skip


def on_meta(recipe):
    trainee = Trainer(recipe, torch.device("cpu"))
    trainee.model.to(META)
    trainee.average.module.to(META)
    trainee.optimizer = torch.optim.AdamW(trainee.model.parameters(), foreach=True)  # fused AdamW does not run on meta
    return trainee


def parts_of(name):
    """Return the kinds of parts that may read from the device: those of the model, objective and layout."""
    recipe = catalog.recipe(name)
    text = json.dumps([fields.encode(part) for part in (recipe.model, recipe.objective, recipe.layout)])
    return {*re.findall(r'"kind": "(\w+)"', text)}


NAMES = sorted(FORMS.values())


# Left out: mixers of formal languages, which take many small operations and whose states grow in 16 bits; Sudoku, whose
# batches take several steps.
ATTENDING = [
    name
    for name in NAMES
    if isinstance(catalog.recipe(name).model, lw.Transformer) and not re.search("formal|exact-parity|sudoku", name)
]
FEW = covering({name: parts_of(name) for name in ATTENDING})


def gradient_of(runner, recipe):
    rows, loops = draw_batch(recipe, 0)
    runner.model.zero_grad()
    loss = recipe.objective(runner, rows, loops, lw.stream(0, "objective"))
    loss.value.backward()
    return loss.value.detach(), torch.cat([one.grad.flatten() for one in runner.model.parameters()])
