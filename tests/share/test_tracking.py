"""Trackers get each row once, and their errors do not stop a run. ``test_real_trackers`` uses the real libraries."""

import json
from dataclasses import replace

import pytest
from conftest import command
from small_runs import SMALL_RECIPE, list_tracked_points

import lengthwise as lw
from lengthwise.runs import tracking
from lengthwise.runs.run import Run
from lengthwise.training.loop import Trainer, train

WATCHED_RECIPE = replace(SMALL_RECIPE, steps=30, watch=lw.Watch(every=10, sizes=(2,), count=4))


class RecordingTracker:
    """A tracker that records its points, and fails once it has ``max_points``."""

    points, closed, max_points = [], 0, 1000

    def __init__(self, run):
        pass

    def log(self, axis, axis_value, values):
        if len(RecordingTracker.points) >= RecordingTracker.max_points:
            raise ConnectionResetError("no server")
        print("Tracking at http://localhost")
        RecordingTracker.points.append((axis, axis_value, values))

    def close(self):
        RecordingTracker.closed += 1


@pytest.fixture(autouse=True)
def tracker(monkeypatch, no_type_checks):
    monkeypatch.setitem(tracking.CLIENTS, "kept", RecordingTracker)
    monkeypatch.setattr(RecordingTracker, "points", [])
    monkeypatch.setattr(RecordingTracker, "closed", 0)
    return RecordingTracker


def test_every_row_is_sent_as_a_point(tracker):
    run = lw.train(WATCHED_RECIPE, track="kept", quiet=True)
    assert tracker.points == list_tracked_points(run) and len(tracker.points) == 6 and tracker.closed == 1
    assert {"loss", "rate", "wall_s"} <= tracker.points[0][2].keys() and "exact/2" in tracker.points[1][2]


def test_a_resumed_run_sends_no_point_twice(tracker, monkeypatch):
    """A run killed at step 25, with a checkpoint of step 5, logs the rows of steps 10 and 20 once."""
    save, advance = Run.save_state, Trainer.advance
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_state", lambda run, state: save(run, state) if state["step"] == 5 else None)
        patch.setattr(Trainer, "advance", lambda one: _raise_interrupt() if one.step == 25 else advance(one))
        with pytest.raises(KeyboardInterrupt):
            train(WATCHED_RECIPE, track=["kept"], save_every=0)
    assert [at for _, at, _ in tracker.points] == [10, 10, 20, 20]
    run = train(WATCHED_RECIPE, track=["kept"])
    times = {"wall_s", "cpu_s"}
    without = [[(at, {k: v for k, v in values.items() if k not in times}) for _, at, values in points]
               for points in (tracker.points, list_tracked_points(run))]  # fmt: skip
    assert without[0] == without[1]


def _raise_interrupt():
    raise KeyboardInterrupt


def test_a_failing_tracker_does_not_stop_the_run(tracker, monkeypatch):
    whole = train(WATCHED_RECIPE, folder=Run.locate(WATCHED_RECIPE).folder.with_name("whole"))
    monkeypatch.setattr(RecordingTracker, "max_points", 3)
    words = ["train", "small.json", "--track", "kept", "--lengths", "2", "--samples", "4", "--quiet", "--json"]
    folder = whole.folder.parent
    (folder / "small.json").write_text(WATCHED_RECIPE.json())
    monkeypatch.chdir(folder)
    done = command(*words)
    run = Run.open(Run.locate(WATCHED_RECIPE).folder)
    assert done.returncode == 0 and json.loads(done.stdout)[0]["scores"] == run.rows("scores")
    assert (run.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    assert len(tracker.points) == 3
    assert "kept stopped tracking" in done.stderr and "ConnectionResetError" in done.stderr


def test_the_rows_of_an_old_run_are_sent_once(tracker):
    run = train(WATCHED_RECIPE)
    run.append("scores", _build_score(run, 4), _build_score(run, 8))
    done = command("track", run.folder, "--to", "kept")
    assert (done.returncode, done.stdout) == (0, "kept: 6 rows of metrics, 2 rows of scores\n")
    assert tracker.points == list_tracked_points(run)
    assert command("track", run.folder, "--to", "kept").returncode == 0
    assert len(tracker.points) == 8
    (run.folder / "tracked-kept.json").write_text('{"metrics": "many"}')
    assert "is not a whole number" in command("track", run.folder, "--to", "kept").stderr


def _build_score(run, size):
    return {"task": "parity", "weights": "w", "stopping": run.outline.stopping, "problems": "uniform", "sizes": [size],
            "count": 4, "exact": 0.5, "token_accuracy": 0.5, "loops": 1.0, "low": 0.1, "high": 0.9}  # fmt: skip


def test_all_processes_of_a_command_send_their_points(jobs_in_process, tracker, tmp_path):
    (tmp_path / "small.json").write_text(replace(WATCHED_RECIPE, steps=10).json())
    words = ["--seeds", "2", "--jobs", "2", "--track", "kept", "--lengths", "2", "--samples", "4", "--quiet"]
    assert command("train", tmp_path / "small.json", *words).returncode == 0
    assert [axis for axis, _, _ in tracker.points] == ["step", "step", "size"] * 2


def test_unavailable_trackers_are_reported_before_training(monkeypatch, runs, capsys):
    assert "did you mean tensorboard?" in command("train", "looped-parity", "--track", "tensorbord").stderr
    assert not runs.exists()
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    train(WATCHED_RECIPE, track=["wandb"])
    line = f"wandb stopped tracking small-{WATCHED_RECIPE.id}: wandb is not installed; pip install 'lengthwise[wandb]'"
    assert line in capsys.readouterr().err
    with pytest.raises(lw.UsageError, match="nothing is not one of the trackers"):
        train(WATCHED_RECIPE, track=["nothing"])


def test_a_row_that_a_tracker_failed_to_accept_is_sent_later(tracker, monkeypatch):
    monkeypatch.setattr(RecordingTracker, "max_points", 3)
    run = train(WATCHED_RECIPE, track=["kept"])
    monkeypatch.setattr(RecordingTracker, "max_points", 1000)
    assert command("track", run.folder, "--to", "kept").returncode == 0
    assert tracker.points == list_tracked_points(run)
