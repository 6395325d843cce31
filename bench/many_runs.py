"""The memory and time that a study of 10,000 runs takes in the process that watches them. Claims: under 500 MB, under a
second per run, and all runs are listed in under five seconds.

A cluster of 1,000 slots simulates trainings: each training takes a second and leaves a copy of a real run's folder.
Everything else is done by ``lengthwise train --seeds 10000 --on …``.
"""

import argparse
import heapq
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from common import QUICK, print_result

from lengthwise.base.ranges import Positive, Size
from lengthwise.cli.entry import main as command
from lengthwise.jobs.launchers import Executor, Job, Launcher
from lengthwise.runs.run import Run

RUNS, SLOTS, SECONDS, LISTINGS = (8, 4, 0.01, 1) if QUICK else (10_000, 1000, 1.0, 3)
STEPS = 4 if QUICK else 200
RECIPE = ["looped-parity", f"steps={STEPS}", "lengths=Uniform(top=4)", "model.width=8", "batch=8", "watch.every=50"]
TRAIN = [*RECIPE, "--lengths", "4-8", "--samples", "20"]
FILES = ("metrics.jsonl", "scores.jsonl", "about.json", "model.safetensors")  # the last file marks the run as done


@dataclass(frozen=True)
class SimulatedLauncher(Launcher):
    """Launches runs on a simulated cluster, which computes nothing."""

    slots: Size = SLOTS
    seconds: Positive = 1.0  # duration of a run

    def build_executor(self, jobs):
        return SimulatedExecutor(self)

    def count_parallel_runs(self, jobs):
        return self.slots


class SimulatedExecutor(Executor):
    """An executor that starts each training as soon as there is a slot."""

    spent = worked = 0.0  # wall and processor seconds spent on writing runs' folders, which is not the watcher's work

    def __init__(self, launcher):
        self.launcher, self.free = launcher, [0.0] * launcher.slots

    def count_free_slots(self, running):
        return 1000

    def submit(self, commands):
        return [SimulatedTraining(Path(words[1]), self.book_slot()) for words in commands]

    def book_slot(self):
        end = max(time.monotonic(), heapq.heappop(self.free)) + self.launcher.seconds
        heapq.heappush(self.free, end)
        return end

    def shutdown(self, running):
        pass


@dataclass
class SimulatedTraining(Job):
    folder: Path
    end_time: float
    kept = {}  # noqa: RUF012 (the files of a real run)

    def is_done(self):
        if time.monotonic() < self.end_time:
            return False
        start, worked = time.perf_counter(), time.process_time()
        about = json.loads(self.kept["about.json"])
        recipe = Run.open(self.folder).recipe
        about["outline"] |= {"id": recipe.id, "seed": recipe.seed, "data_seed": recipe.data_seed}
        for name in FILES:
            content = json.dumps(about, indent=1).encode() if name == "about.json" else self.kept[name]
            (self.folder / name).write_bytes(content)
        SimulatedExecutor.spent += time.perf_counter() - start
        SimulatedExecutor.worked += time.process_time() - worked
        return True

    def read_failure(self):
        return ""


class HiddenTerminal(io.StringIO):
    """A stream that drops its text and counts as a terminal, so that the live table is drawn."""

    def isatty(self):
        return True

    def write(self, text):
        return len(text)


def run_command(*words):
    """Run a command in this process, with a hidden terminal."""
    with redirect_stdout(io.StringIO()), redirect_stderr(HiddenTerminal()), suppress(SystemExit):
        command([*words])


def time_listing():
    """Return the shortest of several times of ``lengthwise list runs``, in seconds, and the number of finished runs
    listed."""
    words, best = [sys.executable, "-m", "lengthwise", "list", "runs", "--json"], float("inf")
    for _ in range(LISTINGS):
        start = time.perf_counter()
        found = subprocess.run(words, check=True, capture_output=True, text=True)
        best = min(best, time.perf_counter() - start)
    return best, sum(text == "done" for text in json.loads(found.stdout)["runs"].values())


def measure_study(runs, folder, slots=SLOTS, seconds=SECONDS):
    """Return the memory and times of a study of ``runs`` runs, whose folders are in ``folder``."""
    os.environ |= {"LENGTHWISE_RUNS": str(folder / "one"), "TERM": "xterm"}
    run_command("train", *TRAIN, "--quiet")
    (real,) = (folder / "one").glob("*/about.json")
    SimulatedTraining.kept = {name: (real.parent / name).read_bytes() for name in FILES}
    os.environ["LENGTHWISE_RUNS"] = str(folder / "runs")
    SimulatedExecutor.spent = SimulatedExecutor.worked = 0.0
    start, cpu = time.perf_counter(), time.process_time()
    run_command("train", *TRAIN, "--seeds", str(runs), "--on", f"SimulatedLauncher(slots={slots}, seconds={seconds})")
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "runs": runs,
        "slots": slots,
        "memory_mb": round(memory),
        "per_run_s": round((wall - SimulatedExecutor.spent - seconds * runs / slots) / runs, 4),
        "cpu_per_run_s": round((cpu - SimulatedExecutor.worked) / runs, 4),
        "wall_s": round(wall, 1),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="?", type=int, default=RUNS)
    parser.add_argument("--quick", action="store_true", help="test the script on tiny sizes")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        found = measure_study(runs, Path(folder))
        seconds, names = time_listing()
    assert names == runs, f"{names} of {runs} runs are listed"
    met = found["memory_mb"] < 500 and found["per_run_s"] < 1 and seconds < 5
    print_result("many_runs", **found, list_s=round(seconds, 2), met=met)


if __name__ == "__main__":
    main()
