"""Commands with valid and invalid input, run as a user runs them."""

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
from lengthwise.api import catalog
from lengthwise.ask.inquiry import Inquiry, InquiryRun
from lengthwise.base.errors import Diverged
from lengthwise.cli import console, entry, evaluate
from lengthwise.cli.entry import parse
from lengthwise.cli.options import find_recipe, parse_grid, parse_sizes
from lengthwise.cli.solve import _join_grids
from lengthwise.tasks.sudoku import Sudoku
from lengthwise.training.trainer import Trainer

TINY_RUN = ["steps=12", "batch=8", "model.width=16", "watch.every=0"]
TWO_STEPS = ["steps=2", "batch=2", "model.width=8", "watch.every=0"]
EVALUATION = ["--lengths", "2,3", "--samples", "20", "--quiet"]


def check_error(result, *parts, code=2):
    """Check the exit status, that standard output is empty, and that the only line on standard error contains
    ``parts``."""
    lines = result.stderr.strip().splitlines()
    assert (result.returncode, result.stdout, len(lines)) == (code, "", 1), result.stderr
    assert lines[0].startswith("lengthwise") and all(part in lines[0] for part in parts), result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train a run by the ``train`` command and return its folder."""
    folder = tmp_path_factory.mktemp("place")
    done = command("train", "looped-pairs", *TINY_RUN, *EVALUATION, "--json", env={"LENGTHWISE_RUNS": str(folder)})
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert [row["sizes"] for row in result["scores"]] == [[2], [3]]
    return Path(result["run"])


# Commands that succeed


def test_help_takes_less_than_a_second():
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "lengthwise", "--help"], capture_output=True, text=True)
        seconds.append(time.perf_counter() - start)
    assert "demo" in done.stdout
    assert min(seconds) < 1  # importing torch alone takes longer


def test_prompts_may_start_with_a_minus_sign_and_come_from_standard_input():
    prompts = ["-3+12-4", "(3-8)*-4", "-(2-5)", "-3", "12-4"]
    words = command("solve", "retran-small", *prompts[:2], "--device", "cpu", *prompts[2:])
    lines = command("solve", "retran-small", stdin="\n".join(prompts))
    assert words.stdout == lines.stdout and len(words.stdout.splitlines()) == 5
    refused = command("solve", "retran-small", "1-2", "--jsom")
    assert refused.returncode == 2 and "--jsom" in refused.stderr


def test_solve_json_has_answer_correctness_loops_and_confidence(run):
    row = json.loads(command("solve", run, "--json", "--stopping", "Oracle", "12+9").stdout)
    assert (row["prompt"], row["right"], row["correct"]) == ("12+9", "21", row["text"] == "21")
    assert row["loops"] == 5  # two for the digits, and three more
    assert 0 < row["confidence"] <= 1
    done = command("solve", run, "--stopping", "Oracle", "12+9")
    assert (done.returncode, done.stdout) == (0, f"{row['text']}\n") and not row["correct"]
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
    """Grids over several lines are joined, with or without spaces and empty lines; grids on one line stay unchanged."""
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


@pytest.mark.usefixtures("blank_figures")
def test_the_main_commands_work_on_a_small_run(run, tmp_path, monkeypatch):
    again = command("train", run, *EVALUATION, "--json")
    assert len(json.loads(again.stdout)[0]["scores"]) == 2  # the stored scores were used
    monkeypatch.setenv("LENGTHWISE_RUNS", str(run.parent))
    rows = json.loads(command("evaluate", run.name, "--lengths", "2-4:2", "--samples", "10", "--json").stdout)
    assert [row["sizes"] for row in rows if row["problems"] == "uniform"] == [[2], [4]]
    assert {row["problems"] for row in rows if row["sizes"] == [4]} > {"uniform", "all-highest"}
    assert command("report", run, "--out", tmp_path / "figures").returncode == 0
    assert {"scores.csv", "runs.json", "lengths.png"} <= {p.name for p in (tmp_path / "figures").iterdir()}
    assert json.loads(command("list", "--json").stdout)["runs"] == {run.name: "done"}
    assert json.loads(command("show", "looped-pairs", *TINY_RUN, "--json").stdout)["parameters"] > 0
    assert command("sample", "parity", "4", "--count", "3").stdout.count("→") == 3
    assert command("sample", "Addition(base=2)", "4").stdout == command("sample", "addition", "4", "base=2").stdout


def test_list_shows_damaged_runs_and_counts_many_inquiries(run, runs, monkeypatch):
    """Markup in a file is printed literally."""
    runs.mkdir()
    for name, text in (("odd", '{"kind": "[/bold]"}'), ("cut[b]", '{"kind": ')):
        (runs / name).mkdir()
        (runs / name / "config.json").write_text(text)
    (runs / "no-run").mkdir()
    (runs / "good").symlink_to(run)
    monkeypatch.setattr(console.out, "width", 200)
    shown, as_json = command("list"), command("list", "--json")
    assert (shown.returncode, shown.stderr, as_json.returncode) == (0, "", 0)
    listed = json.loads(as_json.stdout)["runs"]
    assert listed.keys() == {"cut[b]", "good", "odd"} and listed["good"] == "done"
    assert "not a recipe" in listed["odd"] and "not JSON" in listed["cut[b]"]
    assert all(part in shown.stdout for part in ("cut[b]: not JSON", "good: done"))
    for number in range(6):
        InquiryRun.of(Inquiry.of("http://localhost", f"model-{number}", lw.find("looped-parity").task))
    text = " ".join(command("list").stdout.split())  # ignores line breaks
    assert "6 in" in text and "lengthwise list asked" in text


@pytest.mark.usefixtures("jobs_in_process")
def test_every_seed_is_measured_at_sizes_on_two_axes():
    words = ["looped-parity", "task=Addition", "lengths=Uniform(top=2)", *TINY_RUN, "--seeds", "2", "--jobs", "2"]
    done = command("train", *words, "--lengths", "1x2", "--samples", "5", "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert [[row["sizes"] for row in run["scores"]] for run in json.loads(done.stdout)] == [[[1, 2]]] * 2


def test_training_without_a_measurement_prints_the_folder(runs):
    done = command("train", "looped-parity", *TWO_STEPS, "--samples", "0", "--families", "--json")
    (entry,) = json.loads(done.stdout)
    assert done.returncode == 0 and entry["scores"] == []
    again = command("train", "looped-parity", *TWO_STEPS, "--samples", "0", "--quiet")
    assert again.returncode == 0 and again.stdout.split()[0] == entry["run"]


@pytest.mark.usefixtures("blank_figures")
def test_a_report_of_all_runs_leaves_out_sweeps_and_the_demo(runs, tmp_path):
    run = lw.train("looped-parity", *TWO_STEPS, "lengths.top=4", quiet=True)
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
    run = lw.train("columns-addition", "task.equal_lengths=false", *TWO_STEPS, "lengths.top=4", quiet=True)
    words = ["evaluate", run.folder, "--grid", "1x2", "--uniform-only", "--json", "--quiet"]
    assert {row["count"] for row in json.loads(command(*words).stdout)} == {1000}
    assert min(row["count"] for row in json.loads(command(*words, "--precision", "0.001").stdout)) > 1000


def test_training_a_changed_run_says_that_it_is_another_recipe(runs):
    words = ["--lengths", "2", "--samples", "2", "--quiet"]
    assert command("train", "looped-pairs", *TWO_STEPS, *words).stderr == ""
    (old,) = runs.iterdir()
    assert command("train", old, *words).stderr == ""
    (line,) = command("train", old, "steps=3", *words).stderr.splitlines()
    assert f"{old} is another recipe, trained from step 0 in {runs}" in line and f"train --from {old}" in line
    assert command("train", old, "steps=3", *words).stderr == ""  # the changed run exists now
    assert command("train", old, "--seed", "3", *words).returncode == 0
    assert sorted(lw.Run.open(one).recipe.seed for one in runs.iterdir()) == [0, 0, 3]
    (old / "about.json").unlink()
    assert "unknown time" in " ".join(command("train", old, *words).stdout.split())


@pytest.mark.usefixtures("blank_figures")
def test_shipped_weights_are_reported_and_a_folder_of_runs_is_not_mistaken_for_a_run(tmp_path):
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


def test_sizes_are_parsed_without_duplicates():
    assert parse_sizes("5,5,3-5") == [5, 3, 4]
    assert parse_sizes("1-2x1,1x1-2") == [(1, 1), (2, 1), (1, 2)]
    with pytest.raises(lw.UsageError, match=r"^'0x4' names no sizes: .*, from 1 up$"):
        parse_grid("0x4")


# Commands that fail


BAD_COMMANDS = [  # commands, and parts of the line that each must print
    ("train looped-parity model.widht=3", "widht", "did you mean width"),
    ("train looped-parity lr=3", "write optimizer.rate=3"),
    ("train looped-parity --lr 3", "write optimizer.rate="),
    ("show looped-parity width=3", "write model.width=3"),
    ("train looped-parity step=5", "no such field; Recipe has: ", "(did you mean steps?)"),  # its lengths have no step
    ("train looped-parity --step 5", "arguments: --step (did you mean steps=…?); see"),
    ("train mine --step 5", "write lengths.step=…, without dashes"),  # a recipe that is not imported yet
    ("evaluate RUN --sample 3", "did you mean --samples?", "see `lengthwise evaluate --help`"),
    ("solve RUN --loops 3", "unrecognized arguments: --loops; see `lengthwise solve --help`"),
    ("solve RUN 1+1 --jsn 2+2", "arguments: --jsn (did you mean --json?)"),
    ("solve gpt-small --stopping MaxConfidence 1+2 2+2", ""),  # once for all prompts
    ("solve looped-pairs 1+1 --device tpu", "available are: auto, cpu"),
    ("solv x", "no verb 'solv' (did you mean solve?)", "--help"),
    ("train", "required: RECIPE;"),
    ("train zzz", "import your own by --import MODULE"),
    ("train looped-prity", "(did you mean looped-parity?); import your own by --import MODULE"),
    ("train parity", "'parity' is not one of the", "it is a task, with e.g. the recipe"),
    ("evaluate looped-pairs --lengths 8 12", "unrecognized arguments: 12", "as in --lengths 20,40"),
    ("train looped-parity layout=Pairs", "does not accept the task parity", "these do: FullOutput"),
    ("train recipe.yaml", "recipe.yaml: cannot be read (No such file or directory)"),
    ("train looped-parity data_seed=7 --seeds 2", "draws its own problems"),
    ("train looped-parity --device abacus", "device"),
    ("train looped-parity --import nowhere", "nowhere"),
    ("train looped-parity --lengths 8,1000000000000", "measuring 2 sizes takes about"),
    ("train looped-parity --lengths 5000 --on foo", "--on: 'foo' is not one of: Local"),
    ("train looped-parity --curve=", "--curve: empty"),
    ("show Transfomer", "did you mean Transformer?"),
    ("show RoPE --all", "apply only to recipes"),
    ("list nothing-has-this", "no name or description contains nothing-has-this"),
    ("list --import own_task.py", "--import own_task.py: name a module of your own, e.g. own_task for own_task.py"),
    ("sample parrot 3", "parrot", "parity"),
    ("sample parity 0", "1"),
    ("sample parity 3x4", "axis"),
    ("sample parity 5 --hard", "--hard: parity has no harder set of problems; omit --hard"),
    ("sample looped-parity 5", "looped-parity is a recipe; its task is parity"),
    ("reproduce pears", "did you mean pairs"),
    ("reproduce pairs --measure", "--dry-run"),
    ("rasp addition 12+9", "'2' at position 2 is not one of: 0 1 +"),
    ("track nowhere --to tensorboard", ""),
    ("export RUN looped-parity --onnx x.onnx", "name one set of weights"),
    ("report nowhere", "nowhere"),
    ("evaluate RUN --lengths 0", "sizes"),
    ("evaluate RUN --stopping Never", "Never", "Oracle"),
    ("evaluate looped-parity --lengths 5000 --family nosuch", "no problems called 'nosuch'"),
    ("evaluate looped-parity --lengths 5000 --precision 2", "between 1e-6 and 0.5, not 2.0"),
    ("evaluate looped-pairs --families --uniform-only --lengths 2", "not both"),
    ("evaluate abacus-addition --grid 3", "'3' is not a grid: write 20x40 for every pair up to 20 and 40"),
    ("solve RUN", "standard input was empty"),
    ("solve RUN --stopping Oracle --stopping Oracle 1+1", "once"),
    ("attack looped-pairs --seconds 0", "--seconds"),
]


@pytest.mark.parametrize(
    ("words", "parts"), [(words, parts) for words, *parts in BAD_COMMANDS], ids=[words for words, *_ in BAD_COMMANDS]
)
def test_wrong_commands_fail_with_one_line(run, runs, words, parts):
    check_error(command(*words.replace("RUN", str(run)).split()), *parts)
    assert not runs.exists()


@pytest.mark.parametrize("prompt", ["1+", "1+2+3", "12", "1 - 2", "１+2", "1+2;ls"])
def test_invalid_prompts_get_an_empty_answer_and_one_line(run, prompt):
    done = command("solve", run, prompt)
    assert (done.returncode, done.stdout) == (1, "\n")  # an empty answer, on its line
    assert len(done.stderr.splitlines()) == 1


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
    words = ["train", "looped-parity", *TWO_STEPS, "steps=3", "lengths.top=4"]
    words += ["--seeds", 2, "--jobs", 1, "--lengths", 4, "--samples", 4, "--quiet"]
    done = command(*words, "optimizer.rate=1e30", "clip=none")
    assert done.returncode == 2 and "2 of 2 seeds diverged" in done.stderr
    finite = Trainer.check_finite

    def check_finite(trainer):
        if trainer.recipe.seed == 0:
            raise Diverged("the loss is not finite")
        finite(trainer)

    monkeypatch.setattr(Trainer, "check_finite", check_finite)
    done = command(*words)
    assert done.returncode == 2 and "1 of 2 seeds diverged" in done.stderr
    assert "exact match" in done.stdout and "diverged" in done.stdout


def test_figures_of_loops_do_not_overwrite_each_other(tmp_path):
    runs = [lw.train("looped-parity", *TWO_STEPS, folder=tmp_path / name / "x", quiet=True).folder for name in "ab"]
    more = "--lengths", 4, "--samples", 4, "--device", "cpu", "--out", tmp_path / "out"
    check_error(command("report", *runs, "--stopping", *more), "would overwrite each other")


def test_a_read_only_run_is_refused_with_advice(run, monkeypatch):
    monkeypatch.setattr(evaluate.os, "access", lambda folder, mode: Path(folder) != run)
    done = command("evaluate", run, "--lengths", "2", "--samples", "2")
    check_error(done, f"{run} is read-only", f"copy it, or measure without saving, in Python: lw.evaluate('{run}')")


def test_all_sizes_are_checked_before_any_is_measured(monkeypatch):
    """If one of several sizes is impossible (an expression of over 128 characters), no size is measured."""
    monkeypatch.delattr(evaluate, "_measure_and_print")
    done = command("evaluate", "retran-small", "--lengths", "30,200", "--uniform-only", "--samples", "4")
    check_error(done, "expression: at most 128 characters can be drawn, not 200")


@pytest.mark.parametrize(
    ("words", "is_resumable"), [(["solve", "looped-pairs", "1+1"], False), (["train", "pairs"], True)]
)
def test_only_resumable_commands_promise_to_continue(monkeypatch, words, is_resumable):
    def raise_interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "load_verb", raise_interrupt)
    done = command(*words)
    assert done.returncode == 130 and ("continues from here" in done.stderr) == is_resumable


def test_an_unavailable_precision_is_refused_before_writing(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in ("train looped-parity", "sweep looped-parity model.width=8,16", "reproduce looped --tasks parity"):
        check_error(command(*words.split(), "--matmul", "tf32", "--device", "cpu"), "tf32")
    assert not runs.exists() and not [*tmp_path.iterdir()]


def test_a_run_that_is_named_twice_counts_once(run, tmp_path):
    twice = command("report", run, run, "--out", tmp_path / "out")
    assert twice.returncode == 0 and "0 of 1" in " ".join(twice.stdout.split())
    (tmp_path / "other").mkdir()
    for path in run.glob("*.json*"):
        (tmp_path / "other" / path.name).write_bytes(path.read_bytes())
    check_error(command("report", run, tmp_path / "other", "--out", tmp_path / "out"), "is the same run")


# Recipes in files


@pytest.mark.parametrize("name", ["looped-parity", "abacus-addition", "lstm-small"])
@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
def test_recipes_are_read_from_files(name, suffix, tmp_path):
    """A file holds what ``show --json`` prints, the recipe in it, or a recipe's name and changes."""
    yaml, path = pytest.importorskip("yaml"), tmp_path / f"recipe.{suffix}"
    shown = json.loads(command("show", name, "--json").stdout)
    lengths = "Uniform(top=12,bottom=3)"
    changes = {"name": "nullable", "steps": 8, "optimizer.rate": 1e-3, "clip": None, "lengths": lengths}
    changed = ["name=nullable", "steps=8", "optimizer.rate=0.001", "clip=none", f"lengths={lengths}"]
    changes, changed = changes | {"watch.sizes": [8, 12]}, [*changed, "watch.sizes=(8,12)"]
    for tree, words in ((shown, []), (shown["recipe"], []), ({"recipe": name} | changes, changed)):
        path.write_text(json.dumps(tree) if suffix == "json" else yaml.safe_dump(tree), encoding="utf-8")
        assert find_recipe(str(path), ["batch=7"]) == catalog.find_recipe(name, [*words, "batch=7"])
    if suffix != "json":
        path.write_text(f"recipe: {name}\noptimizer.rate: 1e-3\n")  # which PyYAML reads as text
        assert find_recipe(str(path), []) == catalog.find_recipe(name, ["optimizer.rate=0.001"])
        path.write_text(f"recipe: {name}\nname: 1e3-steps\n")
        assert find_recipe(str(path), []).name == "1e3-steps"
        optimizer = shown["recipe"]["optimizer"] | {"rate": "RATE"}
        path.write_text(json.dumps(shown["recipe"] | {"optimizer": optimizer}).replace('"RATE"', "1e-3"))
        assert find_recipe(str(path), []).optimizer.rate == 0.001


def test_a_file_named_like_a_recipe_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("looped-parity", "own.py"):
        Path(name).touch()
    assert find_recipe("looped-parity", []) == catalog.find_recipe("looped-parity")
    with pytest.raises(lw.UsageError, match=r"own\.py: a recipe's file is JSON or YAML"):
        find_recipe("own.py", [])


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("a.yaml", "a: [", "not YAML"),
        ("a.yaml", "recipe: looped-parity\nname: 2026-11-29", "neither a number"),
        ("a.yaml", "a: 2026-13-01", "not YAML"),
        ("a.yaml", "? [1]\n: 2", "not YAML"),
        ("a.yaml", "- 1", "is not one of: Recipe"),
        ("a.yaml", "recipe: nope", "recipe: 'nope' is not one of"),
        ("a.json", '{"recipe": "looped-parity", "model.widht": 3}', "there is no such field"),
        ("a.json", "nonsense", "a.json: not JSON (Expecting value"),
    ],
)
def test_faults_of_a_recipe_file_are_reported_in_one_line(file, text, message, tmp_path):
    (tmp_path / file).write_text(text, encoding="utf-8")
    check_error(command("train", tmp_path / file), message, file)
