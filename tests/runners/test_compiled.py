"""The compiled runner equals the plain one, compiles once per bucket of lengths and runs only on request. With
LENGTHWISE_LONG=1 torch's real compiler is tested too, which takes minutes."""

import json
import os
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import LONG, command
from meta_device import FEW_RECIPES, MetaReadCounter, build_meta_trainer, build_small_recipe
from shipped_specs import LENGTHS as ROWS
from shipped_specs import LOOPS, RECIPE, SHIPPED_SPECS, compute_all_logits, run_plain
from specs import BASE, MODELS, READS, WRITES, assert_all_close, build_rows, cached_model, compute_gradients, list_ids
from training_recipes import PLAIN, read_outcome, stop_at

import lengthwise as lw
from lengthwise.cli import entry
from lengthwise.cli.options import list_training_options
from lengthwise.nn.position import Learned, Mark
from lengthwise.runners import compiled, cpu
from lengthwise.runners.compiled import Compiled
from lengthwise.runners.plain import Plain
from lengthwise.training.loop import Interrupted, train

pytestmark = pytest.mark.usefixtures("fast_runners")
needs_minutes = pytest.mark.skipif(not LONG, reason="compiles for minutes: LENGTHWISE_LONG=1")
allows_half_an_hour = pytest.mark.timeout(1800)  # also on a busy machine


@pytest.fixture
def no_compilation(monkeypatch):
    """Replace each compiled function by the function itself, to test everything else that the runner does."""
    monkeypatch.setattr(compiled, "compile_function", lambda function, backend: function)


@pytest.fixture
def traced_graphs(no_type_checks, monkeypatch):
    """Collect the traced graphs and run them uncompiled, without type checks, which cannot be traced."""
    graphs = []

    def collect_graph(graph, inputs):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(compiled, "BACKEND", collect_graph)
    yield graphs
    torch._dynamo.reset()


@pytest.fixture
def real_compiler(no_type_checks):
    yield
    torch._dynamo.reset()


ignores_warnings = pytest.mark.filterwarnings("ignore")  # torch's compiler causes warnings, which are errors here


# Values and gradients

TRANSFORMERS = [pair for pair in dict.fromkeys([*SHIPPED_SPECS, *MODELS]) if isinstance(pair[0], lw.Transformer)]
TESTED_SPECS = TRANSFORMERS if LONG else TRANSFORMERS[::10]


@pytest.mark.usefixtures("no_compilation")
@pytest.mark.parametrize(("spec", "causal"), TESTED_SPECS, ids=list_ids(TESTED_SPECS))
def test_values_and_gradients_equal_the_plain_runner(spec, causal):
    model, inputs = cached_model(spec, causal), build_rows(ROWS, width=12)
    found = compute_all_logits(Compiled(model), inputs, LOOPS)
    assert_all_close(compute_gradients(found, model), run_plain(spec, causal))


@pytest.mark.usefixtures("no_compilation")
@pytest.mark.parametrize("length", [15, 17, 20, 21])
def test_padding_does_not_exceed_the_table_of_positions(length):
    model, inputs = cached_model(replace(BASE, positions=(Learned(20),)), True), build_rows([length, 3])
    ask = partial(Compiled(model).last, inputs, torch.tensor([1, 2]), inputs.padding_mask)
    if length > 20:
        with pytest.raises(lw.UsageError, match="a row of 21 positions"):
            ask()
    else:
        plain = Plain(model).last(inputs, torch.tensor([1, 2]), inputs.padding_mask)
        assert_all_close(compute_gradients(ask(), model), compute_gradients(plain, model))


@ignores_warnings
def test_one_graph_is_compiled_per_bucket_of_lengths(traced_graphs):
    """Other lengths and numbers of loops reuse the graph; a longer bucket or loops without gradients need
    another."""
    model = cached_model(BASE, True)

    def compute_step(runner, lengths, loops, no_grad_loops=0):
        inputs = build_rows(lengths)
        read = runner.last(inputs, torch.tensor(loops), inputs.padding_mask, no_grad_loops=no_grad_loops)
        return compute_gradients(read, model)

    asked_of = [([3, 1, 2], [2, 5, 1]), ([16, 9, 4], [1, 1, 1]), ([17, 3, 2], [2, 2, 3]), ([9, 2, 2], [4, 4, 1], 2)]
    for more, asked in [*zip([1, 0, 1, 1], asked_of, strict=True)][: 4 if LONG else 3]:
        before = len(traced_graphs)
        assert_all_close(compute_step(Compiled(model), *asked), compute_step(Plain(model), *asked))
        assert len(traced_graphs) == before + more


@pytest.mark.usefixtures("no_compilation", "no_type_checks")
@pytest.mark.parametrize("name", FEW_RECIPES if LONG else ["halting-parity"])
def test_a_step_reads_nothing_from_the_device(name):
    trainee = build_meta_trainer(build_small_recipe(name))
    trainee.runner = lambda: Compiled(trainee.model)
    with MetaReadCounter() as reads:
        trainee.advance()
        trainee.advance()
    assert not reads.found


# Choice of the runner


def test_the_compiled_runner_is_chosen_only_on_request():
    model, asked = RECIPE.build(), (Compiled, *cpu.RUNNERS)
    assert cpu.describe_choice(model) == "PackedTransformer" and cpu.describe_choice(model, asked) == "Compiled"
    assert type(cpu.choose_runner(model, asked)) is Compiled
    with lw.plain():
        assert cpu.find_compile_obstacle(model) == "faster runners are turned off"
        assert cpu.describe_choice(model, asked) == "Plain: faster runners are turned off"
        assert type(cpu.choose_runner(model, asked)) is Plain


@pytest.mark.parametrize(
    ("spec", "reason"),
    [(replace(BASE, dropout=0.1), "it has dropout"), (replace(BASE, noise=0.1), "its initial state is random"),
     (lw.LSTM(4, 5, 2), "unknown type, LSTMModel")],
    ids=["dropout", "noise", "lstm"],
)  # fmt: skip
def test_unsupported_models_are_declined_with_a_reason(spec, reason):
    model = spec.build(READS, WRITES, causal=True)
    assert reason in cpu.find_compile_obstacle(model)
    assert type(cpu.choose_runner(model, (Compiled, *cpu.RUNNERS))) in cpu.RUNNERS


# Training


def build_tiny_recipe(**changes):
    return replace(PLAIN, steps=4, model=replace(PLAIN.model, dropout=0.0, positions=(Mark(),)), **changes)


def test_a_compiled_run_is_close_to_an_uncompiled_one_and_resumes_bit_identically(traced_graphs, monkeypatch, tmp_path):
    recipe = build_tiny_recipe()
    run = lw.train(recipe, folder=tmp_path / "one", compile=True, quiet=True)
    other = train(recipe, tmp_path / "other")
    assert len(traced_graphs) == 1 and run.recipe.id == other.recipe.id
    about = run.about(), other.about()
    assert [(one["runner"], one["compiled"]) for one in about] == [("Compiled", True), ("PackedTransformer", False)]
    for name, weight in run.model.state_dict().items():
        torch.testing.assert_close(weight, other.model.state_dict()[name], atol=1e-4, rtol=0)
    stop_at(monkeypatch, [2], lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe, compile=True)
    again = train(recipe, compile=True)
    assert read_outcome(again) == read_outcome(run) and "resumed" not in again.about()


TRAIN_COMMAND = ["train", "looped-parity", "steps=3", "batch=4", "model.width=8", "lengths=Uniform(top=4)",
                 "watch.every=0", "keep=last", "--lengths", "2,5", "--samples", "4", "--quiet",
                 "--compile"]  # fmt: skip


def test_without_a_compiler_training_is_refused_in_one_line(traced_graphs, monkeypatch, runs):
    def raise_missing_compiler(graph, inputs):
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(compiled, "BACKEND", raise_missing_compiler)
    done = command(*TRAIN_COMMAND)
    assert done.returncode == 2 and not runs.exists()
    assert done.stderr.startswith("lengthwise: looped-parity: torch cannot compile here (") and "C++" in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("); omit compile\n")


def test_notes_say_why_a_model_runs_uncompiled_or_that_compiling_on_a_cpu_is_slower(no_compilation):
    for words, note, compiles in (
        (["model.dropout=0.1"], "runs uncompiled: it has dropout", False),
        ([], "compiled steps on a CPU took 3.3 times as long as the package's own runner; omit compile", True),
    ):
        done = command(*TRAIN_COMMAND, *words, "--json")
        assert (done.returncode, done.stderr) == (0, f"lengthwise: looped-parity: {note}\n")
        about = json.loads(done.stdout)[0]["about"]
        assert (about["runner"], about["compiled"]) == ("Compiled" if compiles else "PackedTransformer", compiles)


def test_the_compile_option_is_passed_to_jobs():
    for words in (["train", "looped-parity"], ["reproduce", "pairs"], ["sweep", "looped-parity", "model.width=8,16"]):
        plain, compiling = (entry.load_verb(entry.parse(given)).args[0] for given in (words, [*words, "--compile"]))
        assert "--compile" not in list_training_options(plain) and "--compile" in list_training_options(compiling)


def test_stack_and_compile_exclude_each_other(runs):
    done = command(*TRAIN_COMMAND, "--seeds", 2, "--stack")
    message = "lengthwise: --stack does not support --compile: omit one of them\n"
    assert (done.returncode, done.stderr) == (2, message) and not runs.exists()


# With the real compiler


@needs_minutes
@allows_half_an_hour
@ignores_warnings
@pytest.mark.parametrize(("spec", "causal"), TRANSFORMERS[::12], ids=list_ids(TRANSFORMERS[::12]))
def test_the_real_compilers_result_equals_the_plain_runner(spec, causal, real_compiler):
    model, inputs = cached_model(spec, causal), build_rows(ROWS, width=12)
    found = compute_gradients(compute_all_logits(Compiled(model), inputs, LOOPS), model)
    for one, two in zip(found, run_plain(spec, causal), strict=True):
        torch.testing.assert_close(one, two, atol=1e-10 * max(1.0, float(two.abs().max())), rtol=0)
