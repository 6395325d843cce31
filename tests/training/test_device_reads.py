"""With every shipped model, the host never waits for the device in training and reads once per batch in evaluation;
bf16 and TF32 training.

The meta device stands in for a GPU. It computes nothing, so reading a number from it is an error; copies from it, and
copies to it that make the host wait, are counted.
"""

import contextlib
from dataclasses import replace

import pytest
import torch
from conftest import LONG
from devices import FEW, META, NAMES, Reads, gradient_by, on_meta, small
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

import lengthwise as lw
from lengthwise.base.types import UsageError, to_device
from lengthwise.evaluation.answers import predict_by_rules
from lengthwise.experiment.data import draw_batch
from lengthwise.runners.plain import Plain
from lengthwise.training import checkpoint
from lengthwise.training.choice import Bf16
from lengthwise.training.descent import EMA
from lengthwise.training.loop import Trainer, train

# Without LENGTHWISE_LONG a few recipes with every encoding and objective; recurrent models take many operations.
shipped = pytest.mark.parametrize("name", NAMES if LONG else FEW)


@pytest.mark.usefixtures("no_type_checks")
@shipped
def test_no_read_in_a_step_and_one_per_batch_of_evaluation(name):
    recipe = small(name)
    trainee = on_meta(recipe)
    with Reads() as reads:
        trainee.advance()
        trainee.advance()  # in the first step, the moving average starts
    assert not reads.found
    rows, _ = draw_batch(recipe, 0)
    for asked in [[lw.Oracle()]] + [[lw.MaxConfidence(1), lw.After(1)]] * (not recipe.layout.decodes):
        with Reads() as reads:
            predict_by_rules(trainee.model, recipe, rows, asked)
        assert reads.found == {"copy": 1}


def test_reads_and_copies_that_wait_are_counted():
    there, here, mask = torch.zeros(3, device=META), torch.ones(3), torch.tensor([True, False, True])
    waits = [lambda: here.to(META), lambda: there.copy_(here)]
    for read in (there.tolist, there.sum().item, lambda: bool(there.any()), there.nonzero, lambda: there[there > 0],
                 lambda: there.where(there > 0, 1).cpu(), lambda: there[mask], *waits):  # fmt: skip
        with Reads() as reads, contextlib.suppress(RuntimeError, NotImplementedError):
            read()
        assert [*reads.found.values()] == [1] and ("waits" in reads.found) == (read in waits)
    with Reads() as reads:
        to_device(here, META)
    assert not reads.found


def test_a_checkpoint_suits_any_device():
    """A checkpoint is on the CPU, and is validated against a trainer on any device."""
    recipe = small("looped-parity")
    trainee, there = Trainer(recipe, torch.device("cpu")), on_meta(recipe)
    trainee.advance()
    there.full_state()
    for value in (value for kept in there.optimizer.state.values() for value in kept.values()):
        assert value.is_meta or value.shape == ()
    checkpoint.validate_state(trainee.state(), there.state())
    with pytest.raises(ValueError, match=r"model: .* must be of the form"):
        checkpoint.validate_state(there.state(), trainee.state())


def test_the_moving_average_equals_that_of_torch():
    recipe = small("looped-parity")
    models = [recipe.build() for _ in range(2)]
    ours, theirs = EMA(models[0], 0.9), AveragedModel(models[1], multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        ours.move_towards(models[0])
        ours.n_averaged += 1
        theirs.update_parameters(models[1])
        for weight in (weight for model in models for weight in model.parameters()):
            weight.data.mul_(1.1)
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    assert not all(map(torch.equal, ours.module.parameters(), models[0].parameters()))


# Number of operations


class Operations(TorchDispatchMode):
    """A counter of the operations that a device is given, without views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += not operation.is_view
        return operation(*args, **(kwargs or {}))


MOST = {lw.Transformer: 135, lw.LSTM: 34, lw.ReTran: 108}  # forward and backward: per loop, or per loop and position


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("name", NAMES if LONG else [*FEW, "lstm-small", "retran-small"])
def test_a_layer_takes_few_operations(name):
    """A loop takes few operations, as most take a device less time than the host takes to launch them."""
    recipe = small(name)
    model, (rows, loops), kind = recipe.build(), draw_batch(recipe, 0), type(recipe.model)
    with Operations() as operations:
        recipe.objective(Plain(model), rows, loops, lw.stream(0, "objective")).value.backward()
    positions = 1 if kind is lw.Transformer else rows.inputs.tokens.shape[1]
    assert operations.count <= MOST[kind] * positions * int(loops.max())


# Arithmetic


@pytest.mark.usefixtures("no_type_checks")
@shipped
def test_bf16_gives_nearly_the_same_loss_and_gradient(name):
    recipe = small(name)
    model = recipe.build()
    (loss, exact), (lower, near) = gradient_by(Plain(model), recipe), gradient_by(Bf16(Plain(model)), recipe)
    assert lower.dtype == near.dtype == torch.float32
    assert loss != lower
    assert abs(loss - lower) < 0.02 * loss
    assert torch.cosine_similarity(exact, near, 0) > 0.99


@pytest.mark.usefixtures("no_type_checks")
def test_bf16_loops_without_gradients_keep_the_gradients_of_later_loops():
    recipe = small("looped-parity")
    rows, _ = draw_batch(recipe, 0)
    runner = Bf16(Plain(recipe.build()))
    many = torch.full((len(rows),), 4)
    runner.last(rows.inputs, many, rows.loss_mask, no_grad_loops=3).square().sum().backward()
    assert all(one.grad is not None and one.grad.any() for one in runner.model.blocks.parameters() if one.dim() > 1)


def test_a_run_names_its_arithmetic():
    recipe = replace(small("looped-parity"), steps=2)
    run = train(recipe, matmul="bf16")
    assert run.about()["matmul"] == "bf16" and run.about()["runner"] == "Bf16"
    assert {weight.dtype for weight in run.model.state_dict().values()} == {torch.float32}
    with pytest.raises(UsageError, match="tf32 needs a CUDA device"):
        train(replace(recipe, seed=1), matmul="tf32")
