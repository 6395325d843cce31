"""The progress display shows what long work does, how much is done, and when it will end."""

import io
import itertools
import json
import sys
import types
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base import progress
from lengthwise.base.formatting import format_duration
from lengthwise.base.progress import Progress, ProgressLine, format_bar
from lengthwise.cli import entry
from lengthwise.evaluation import scores
from lengthwise.evaluation.families import (
    estimate_relative_cost,
    evaluate_families,
    evaluate_with_progress,
    show_size_progress,
)
from lengthwise.evaluation.scores import evaluate
from lengthwise.runs.run import load
from lengthwise.training.loop import TrainingProgress

SHORT_RUN = ["steps=20", "batch=4", "model.width=16", "watch.every=10", "watch.sizes=2", "watch.count=4"]


@pytest.fixture
def recorded_lines(monkeypatch):
    """Record every progress line that is added, with the fractions and notes it shows."""
    begun = {}
    begin = Progress.add_line

    def add_line(self, what, total=None, done=0.0):
        found = begin(self, what, total, done)
        updates, show = begun.setdefault(what, []), found.update
        monkeypatch.setattr(
            found, "update", lambda *given: (show(*given), updates.append((found.fraction, found.note)))[0]
        )
        return found

    monkeypatch.setattr(Progress, "add_line", add_line)
    return begun


def is_completed(updates):
    shares = [share for share, _ in updates]
    return shares == sorted(shares) and shares[-1] == pytest.approx(1)


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([{"loss": 0.5}], "step 3 of 9  loss 0.5000"),
        ([{"loss": None, "length": 4}], "step 3 of 9  length 4  diverged"),
        ([{"loss": 0.5, "length": 7}], "step 3 of 9  length 7  loss 0.5000"),
        ([{"mine": 0.5}], "step 3 of 9"),  # a custom objective that reports no loss
        ([{"exact": {}, "validation_loss": 1.0}, {"loss": 0.5}], "step 3 of 9  loss 0.5000"),
        ([{"exact": {"8": 0.25}}, {"loss": 0.5}], "step 3 of 9  loss 0.5000  exact match 8: 0.25"),
    ],
)
def test_training_progress_shows_the_values_of_its_rows(rows, note):
    course = TrainingProgress(ProgressLine("x", 9))
    for row in rows:
        course.show(3, row)
    assert course.line.note == note


# Text of a line


def test_a_line_shows_the_remaining_time(monkeypatch):
    now = itertools.count(0, 10)  # each reading is ten seconds after the last
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    line = ProgressLine("digging", 100)
    assert line.describe() == "0%  10 s so far"
    line.update(25, "at 4")
    assert line.describe() == "25%  60 s left  at 4"  # a quarter in 20 seconds
    begun = ProgressLine("digging", 1000)
    begun.update(4)
    assert begun.describe() == "0%  10 s so far"  # too early for an estimate
    resumed = ProgressLine("digging", 100, amount_done=80)
    resumed.update(90)
    assert resumed.describe() == "90%  10 s left"  # work of an earlier call took no time of this one
    resumed.update(100)
    assert resumed.describe().startswith("done in ")
    assert ProgressLine("digging", None).describe() == "10 s so far"


def test_durations_are_rounded_to_one_unit():
    assert [format_duration(seconds) for seconds in (0.4, 59, 150, 9000)] == ["0 s", "59 s", "2 min", "2.5 h"]


# Terminals, pipes and notebooks


def test_a_pipe_gets_lines_at_intervals_and_a_terminal_gets_a_whole_line(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.01)
    for width, terminal in ((80, False), (60, True), (200, True)):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=width)
        with Progress(console=console) as shown:
            shown.add_line("looped-parity [b]", 10).update(5, "loss 0.1234")
            progress.time.sleep(0.15)
        text = console.file.getvalue()
        assert "loss 0.1234" in text and "50%" in text and "…" not in text
        if not terminal:
            lines = text.splitlines()
            assert len(lines) > 1 and all(line.startswith("looped-parity [b]: ") for line in lines)
            assert lines[-1] == "looped-parity [b]: 50%  0 s left  loss 0.1234"
    with Progress(quiet=True) as shown:
        shown.add_line("x", 1).update(1)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_gets_plain_html(monkeypatch):
    """A notebook shows a bar that is replaced in place, without widgets."""
    pages = []
    handle = types.SimpleNamespace(update=pages.append)
    shown = types.SimpleNamespace(HTML=str, display=lambda page, display_id: pages.append(page) or handle)
    kernel = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=True), display=shown)
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 0.01)
    with Progress() as page:
        page.add_line("<i>", 4).update(1, "at 8")
        progress.time.sleep(0.15)
    assert len(pages) > 1
    assert '<progress value="0.2500"></progress> 25%  0 s left  at 8' in pages[-1] and "&lt;i&gt;" in pages[-1]
    assert format_bar(ProgressLine("x", None)).count("<progress>") == 1


# Commands and functions that show progress


def test_training_and_evaluation_share_one_display(recorded_lines, capsys):
    words = ["train", "looped-parity", *SHORT_RUN, "lengths=Curriculum(top=4, every=2)"]
    words += ["--lengths", "2,4", "--samples", "4"]
    assert entry._run(entry.parse([*words, "--hard"])) == 2  # parity has no harder set: refused before training
    assert not recorded_lines
    assert entry._run(entry.parse([*words, "--families"])) == 0
    assert list(recorded_lines) == ["looped-parity", "looped-parity: exact match, uniform", "looped-parity: families"]
    assert is_completed(recorded_lines["looped-parity"])
    last = recorded_lines["looped-parity"][-1][1]
    for part in ("step 20 of 20", "length 4", "loss ", "exact match 2: "):
        assert part in last


LONG_COMMANDS = [
    (["evaluate", "looped-parity", "--lengths", "2,8", "--samples", "4", "--anatomy", "--stopping", "Oracle"],
     ["looped-parity: exact match", "looped-parity: families", "looped-parity: how answers go wrong"]),
    (["show", "looped-parity", "model.width=8", "batch=4", "--measure"],
     ["looped-parity: measuring the cost of a step"]),
    (["attack", "looped-parity", "--tries", "4"], ["looped-parity: searching for wrong answers"]),
    (["rasp", "parity", "101"], ["parity: rounds"]),
    (["sample", "parity", "3"], ["parity: problems"]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "lines"), LONG_COMMANDS, ids=[words[0] for words, _ in LONG_COMMANDS])
def test_long_commands_show_progress(recorded_lines, capsys, words, lines):
    assert entry._run(entry.parse(words)) == 0
    assert list(recorded_lines) == lines
    if words[0] == "show":
        assert "min more, on 1,000 problems of each default length" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_many_problems_are_written_as_they_are_decoded(options, monkeypatch, capsys):
    words = ["sample", "addition", "3", "--count", "7", *options]
    assert entry._run(entry.parse(words)) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr("lengthwise.cli.sample.PROBLEMS_PER_CHUNK", 2)
    write, written = sys.stdout.write, []
    monkeypatch.setattr(sys.stdout, "write", lambda text: (written.append(text), write(text))[1])
    assert entry._run(entry.parse(words)) == 0
    assert "".join(written) == whole and len(written) >= 4 and max(map(len, written)) < len(whole) / 2
    assert not options or len(json.loads(whole)) == 7


@pytest.mark.usefixtures("blank_figures")
def test_python_functions_and_reports_show_progress(recorded_lines, capsys, tmp_path):
    run = lw.train("looped-parity", *SHORT_RUN, "lengths=Uniform(top=3)")
    lw.evaluate(run, [2, 3], samples=4, families=True, save=True)
    assert [what.partition(": ")[2] for what in recorded_lines] == ["", "exact match", "families"]
    assert all(is_completed(updates) for updates in recorded_lines.values())
    recorded_lines.clear()
    assert entry._run(entry.parse(["report", str(run.folder), "--out", str(tmp_path / "figures")])) == 0
    assert list(recorded_lines) == ["operations of a step", "figures"]
    recorded_lines.clear()
    words = ["report", str(run.folder), "--stopping", "--samples", "4", "--lengths", "2,3", "--out", str(tmp_path)]
    assert entry._run(entry.parse(words)) == 0
    assert list(recorded_lines) == ["looped-parity: every loop"]


# Cost


def test_cost_grows_with_loops_and_positions_and_progress_changes_no_scores():
    looped, standard = catalog.find_recipe("looped-pairs"), catalog.find_recipe("standard-pairs")
    growth = [estimate_relative_cost(recipe, 40) / estimate_relative_cost(recipe, 10) for recipe in (looped, standard)]
    assert growth[0] > 10 > growth[1] > 3
    recipe, shown = catalog.find_recipe("looped-parity"), Progress(quiet=True)
    weights = load("looped-parity", torch.device("cpu"))
    followed = evaluate_with_progress(weights, [2, 3], [recipe.stopping], shown, label="", samples=4)
    assert list(followed) == list(evaluate(weights, [2, 3], samples=4))
    assert list(show_size_progress(shown, recipe, [2, 3], label="")) == [2, 3]


@pytest.mark.parametrize(("rules", "options"), [
    ([lw.Oracle()], {}), ([lw.Oracle()], {"precision": 0.1}), ([lw.Oracle(), lw.MaxConfidence()], {})
])  # fmt: skip
def test_progress_moves_within_a_size(rules, options, monkeypatch):
    """A long size is measured in many batches, and the line advances with each."""
    monkeypatch.setattr(scores, "MAX_POSITIONS", 200)
    monkeypatch.setattr(scores, "CACHE_POSITIONS", 200)
    weights, seen = load("looped-parity", torch.device("cpu")), []
    line = Progress(quiet=True).add_line("", 1.0)
    update = line.update
    monkeypatch.setattr(line, "update", lambda done, note="": (update(done, note), seen.append((done, note))))
    progress = SimpleNamespace(add_line=lambda *_: line)
    list(evaluate_with_progress(weights, [20], rules, progress, label="", samples=40, **options))
    whole = estimate_relative_cost(weights.recipe, 20)
    assert len({done for done, _ in seen}) > 2 and {note for _, note in seen} == {"at 20"}
    assert all(0 < done <= whole * 2 for done, _ in seen) and [*seen] == sorted(seen)


def test_progress_moves_within_the_families_of_a_size(monkeypatch):
    monkeypatch.setattr(scores, "MAX_POSITIONS", 100)
    weights, shares = load("looped-pairs", torch.device("cpu")), []
    watch = lambda sizes, share: shares.append((tuple(sizes), share))  # noqa: E731
    list(evaluate_families(weights, [9], samples=10, watch=watch))
    assert {sizes for sizes, _ in shares} == {((9,),)}
    assert len(shares) > 2 and [share for _, share in shares] == sorted(share for _, share in shares)
