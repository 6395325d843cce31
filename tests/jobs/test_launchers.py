"""Launchers: their interface, missing software, forecasts, and a study of many runs."""

import io
import json
import os
import re
import shutil
import sys
from argparse import Namespace
from dataclasses import replace

import many_runs
import pytest
import torch
from conftest import command
from rich.console import Console

import lengthwise as lw
from lengthwise.base.errors import UsageError
from lengthwise.cli import options
from lengthwise.cli.shared import TrainingOptions
from lengthwise.experiment.recipe import Parent
from lengthwise.jobs import launchers, pool, ray_cluster, slurm
from lengthwise.jobs.pool import JobPool, summarize_runs
from lengthwise.runs.run import Run

SMALL_RECIPE = ["steps=2", "lengths=Uniform(top=4)", "model.width=8", "batch=8", "watch.every=0", "keep=last"]


def test_unavailable_launchers_are_reported_in_one_line(monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with pytest.raises(UsageError, match="sbatch and srun are not installed"):
        slurm.Slurm().build_executor(1)
    with pytest.raises(UsageError, match=r"no cluster answers \(nobody is there\)"):
        ray_cluster.Ray(address="nowhere:1").build_executor(1)


@pytest.mark.usefixtures("no_type_checks")
def test_an_error_without_a_message_is_named_by_its_class(monkeypatch):
    def fail(reference):
        raise ValueError

    task = ray_cluster._RayTask("task 0", Namespace(ray=Namespace(get=fail)))
    assert task.read_failure() == "Ray: ValueError"


@pytest.mark.parametrize(
    ("terminal", "quiet", "seconds", "draw_count"),
    [
        (True, False, 0.0, 240),
        (True, False, 0.5, 6),
        (False, False, 0.5, 5),
        (False, False, 12, 1),
        (True, True, 0.5, 0),
    ],
)
def test_drawing_progress_takes_little_of_the_time(terminal, quiet, seconds, draw_count, monkeypatch):
    """Simulate a minute of polls, in which drawing the table takes ``seconds`` each time."""
    clock = Namespace(
        now=100.0, draw_count=0, monotonic=lambda: clock.now, sleep=lambda s: setattr(clock, "now", clock.now + s)
    )

    def simulate_drawing(*_):
        clock.now, clock.draw_count = clock.now + seconds, clock.draw_count + 1
        return ""

    monkeypatch.setattr(job_pool := object.__new__(JobPool), "poll", lambda: clock.now < 160, raising=False)
    monkeypatch.setattr(pool, "time", clock)
    monkeypatch.setattr(pool, "summarize_runs", simulate_drawing)
    pool.show_progress(job_pool, [], Console(file=io.StringIO(), force_terminal=terminal), quiet=quiet)
    assert draw_count <= clock.draw_count <= draw_count + 1


class FakeRay:
    """A stand-in for Ray that runs a task when its result is requested; a command named ``never`` does not end."""

    def __init__(self):
        self.cancelled, self.tasks, self.options = [], {}, {}

    def init(self, *address, **options):
        if address[0]:
            raise ConnectionError("nobody is there\nat all")

    def remote(self, **options):
        self.options = options
        return lambda function: Namespace(remote=lambda *words: self.add_task(function, words))

    def add_task(self, function, words):
        self.tasks[reference := f"task {len(self.tasks)}"] = (function, words)
        return reference

    def wait(self, references, num_returns, timeout):
        return [], [one for one in references if self.tasks[one][1][0][0] == "never"]

    def get(self, reference):
        function, words = self.tasks[reference]
        return function(*words)

    def cancel(self, reference):
        print("a node is dead")
        self.cancelled.append(reference)

    def shutdown(self):
        self.tasks = {}


def test_tasks_of_ray_end_one_by_one_and_the_rest_are_cancelled(monkeypatch, tmp_path, capsys):
    """A failed command's reason is reported; a killed one is retried, and counts as lost. Ray's output is hidden."""
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_cluster, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(ray_cluster, "LENGTHWISE_COMMAND", (sys.executable, "-c"))
    executor = ray_cluster.Ray(gpus=0.25, retries=2).build_executor(1)
    retried = {"max_retries": 2, "retry_exceptions": [ray_cluster.TrainingKilled]}
    assert ray.options == {"num_cpus": 1, "num_gpus": 0.25} | retried
    ends = ["pass", "import sys; sys.exit('lengthwise: it is hot')", "import os; os.kill(os.getpid(), 9)", "never"]
    jobs = executor.submit([[end] for end in ends])
    assert [job.is_done() for job in jobs] == [True, True, True, False]
    reasons = [job.read_failure() for job in jobs[:3]]
    assert reasons == ["", "it is hot", "Ray: killed by signal 9"]
    executor.shutdown(jobs[3:])
    assert ray.cancelled == ["task 3"] and not ray.tasks
    print("and now")
    assert capsys.readouterr().out == "and now\n"


@pytest.mark.usefixtures("no_type_checks")
def test_a_study_of_many_runs_is_watched_and_listed(monkeypatch, tmp_path):
    """Only some runs are listed. Rows of finished runs are dropped from memory, as 10,000 runs require."""
    monkeypatch.setenv("LENGTHWISE_RUNS", "")
    monkeypatch.setenv("TERM", "")
    monkeypatch.setattr(many_runs, "TRAIN", ["looped-parity", *SMALL_RECIPE, "--lengths", "4", "--samples", "2"])
    shown, read = [], []
    monkeypatch.setattr(pool, "summarize_runs", lambda *asked: shown.append(summarize_runs(*asked)) or shown[-1])
    monkeypatch.setattr(many_runs.Run, "clear_cache", lambda run: read.append(run.folder))
    assert many_runs.measure_study(30, tmp_path, slots=10, seconds=0.1)["per_run_s"] < 1
    text = io.StringIO()
    Console(file=text, width=200).print(shown[-1])
    counts, *lines = text.getvalue().splitlines()
    assert re.fullmatch(r"30 runs: \d+ done, 0 failed, \d+ submitted, 0 waiting", counts)
    assert 0 < len(lines) <= pool.MAX_LISTED_RUNS
    assert len(set(read)) == 30


def test_the_time_left_of_a_continued_run_counts_its_own_steps(runs):
    run = Run.of(replace(lw.find("looped-parity", "steps=250"), parent=Parent("0" * 16, step=100)))
    run.append("metrics", {"step": 150, "rate": 1e-3, "loss": 0.5, "wall_s": 10.0})
    assert [*pool.build_status_table([run]).columns[3].cells] == ["loss 0.5000  20 s left"]


# Forecasts


def test_a_forecast_is_correct_within_a_factor_of_two(capsys, runs):
    """A forecast covers runs that have not begun, with the chosen launcher and others, and creates no files."""
    words = ["looped-parity", *SMALL_RECIPE, "steps=150", "model.width=16", "--seeds", "3", "--jobs", "2", "--dry-run",
             "--measure"]  # fmt: skip
    forecasts = [json.loads(command("train", *words, "--json").stdout) for _ in range(2)]  # the better of two
    assert not runs.exists()
    one = lw.train("looped-parity", *SMALL_RECIPE, "steps=150", "model.width=16", quiet=True)
    seconds = one.about()["cpu_s"]
    minutes = [found["recipes"][0]["minutes_each"] for found in forecasts]
    assert any(seconds / 2 < 60 * each < 2 * seconds for each in minutes), (minutes, seconds)
    (row,) = forecasts[0]["recipes"]
    assert (row["seeds"], row["missing"]) == (3, 3) and row["operations_each"] > 0 and row["memory"] > 0
    assert row["gpu_minutes_each"] is None or torch.cuda.is_available()


def test_a_forecast_names_the_fastest_launcher(monkeypatch, tmp_path):
    """A forecast uses the number of cores that Slurm reports, and lists launchers that are not installed."""
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 6/2/1/9\necho 0/4/0/4\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = json.loads(
        command("sweep", "looped-parity", "model.width=4,8", *SMALL_RECIPE[:2], *SMALL_RECIPE[3:], "--seeds", "4",
                "--jobs", "1", "--on", "Slurm(cpus=2)", "--dry-run", "--json").stdout
    )  # fmt: skip
    assert [row["missing"] for row in found["recipes"]] == [4, 4]
    slurms, local, ray = found["engines"]
    assert slurms["at_once"] == 6 and slurms["fastest"] and slurms["asked"] and local["cheapest"]
    assert slurms["minutes"] == pytest.approx(max(local["minutes"] / 6, found["recipes"][1]["minutes_each"]), rel=0.5)
    assert ray["minutes"] is None and ray["at_once"] == 0


# The interface of launchers


class FakeLauncher(launchers.Executor):
    """A launcher and its executor; ``ends`` holds, for each job, the number of polls until it ends and, if it fails,
    the reason."""

    def __init__(self, *ends):
        self.ends, self.submitted, self.stopped, self.most = iter(ends), [], None, 0

    def build_executor(self, jobs):
        self.jobs = jobs
        return self

    def count_free_slots(self, running):
        self.most = max(self.most, running)
        return self.jobs - running

    def submit(self, commands):
        self.submitted += commands
        return [self.start_job(*next(self.ends)) for _ in commands]

    def start_job(self, polls, reason=""):
        left = iter([False] * polls)
        return Namespace(is_done=lambda: next(left, True), read_failure=lambda: reason)

    def shutdown(self, running):
        self.stopped = list(running)


@pytest.mark.usefixtures("no_type_checks")
def test_a_job_pool_fills_free_slots_and_reports_failures():
    """Each command runs once. A failure is reported and stops no other command. Leaving the context stops all jobs."""
    recipe = lw.find("looped-parity", *SMALL_RECIPE)
    found = [lw.Run.of(replace(recipe, seed=seed)) for seed in range(5)]
    launcher = FakeLauncher((1,), (0, "it is hot"), (3,), (0,), (99,))
    with JobPool(found, lambda run: ["--seed", str(run.recipe.seed)], jobs=2, launcher=launcher) as job_pool:
        while len(launcher.submitted) < 5 or len(job_pool.running) > 1:
            assert job_pool.poll()
        assert launcher.stopped is None
    assert [words[1] for words in launcher.submitted] == [str(run.folder) for run in found]
    assert all(words[0] == "train" and "--seed" in words for words in launcher.submitted)
    assert launcher.most == 2 and len(launcher.stopped) == 1
    assert job_pool.failed == {found[1].folder: "it is hot"}
    assert json.loads((found[1].folder / "failed.json").read_text())["reason"] == "it is hot"
    job_pool.failed = {run.folder: f"{run.folder}: it is hot" for run in found[:2]}
    with pytest.raises(UsageError) as error:
        job_pool.raise_failures()
    assert str(error.value) == f"2 runs failed: {found[0].folder}: it is hot; {found[1].folder}: it is hot"


@pytest.mark.usefixtures("no_type_checks")
def test_the_seeds_of_a_recipe_may_be_one_command():
    """If the command fails, only the runs that it did not finish count as failed."""
    recipes = [lw.find("looped-parity", *SMALL_RECIPE), lw.find("looped-parity", *SMALL_RECIPE, "batch=5")]
    found = [lw.Run.of(replace(recipe, seed=seed)) for recipe in recipes for seed in (3, 4)]
    (found[0].folder / "model.safetensors").touch()
    launcher = FakeLauncher((0, "it is hot"), (0,))
    with JobPool(found, lambda run: [run.recipe.name], jobs=1, launcher=launcher, stack=True) as job_pool:
        assert job_pool.poll() and job_pool.poll() and not job_pool.poll()
    words = [["train", str(run.folder), "--seed", "3", "--seeds", "2", "--stack", "--quiet", run.recipe.name]
             for run in (found[0], found[2])]  # fmt: skip
    assert launcher.submitted == words
    assert job_pool.failed == {found[1].folder: "it is hot"}


def test_launchers_are_parsed_from_text(runs):
    for text, found in (
        ("local", launchers.Local()),
        ("slurm", slurm.Slurm()),
        ("Slurm(gpus=1, leave=true)", slurm.Slurm(gpus=1, leave=True)),
        ("Ray(address='127.0.0.1:6379', gpus=0.25)", ray_cluster.Ray("127.0.0.1:6379", gpus=0.25)),
    ):
        assert options.parse_launcher(TrainingOptions(on=text)) == found
    for text in ("cloud", "Slurm(minutes=0)", "Slurm(minutes=4)", "Slurm(nodes=3)", "Oracle", "0.5"):
        with pytest.raises(UsageError, match=r"--on|minutes"):
            options.parse_launcher(TrainingOptions(on=text))


@pytest.mark.parametrize(
    "words",
    ["train looped-parity --seeds 2", "sweep looped-parity model.width=8,16", "reproduce looped --tasks parity"],
)
@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_an_unavailable_launcher_leaves_no_folder(words, launcher, runs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    done = command(*words.split(), "--on", launcher)
    assert done.returncode == 2 and f"lengthwise[{launcher}]" in done.stderr
    assert not runs.exists() and not [*tmp_path.iterdir()]
