"""Tests of behaviour on a GPU, run without one: differences from a CPU, and steps in which the host never waits.

The meta device stands in for a GPU. It computes nothing, so reading a number from it is an error; copies from it, and
copies to it that make the host wait, are counted.
"""

import contextlib
from dataclasses import replace

import pytest
import torch
from conftest import LONG
from meta_device import (
    FEW_RECIPES,
    META_DEVICE,
    RECIPE_NAMES,
    TRANSFORMER_RECIPES,
    MetaReadCounter,
    build_meta_trainer,
    build_small_recipe,
    compute_gradient,
)
from specs import list_parts, name_spec
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base import rng
from lengthwise.base.types import UsageError, to_device
from lengthwise.cli.options import local_device
from lengthwise.cli.shared import TrainingOptions
from lengthwise.evaluation import causality, depth, families, scores
from lengthwise.evaluation.answers import predict_by_rules
from lengthwise.experiment.data import draw_batch
from lengthwise.runners.plain import Plain
from lengthwise.runs.run import Run, choose_device, load
from lengthwise.training import checkpoint, choice, cost
from lengthwise.training.arithmetic import computation_settings, step_precision
from lengthwise.training.choice import Bf16, MicroBatches
from lengthwise.training.descent import EMA
from lengthwise.training.loop import train
from lengthwise.training.processes import open_process_group
from lengthwise.training.trainer import Trainer
from lengthwise.verify import verification

CUDA = torch.device("cuda")


@pytest.mark.parametrize(("device", "is_asynchronous"), [("meta", True), ("mps", False)])
def test_only_copies_to_mps_are_blocking(device, is_asynchronous, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking=False: asked.append(non_blocking) or self)
    to_device(torch.ones(2), torch.device(device))
    assert asked == [is_asynchronous]


def test_recomputed_parts_draw_dropout_on_their_device(monkeypatch):
    """Recomputed parts draw dropout again on their device: torch restores the generators of its arguments' devices."""
    recipe = build_small_recipe("looped-parity")
    model, given = recipe.build().to(META_DEVICE), []
    monkeypatch.setattr(choice, "checkpoint", lambda function, *rest, use_reentrant: given.append(rest))
    MicroBatches(Plain(model), 2)._recompute(lambda rows: None, slice(2))
    assert META_DEVICE in [part.device for part in given[0] if isinstance(part, torch.Tensor)]


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_the_attention_kernel_does_not_change_the_count_of_operations(kernel):
    weights, recipe = load("gpt-small"), replace(catalog.find_recipe("abacus-positions-nope"), batch=8)
    with sdpa_kernel(kernel):
        found = verification.count_operations(weights, (20,)), cost.count_operations(recipe, 2, 1)
    width, layers, positions = weights.recipe.model.width, weights.recipe.model.layers, 20
    linear = 2 * positions * sum(one.weight.numel() for one in weights.model.modules() if isinstance(one, nn.Linear))
    assert found[0] - linear >= 2 * 2 * layers * width * positions**2  # queries times keys, and weights times values
    with sdpa_kernel(SDPBackend.MATH):
        assert found == (verification.count_operations(weights, (20,)), cost.count_operations(recipe, 2, 1))


def read_precision_settings():
    cudnn = torch.backends.cudnn
    parts = torch.backends.cuda.matmul, *(getattr(cudnn, name, None) for name in ("conv", "rnn"))
    return torch.get_float32_matmul_precision(), cudnn.allow_tf32, [getattr(one, "fp32_precision", 0) for one in parts]


def test_tf32_is_on_only_during_training_steps():
    first = read_precision_settings()
    with computation_settings(1):  # which restores the settings
        torch.set_float32_matmul_precision("high")
        before = read_precision_settings()
        with computation_settings(1):
            assert read_precision_settings()[:2] == ("highest", False)
            with step_precision("tf32"):
                assert read_precision_settings()[:2] == ("high", True)
            for matmul in ("fp32", "bf16"):
                with step_precision(matmul):
                    assert read_precision_settings()[:2] == ("highest", False)
        assert read_precision_settings() == before
    assert read_precision_settings() == first


def test_a_step_uses_the_requested_precision(monkeypatch):
    recipe, seen = build_small_recipe("looped-parity"), []
    trainee = Trainer(recipe, torch.device("cpu"), matmul="tf32")
    steps = trainee.objective_losses

    def record_precision(*asked):
        seen.append(torch.get_float32_matmul_precision())
        yield from steps(*asked)

    monkeypatch.setattr(trainee, "objective_losses", record_precision)
    trainee.advance()
    assert seen == ["high"] and torch.get_float32_matmul_precision() == "highest"


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch 2.9 or newer")
def test_torch_s_newer_precision_settings_are_restored():
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    try:
        backend.fp32_precision = "tf32"  # with it, torch refuses to read the older setting
        with computation_settings(1):
            assert backend.fp32_precision == "ieee"
        assert backend.fp32_precision == "tf32"
    finally:
        backend.fp32_precision = before


class CallCounter(nn.Module):
    asked = 0

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(3, 4), nn.Linear(4, 20)

    def forward(self, tokens):
        self.asked += 1
        return self.out(self.table(tokens))


def test_an_unknown_symbol_does_not_reach_a_gpu(monkeypatch):
    module = CallCounter()
    monkeypatch.setattr(causality, "get_device", lambda model: CUDA)
    with pytest.raises(UsageError, match="has too few embeddings for the"):
        lw.evaluate(module, [3], task="addition", samples=2)
    assert module.asked == 0


def test_each_process_has_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked, zeros = [], torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device=None: asked.append(device) or zeros(*size))
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert choose_device("cuda") == choose_device("auto") == choose_device(CUDA) == torch.device("cuda:1")
    assert asked == [torch.device("cuda:1")] * 3  # no context on another GPU
    with pytest.raises(UsageError, match="write cuda, not cuda:0"), open_process_group(torch.device("cuda:0")):
        pass


def test_checkpoints_sent_between_processes_leave_out_the_best_weights():
    recipe = replace(build_small_recipe("looped-parity"), watch=catalog.find_recipe("looped-parity").watch, keep="best")
    first, other = (Trainer(recipe, torch.device("cpu")) for _ in range(2))
    first.advance()
    first.validator.best = {"merit": 1.0, "step": 1, "weights": first.model.state_dict()}
    state = checkpoint.build_checkpoint_to_send(first.state())
    assert state["best"]["weights"] == {} and first.validator.best["weights"]
    other.load_state(state)
    assert all(map(torch.equal, first.model.parameters(), other.model.parameters()))


def build_remote_options(**changes):
    return TrainingOptions(**{"on": "Slurm(gpus=1)", "device": "cuda", "matmul": "tf32", "compile": True} | changes)


def test_remote_training_on_gpus_needs_no_local_gpu():
    assert local_device(build_remote_options()) == (torch.device("cpu"), "fp32")
    assert local_device(build_remote_options(matmul="bf16")) == (torch.device("cpu"), "bf16")
    for nowhere in ({"device": "cpu"}, {"on": "local", "device": "cpu"}):  # tf32 is kept, so it is refused later
        assert local_device(build_remote_options(**nowhere)) == (torch.device("cpu"), "tf32")
    with pytest.raises(UsageError, match="'abacus' is not a device"):
        local_device(build_remote_options(device="abacus"))


def test_a_gpu_step_that_would_take_too_long_is_not_timed(monkeypatch):
    monkeypatch.setattr(cost, "_estimate_step", lambda recipe: 1e6)
    assert cost.time_gpu_step(build_small_recipe("looped-parity"), 1) is None


def test_evaluation_on_a_gpu_uses_larger_batches(monkeypatch):
    weights, seen = load("looped-parity"), []
    parts = scores.split_batches
    monkeypatch.setattr(scores, "split_batches", lambda *asked, **more: seen.append(asked[2]) or parts(*asked, **more))
    list(scores.evaluate(weights, [4], samples=4))
    monkeypatch.setattr(scores, "get_device", lambda model: CUDA)
    list(scores.evaluate(weights, [4], samples=4))
    assert seen == [scores.CACHE_POSITIONS, scores.GPU_POSITIONS_FACTOR * scores.MAX_POSITIONS]


def test_measurements_after_training_use_the_training_device(monkeypatch):
    asked = []

    def record_device(self, device="cpu"):
        asked.append(device)
        raise InterruptedError

    monkeypatch.setattr(Run, "weights", record_device)
    run = Run.locate(build_small_recipe("looped-parity"))
    for measure in (
        lambda: families.measure_sealed(run, [4], samples=2, family_samples=2, device=CUDA),
        lambda: depth.measure_depths(run, [4], 2, device=CUDA),
    ):
        with pytest.raises(InterruptedError):
            measure()
    assert asked == [CUDA, CUDA]


def test_the_moving_average_copies_integers_and_buffers():
    model = nn.Linear(2, 2)
    model.count = nn.Parameter(torch.tensor([3]), requires_grad=False)
    model.register_buffer("seen", torch.tensor([0.0]))
    average = EMA(model, 0.5)
    first = model.weight.detach().clone()
    for number in range(2):
        model.count.data += 1
        model.seen += 1
        average.move_towards(model)
        average.n_averaged += 1
        assert average.module.count.tolist() == [4 + number] and average.module.seen.tolist() == [1 + number]
        model.weight.data.zero_()
    torch.testing.assert_close(average.module.weight.detach(), first / 2)


def test_the_seed_of_an_unused_gpu_is_preserved(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with rng.preserve_generators():
        torch.manual_seed(7)
        with rng.preserve_generators():
            torch.manual_seed(8)
        assert seeds[-1] == 7


# Without LENGTHWISE_LONG a few recipes with every encoding and objective; recurrent models take many operations.
for_shipped_recipes = pytest.mark.parametrize("name", RECIPE_NAMES if LONG else FEW_RECIPES)


@pytest.mark.usefixtures("no_type_checks")
@for_shipped_recipes
def test_a_step_reads_nothing_from_the_gpu_and_evaluation_reads_once_per_batch(name):
    recipe = build_small_recipe(name)
    trainee = build_meta_trainer(recipe)
    with MetaReadCounter() as reads:
        trainee.advance()
        trainee.advance()  # in the first step, the moving average starts
    assert not reads.found
    rows, _ = draw_batch(recipe, 0)
    for asked in [[lw.Oracle()]] + [[lw.MaxConfidence(1), lw.After(1)]] * (not recipe.layout.decodes):
        with MetaReadCounter() as reads:
            predict_by_rules(trainee.model, recipe, rows, asked)
        assert reads.found == {"copy": 1}


def test_reads_and_copies_that_make_the_host_wait_are_counted():
    there, here, mask = torch.zeros(3, device=META_DEVICE), torch.ones(3), torch.tensor([True, False, True])
    waits = [lambda: here.to(META_DEVICE), lambda: there.copy_(here)]
    for read in (there.tolist, there.sum().item, lambda: bool(there.any()), there.nonzero, lambda: there[there > 0],
                 lambda: there.where(there > 0, 1).cpu(), lambda: there[mask], *waits):  # fmt: skip
        with MetaReadCounter() as reads, contextlib.suppress(RuntimeError, NotImplementedError):
            read()
        assert [*reads.found.values()] == [1] and ("waits" in reads.found) == (read in waits)
    with MetaReadCounter() as reads:
        to_device(here, META_DEVICE)
    assert not reads.found


def test_the_moving_average_equals_that_of_torch():
    recipe = build_small_recipe("looped-parity")
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


class OperationCounter(TorchDispatchMode):
    """A counter of the operations that a device computes; views are not counted."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += not operation.is_view
        return operation(*args, **(kwargs or {}))


MAX_OPERATIONS = {
    lw.Transformer: 135,
    lw.LSTM: 34,
    lw.ReTran: 108,
}  # forward and backward: per loop, or per loop and position


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("name", [*(TRANSFORMER_RECIPES if LONG else FEW_RECIPES), "lstm-small", "retran-small"])
def test_a_loop_takes_few_operations(name):
    """A loop takes few operations, because the host takes longer to launch most of them than a GPU to compute them."""
    recipe = build_small_recipe(name)
    model, (rows, loops), kind = recipe.build(), draw_batch(recipe, 0), type(recipe.model)
    with OperationCounter() as operations:
        recipe.objective(Plain(model), rows, loops, lw.stream(0, "objective")).value.backward()
    positions = 1 if kind is lw.Transformer else rows.inputs.tokens.shape[1]
    assert operations.count <= MAX_OPERATIONS[kind] * positions * int(loops.max())


# Arithmetic


@pytest.mark.usefixtures("no_type_checks")
@for_shipped_recipes
def test_bf16_gives_nearly_the_same_loss_and_gradient(name):
    recipe = build_small_recipe(name)
    model = recipe.build()
    (loss, exact), (lower, near) = compute_gradient(Plain(model), recipe), compute_gradient(Bf16(Plain(model)), recipe)
    assert lower.dtype == near.dtype == torch.float32
    assert loss != lower
    assert abs(loss - lower) < 0.02 * loss
    assert torch.cosine_similarity(exact, near, 0) > 0.99


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("mixer", list_parts("mixers"), ids=name_spec)
def test_no_norm_of_a_mixer_gets_bf16_values_and_32_bit_weights(mixer):
    """torch warns if a norm gets both, by default once per process."""
    recipe = build_small_recipe("settled-parity")
    recipe = replace(recipe, model=lw.Transformer(width=8, heads=2, mixer=mixer))
    torch.set_warn_always(True)
    try:
        compute_gradient(Bf16(Plain(recipe.build())), recipe)
    except lw.UsageError as error:
        assert "this CPU cannot compute" in str(error) and type(mixer).__name__ == "LSTMLayer"
    finally:
        torch.set_warn_always(False)


@pytest.mark.usefixtures("no_type_checks")
def test_bf16_loops_without_gradients_keep_the_gradients_of_later_loops():
    recipe = build_small_recipe("looped-parity")
    rows, _ = draw_batch(recipe, 0)
    runner = Bf16(Plain(recipe.build()))
    many = torch.full((len(rows),), 4)
    runner.last(rows.inputs, many, rows.loss_mask, no_grad_loops=3).square().sum().backward()
    assert all(one.grad is not None and one.grad.any() for one in runner.model.blocks.parameters() if one.dim() > 1)


def test_a_run_records_the_precision_of_its_products():
    recipe = replace(build_small_recipe("looped-parity"), steps=2)
    run = train(recipe, matmul="bf16")
    assert run.about()["matmul"] == "bf16" and run.about()["runner"] == "Bf16"
    assert {weight.dtype for weight in run.model.state_dict().values()} == {torch.float32}
    with pytest.raises(UsageError, match="tf32 needs a CUDA device"):
        train(replace(recipe, seed=1), matmul="tf32")
