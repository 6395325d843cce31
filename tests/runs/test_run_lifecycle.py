"""A run's folder after divergence, a resume with other threads, a lost log or a killed writer."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from conftest import command
from small_runs import SMALL_RECIPE

from lengthwise.base.errors import Diverged
from lengthwise.base.files import write
from lengthwise.experiment.optim import AdamW
from lengthwise.experiment.recipe import Watch
from lengthwise.report import curves, name_curves
from lengthwise.report.card import build_score_card
from lengthwise.runs.folder import DIVERGED
from lengthwise.runs.run import Run
from lengthwise.training.loop import Trainer, train

WATCH = Watch(every=10, sizes=(2,), count=4, probes=("101",))
DIVERGENT_RUN = replace(SMALL_RECIPE, optimizer=AdamW(rate=1e30), seed=1, watch=WATCH)


def parse_strictly(text):
    """Parse JSON, and fail on NaN and infinity."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


# Divergence


def test_training_can_continue_after_divergence_and_writes_null_for_nonfinite_numbers():
    run = train(DIVERGENT_RUN, allow_divergence=True)
    rows = [parse_strictly(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-2]["loss"] is None or rows[-1].get("loss", 0) is None
    assert rows[-1]["perplexity"] == {"101": None}
    assert parse_strictly((run.folder / "about.json").read_text())["diverged"] == 10
    assert run.diverged
    done = command("solve", run.folder, "101", "--json")
    assert (done.returncode, done.stderr) == (0, "") and parse_strictly(done.stdout)["confidence"] is None


def test_a_diverged_seed_is_marked_in_every_table():
    tame = train(SMALL_RECIPE)
    command("evaluate", tame.folder, "--lengths", "3", "--samples", "4", "--uniform-only")
    with pytest.raises(Diverged):
        train(DIVERGENT_RUN)
    assert Run.of(DIVERGENT_RUN).diverged
    other = Run.of(replace(SMALL_RECIPE, seed=1))
    other.record_failure("its loss is no number", DIVERGED)
    runs = [Run.open(tame.folder), other]
    (card,) = build_score_card(runs)
    assert (card["seeds"], card["longest"][-1]) == (2, "diverged")
    assert "1 seed diverged" in name_curves(curves(runs))[0]


# Resumed elsewhere


def test_resuming_with_another_number_of_threads_is_reported_and_recorded(capsys):
    recipe = replace(SMALL_RECIPE, steps=2)  # several threads are slow here
    run = Run.of(recipe)
    trainer = Trainer(recipe, torch.device("cpu"))
    trainer.advance()
    run.save_state(trainer.state())
    threads = torch.get_num_threads()
    train(recipe, threads=threads + 1)
    assert f"threads {threads + 1} instead of {threads}" in capsys.readouterr().err
    assert run.about()["resumed"] == [{"step": 1, "threads": str(threads)}]


def test_a_deleted_log_is_reported_on_resuming(capsys):
    run = Run.of(SMALL_RECIPE)
    trainer = Trainer(SMALL_RECIPE, torch.device("cpu"))
    trainer.step = 20
    run.save_state(trainer.state())
    train(SMALL_RECIPE)
    assert "0 of 2 rows" in capsys.readouterr().err


# Files of a folder


def test_the_next_write_removes_the_file_of_a_killed_writer(tmp_path):
    code = f"""
import os, pathlib
from lengthwise.base import files
files.os.replace = lambda *paths: os.kill(os.getpid(), 9)
files.write(pathlib.Path({str(tmp_path / "a")!r}), b"")
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".a.")
    os.utime(left, (0, 0))  # minutes later
    write(tmp_path / "a", b"")
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]


def test_repeated_measurements_are_not_stored_twice():
    run = train(SMALL_RECIPE)
    for _ in range(2):
        done = command("evaluate", run.folder, "--lengths", "2,3", "--samples", "4", "--anatomy")
        assert (done.returncode, done.stderr) == (0, "")
        rows = [(run.folder / f"{name}.jsonl").read_text().splitlines() for name in ("scores", "anatomy")]
    assert all(len(part) == len({*part}) for part in rows)
    assert len(rows[1]) == 2
