"""Edge cases of scores, sweeps, command options and stored runs."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import command

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.ask.inquiry import Inquiry, InquiryRun, is_leniently_right
from lengthwise.cli import entry
from lengthwise.cli.entry import main
from lengthwise.cli.options import parse_sizes
from lengthwise.evaluation import attack as attacking
from lengthwise.evaluation.answers import predict_by_rules
from lengthwise.evaluation.attack import attack
from lengthwise.evaluation.families import evaluate_families
from lengthwise.experiment import data
from lengthwise.jobs.pool import JobPool
from lengthwise.jobs.search import Axis
from lengthwise.runs.run import Run, Weights, load
from lengthwise.training.arithmetic import Clock
from lengthwise.training.loop import train
from lengthwise.training.stacked import train_stacked
from lengthwise.training.trainer import Trainer
from lengthwise.training.validation import Validator


@pytest.mark.parametrize("name", ["looped-parity", "half-fop-loop-adaptive-copy", "gpt-small"])
def test_a_validation_set_has_all_training_lengths(name):
    recipe = catalog.recipe(name)
    assert int(data.validation_problems(recipe, 300).sizes.max()) == recipe.lengths.top


def test_a_validation_set_has_structured_problems_as_training_has():
    recipe = catalog.recipe("looped-addition").change(["families=0.5", "family_names=all-highest"])
    problems = data.validation_problems(recipe, 100)
    within = torch.arange(problems.prompt.shape[1]) < problems.prompt_length[:, None]
    assert int(((problems.prompt > 0) == within).all(1).sum()) >= 50  # a prompt of ones, and zeros behind it


def test_natural_problems_have_one_range_on_all_axes():
    recipe = catalog.recipe("looped-multiplication")
    with pytest.raises(lw.UsageError, match="one size on every axis: 3, not 2x3"):
        data.evaluation_problems(recipe, (2, 3), 10, seed=0, kind="natural")
    assert int(data.evaluation_problems(recipe, (3, 3), 50, seed=0, kind="natural").sizes.max()) == 3


def test_a_count_of_zero_is_refused():
    with pytest.raises(lw.UsageError, match="count must be 1 or more"):
        data.evaluation_problems(catalog.recipe("looped-parity"), 4, 0, seed=0)


@pytest.mark.parametrize(
    ("task", "said", "right", "counts"),
    [
        ("copy", "011", "0011", False),
        ("bitwise-or", "1", "0001", False),
        ("copy", "**0011**", "0011", True),
        ("multiplication base=10 order=most product=most", "The answer is **15**", "15", True),
        ("multiplication base=10 order=most product=most", "1,015", "1015", True),
        ("multiplication", "the answer is **110**.", "110", True),
        ("multiplication", "11", "110", False),
        ("multiplication", "011", "11", True),
        ("expression", r"\(20\)", "20", True),
        ("expression", "it is -20.", "-20", True),
        ("addition order=least", "012", "12", True),  # written as it is read, whatever the model reads
    ],
)
def test_leading_zeros_are_ignored_in_numbers_only(task, said, right, counts):
    name, *fields = task.split()
    assert is_leniently_right(catalog.task(name, fields), said, right) == counts


def test_families_that_a_fixed_set_has_used_up_are_left_out():
    recipe = replace(catalog.recipe("looped-parity"), lengths=lw.Uniform(20), source=lw.Finite(rows=2000))
    weights = Weights("untrained", recipe, recipe.build().eval())
    found = {score.problems for score in evaluate_families(weights, [12], samples=10)}
    assert "odd-one-out" in found
    with pytest.raises(lw.UsageError, match="almost no problem of this size"):
        list(evaluate_families(weights, [20], samples=10, names=["one-symbol"]))


def test_a_size_given_twice_is_measured_once():
    assert parse_sizes("5,5,3-5") == [5, 3, 4]
    assert parse_sizes("1x2,1x2") == [(1, 2)]
    assert parse_sizes("1-2x1,1x1-2") == [(1, 1), (2, 1), (1, 2)]


def test_commas_in_parentheses_separate_no_values():
    assert Axis.parse("lengths=Curriculum(top=11,every=10,most=(2,11))") is None
    both = Axis.parse("optimizer=AdamW(rate=1e-3,betas=(0.9,0.99)),AdamW")
    assert both is not None
    assert both.values == ("AdamW(rate=1e-3,betas=(0.9,0.99))", "AdamW")


def test_attack_refuses_a_batch_wise_rule():
    recipe = catalog.recipe("looped-parity")
    weights = Weights("untrained", recipe, recipe.build().eval())
    with pytest.raises(lw.UsageError, match="per=example"):
        attack(weights, [4], tries=1, stopping=lw.MaxConfidence(per="batch"))


def test_zero_loss_ranks_first_and_a_missing_loss_last():
    recipe = catalog.recipe("looped-parity", ["keep=lowest-loss", "watch.validation=4", "watch.every=1"])
    merits = [Validator(recipe)._merit({"validation_loss": loss}) for loss in (0.0, 0.5, None)]
    assert merits == sorted(merits, reverse=True) and merits[0] == 0.0


def test_a_paused_clock_does_not_count(monkeypatch):
    now = iter([0.0, 10.0, 15.0, 20.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    clock = Clock()
    with clock.pause():
        pass
    assert clock.read() == {"wall_s": 15.0, "cpu_s": 0.0}


def test_weights_of_an_old_checkpoint_get_current_names(tmp_path):
    recipe = catalog.recipe("looped-parity").change(["keep=best", "watch.every=10", "model.width=16"])
    one, other = (Trainer(recipe, torch.device("cpu")) for _ in range(2))
    one.validator.best = {"merit": 1.0, "step": 0, "weights": dict(one.model.state_dict())}
    state = one.state()
    for part in (state["model"], state["average"], state["best"]["weights"]):
        for name in [name for name in part if ".mixer." in name]:
            part[name.replace(".mixer.", ".attention.")] = part.pop(name)
    run = Run.of(recipe, tmp_path)
    run.save_state(state)
    other.restore_checkpoint(run)
    assert set(other.validator.best["weights"]) == set(one.model.state_dict())


@pytest.fixture
def trained(runs):
    """Train a run for two steps and return its folder."""
    done = command("train", "looped-parity", "steps=2", "--lengths", "2", "--samples", "2")
    assert done.returncode == 0, done.stderr
    (folder,) = runs.iterdir()
    return folder


def test_a_run_that_is_named_twice_counts_once(trained, tmp_path):
    other = shutil.copytree(trained, tmp_path / "other")
    twice = command("report", trained, trained, "--out", tmp_path / "out")
    assert twice.returncode == 0, twice.stderr
    assert "0 of 1" in " ".join(twice.stdout.split())
    copied = command("report", trained, other, "--out", tmp_path / "out")
    assert copied.returncode == 2
    assert copied.stderr.count("\n") == 1
    assert "is the same run" in copied.stderr


def test_a_run_without_recorded_times_is_shown(trained):
    (trained / "about.json").unlink()
    again = command("train", trained, "--lengths", "2", "--samples", "2")
    assert again.returncode == 0, again.stderr
    assert "unknown time" in " ".join(again.stdout.split())


@pytest.mark.parametrize(("words", "kept"), [(["solve", "looped-pairs", "1+1"], False), (["train", "pairs"], True)])
def test_only_resumable_commands_promise_to_continue(monkeypatch, words, kept):
    def stopped(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "load_verb", stopped)
    done = command(*words)
    assert done.returncode == 130
    assert ("continues from here" in done.stderr) == kept


def test_anatomy_uses_the_batch_size_of_its_rule(monkeypatch):
    recipe = catalog.recipe("looped-parity", ["model.width=16"])
    seen = []

    def spied(model, recipe, batch, rules):
        seen.append(len(batch))
        return predict_by_rules(model, recipe, batch, rules)

    monkeypatch.setattr(attacking, "predict_by_rules", spied)
    weights = Weights("untrained", recipe, recipe.build().eval())
    attacking.measure_anatomy(weights, 3, samples=600, stopping=lw.MaxConfidence(per="batch"))
    assert seen == [512, 88]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "parity"), "'parity' is not one of the"),
        (("train", "parity"), "it is a task, with the recipes settled-parity, halting-parity, looped-parity"),
        (("sample", "looped-parity", "5"), "looped-parity is a recipe; its task is parity"),
        (("list", "--import", "own_task.py"), "name a module, as --import own_task; give it once for each"),
        (("list", "--import", "one,two"), "name a module, as --import one; give it once for each"),
        (("solve", "looped-pairs", "1+1", "--device", "tpu"), "available are: auto, cpu"),
        (("evaluate", "looped-parity", "--hard"), "--hard: parity has no harder set of problems; omit --hard"),
        (("sample", "parity", "5", "--hard"), "--hard: parity has no harder set of problems; omit --hard"),
        (("evaluate", "looped-pairs", "--families", "--uniform-only", "--lengths", "2"), "not both"),
        (("train",), "required: RECIPE;"),
        (("train", "looped-parity", "data_seed=7", "--seeds", "2"), "draws its own problems"),
        (("solve", "gpt-small", "--stopping", "MaxConfidence", "1+2", "2+2"), ""),  # once for all prompts
        (("show", "RoPE", "--all"), "apply only to recipes"),
        (("show", "model.positions", "--all"), "apply only to recipes"),
        (("show", "model.positions", "steps=3"), "apply only to recipes"),
        (("track", "nowhere", "--to", "tensorboard"), ""),
    ],
)
def test_errors_suggest_a_correction(words, message, runs):
    done = command(*words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1) and message in done.stderr
    assert not runs.exists()


def test_shipped_weights_are_reported_and_a_folder_of_runs_is_not_taken_for_one(tmp_path):
    assert command("report", "looped-parity", "--out", tmp_path / "figures").returncode == 0
    for file, kind, kinds in (("config.json", "run", "runs"), ("runs.json", "folder of results", "folders of results")):
        folder = tmp_path / kinds
        for name, held in (("one", f"one {kind}: name"), ("two", f"2 {kinds}: name one or more, e.g.")):
            (folder / name).mkdir(parents=True)
            (folder / name / file).write_text("{}")
            for verb in ("report", "evaluate"):
                line = command(verb, folder, "--quiet").stderr.strip()
                assert line == f"lengthwise: {folder} is not a run's folder; it holds {held} {folder / 'one'}"
    assert "one is not a run's folder: it has no config.json" in command("evaluate", folder / "one").stderr


def test_a_closed_standard_output_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it after ``>&-``
    with pytest.raises(SystemExit) as stopped:
        main(["solve", "looped-pairs", "1+2"])
    assert stopped.value.code == 2 and "standard output is closed" in capsys.readouterr().err


def test_a_run_is_trained_again_with_another_seed_by_its_folder(runs, capsys):
    few = ["steps=1", "batch=2", "lengths=Uniform(top=3)", "watch.every=0", "keep=last"]
    run_main(capsys, "train", "looped-parity", *few, "--lengths", "3", "--samples", "2", "--quiet")
    (first,) = runs.glob("looped-parity-*")
    run_main(capsys, "train", str(first), "--seed", "3", "--lengths", "3", "--samples", "2", "--quiet")
    assert sorted(lw.Run.open(one).recipe.seed for one in runs.glob("looped-parity-*")) == [0, 3]


def test_an_unavailable_precision_is_refused_before_writing(capsys, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["train", "looped-parity"], ["sweep", "looped-parity", "model.width=8,16"],
                  ["reproduce", "looped", "--tasks", "parity"]):  # fmt: skip
        with pytest.raises(SystemExit) as stopped:
            main([*words, "--matmul", "tf32", "--device", "cpu"])
        assert stopped.value.code == 2 and "tf32" in capsys.readouterr().err
    assert not runs.exists() and not [*tmp_path.iterdir()]


def test_a_run_that_another_process_trains_is_not_called_failed(runs, monkeypatch):
    run = lw.Run.of(catalog.recipe("looped-parity"))

    def held(*_, **__):
        raise lw.UsageError("process 1 on a machine works on this run")

    pool = JobPool([run], lambda _: [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lw.Run, "lock", held)
        pool._record_failure([run], "it was locked")
    assert not (run.folder / "failed.json").exists()
    pool._record_failure([run], "it was lost")
    assert (run.folder / "failed.json").exists()


def test_a_list_counts_many_inquiries(runs, capsys):
    for number in range(6):
        InquiryRun.of(Inquiry.of("http://localhost", f"model-{number}", lw.find("looped-parity").task))
    text = " ".join(run_main(capsys, "list").split())  # ignores line breaks
    assert "6 in" in text and "lengthwise list asked" in text and "begun" not in text


def run_main(capsys, *words):
    with pytest.raises(SystemExit):
        main([*words])
    return capsys.readouterr().out


def test_evaluate_accepts_numpy_sizes_and_checks_the_device():
    weights = load("looped-parity")
    assert lw.evaluate(weights, np.int64(4), samples=2)[0].sizes == (4,)
    with pytest.raises(lw.UsageError, match="nonsense"):
        lw.evaluate(weights, 4, samples=2, device="nonsense")


def test_the_last_unfinished_run_still_trains_stacked(runs):
    recipe = catalog.recipe("looped-parity", ["steps=1", "batch=2", "lengths=Uniform(top=3)", "watch.every=0"])
    train(recipe.with_seed(0))
    lone = train_stacked([recipe.with_seed(0), recipe.with_seed(1)])[1]
    assert (lone.about()["runner"], lone.about()["stacked"]) == ("Stacked", 1)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: lw.train("looped-parity", name="x"), '; write it as an override: "name=x"'),
        (lambda: lw.train("looped-parity", clip=1), '; write it as an override: "clip=1"'),  # "clip" is like "recipe"
        (lambda: lw.train("looped-parity", lr=0.1), '; write it as an override: "lr=0.1"'),
        (lambda: lw.train("looped-parity", lenghts=5), " (did you mean lengths?)"),
        (lambda: lw.find("looped-parity", steps=100), '; write it as an override: "steps=100"'),
        (lambda: lw.load("looped-parity", steps=100), "'steps'"),  # takes no changes
    ],
)
def test_an_unknown_keyword_that_is_a_field_is_shown_as_an_override(call, hint):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).endswith(hint)
