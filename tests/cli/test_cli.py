"""Commands run as a user runs them, with good and bad input."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import command
from hypothesis import given
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.base.errors import Diverged
from lengthwise.cli import console, evaluate
from lengthwise.cli.entry import parse
from lengthwise.cli.options import parse_grid
from lengthwise.cli.solve import _join_grids
from lengthwise.tasks.sudoku import Sudoku
from lengthwise.training.trainer import Trainer

TINY = ["steps=12", "batch=8", "model.width=16", "watch.every=0"]


def run_process(*words):
    return subprocess.run([sys.executable, "-m", "lengthwise", *words], capture_output=True, text=True, timeout=240)


def check_error(done, *parts, code=2):
    """Check the exit status, one line on standard error that contains ``parts``, and an empty standard output."""
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("lengthwise")
    for part in parts:
        assert part in lines[0]
    assert done.stdout == ""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train a run by the ``train`` command and return its folder."""
    folder = tmp_path_factory.mktemp("place")
    words = ["train", "looped-pairs", *TINY, "--lengths", "2,3", "--samples", "20", "--quiet", "--json"]
    done = command(*words, env={"LENGTHWISE_RUNS": str(folder)})
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert [row["sizes"] for row in result["scores"]] == [[2], [3]]
    return Path(result["run"])


# Commands that succeed


def test_help_takes_less_than_a_second():
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = run_process("--help")
        seconds.append(time.perf_counter() - start)
    assert "demo" in done.stdout
    assert min(seconds) < 1  # importing torch alone takes longer


def test_prompts_may_start_with_a_minus_sign():
    prompts = ["-3+12-4", "(3-8)*-4", "-(2-5)", "-3", "12-4"]
    words = command("solve", "retran-small", *prompts[:2], "--device", "cpu", *prompts[2:])
    lines = command("solve", "retran-small", stdin="\n".join(prompts))
    assert words.stdout == lines.stdout and len(words.stdout.splitlines()) == 5
    refused = command("solve", "retran-small", "1-2", "--jsom")
    assert refused.returncode == 2 and "--jsom" in refused.stderr


def test_solve_from_arguments_and_standard_input_agree(run):
    words = command("solve", run, "12+9", "5+5")
    lines = command("solve", run, stdin="12+9\n5+5\n")
    assert words.returncode == lines.returncode == 0
    assert words.stdout == lines.stdout
    assert len(words.stdout.splitlines()) == 2


def test_solve_json_has_answer_correctness_loops_and_confidence(run):
    row = json.loads(command("solve", run, "--json", "--stopping", "Oracle", "12+9").stdout)
    assert row["prompt"] == "12+9"
    assert row["right"] == "21"
    assert row["correct"] == (row["text"] == "21")
    assert row["loops"] == 5  # two for the digits, and three more
    assert 0 < row["confidence"] <= 1
    done = command("solve", run, "--stopping", "Oracle", "12+9")
    assert done.stdout == f"{row['text']}\n" and not row["correct"]
    assert done.stderr == "lengthwise: prompt 1: wrong; the right answer is 21\n"
    assert command("solve", "looped-pairs", "12+9").stderr == ""


def test_a_bad_prompt_among_good_ones_gets_an_empty_line(run):
    done = command("solve", run, stdin="1+2\nx+1\n3+4\n")
    assert done.returncode == 1
    assert [bool(line) for line in done.stdout.splitlines()] == [True, False, True]
    (line,) = [line for line in done.stderr.splitlines() if "wrong; the right answer is" not in line]
    assert line.startswith("lengthwise: prompt 2: ")


@given(
    st.lists(
        st.tuples(st.sampled_from([4, 6, 9]), st.integers(0, 99), st.sampled_from(["drawn", "spaced", "/", "unbroken"]))
    )
)
def test_grids_in_a_file_may_span_several_lines(puzzles):
    """Grids of a file are joined line by line, with or without spaces and empty lines, next to grids on one line."""
    task, lines, wanted = Sudoku(), [], []
    for side, seed, form in puzzles:
        typed = task.to_text(task.sample(torch.tensor([[side]]), lw.stream(seed, "file")).prompt[0])
        breaks = {"drawn": "\n", "spaced": "\n", "/": "/", "unbroken": ""}[form]
        drawn = typed.replace("/", breaks).split("\n")
        lines += [" ".join(line) for line in drawn] if form == "spaced" else drawn
        lines += [""] * (seed % 3)
        wanted.append(typed if form != "unbroken" else typed.replace("/", ""))
    assert list(_join_grids(iter(lines), task)) == wanted
    assert list(_join_grids(iter(lines), lw.Addition())) == lines


def test_an_incomplete_grid_is_refused_and_the_next_is_solved():
    done = command("solve", "looped-sudoku", stdin="41..\n....\n\n41..\n....\n....\n..34\n")
    assert [bool(line) for line in done.stdout.splitlines()] == [False, True]
    assert "prompt 1: sudoku: write a square of 4, 6 or 9 lines" in done.stderr and len(done.stderr.splitlines()) == 1


def test_training_again_measures_nothing_twice(run):
    again = command("train", run, "--lengths", "2,3", "--samples", "20", "--quiet", "--json")
    assert len(json.loads(again.stdout)[0]["scores"]) == 2  # the stored scores were used


@pytest.mark.usefixtures("blank_figures")
def test_evaluate_report_list_show_sample(run, tmp_path, monkeypatch):
    monkeypatch.setenv("LENGTHWISE_RUNS", str(run.parent))
    rows = json.loads(command("evaluate", run.name, "--lengths", "2-4:2", "--samples", "10", "--json").stdout)
    assert [row["sizes"] for row in rows if row["problems"] == "uniform"] == [[2], [4]]
    assert {row["problems"] for row in rows if row["sizes"] == [4]} > {"uniform", "all-highest"}
    assert command("report", run, "--out", tmp_path / "figures").returncode == 0
    assert {"scores.csv", "runs.json", "lengths.png"} <= {p.name for p in (tmp_path / "figures").iterdir()}
    assert json.loads(command("list", "--json").stdout)["runs"] == {run.name: "done"}
    assert json.loads(command("show", "looped-pairs", *TINY, "--json").stdout)["parameters"] > 0
    assert command("sample", "parity", "4", "--count", "3").stdout.count("→") == 3


def test_a_list_says_why_a_run_cannot_be_read(run, tmp_path, monkeypatch):
    """``list`` shows why a recipe cannot be read; markup in the file is printed literally."""
    for name, text in (("odd", '{"kind": "[/bold]"}'), ("cut[b]", '{"kind": '), ("outdated", '{"kind": "Recipe"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "no-run").mkdir()
    (tmp_path / "good").symlink_to(run)
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path))
    monkeypatch.setattr(console.out, "width", 200)
    shown, as_json = command("list"), command("list", "--json")
    assert (shown.returncode, shown.stderr, as_json.returncode) == (0, "", 0)
    runs = json.loads(as_json.stdout)["runs"]
    assert sorted(runs) == ["cut[b]", "good", "odd", "outdated"]
    assert runs["good"] == "done"
    assert "'[/bold]' is not one of" in runs["odd"]
    assert "not a recipe in JSON" in runs["cut[b]"]
    assert "needs name" in runs["outdated"]
    for part in ("'[/bold]' is not one of", "cut[b]", "outdated", "good"):
        assert part in shown.stdout


@pytest.mark.usefixtures("jobs_in_process")
def test_sizes_on_two_axes_reach_every_seed(tmp_path):
    words = ["train", "looped-parity", "task=Addition", "lengths=Uniform(top=2)", *TINY, "--seeds", "2", "--jobs", "2"]
    done = command(
        *words, "--lengths", "1x2", "--samples", "5", "--quiet", "--json", env={"LENGTHWISE_RUNS": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    for run in json.loads(done.stdout):
        assert [row["sizes"] for row in run["scores"]] == [[1, 2]]


# Commands that fail


WRONG = [  # commands, and parts of the line that each must print
    ("train looped-party", "looped-party", "did you mean looped-parity"),
    ("train looped-parity modl.width=3", "modl", "did you mean model"),
    ("train looped-parity model.widht=3", "widht", "did you mean width"),
    ("train looped-parity steps=many", "steps", "whole number"),
    ("train looped-parity steps=0", "steps"),
    ("train looped-parity lr=3", "write optimizer.rate=3"),
    ("train looped-parity --lr 3", "write optimizer.rate=3"),
    ("train looped-parity --batch-size=3", "write batch=3"),
    ("show looped-parity width=3", "write model.width=3"),
    ("evaluate RUN --sample 3", "did you mean --samples?"),
    ("solve RUN 1+1 --jsn 2+2", "arguments: --jsn (did you mean --json?)"),
    ("solve loped-pairs 1+1", "did you mean looped-pairs?"),
    ("train zzz", "import your own by --import MODULE"),
    ("evaluate RUN --lengths 8 12", "numbers of a list are separated by commas"),
    ("show Transfomer", "did you mean Transformer?"),
    ("list nothing-has-this", "no name or description contains nothing-has-this"),
    ("solve RUN --stopping Oracle --stopping Oracle 1+1", "once"),
    ("train looped-parity task=Partiy", "did you mean Parity"),
    ("train looped-parity layout=Pairs", "does not accept"),
    ("train looped-parity --device abacus", "device"),
    ("train looped-parity --import nowhere", "nowhere"),
    ("sample parrot 3", "parrot", "parity"),
    ("sample parity 0", "1"),
    ("sample parity 3x4", "axis"),
    ("reproduce pears", "did you mean pairs"),
    ("rasp party 101", "'party' is not one of", "parity"),
    ("rasp addition 12+9", "its numbers are binary; base=10 after the prompt makes them decimal"),
    ("rasp multiplication 12*3", "is not one of: 0 1 *; its numbers are binary"),
    ("export RUN looped-parity --onnx x.onnx", "one set of weights at a time", "export looped-parity to another file"),
    ("evaluate nowhere", "nowhere"),
    ("report nowhere", "nowhere"),
    ("evaluate RUN --lengths eight", "eight"),
    ("evaluate RUN --lengths 0", "sizes"),
    ("evaluate RUN --samples 0", "samples"),
    ("evaluate RUN --stopping Never", "Never", "Oracle"),
    ("solve RUN", "standard input was empty"),
    ("solve RUN --stopping After(loops=0) 1+1", "loops"),
    ("evaluate looped-parity --lengths 5000 --family nosuch", "no problems called 'nosuch'"),
    ("evaluate looped-parity --lengths 5000 --precision 2", "between 0 and 0.5, not 2.0"),
    ("train looped-parity --lengths 5000 --on foo", "--on: 'foo' is not one of: Local"),
    ("train looped-parity --curve=", "--curve: empty"),
    ("attack looped-pairs --seconds 0", "--seconds"),
]


@pytest.mark.parametrize(
    ("words", "parts"), [(words, parts) for words, *parts in WRONG], ids=[words for words, *_ in WRONG]
)
def test_wrong_commands_fail_with_one_line(run, words, parts):
    check_error(command(*words.replace("RUN", str(run)).split()), *parts)


@pytest.mark.parametrize("prompt", ["1+", "1+2+3", "12", "1 - 2", "１+2", "1+2;ls"])
def test_invalid_prompts_get_an_empty_answer_and_one_line(run, prompt):
    done = command("solve", run, prompt)
    assert (done.returncode, done.stdout) == (1, "\n")  # an empty answer, on its line
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_verb_ends_the_process_with_an_error():
    check_error(run_process("solv", "x"), "no verb 'solv' (did you mean solve?)", "--help")


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["rasp", "parity", "--json", "10110"], "prompt", "10110"),
        (["rasp", "addition", "--json", "1+1", "order=least"], "changes", ["order=least"]),
        (["list", "parity", "--json", "looped"], "words", ["parity", "looped"]),
        (["report", "a", "--quiet", "b"], "runs", ["a", "b"]),
        (["check", "one", "--quiet", "two"], "import_", ["one", "two"]),
    ],
)
def test_positional_arguments_may_follow_options(words, name, value):
    assert getattr(parse(words), name) == value


def test_a_custom_task_needs_its_fields_without_defaults(tmp_path, monkeypatch):
    (tmp_path / "own_needs.py").write_text(
        "from dataclasses import dataclass\nimport lengthwise as lw\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Needing(lw.Copy):\n    times: int\n"
    )
    monkeypatch.chdir(tmp_path)
    done = command("sample", "needing", "3", "--import", "own_needs")
    assert done.returncode == 2 and "Needing needs times, e.g. Needing(times=…)" in done.stderr
    assert command("sample", "needing", "3", "times=2", "--import", "own_needs").returncode == 0


def test_a_diverging_seed_does_not_stop_others_in_one_process(monkeypatch):
    words = ["train", "looped-parity", "steps=3", "batch=2", "model.width=8", "watch.every=0", "lengths.top=4"]
    words += ["--seeds", 2, "--jobs", 1, "--lengths", 4, "--samples", 4, "--quiet"]
    done = command(*words, "optimizer.rate=1e30", "clip=none")
    assert done.returncode == 2 and "2 of 2 seeds diverged" in done.stderr
    finite = Trainer.check_finite
    monkeypatch.setattr(Trainer, "check_finite", lambda one: _diverge() if one.recipe.seed == 0 else finite(one))
    done = command(*words)
    assert done.returncode == 2 and "1 of 2 seeds diverged" in done.stderr
    assert "exact match" in done.stdout and "diverged" in done.stdout


def _diverge():
    raise Diverged("the loss is not finite")


def test_figures_of_loops_do_not_overwrite_each_other(tmp_path):
    words = ["looped-parity", "steps=2", "batch=2", "model.width=8", "watch.every=0"]
    runs = [lw.train(*words, folder=tmp_path / name / "x", quiet=True).folder for name in "ab"]
    more = "--lengths", 4, "--samples", 4, "--device", "cpu", "--out", tmp_path / "out"
    done = command("report", *runs, "--stopping", *more)
    assert done.returncode == 2 and "would overwrite each other" in done.stderr


@pytest.mark.usefixtures("blank_figures")
def test_a_report_of_all_runs_leaves_out_sweeps_and_the_demo(runs, tmp_path):
    words = ["looped-parity", "steps=2", "batch=2", "model.width=8", "watch.every=0", "lengths.top=4"]
    run = lw.train(*words, quiet=True)
    for named in (run.folder, run.folder.name):
        before = {*runs.glob("[!.]*")}
        assert command("train", named, "--lengths", 4, "--samples", 4, "--quiet").returncode == 0
        assert {*runs.glob("[!.]*")} == before
    done = command("train", run.folder.name, "steps=3", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert command("report", run.folder, "--out", runs / "demo").returncode == 0
    (runs / "sweep-x").mkdir()
    (runs / "sweep-x" / "sweep.json").write_text("{}")
    done = command("report", *sorted(runs.glob("[!.]*")), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"lengthwise: skipped, not runs: {runs / 'demo'}, {runs / 'sweep-x'}\n"


def test_a_grid_is_measured_again_for_more_precision():
    words = ["columns-addition", "task.equal_lengths=false", "steps=2", "batch=2", "model.width=8", "watch.every=0"]
    run = lw.train(*words, "lengths.top=4", quiet=True)
    words = ["evaluate", run.folder, "--grid", "1x2", "--uniform-only", "--json", "--quiet"]
    assert {row["count"] for row in json.loads(command(*words).stdout)} == {1000}
    counts = {row["count"] for row in json.loads(command(*words, "--precision", "0.001").stdout)}
    assert min(counts) > 1000


def test_a_read_only_run_is_refused_with_advice(run, monkeypatch):
    monkeypatch.setattr(evaluate.os, "access", lambda folder, mode: Path(folder) != run)
    done = command("evaluate", run, "--lengths", "2", "--samples", "2")
    check_error(done, f"{run} is read-only", f"copy it, or measure without saving, in Python: lw.evaluate('{run}')")


def test_all_sizes_are_checked_before_any_is_measured(monkeypatch):
    """A list of sizes that includes expressions longer than 128 characters is refused before the first is measured."""
    monkeypatch.delattr(evaluate, "_measure_and_print")
    done = command("evaluate", "retran-small", "--lengths", "30,200", "--uniform-only", "--samples", "4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lengthwise: expression: at most 128 characters can be drawn, not 200\n"


def test_an_impossibly_large_size_is_refused_anywhere_in_a_list():
    done = command("evaluate", "looped-parity", "--lengths", "8,1000000000000", "--samples", "2")
    assert done.returncode == 2 and done.stderr.startswith("lengthwise: measuring 2 sizes takes about")
    done = command("train", "looped-parity", *TINY, "--lengths", "8,1000000000000")
    assert done.returncode == 2 and done.stderr.startswith("lengthwise: measuring 2 sizes takes about")


def test_a_grid_has_two_sizes():
    done = command("evaluate", "abacus-addition", "--grid", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lengthwise: '3' is not a grid: write 20x40 for every pair up to 20 and 40\n"
    with pytest.raises(lw.UsageError, match=r"^'0x4' names no sizes: .*, from 1 up$"):
        parse_grid("0x4")


def test_help_explains_the_defaults_of_sizes_and_seeds():
    said = " ".join(command("attack", "--help").stdout.split())
    assert "(default: half the training length, all of it, and one and a half)" in said
    assert "seed of the problems (default: 0)" in said and "(default: the recipe's" not in said
    assert "seed of weights and problems (default: the recipe's)" in " ".join(command("train", "--help").stdout.split())


def test_training_a_changed_run_says_that_it_is_another_recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path))
    words = ["train", "looped-pairs", *TINY, "steps=2", "--lengths", "2", "--samples", "2", "--quiet"]
    assert command(*words).stderr == ""
    (old,) = tmp_path.iterdir()
    again = ["train", str(old), *words[-5:]]
    assert command(*again).stderr == ""
    for changes in (["steps=3"], ["optimizer.rate=0.01", "steps=2"]):
        done = command(*again, *changes)
        (line,) = done.stderr.splitlines()
        assert f"{old} is another recipe, trained from step 0 in {tmp_path}" in line and f"train --from {old}" in line
        assert command(*again, *changes).stderr == ""  # the changed run exists now
    (old / "model.safetensors").unlink()
    assert f"omit the changes: lengthwise train {old}" in command(*again, "steps=4").stderr


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["report", "x", "--format", "pdf"], "for PDF, in Python: lw.Run.open(FOLDER).plot().savefig('figure.pdf')"),
        (
            ["train", "--config", "x.yaml"],
            "a recipe is named without an option: a name, a run's folder, or a JSON file",
        ),
        (["train", "looped-parity", "--config=x.yaml"], "a recipe is named without an option"),
        (["train", "recipe.yaml"], "recipe.yaml: cannot be read as a recipe (No such file or directory)"),
        (["show", "recipe.toml", "steps=3"], "recipe.toml: a recipe's file is JSON or YAML"),
        (["train", str(Path(__file__))], "import the module that defines it: RECIPE --import test_cli"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_of_other_programs_is_refused_with_advice(words, advice):
    done = command(*words)
    check_error(done, advice)
    assert "did you mean" not in done.stderr
