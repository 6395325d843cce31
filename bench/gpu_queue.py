"""Continue published training runs on any GPU, the most important first, with ``make gpu-queue MINUTES=12``.

A check by ``gpu.py`` comes first and takes at most two minutes: it compares recorded steps with plain ones, and times a
recorded step. Then unfinished published runs are trained in order, each from its checkpoint under ``--to`` (by default
``long/``). Training stops in time to save a checkpoint for the next machine. ``--dry-run`` prints the plan. ``--quick``
tries the script itself on tiny runs. Checkpoints store the optimizer's moments in bfloat16 to stay small, so each stop
rounds these moments once.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from common import print_result

from lengthwise.api import catalog
from lengthwise.base.errors import Interrupted, UsageError
from lengthwise.base.progress import Progress
from lengthwise.experiment.recipe import Recipe
from lengthwise.runs.run import Run
from lengthwise.training.arithmetic import Matmul
from lengthwise.training.loop import train

BENCH_FOLDER = Path(__file__).parent
TASKS = ("copy", "binary-sum", "addition", "multiplication", "unique-set")
SAVING_SECONDS = 20.0  # training stops this long before the end, to be saved
MAX_CHECK_SECONDS = 120


@dataclass(frozen=True)
class QueuedRun:
    """A training run in the queue."""

    recipe: Recipe
    matmul: Matmul


def list_entries(*, quick: bool) -> Iterator[QueuedRun]:
    """Yield the training runs, the most important first."""
    if quick:
        for seed in (0, 1):
            changes = [f"seed={seed}", "steps=20", "batch=4", "watch.every=0", "keep=last", "model.width=8"]
            yield QueuedRun(catalog.find_recipe("looped-parity", changes), "fp32")
        return
    parity = catalog.find_recipe("paper-fop-loop-adaptive-parity")
    yield from (QueuedRun(replace(parity, seed=seed, data_seed=seed), "bf16") for seed in range(4))
    yield from (QueuedRun(catalog.find_recipe(f"paper-{name}-small"), "tf32") for name in ("retran", "gpt", "lstm"))
    yield from (QueuedRun(catalog.find_recipe(f"paper-fop-loop-adaptive-{task}"), "bf16") for task in TASKS)
    yield from (QueuedRun(catalog.find_recipe(name), "bf16") for name in ("paper-abacus-8x2", "blog-abacus-addition"))


def convert_moments(run: Run, dtype: torch.dtype) -> None:
    """Convert the optimizer's moments in a run's checkpoint to this type."""
    if (state := run.load_state()) is None:
        return
    for moments in state["optimizer"]["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            moments[name] = moments[name].to(dtype)
    run.save_state(state)


def interrupt(*_: object) -> None:
    """Raise Interrupted at a signal that arrives before training handles signals itself."""
    raise Interrupted("stopped before the first step")


def stop_after(seconds: float) -> threading.Timer:
    """Start a timer that sends SIGTERM after this many seconds, so that training saves a checkpoint and ends."""
    timer = threading.Timer(max(0.0, seconds), os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    return timer


def continue_training(entry: QueuedRun, folder: Path, device: str, seconds: float) -> dict:
    """Train until the time is over or the run is done; return step, seconds taken and size of the checkpoint."""
    run = Run(folder, entry.recipe)
    convert_moments(run, torch.float32)
    before = signal.signal(signal.SIGTERM, interrupt)
    start, timer, said = time.monotonic(), stop_after(seconds), ""
    try:
        with Progress(quiet=True) as progress:
            train(entry.recipe, folder, device=device, matmul=entry.matmul, progress=progress)
    except Interrupted:
        pass
    except UsageError as error:  # the next may still run
        said = str(error)
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)
        convert_moments(run, torch.bfloat16)
    state, path = run.load_state(), folder / "state.pt"
    step = state["step"] if state else entry.recipe.steps if run.done else 0
    megabytes = round(path.stat().st_size / 1e6, 1) if state else 0.0
    return {"step": step, "of": entry.recipe.steps, "seconds": round(time.monotonic() - start, 1),
            "checkpoint_mb": megabytes, **({"error": said} if said else {})}  # fmt: skip


def run_check(device: str, seconds: float, *, quick: bool) -> str:
    """Run two parts of ``gpu.py``; return the last line that it prints, or a note that it took too long."""
    only = ["--only", "recorded", "captured", "--of", "looped-parity", "paper-fop-loop-adaptive-parity"]
    code = [sys.executable, str(BENCH_FOLDER / "gpu.py"), *only, "--device", device, *["--quick"] * quick]
    try:
        done = subprocess.run(code, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"took more than {seconds:.0f} s"
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--minutes", type=float, default=12.0)
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--to", type=Path, help="folder of the runs (default: long/; with --quick, a temporary one)")
    asked.add_argument("--dry-run", action="store_true")
    asked.add_argument("--quick", action="store_true")
    args = asked.parse_args()
    if args.quick and not torch.cuda.is_available():
        args.device = "cpu"
    args.to = args.to or (Path(tempfile.mkdtemp()) if args.quick else BENCH_FOLDER.parent / "long")
    end, left = time.monotonic() + 60 * args.minutes - SAVING_SECONDS, [*list_entries(quick=args.quick)]
    folders = {entry.recipe.id: args.to / f"{entry.recipe.name}-{entry.recipe.id}" for entry in left}
    left = [entry for entry in left if not Run(folders[entry.recipe.id], entry.recipe).done]
    if args.dry_run:
        plan = [f"{one.recipe.name} seed {one.recipe.seed}, {one.recipe.steps:,} steps, {one.matmul}" for one in left]
        print_result("gpu_queue", minutes=args.minutes, plan=plan)
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        print_result("gpu_queue", skipped="there is no CUDA device here")
        return
    checked, done = run_check(args.device, min(MAX_CHECK_SECONDS, 60 * args.minutes / 4), quick=args.quick), {}
    for entry in left:
        if (seconds := end - time.monotonic()) > 0:
            done[f"{entry.recipe.name} {entry.recipe.seed}"] = continue_training(
                entry, folders[entry.recipe.id], args.device, seconds
            )
    print_result("gpu_queue", checked=checked, trained=done)


if __name__ == "__main__":
    main()
