"""Reading and writing files: nothing is written through a link, and files of other programs stay unchanged."""

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from conftest import command
from matplotlib.figure import Figure
from torture import fuzz

import lengthwise as lw
from lengthwise.ask.inquiry import Inquiry, InquiryRun
from lengthwise.base import files
from lengthwise.base.csv_files import write_csv
from lengthwise.base.files import remove_temporary_files, write
from lengthwise.cli.sweep import _record_sweep
from lengthwise.jobs.search import Axis, Search
from lengthwise.report.publish import publish, publish_distribution
from lengthwise.runs.folder import Folder, RunFolder, cache_operations
from lengthwise.runs.run import Run, load, save_weights
from lengthwise.runs.tracking import Tracker
from lengthwise.verify.verification import read_record as read_verification
from lengthwise.viewer.document import write_page

RECIPE = lw.find("looped-parity", *fuzz.SHORT_CHANGES, *fuzz.SMALL_CHANGES)
SCORE = {"task": "parity", "weights": "w", "stopping": "MaxConfidence(extra=1)", "problems": "uniform", "sizes": [2],
         "count": 9, "exact": 1.0, "token_accuracy": 1.0, "loops": 2.0, "low": 0.7, "high": 1.0}  # fmt: skip


def build_run(folder):
    """Build a run with rows, without training."""
    run = Run.of(RECIPE, folder)
    run.append("scores", SCORE)
    run.append("metrics", {"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4})
    return run


def take_lock(folder):
    with Folder(folder).lock():
        pass


def write_tracker_ledger(folder):
    """Write a tracker's file of sent rows, and raise its failure, which the tracker only reports."""
    notes = []
    Tracker(Run(folder, RECIPE), "tensorboard", notes.append).send_rows("metrics", [{"step": 2, "loss": 0.4}])
    raise lw.UsageError(*notes)


def write_search_log(folder):
    Search(folder, [Axis("optimizer.rate", (), 0.001, 0.1, True)], 0).ask()


def write_operations(folder):
    """Write the cache of operations, then raise UsageError as other writers do, since the cache ignores failures."""
    cache_operations({"id": 1.0})
    raise lw.UsageError


def write_report(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthwise.report.publish._draw_figures", lambda *_: {"lengths": Figure(figsize=(1, 1))})
        publish([RunFolder(folder.parent / "run")], folder)


RESULT_FILES = ("runs.json", "scores.csv", "metrics.csv", "card.json", "figures.json", "lengths.png")
# Every file that the package writes, and a function that writes it into a folder.
WRITERS = {
    **{f"{name}.jsonl": lambda folder, name=name: RunFolder(folder).append(name, SCORE)
       for name in ("scores", "metrics", "depth", "anatomy", "replies")},
    "config.json": lambda folder: save_weights(folder, RECIPE, {}),
    "model.safetensors": lambda folder: save_weights(folder, RECIPE, {}),
    "state.pt": lambda folder: Run(folder, RECIPE).save_state({}),
    "about.json": lambda folder: Run(folder, RECIPE).write_about({"parameters": 1}),
    "failed.json": lambda folder: RunFolder(folder).record_failure("reason"),
    "code.json": lambda folder: Run(folder, RECIPE).record_code(torch.nn.Linear(1, 1)),
    "tracked-tensorboard.json": write_tracker_ledger,
    ".lock": take_lock,
    ".owner": take_lock,
    ".operations.json": write_operations,
    "asked.json": lambda folder: InquiryRun.of(Inquiry("http://x/v1", "m", RECIPE.task, "Well?"), folder),
    "sweep.json": lambda folder: _record_sweep(folder, "{}"),
    "optuna.log": write_search_log,
    **dict.fromkeys(RESULT_FILES, write_report),
    "distribution.json": lambda folder: publish_distribution({1: 2}, folder / "distribution"),
    "trials.csv": lambda folder: write_csv(folder / "trials.csv", [{"a": 1}]),
    "page.html": lambda folder: write_page(str(folder / "page.html"), "page"),
}  # fmt: skip


def make_symbolic_link(path, target):
    path.symlink_to(target)


def make_dangling_link(path, target):
    path.symlink_to(target.with_name("missing"))


def read_files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def outside_folder(tmp_path):
    """Return a user's folder with a file whose last line is incomplete."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text('{"of": "the user"}\nincomplete')
    return folder


@pytest.mark.parametrize("make_link", [make_symbolic_link, make_dangling_link])
@pytest.mark.parametrize("name", WRITERS)
def test_no_writer_follows_a_link(name, make_link, outside_folder, tmp_path, monkeypatch):
    folder = build_run(tmp_path / "run").folder
    if WRITERS[name] is write_report:
        folder = tmp_path / "results"
        folder.mkdir()
    (folder / name).unlink(missing_ok=True)
    monkeypatch.setenv("LENGTHWISE_RUNS", str(folder))
    make_link(folder / name, outside_folder / "file")
    before = read_files(outside_folder)
    with suppress(lw.UsageError):  # some files are replaced
        WRITERS[name](folder)
    assert read_files(outside_folder) == before and {*outside_folder.iterdir()} == {outside_folder / "file"}


def run_failing_command(*words):
    """Run a command that must fail, and return its one-line error; on a busy machine, lines of progress precede it."""
    done = command(*map(str, words))
    *progress, error = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "") and all("so far" in line for line in progress), done.stderr
    return error


def test_a_folder_that_the_user_names_may_be_a_link(tmp_path, monkeypatch):
    """For example, the folder of runs may be a link to another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / "runs"))
    run = build_run(None)
    (tmp_path / "run").symlink_to(run.folder)
    with run.lock(), RunFolder(tmp_path / "run").lock():
        build_run(tmp_path / "run").append_new("scores", SCORE)
    assert len(run.rows("scores")) == 2 and run.folder.parent.resolve() == tmp_path / "disk"


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Build a finished run with rows of every kind."""
    return fuzz._create_runs(tmp_path_factory.mktemp("original"))[0]


@pytest.fixture
def copied_run(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run, tmp_path / "trained"))


# Temporary files


def test_only_abandoned_temporary_files_of_this_package_are_removed(tmp_path):
    """Files of other programs, folders, new files, and files that do not begin with a dot are kept."""
    age = time.time() - 2 * files.TEMPORARY_AGE_SECONDS

    def create(name, *, is_old=True):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (age, age) if is_old else None)
        return tmp_path / name

    unique = f"lengthwise-{'0' * 16}"
    for name in (
        ".scores.jsonl.host.12",
        ".#lk0x00005581a2b3c4d0.host.12",
        ".b.lengthwise-12",
        f"scores.jsonl.{unique}",
    ):
        create(name)
    create(f".scores.jsonl.{unique}", is_old=False)
    (tmp_path / f".folder.{unique}").mkdir()
    before = {*tmp_path.iterdir()}
    left = create(f".scores.jsonl.lengthwise-{'1' * 16}")
    earlier = create(f".state.pt.lengthwise-{'2' * 16}")
    write(tmp_path / "other", b"")
    assert left.exists(), "it belongs to another file"
    write(tmp_path / "scores.jsonl", b"")
    assert {*tmp_path.iterdir()} == before | {tmp_path / "scores.jsonl", tmp_path / "other", earlier}
    remove_temporary_files(tmp_path)
    assert not earlier.exists()


# Reading


@pytest.mark.parametrize("name", ["scores.jsonl", "config.json", "about.json", "model.safetensors", "state.pt"])
def test_a_file_that_is_too_large_is_refused_at_once(name, tmp_path):
    run = build_run(tmp_path / "run")
    path = run.folder / name
    acts = {
        "scores.jsonl": lambda: (run.rows("scores"),),
        "config.json": lambda: Run.open(run.folder),
        "about.json": run.about,
        "model.safetensors": lambda: load(run.folder),
        "state.pt": run.load_state,
    }
    path.touch()
    os.truncate(path, 2 * 10**12)  # a sparse file takes no disk space
    begun = time.monotonic()
    with pytest.raises(lw.UsageError, match=rf"{name}: too large: 2 TB"):
        acts[name]()
    if name == "scores.jsonl":
        with pytest.raises(lw.UsageError, match="too large"):
            run.append("scores", SCORE)
    assert time.monotonic() - begun < 5


def test_recipes_and_records_that_are_too_large_are_refused(tmp_path):
    path = tmp_path / "recipe.json"
    path.touch()
    os.truncate(path, 2 * 10**12)
    assert "too large" in run_failing_command("train", path)
    with pytest.raises(lw.UsageError, match="too large"):
        read_verification(path)


# Rows that do not fit the task


@pytest.mark.parametrize("name", ["scores", "anatomy", "depth"])
def test_a_row_with_too_many_sizes_is_refused_in_one_line(name, copied_run, tmp_path):
    path = copied_run / f"{name}.jsonl"
    lines = path.read_text().splitlines()
    lines.append(json.dumps(json.loads(lines[0]) | {"sizes": [2, 2]}))
    path.write_text("".join(f"{line}\n" for line in lines))
    calls = [["report", copied_run, "--html", tmp_path / "x.html"]]
    if name == "scores":
        calls += [["push", copied_run, "user/name", "--dry-run"], ["verify", copied_run, "--quiet"]]
        calls += [["report", copied_run, "--out", tmp_path / "out", "--quiet"]]
        calls += [["evaluate", copied_run, "--lengths", "2", "--samples", "4", "--quiet"]]
    wanted = f"{name}.jsonl: line {len(lines)}: sizes must be 1 (length), not 2; delete that line"
    for words in calls:
        assert wanted in run_failing_command(*words)
    publish([build_run(tmp_path / "run")], tmp_path / "results")
    path = tmp_path / "results" / "scores.csv"
    path.write_text(path.read_text().replace(",2,9,", ",2x2,9,"))
    message = run_failing_command("report", tmp_path / "results", "--out", tmp_path / "out")
    assert "scores: row 1: sizes must be 1 (length), not 2" in message


def test_checking_a_file_creates_no_folder(tmp_path):
    files.check_writable("--rows", tmp_path / "a" / "b" / "c.jsonl")
    assert not any(tmp_path.iterdir())
    (tmp_path / "a").write_text("a file")
    with pytest.raises(lw.UsageError, match="cannot be written to"):
        files.check_writable("--rows", tmp_path / "a" / "b" / "c.jsonl")
