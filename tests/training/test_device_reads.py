"""The host never waits for the device while it trains, and reads once per batch while it measures; and the arithmetic
of matrix products; with every shipped model.

The meta device stands for a GPU here. It computes nothing, so a number that is read from it is an error, and what is
copied from it is counted, and so is what is copied to it while the host waits.
"""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from conftest import LONG
from test_cpu_runners import FORMS, shrunk
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from lengthwise.api import catalog
from lengthwise.base import fields
from lengthwise.base.rng import stream
from lengthwise.base.types import UsageError, to_device
from lengthwise.evaluation import scores
from lengthwise.evaluation.answers import answers
from lengthwise.experiment.data import batch
from lengthwise.experiment.lengths import Uniform
from lengthwise.experiment.loops import Constant
from lengthwise.experiment.recipe import Watch
from lengthwise.experiment.source import Fresh
from lengthwise.experiment.stopping import After, MaxConfidence, Oracle
from lengthwise.models.lstm import LSTM
from lengthwise.models.retran import ReTran
from lengthwise.models.transformer import Transformer
from lengthwise.runners.plain import Plain
from lengthwise.training import checkpoint
from lengthwise.training.arithmetic import Bf16
from lengthwise.training.ema import EMA
from lengthwise.training.loop import Trainer, train

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
        if sends(operation, args, kwargs):
            self.found["waits"] += 1
        return operation(*args, **kwargs)


def sends(operation, args, kwargs):
    """Is something copied to the meta device, and the host made to wait?"""
    if operation is aten.copy_.default:  # a place, a value, whether to go on meanwhile
        return args[0].is_meta and not args[1].is_meta and args[2:] != (True,)
    to = operation is aten._to_copy.default and kwargs.get("device") == META and not args[0].is_meta
    return to and not kwargs.get("non_blocking")


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
    trainee = Trainer(recipe, torch.device("cpu"))
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


# Without LENGTHWISE_LONG few that have every encoding and objective; recurrent models take thousands of operations.
NAMES = sorted(FORMS.values())
# Mixers of formal languages take many small operations, and their states grow in 16 bits.
ATTENDING = [name for name in NAMES if isinstance(catalog.recipe(name).model, Transformer) and "formal" not in name]
FEW = covering(ATTENDING)
shipped = pytest.mark.parametrize("name", NAMES if LONG else FEW)


@pytest.mark.usefixtures("untyped")
@shipped
def test_no_read_in_a_step_and_one_per_batch_of_evaluation(name):
    recipe = small(name)
    trainee = on_meta(recipe)
    with Reads() as reads:
        trainee.advance()
        trainee.advance()  # the first is not like others: the moving average begins
    assert not reads.found
    rows, _ = batch(recipe, 0)
    for asked in [[Oracle()]] + [[MaxConfidence(1), After(1)]] * (not recipe.layout.decodes):
        with Reads() as reads:
            answers(trainee.model, recipe, rows, asked)
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


def test_a_wait_is_seen():
    there, here = torch.zeros(3, device=META), torch.ones(3)
    for send, found in (
        (lambda: here.to(META), {"waits": 1}),
        (lambda: there.copy_(here), {"waits": 1}),
        (lambda: to_device(here, META), {}),
    ):
        with Reads() as reads:
            send()
        assert reads.found == found


def test_a_checkpoint_suits_any_device():
    """It is on the CPU; what it is held against is where the model trains."""
    recipe = small("looped-parity")
    trainee, there = Trainer(recipe, torch.device("cpu")), on_meta(recipe)
    trainee.advance()
    there.all_kept()
    for value in (value for kept in there.optimizer.state.values() for value in kept.values()):
        assert value.is_meta or value.shape == ()
    checkpoint.check(trainee.state(), there.state())
    with pytest.raises(ValueError, match=r"model: .* is not a tensor"):
        checkpoint.check(there.state(), trainee.state())


def test_an_average_is_that_of_torch():
    recipe = small("looped-parity")
    models = [recipe.build() for _ in range(2)]
    ours, theirs = EMA(models[0], 0.9), AveragedModel(models[1], multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        for model, average in zip(models, (ours, theirs), strict=True):
            average.update_parameters(model)
            for weight in model.parameters():
                weight.data.mul_(1.1)
    assert ours.n_averaged == theirs.n_averaged == 3
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    assert not all(map(torch.equal, ours.module.parameters(), models[0].parameters()))


# How much is asked of the device


class Operations(TorchDispatchMode):
    """Counts operations that a device is given, which views are not."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += not operation.is_view
        return operation(*args, **(kwargs or {}))


MOST = {Transformer: 135, LSTM: 34, ReTran: 108}  # forward and backward: in a loop; in a loop at a position


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", NAMES if LONG else [*FEW, "lstm-small", "retran-small"])
def test_a_layer_takes_few_operations(name):
    """A device works on most of them for less time than the host takes to ask for one."""
    recipe = small(name)
    model, (rows, loops), kind = recipe.build(), batch(recipe, 0), type(recipe.model)
    with Operations() as operations:
        recipe.objective(Plain(model), rows, loops, stream(0, "objective")).value.backward()
    positions = 1 if kind is Transformer else rows.inputs.tokens.shape[1]
    assert operations.count <= MOST[kind] * positions * int(loops.max())


# Arithmetic


def gradient_by(runner, recipe):
    rows, loops = batch(recipe, 0)
    runner.model.zero_grad()
    loss = recipe.objective(runner, rows, loops, stream(0, "objective"))
    loss.value.backward()
    return loss.value.detach(), torch.cat([one.grad.flatten() for one in runner.model.parameters()])


@pytest.mark.usefixtures("untyped")
@shipped
def test_bf16_descends_the_same_loss(name):
    """Nearly: logits and losses are in 32 bits, products in 16."""
    recipe = small(name)
    model = recipe.build()
    (loss, exact), (lower, near) = gradient_by(Plain(model), recipe), gradient_by(Bf16(Plain(model)), recipe)
    assert lower.dtype == near.dtype == torch.float32
    assert loss != lower
    assert abs(loss - lower) < 0.02 * loss
    assert torch.cosine_similarity(exact, near, 0) > 0.99


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("loops", [1, 3])
def test_bf16_loops_without_gradients_leave_those_of_later_ones(loops):
    """What autocast keeps of weights in the first would be used in the others, without a gradient."""
    recipe = small("looped-parity")
    rows, _ = batch(recipe, 0)
    runner = Bf16(Plain(recipe.build()))
    many = torch.full((len(rows),), loops + 1)
    runner.last(rows.inputs, many, rows.loss_mask, no_grad_loops=loops).square().sum().backward()
    assert all(one.grad is not None and one.grad.any() for one in runner.model.blocks.parameters() if one.dim() > 1)


def test_a_run_names_its_arithmetic():
    recipe = replace(small("looped-parity"), steps=2)
    run = train(recipe, matmul="bf16")
    assert run.about()["matmul"] == "bf16" and run.about()["runner"] == "Bf16"
    assert {weight.dtype for weight in run.model.state_dict().values()} == {torch.float32}
    with pytest.raises(UsageError, match="tf32 is an arithmetic of CUDA devices"):
        train(replace(recipe, seed=1), matmul="tf32")


@pytest.mark.skipif(not LONG, reason="trains for a minute: LENGTHWISE_LONG=1")
def test_bf16_learns_parity():
    recipe = catalog.recipe("looped-parity", ["lengths=Curriculum(top=8,every=60)", "steps=1200", "watch.every=0"])
    run = train(replace(recipe, keep="last"), matmul="bf16")
    assert scores.exact_match(run.model, recipe, (8,), 1000) >= 0.99
