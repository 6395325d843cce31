"""Training: data is a pure function of the step, a resumed run ends like an uninterrupted one, and damaged or malicious
files are refused."""

import copy
import errno
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import run_through_crashes
from hypothesis import given, settings
from hypothesis import strategies as st
from training_recipes import LAMB, MASTERED, MODEL, PLAIN, RICH, SEGMENTED, read_outcome, stop_at, train_uninterrupted

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base import rng
from lengthwise.evaluation import scores
from lengthwise.evaluation.answers import predict
from lengthwise.experiment import data
from lengthwise.runners.cpu import choose_runner, plain
from lengthwise.runs.run import Run, load
from lengthwise.training import loop as training
from lengthwise.training.loop import Interrupted, catch_stop_signals, computation_settings, train
from lengthwise.training.stacked import train_stacked
from lengthwise.training.trainer import try_training
from lengthwise.training.validation import Validator


def write_finished_run(recipe):
    """Write a finished run's folder, with the weights of ``train_uninterrupted``, and return the folder."""
    folder = Run.of(recipe).folder
    (folder / "model.safetensors").write_bytes(train_uninterrupted(recipe)[0])
    return folder


# Data


@settings(max_examples=5)
@given(st.permutations(range(4)), st.integers(0, 3))
def test_batch_i_is_a_function_of_i_alone(order, data_seed):
    recipe = replace(RICH, data_seed=data_seed)
    first = {i: data.draw_batch(recipe, i) for i in range(4)}
    for i in order:
        torch.manual_seed(i)
        again, loops = data.draw_batch(recipe, i)
        assert are_equal_batches(again, first[i][0]) and torch.equal(loops, first[i][1])


def are_equal_batches(first, second):
    first, second = ({**vars(batch), **vars(batch.inputs), "inputs": batch.rounds} for batch in (first, second))
    return all(torch.equal(first[name], second[name]) for name in first)


def test_problems_depend_on_step_and_data_seed_but_not_on_the_seed_of_weights():
    recipe = replace(RICH, lengths=lw.Uniform(30, 20))
    batches = [data.draw_batch(replace(recipe, data_seed=seed), step)[0] for seed in range(3) for step in range(3)]
    assert len({str(batch.inputs.tokens[:, :20].tolist()) for batch in batches}) == 9
    recipe = replace(RICH, batch=40)
    (one, loops), (two, others) = (data.draw_batch(replace(recipe, seed=seed), 0) for seed in (0, 1))
    assert are_equal_batches(one, two)
    assert not torch.equal(loops, others)


class _HardAllOnes(lw.Parity):
    """A task whose hard problems are all ones."""

    def sample_hard(self, sizes, generator):
        ones = self.sample(sizes, generator)
        return lw.Problems(**{**vars(ones), "prompt": torch.ones_like(ones.prompt)})


@pytest.mark.parametrize(("hard", "hard_count"), [(0.0, 0), (0.3, 3), (0.5, 5), (1.0, 10)])
def test_a_fraction_of_every_batch_is_hard_at_any_length(hard, hard_count):
    recipe = replace(PLAIN, task=_HardAllOnes(), batch=10, hard=hard, lengths=lw.Uniform(40, 30, longest=0.5))
    longest = set()
    for step in range(5):
        batch, _ = data.draw_batch(recipe, step)
        marked = (batch.inputs.tokens[:, :30] == 1).all(1)
        assert int(marked.sum()) == hard_count
        longest |= set((batch.sizes[marked, 0] == 40).tolist())
    assert longest == ({True, False} if hard_count else set())


# Training equals a plain loop


def run_plain_training_loop(recipe):
    """Return weights, their moving average by its formula, and the loss of each step of a plain training loop."""
    model = recipe.build()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=recipe.optimizer.weight_decay)
    average, losses = None, []
    for step in range(recipe.steps):
        batch, loops = data.draw_batch(recipe, step)
        torch.manual_seed(rng.derive_seed(recipe.seed, "dropout", step))
        own = []
        for loss in recipe.objective.steps(
            choose_runner(model), batch, loops, rng.stream(recipe.seed, "objective", step)
        ):
            optimizer.zero_grad()
            loss.value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            for group in optimizer.param_groups:
                group["lr"] = recipe.optimizer.rate * recipe.schedule.factor(step, recipe.steps)
            optimizer.step()
            own.append(float(loss.value.detach()))
            weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
            if average:
                average = {name: recipe.ema * average[name] + (1 - recipe.ema) * weights[name] for name in weights}
            elif step == recipe.ema_start:
                average = weights
        losses.append(sum(own) / len(own))
    return weights, average, losses


@pytest.mark.parametrize(
    "recipe",
    [replace(RICH, ema=0.0, keep="last"), replace(RICH, keep="last"), replace(SEGMENTED, clip=0.1, steps=15)],
    ids=["plain", "ema", "several steps on a batch"],
)
def test_training_equals_a_plain_loop_and_ema_equals_its_formula(recipe):
    run = train(recipe)
    weights, average, losses = run_plain_training_loop(recipe)
    for name, value in run.weights().model.state_dict().items():
        torch.testing.assert_close(value, (average if recipe.ema else weights)[name], atol=1e-5, rtol=0)
    logged = {row["step"]: row["loss"] for row in run.rows("metrics") if "loss" in row}
    assert logged == pytest.approx({10: sum(losses[:10]) / 10, 15: sum(losses[10:]) / 5}, abs=1e-5)


def test_continuing_with_another_runner_is_reported(fast_runners, monkeypatch, capsys):
    stop_at(monkeypatch, [2], lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted):
        train(PLAIN)
    with plain():
        run = train(PLAIN)
    told = "continues from step 2 with runner Plain: faster runners are turned off instead of PackedTransformer"
    assert told in capsys.readouterr().err
    assert run.about()["resumed"] == [{"step": 2, "runner": "PackedTransformer"}]


def test_a_fixed_set_that_leaves_no_validation_problems_is_refused_before_training():
    """Size 1 has two problems, which a set of 200 may contain, so validation at size 1 is refused."""
    recipe = replace(
        PLAIN, task=lw.Parity(), lengths=lw.Uniform(10), source=lw.Finite(rows=200), hard=0.0, families=0.0
    )
    with pytest.raises(lw.UsageError, match="for the validation part"):
        try_training(replace(recipe, watch=lw.Watch(every=20, sizes=(1, 10), count=20)), torch.device("cpu"))
    try_training(replace(recipe, watch=lw.Watch(every=20, sizes=(10,), count=20)), torch.device("cpu"))


@pytest.mark.parametrize("kind", ["Abacus", "Coupling"])
def test_digit_positions_beyond_the_table_are_refused_before_training(kind):
    words = [f"model.positions=({kind}(offset=100),)", "watch.every=0", "keep=last"]
    recipe = catalog.find_recipe("abacus-addition", [*words, "lengths=Curriculum(top=20,every=300)"])
    try_training(recipe, torch.device("cpu"))
    with pytest.raises(lw.UsageError, match=r"does not fit the table of 128: .* or a smaller offset"):
        try_training(
            catalog.find_recipe("abacus-addition", [*words, "lengths=Curriculum(top=30,every=300)"]),
            torch.device("cpu"),
        )


def test_a_moving_average_that_has_not_started_is_not_used():
    late = replace(PLAIN, ema=0.9, ema_start=PLAIN.steps)
    assert read_outcome(train(late))[0] == train_uninterrupted(PLAIN)[0]


def test_watching_measures_the_weights_that_are_kept():
    watch = lw.Watch(every=RICH.steps, sizes=(2,), count=40, probes=("12+21",), validation=40)
    run = train(replace(RICH, keep="last", watch=watch))
    *_, row = run.rows("metrics")
    held_out = data.draw_validation_problems(run.recipe, watch.validation)
    assert row["validation_loss"] == pytest.approx(scores.validation_loss(run.model, run.recipe, held_out), rel=1e-5)
    raw = run.recipe.build()
    raw.load_state_dict(run_plain_training_loop(run.recipe)[0])
    assert row["validation_loss"] != pytest.approx(scores.validation_loss(raw.eval(), run.recipe, held_out), rel=1e-3)
    assert row["exact"]["2"] == scores.measure_exact_match(run.model, run.recipe, (2, 2), watch.count, step=RICH.steps)
    batch = run.recipe.layout.write(run.recipe.task.parse("12+21"), run.recipe.task)
    loops = predict(run.model, run.recipe, batch, run.recipe.stopping).loops
    assert row["perplexity"]["12+21"] == pytest.approx(
        float(scores.perplexity(run.model, batch, loops, None)), rel=1e-5
    )


def test_a_run_folder_describes_the_run():
    run = train(RICH)
    assert run.done and run.folder.name == f"rich-{RICH.id}"
    assert Run.open(run.folder).recipe == RICH == load(run.folder).recipe
    assert Run.open(run.folder.name).folder == run.folder
    assert sorted(path.name for path in run.folder.iterdir()) == [
        ".lock", "about.json", "config.json", "metrics.jsonl", "model.safetensors"
    ]  # fmt: skip
    about = run.about()
    assert about["steps"] == 15 and about["parameters"] == sum(p.numel() for p in run.weights().model.parameters())
    rows = run.rows("metrics")
    assert [row["step"] for row in rows if "exact" in row] == [4, 8, 12]
    assert [row["step"] for row in rows if "loss" in row] == [10, 15]
    assert set(rows[0]["exact"]) == {"1", "2"}


def test_the_best_weights_are_those_of_the_first_best_watched_step(monkeypatch):
    recipe = replace(RICH, schedule=lw.Schedule())
    until = train(replace(recipe, steps=8, keep="last"))
    exact = {4: 0.25, 8: 0.5, 12: 0.5}
    monkeypatch.setattr(scores, "measure_exact_match", lambda *_, step=0: exact.get(step, 0.0))
    run = train(recipe)
    assert [row["exact"] for row in run.rows("metrics") if "exact" in row] == [{"1": e, "2": e} for e in exact.values()]
    assert run.about()["kept_step"] == 8
    assert read_outcome(run)[0] == read_outcome(until)[0]


def test_watching_changes_no_weight():
    assert read_outcome(train(replace(PLAIN, watch=lw.Watch(3, (2,), 5))))[0] == train_uninterrupted(PLAIN)[0]


def test_the_perplexity_of_probes_is_logged():
    watched = replace(PLAIN, steps=12, watch=lw.Watch(3, (2,), 5, probes=("1", "10")))
    run = train(watched)
    rows = [row for row in run.rows("metrics") if "perplexity" in row]
    assert [row["step"] for row in rows] == [3, 6, 9, 12]
    assert all(set(row["perplexity"]) == {"1", "10"} and min(row["perplexity"].values()) > 1 for row in rows)
    assert abs(lw.Solver(run.weights()).solve("10").perplexity - rows[-1]["perplexity"]["10"]) < 1e-4
    with pytest.raises(lw.UsageError, match="parity"):
        replace(PLAIN, watch=lw.Watch(3, (2,), 5, probes=("12",)))


def test_equal_seeds_give_equal_weights_and_other_seeds_give_other_weights(tmp_path):
    assert read_outcome(train(PLAIN, tmp_path / "again")) == train_uninterrupted(PLAIN)
    for other in (replace(PLAIN, seed=1), replace(PLAIN, data_seed=1)):
        assert read_outcome(train(other))[0] != train_uninterrupted(PLAIN)[0]


def test_a_finished_run_is_not_trained_again(monkeypatch):
    run = train(PLAIN)
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    monkeypatch.setattr(training.Trainer, "advance", None)
    again = train(PLAIN)
    assert again.folder == run.folder
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before


def test_training_restores_threads_and_signal_handlers():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], torch.get_num_threads()
    train(PLAIN)
    assert before == ([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], torch.get_num_threads())
    tiny = torch.tensor(1e-40)
    assert float(tiny * 1) != 0
    with computation_settings(1):
        assert float(tiny * 1) == 0
    assert float(tiny * 1) != 0


# Stopped and resumed


STOPS = [(LAMB, signal.SIGINT), (RICH, signal.SIGTERM), (MASTERED, signal.SIGTERM), (SEGMENTED, signal.SIGINT)]


@pytest.mark.parametrize(("recipe", "number"), STOPS, ids=["large", "rich", "mastered", "segmented"])
def test_training_stopped_at_any_step_and_resumed_equals_uninterrupted_training(recipe, number, monkeypatch):
    """Training is stopped between two logged rows, after a logged row, after a measurement, and after the last step."""
    stops = [1, 4, 10, recipe.steps]
    stop_at(monkeypatch, stops, lambda: os.kill(os.getpid(), number))
    for stop in stops:
        with pytest.raises(Interrupted, match=f"stopped at step {stop};"):
            train(recipe, save_every=1e9)
    assert read_outcome(train(recipe)) == train_uninterrupted(recipe)


def test_a_user_loop_that_suppresses_errors_stops_at_a_signal(monkeypatch):
    stop_at(monkeypatch, [3], lambda: os.kill(os.getpid(), signal.SIGTERM))
    begun = []

    def train_three_seeds():
        for seed in range(3):
            begun.append(seed)
            with suppress(Exception):
                train(replace(PLAIN, seed=seed))

    with pytest.raises(KeyboardInterrupt, match="stopped at step 3; the same command continues from there"):
        train_three_seeds()
    assert begun == [0] and read_outcome(train(PLAIN)) == train_uninterrupted(PLAIN)


@pytest.mark.parametrize(("exact_match", "expected_lengths"), [(0.9, [3, 4]), (0.89, [1, 1])])
def test_a_passed_exam_admits_the_next_length(exact_match, expected_lengths, monkeypatch):
    """Exams are due every four steps; lengths are logged every ten."""
    monkeypatch.setattr(scores, "measure_exact_match", lambda *_, **__: exact_match)
    recipe = replace(MASTERED, steps=20, lengths=lw.Mastery(4, every=4, pass_accuracy=0.9))
    assert [row["length"] for row in train(recipe).rows("metrics")] == expected_lengths
    seen = [int(data.draw_batch(recipe, 7, exams_passed=passed)[0].sizes.max()) for passed in (0, 1, 2, 9, None)]
    assert seen == [1, 2, 3, 4, 4]


@pytest.mark.parametrize("train_again", [train, lambda recipe: train_stacked([recipe, replace(recipe, seed=8)])])
def test_the_checkpoint_of_a_process_that_was_killed_at_its_very_end_is_removed(train_again):
    folder = write_finished_run(PLAIN)
    (folder / "state.pt").write_bytes(b"")
    train_again(PLAIN)
    assert not (folder / "state.pt").exists()
    assert (folder / "model.safetensors").read_bytes() == train_uninterrupted(PLAIN)[0]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_training_that_crashes_at_any_write_and_resumes_equals_uninterrupted_training(moment, monkeypatch):
    """Each session crashes right before or after it writes its fourth, fifth or sixth file; .owner is the first."""
    recipe = replace(RICH, steps=6)
    expected = train_uninterrupted(recipe)
    run, crashes = run_through_crashes(lambda: train(recipe, save_every=0), monkeypatch, 4, moment)
    assert crashes > 2
    assert read_outcome(run) == expected


def test_training_does_not_import_torch_s_compiler():
    """Importing torch's compiler takes seconds."""
    code = """
import sys, torch, lengthwise as lw
from lengthwise.training.trainer import Trainer
Trainer(lw.find("looped-parity"), torch.device("cpu")).advance()
sys.exit("torch._dynamo" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_second_signal_stops_at_once():
    # Shells start background jobs with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with catch_stop_signals() as stopped:
            assert not stopped()
            os.kill(os.getpid(), signal.SIGINT)
            assert stopped()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


# Damaged, foreign or malicious files


class Malicious:
    """An object that creates a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("SEEN"),)


HALF_EMA = replace(PLAIN, ema=0.5)


@cache
def build_half_trained_state():
    trainee = training.Trainer(HALF_EMA, torch.device("cpu"))
    for _ in range(5):
        trainee.advance()
    return trainee.state()


def to_bytes(value):
    with tempfile.TemporaryFile() as file:
        torch.save(value, file)
        file.seek(0)
        return file.read()


WIDE_MODEL = replace(PLAIN, model=replace(MODEL, width=16))
STATE_CHANGES = [
    lambda state: b"",
    lambda state: bytes(range(256)) * 9,
    lambda state: to_bytes(state)[:-100],
    lambda state: to_bytes(torch.arange(3)),
    lambda state: to_bytes([1, 2]),
    lambda state: state.update(model=WIDE_MODEL.build().state_dict()),
    lambda state: state["optimizer"].update(param_groups=[]),
    lambda state: state["optimizer"].update(param_groups=None),
    lambda state: state.update(sums={"loss": "much"}),
    lambda state: state.update(average={}),
    lambda state: state["model"].popitem() and None,
    lambda state: state.pop("model") and None,
    lambda state: state.pop("step") and None,
]


@pytest.mark.parametrize("change", STATE_CHANGES)
def test_a_damaged_or_foreign_checkpoint_is_refused_in_one_line(change):
    """A change returns the file's content, or alters the state that is then stored in the file."""
    path, state = Run.of(HALF_EMA).folder / "state.pt", copy.deepcopy(build_half_trained_state())
    content = change(state)
    path.write_bytes(to_bytes(state) if content is None else content)
    with pytest.raises(lw.UsageError, match=r"state\.pt: not a checkpoint[^\n]*; delete it to start over$"):
        train(HALF_EMA)


def test_settings_come_from_the_recipe_and_not_from_the_checkpoint():
    run = Run.of(HALF_EMA)
    trainee = training.Trainer(HALF_EMA, torch.device("cpu"))
    trainee.advance()
    state = trainee.state()
    state["optimizer"]["param_groups"][0] |= {"betas": "x", "maximize": True, "params": "foreign"}
    run.save_state(state)
    resumed = training.Trainer(HALF_EMA, torch.device("cpu"))
    resumed.restore_checkpoint(run)
    assert resumed.optimizer.state_dict()["param_groups"] == trainee.optimizer.state_dict()["param_groups"]


def test_an_intact_checkpoint_is_resumed(monkeypatch):
    run, steps, draw = Run.of(replace(HALF_EMA, steps=14)), [], data.draw_batch
    monkeypatch.setattr(
        data, "draw_batch", lambda recipe, step, **more: steps.append((recipe, step)) or draw(recipe, step, **more)
    )
    (run.folder / "state.pt").write_bytes(to_bytes(build_half_trained_state()))
    train(run.recipe)
    assert [step for recipe, step in steps if recipe == run.recipe] == list(range(5, 14))


@pytest.mark.parametrize(
    "content", [pickle.dumps(Malicious(), 2), to_bytes(Malicious()), to_bytes({"step": 5, "model": Malicious()}), b"{}"]
)
@pytest.mark.parametrize("name", ["state.pt", "model.safetensors", "config.json"])
def test_no_file_of_a_run_runs_code(name, content, monkeypatch, tmp_path):
    folder = Run.of(PLAIN).folder if name == "state.pt" else write_finished_run(PLAIN)
    monkeypatch.chdir(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(lw.UsageError, match=rf"^[^\n]*{name}[^\n]*$"):
        train(PLAIN) if name == "state.pt" else load(folder)
    assert not Path("SEEN").exists()


def test_weights_that_are_cut_short_or_do_not_fit_are_refused(tmp_path):
    folder = write_finished_run(PLAIN)
    load(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(lw.UsageError, match="not a complete safetensors file"):
        load(folder)
    path.write_bytes(train_uninterrupted(WIDE_MODEL)[0])
    with pytest.raises(lw.UsageError, match=r"beside them: .*of another shape:"):
        load(folder)
    path.unlink()
    with pytest.raises(lw.UsageError, match=rf"has its training ended\? `lengthwise train {folder}` continues it"):
        load(folder)
    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(lw.UsageError, match=r"has its training ended\? repeat the call that trained it"):
        load(moved)
    with pytest.raises(lw.UsageError, match="neither a folder nor one of the shipped weights"):
        load("no-such-weights")


def test_a_folder_with_another_recipe_is_refused(tmp_path):
    train(PLAIN, tmp_path)
    with pytest.raises(lw.UsageError, match="holds a run of another recipe"):
        train(replace(PLAIN, steps=14), tmp_path)


# Disk errors


@pytest.mark.parametrize("operation", ["replace", "fsync"])
def test_a_full_disk_gives_a_usage_error_and_no_partial_file(operation, monkeypatch):
    recipe, times, original = replace(RICH, steps=6), [], getattr(os, operation)

    def raise_disk_full(*arguments):
        times.append(arguments)
        if len(times) % 3 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, operation, raise_disk_full)
        for _ in range(4):
            times.clear()
            with pytest.raises(lw.UsageError, match=r"^.*cannot be written to \(No space left on device\)[^\n]*$"):
                train(recipe, save_every=0)
            files = {path.name: path.read_bytes() for path in Run.of(recipe).folder.iterdir()}
            assert files.keys() <= {".lock", "config.json", "metrics.jsonl", "state.pt"}
            assert "state.pt" not in files or Run.of(recipe).load_state()
    assert read_outcome(train(recipe)) == train_uninterrupted(recipe)


def test_a_folder_that_cannot_be_created_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(lw.UsageError, match="cannot be written to"):
        train(PLAIN, tmp_path / "file")
    with pytest.raises(lw.UsageError, match="cannot be written to"):
        train(PLAIN, tmp_path / "file" / "below")


def test_rows_that_do_not_all_fit_on_the_disk_are_not_added(tmp_path):
    run = Run.of(PLAIN, tmp_path)
    run.append("scores", {"row": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        with pytest.raises(lw.UsageError, match=r"cannot be written to"):
            run.append("scores", {"row": 2}, {"row": 3}, {"row": 4})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "scores.jsonl").read_text() == '{"row": 1}\n'


def test_rows_are_read_back_without_a_line_that_was_cut_short(tmp_path):
    run = Run.of(PLAIN, tmp_path)
    assert run.rows("metrics") == []
    rows = [{"step": i, "loss": i / 3, "name": "é"} for i in range(3)]
    run.append("metrics", rows[0])
    run.append("metrics", *rows[1:])
    assert run.rows("metrics") == rows
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')
    assert run.rows("metrics") == rows
    run.append("metrics", {"step": 3})
    assert run.rows("metrics") == [*rows, {"step": 3}]
    run.remove_rows_after("metrics", 1)
    assert run.rows("metrics") == rows[:2]


# Optimizers


def test_lamb_scales_each_layer_s_step_to_its_weights():
    """The formula is algorithm 2 of You et al. 2020. The norm of a step, decay included, is the rate times the norm of
    the weights, or the rate times 10 if their norm is larger than 10."""
    weights = [torch.nn.Parameter(torch.tensor([3.0, 4.0, 0.0, 0.0]) * scale) for scale in (1, 100)]
    start = [weight.detach().clone() for weight in weights]
    lamb = lw.LAMB(rate=0.1, weight_decay=0.5)
    optimizer = lamb.build(weights)
    for weight in weights:
        weight.grad = torch.tensor([1.0, -1.0, 1.0, 1.0])
    optimizer.step()
    for weight, before in zip(weights, start, strict=True):
        # Adam's first step without bias correction, and the decay.
        along = weight.grad * (1 - lamb.betas[0]) / math.sqrt(1 - lamb.betas[1]) + 0.5 * before
        step = 0.1 * min(float(before.norm()), 10) * along / along.norm()
        torch.testing.assert_close(before - weight.detach(), step, rtol=1e-3, atol=1e-4)


# Schedules


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (lw.Schedule(), [1] * 10),
        (lw.Schedule("constant", warmup=0.4), [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1, 1]),
        (lw.Schedule("linear"), [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        (lw.Schedule("linear", floor=0.5), [1, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55]),
        (lw.Schedule("linear", warmup=0.4, cooldown=0.2), [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1, 0.5]),
        (lw.Schedule("exponential", cooldown=0.4, floor=0.0625), [1, 1, 1, 1, 1, 1, 1, 0.5, 0.25, 0.125]),
        (lw.Schedule("trapezoid", cooldown=0.4), [1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]),
        (lw.Schedule("cosine", cooldown=0.4), [1, 1, 1, 1, 1, 1, 1, 0.853553, 0.5, 0.146447]),
    ],
    ids=repr,
)
def test_schedules_equal_factors_computed_by_hand(schedule, factors):
    assert [schedule.factor(step, 10) for step in range(10)] == pytest.approx(factors, abs=1e-6)


def test_an_exponential_decay_needs_a_positive_floor():
    with pytest.raises(lw.UsageError, match="floor above 0"):
        lw.Schedule("exponential")


@pytest.mark.parametrize(
    "invalid_values", [{"warmup": -0.1}, {"warmup": 1.1}, {"floor": 2.0}, {"warmup": 0.6, "cooldown": 0.5}]
)
def test_an_invalid_schedule_is_refused(invalid_values):
    with pytest.raises(lw.UsageError):
        lw.Schedule("linear", **invalid_values)


@pytest.mark.parametrize(
    "invalid_values",
    [
        {"steps": 0}, {"batch": 0}, {"ema": 1.0}, {"ema": -0.1}, {"hard": 1.5}, {"clip": 0.0}, {"clip": -1.0},
        {"name": ""}, {"name": "a/b"}, {"name": ".."}, {"name": "-a"}, {"name": "a b"}, {"name": "a\0b"},
        {"name": "a\nb"}, {"keep": "best"}, {"layout": lw.Pairs()},
        {"objective": lw.Segments(), "accumulate": 2},
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_recipe_is_refused(invalid_values):
    with pytest.raises(lw.UsageError):
        replace(PLAIN, **invalid_values)


def test_zero_loss_ranks_first_and_a_missing_loss_last():
    recipe = catalog.find_recipe("looped-parity", ["keep=lowest-loss", "watch.validation=4", "watch.every=1"])
    merits = [Validator(recipe)._compute_merit({"validation_loss": loss}) for loss in (0.0, 0.5, None)]
    assert merits == sorted(merits, reverse=True) and merits[0] == 0.0
