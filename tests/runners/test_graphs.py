"""Recorded training steps at fixed shapes, as for CUDA graphs, equal the plain runner's for every form of model. On a
CPU a recording computes again from its fixed buffers, which tests everything except the replay."""

import copy
import random
import re
import signal
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from conftest import LONG
from meta_device import build_small_recipe, compute_gradient, list_part_kinds
from shipped_specs import FEW_SPECS, LENGTHS, LOOPS, SHIPPED_SPECS, compute_all_logits
from specs import (
    BASE,
    FEW_MODELS,
    MODELS,
    assert_all_close,
    assert_close,
    build_rows,
    cached_model,
    choose_covering,
    list_ids,
)
from torch import nn
from training_recipes import stop_at

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.progress import Progress
from lengthwise.cli.options import list_training_options
from lengthwise.cli.shared import TrainingOptions
from lengthwise.experiment.data import draw_batch
from lengthwise.models.single_pass import SinglePass
from lengthwise.models.transformer import TransformerModel
from lengthwise.runners import cuda, graphs, waves
from lengthwise.runners.compiled import compile_function
from lengthwise.runners.cuda import DEFAULT_PRODUCT_WIDTH, find_max_product_width
from lengthwise.runners.graphs import Graphs, Recording
from lengthwise.runners.plain import Plain
from lengthwise.runs.run import load
from lengthwise.training import loop
from lengthwise.training.choice import Bf16
from lengthwise.training.loop import Interrupted, prepare_steps, train
from lengthwise.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("fast_runners")
# A batch of several optimizer steps is not captured as one.
RECIPE_NAMES = sorted(
    name for name in SHIPPED_SPECS.values() if not catalog.find_recipe(name).objective.takes_several_steps
)
CASES = [*dict.fromkeys([*SHIPPED_SPECS, *MODELS])] if LONG else [*FEW_SPECS, *FEW_MODELS[:8]]
CASE_IDS = [SHIPPED_SPECS.get(pair) or list_ids([pair])[0] for pair in CASES]


def build_deterministic_model(spec, causal):
    draws = {field.name for field in fields(spec)} & {"dropout", "noise"}
    return copy.deepcopy(cached_model(replace(spec, **dict.fromkeys(draws, 0.0)), causal)).train()


def run_training_step(runner, model, inputs, loops):
    """Return the logits and the gradients that a training step leaves in the parameters."""
    for weight in model.parameters():
        weight.grad = None
    if isinstance(runner, Graphs):
        runner.begin_step()
    read = compute_all_logits(runner, inputs, loops)
    weights = torch.linspace(-1, 1, read.numel(), dtype=read.dtype).view_as(read)
    ((read * weights).sum() + read.square().sum()).backward()
    zero = [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in model.parameters()]
    return [read.detach(), *zero]


@pytest.mark.parametrize(("spec", "causal"), CASES, ids=CASE_IDS)
def test_recorded_passes_equal_the_plain_runner(spec, causal):
    """Values and gradients are equal in the first step, which records, and in a step that reuses its recordings."""
    model, inputs = build_deterministic_model(spec, causal), build_rows(LENGTHS, width=12)
    runner = Graphs(Plain(model))
    run_training_step(runner, model, build_rows(LENGTHS[::-1], width=12, seed=1), LOOPS[::-1])
    assert len(recorded := [*runner.recordings]) == (4 if runner.is_deterministic else 5)
    assert_all_close(*(run_training_step(one, model, inputs, LOOPS) for one in (runner, Plain(model))))
    assert runner.reason is None and {*runner.recordings} == {*recorded}


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    "name", RECIPE_NAMES if LONG else choose_covering({name: list_part_kinds(name) for name in RECIPE_NAMES})
)
def test_many_recorded_steps_give_the_weights_of_the_plain_runner(name):
    recipe, many = replace(build_small_recipe(name), steps=20, clip=0.5), 20 if LONG else 6
    with torch.random.fork_rng([]):
        steps = [Trainer(recipe, torch.device("cpu"), graphs=graphs) for graphs in (True, False)]
        with lw.plain():
            for _ in range(many):
                steps[1].advance()
        for _ in range(many):
            steps[0].advance()
    assert steps[0].runners.describe(1) == "Graphs" and steps[0].replayed_update.captured
    assert steps[0].sums.keys() == steps[1].sums.keys()
    recorded, plain = (
        torch.cat([one.detach().flatten() for one in each.model_to_evaluate().parameters()]) for each in steps
    )
    torch.testing.assert_close(recorded, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))


def test_rows_with_other_positions_have_another_recording():
    """If all rows have equal positions, a recording computes the bias of distances only once, for all rows."""
    model = build_deterministic_model(replace(BASE, positions=(lw.ALiBi(),)), True)
    inputs = build_rows(LENGTHS, width=12)
    shifted = replace(inputs, position=inputs.position * (1 + torch.arange(len(inputs))[:, None] % 3))
    runner = Graphs(Plain(model))
    for rows in (inputs, shifted, inputs):
        assert_all_close(*(run_training_step(one, model, rows, LOOPS) for one in (runner, Plain(model))))
    assert len(runner.recordings) == 8


def test_weights_that_a_pass_does_not_use_have_no_gradient():
    model, inputs = build_deterministic_model(BASE, True), build_rows(LENGTHS)
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
    runner = Graphs(Plain(model))
    run_training_step(runner, model, inputs, LOOPS)
    assert model.unused.grad is None and model.norm.weight.grad is not None


class UserModule(nn.Module):
    def __init__(self, activation=None):
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.activation = activation or (lambda module, x: x.tanh())
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens):
        return self.out(self.activation(self, self.table(tokens)))


class BatchDependentModel(TransformerModel):
    def embed(self, inputs):
        inputs.host.tokens.sum()
        return super().embed(inputs)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("activation", "reason"),
    [
        (None, None),
        (lambda module, x: x * random.random(), "the model draws numbers from Python's generator"),
        (lambda module, x: x + module.seen.add_(1), "the model changes its buffers while it computes"),
        (lambda module, x: x @ x, "mat1 and mat2|must match|size"),
    ],
)
def test_a_users_module_is_recorded_or_the_reason_is_given(activation, reason):
    runner = Graphs(Plain(SinglePass(UserModule(activation)).train()))
    inputs, once = build_rows(LENGTHS), torch.ones(len(LENGTHS), dtype=torch.long)
    runner.begin_step()
    if reason and "mat1" in reason:
        with pytest.raises(RuntimeError):
            runner.last(inputs, once, inputs.padding_mask)
    else:
        torch.manual_seed(0)
        assert runner.last(inputs, once, inputs.padding_mask).shape == (sum(LENGTHS), 20)
    assert runner.reason is None if reason is None else re.search(reason, runner.reason)


def test_a_model_with_batch_dependent_control_flow_is_not_recorded():
    model = build_deterministic_model(BASE, True)
    model.__class__ = BatchDependentModel
    runner, inputs = Graphs(Plain(model)), build_rows(LENGTHS)
    assert_all_close(*(run_training_step(one, model, inputs, LOOPS) for one in (runner, Plain(model))))
    assert "the model's control flow depends on values of its inputs" in runner.reason and not runner.recordings


def test_a_model_with_hooks_is_declined():
    model, called = build_deterministic_model(BASE, True), []
    runner = Graphs(Plain(model))
    assert runner.find_obstacle() is None
    handle = model.norm.register_forward_hook(lambda *_: called.append(1))
    assert runner.find_obstacle() == "it has hooks"
    handle.remove()
    assert runner.find_obstacle() is None


@pytest.mark.usefixtures("no_type_checks")
def test_dropout_changes_with_each_step_and_follows_the_seed():
    model, inputs = copy.deepcopy(cached_model(replace(BASE, dropout=0.5), True)).train(), build_rows(LENGTHS)
    runner, read = Graphs(Plain(model)), []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)  # the first pass after it records, too
        runner.begin_step()
        read.append(runner.last(inputs, torch.tensor(LOOPS), inputs.padding_mask).detach())
    assert torch.equal(read[0], read[2]) and not torch.equal(read[0], read[1])


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("name", ["looped-parity", "abacus-addition", "retran-small", "lstm-small"])
def test_bf16_gradients_are_close_to_those_in_float32(name):
    """Weights are rounded once per pass, also if its first loops have no gradients; norms and losses are in float32."""
    recipe = build_small_recipe(name)
    model = recipe.build().train()
    graphs, (rows, _) = Graphs(Bf16(Plain(model)), bf16=True), draw_batch(recipe, 0)
    graphs.begin_step()
    (loss, found), (exact, near) = compute_gradient(graphs, recipe), compute_gradient(Plain(model), recipe)
    assert graphs.reason is None and loss != exact and found.dtype == torch.float32
    assert abs(loss - exact) < 0.02 * exact and torch.cosine_similarity(found, near, 0) > 0.99
    graphs.begin_step()
    many = torch.full((len(rows),), 4)
    graphs.last(rows.inputs, many, rows.loss_mask, no_grad_loops=2).square().sum().backward()
    assert all(one.grad is not None and one.grad.any() for one in model.parameters() if one.dim() > 1)


@pytest.mark.filterwarnings("ignore")  # warnings from torch's compiler
@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("bf16", [False, True][: 1 + LONG])
def test_all_loops_use_one_compiled_loop(bf16, monkeypatch):
    monkeypatch.setattr(graphs, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    recipe = build_small_recipe("looped-parity")
    model = recipe.build().train()
    plain = Bf16(Plain(model)) if bf16 else Plain(model)
    runner = Graphs(plain, bf16=bf16)
    runner.compiles = True
    runner.begin_step()
    found = [compute_gradient(one, recipe)[1] for one in (runner, plain)]
    assert runner.compiles and runner.reason is None
    torch.testing.assert_close(*found, rtol=0, atol=(0.02 if bf16 else 1e-6) * float(found[1].abs().max()))
    torch._dynamo.reset()


def test_a_gpu_records_steps_by_default(monkeypatch, tmp_path):
    """A CPU stands in for the GPU. A stopped run, when resumed, ends with bit-identical weights."""
    monkeypatch.setattr(loop, "is_worthwhile", lambda device: True)
    recipe = replace(build_small_recipe("looped-parity"), steps=6, batch=4)
    run = train(recipe, tmp_path / "whole")
    assert run.about()["runner"] == "Graphs"
    stop_at(monkeypatch, [3], partial(signal.raise_signal, signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "parts")
    parts = train(recipe, tmp_path / "parts")
    assert parts.about()["runner"] == "Graphs" and "resumed" not in parts.about()
    assert all(map(torch.equal, run.model.parameters(), parts.model.parameters()))
    assert train(recipe, tmp_path / "without", graphs=False).about()["runner"] == "PackedTransformer"
    with lw.plain():
        assert train(recipe, tmp_path / "plain").about()["runner"].startswith("Plain")
    options = TrainingOptions(no_graphs=True)
    assert "--no-graphs" in list_training_options(options)


def test_a_failed_recording_is_reported_and_training_goes_on(monkeypatch):
    monkeypatch.setattr(Recording, "_run_passes", lambda self, times: 1 / 0)
    trainer, notes = Trainer(build_small_recipe("looped-parity"), torch.device("cpu"), graphs=True), []
    monkeypatch.setattr(Progress, "note", lambda self, text: notes.append(text))
    prepare_steps(trainer, Progress(quiet=True), explain=True)
    assert notes == ["looped-parity: runs without CUDA graphs: its step cannot be recorded (division by zero)"]
    trainer.advance()
    assert trainer.runners.describe(1) == "PackedTransformer"


@pytest.mark.usefixtures("no_type_checks")
def test_recordings_are_freed_when_memory_runs_out(monkeypatch):
    """A runner without recordings computes the batch again, in two parts."""
    trainer = Trainer(build_small_recipe("looped-parity"), torch.device("cpu"), graphs=True)
    trainer.advance()
    assert trainer.runners.graphs.recordings

    def run_out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Recording, "copy_batch", run_out_of_memory)
    trainer.advance()
    assert trainer.parts == 2 and not trainer.runners.graphs.recordings


@pytest.mark.parametrize("folder", ["cache", "x" * 300], ids=["writable", "invalid"])
def test_the_faster_attention_is_measured_and_cached(folder, monkeypatch, tmp_path):
    """A cache that cannot be read or written is ignored. Simulated matrix products are faster up to 24 positions."""
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path / folder))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    times = []

    def time_attention(device, dtype, shape, use_kernel):
        times.append(shape[2])
        return shape[2] if use_kernel is cuda.attend_by_products else 24

    monkeypatch.setattr(cuda, "_measure_attention_ms", time_attention)
    for measured in ([16, 16, 24, 24, 32, 32], [] if folder == "cache" else [16, 16, 24, 24, 32, 32]):
        assert find_max_product_width.__wrapped__(torch.device("cuda"), torch.float32, 8) == 24
        assert times == measured
        times.clear()


def test_attention_in_float64_uses_the_default_width():
    """No fused kernel supports float64, so nothing is timed."""
    assert find_max_product_width(torch.device("cuda"), torch.float64, 8) == DEFAULT_PRODUCT_WIDTH


RECURRENT_NAMES = ("retran-small", "lstm-small")


@pytest.fixture(params=RECURRENT_NAMES)
def model(request):
    return load(request.param).model.double().train()


@pytest.fixture
def halve_dropout(monkeypatch):
    """Replace dropout by a factor of one half, so that the results of two models are comparable."""
    monkeypatch.setattr(nn.functional, "dropout", lambda x, p, training=True, inplace=False: 0.5 * x if training else x)


def embed_tokens(model):
    tokens = torch.arange(12).view(3, 4) % 5
    return model.embedding(tokens).detach().requires_grad_()


@pytest.mark.usefixtures("halve_dropout")
def test_waves_apply_dropout_to_the_same_values_as_the_model(model):
    x = embed_tokens(model)
    assert_close(waves.advance(model, x), model.advance(x, x))


def test_dropout_draws_new_numbers_for_each_wave_and_call(model):
    torch.manual_seed(0)
    x = embed_tokens(model)
    first, second = waves.advance(model, x), waves.advance(model, x)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, waves.advance(model, x))


@pytest.mark.filterwarnings("ignore")  # warnings from torch's compiler
@pytest.mark.usefixtures("halve_dropout", "no_type_checks")
def test_a_step_compiles_once_for_all_waves(model):
    x, steps = embed_tokens(model), []

    def compile_step(step):
        steps.append(compile_function(step, "eager"))
        return steps[-1]

    assert_close(waves.advance(model, x, compile_step), model.advance(x, x))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    waves.advance(model, x, compile_step)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before and steps[0] is steps[1]


def test_only_unmodified_recurrent_models_are_supported(model):
    assert waves.can_advance(model)
    assert not waves.can_advance(load("looped-parity").model)
    part = next(part for part in model.modules() if isinstance(part, nn.Linear))
    part.forward = partial(nn.Linear.forward, part)
    assert not waves.can_advance(model)
