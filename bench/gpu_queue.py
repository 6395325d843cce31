"""Continue published training runs on any GPU, those most wanted first: ``make gpu-queue MINUTES=12``.

First a check of two minutes at most (``gpu.py``): recorded steps equal plain ones, and milliseconds of one.
Then the published runs that are not done, in order, each from its checkpoint under ``--to`` (by default
``long/``); what the next machine needs is saved there in time. ``--dry-run`` prints the plan. ``--quick`` tries the
script itself on tiny runs. Checkpoints keep the optimizer's means in bfloat16, so that they stay small: each
stop rounds them once.
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

HERE = Path(__file__).parent
TASKS = ("copy", "binary-sum", "addition", "multiplication", "unique-set")
SAVED = 20.0  # seconds before the end at which training is stopped, to be saved
CHECK = 120  # seconds at most


@dataclass(frozen=True)
class Entry:
    """A training run in the queue."""

    recipe: Recipe
    matmul: Matmul


def queue(*, quick: bool) -> Iterator[Entry]:
    """The training runs, those most wanted first."""
    if quick:
        for seed in (0, 1):
            changes = [f"seed={seed}", "steps=20", "batch=4", "watch.every=0", "keep=last", "model.width=8"]
            yield Entry(catalog.recipe("looped-parity", changes), "fp32")
        return
    parity = catalog.recipe("paper-fop-loop-adaptive-parity")
    yield from (Entry(replace(parity, seed=seed, data_seed=seed), "bf16") for seed in range(4))
    yield from (Entry(catalog.recipe(f"paper-{name}-small"), "tf32") for name in ("retran", "gpt", "lstm"))
    yield from (Entry(catalog.recipe(f"paper-fop-loop-adaptive-{task}"), "bf16") for task in TASKS)
    yield from (Entry(catalog.recipe(name), "bf16") for name in ("paper-abacus-8x2", "blog-abacus-addition"))


def convert_moments(run: Run, kind: torch.dtype) -> None:
    """Store the optimizer's moments in a run's checkpoint as numbers of this type."""
    if (state := run.load_state()) is None:
        return
    for moments in state["optimizer"]["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            moments[name] = moments[name].to(kind)
    run.save_state(state)


def interrupt(*_: object) -> None:
    """Stop what a training does before it looks out for signals itself."""
    raise Interrupted("stopped before the first step")


def stop_after(seconds: float) -> threading.Timer:
    """End this process's training after this time, as SIGTERM does: it is saved."""
    timer = threading.Timer(max(0.0, seconds), os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    return timer


def go_on(entry: Entry, folder: Path, device: str, seconds: float) -> dict:
    """Train until the time is over or the training done."""
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


def check(device: str, seconds: float, *, quick: bool) -> str:
    """Run a part of ``gpu.py``; return the line that it prints, or why there is none."""
    only = ["--only", "recorded", "captured", "--of", "looped-parity", "paper-fop-loop-adaptive-parity"]
    code = [sys.executable, str(HERE / "gpu.py"), *only, "--device", device, *["--quick"] * quick]
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
    args.to = args.to or (Path(tempfile.mkdtemp()) if args.quick else HERE.parent / "long")
    end, left = time.monotonic() + 60 * args.minutes - SAVED, [*queue(quick=args.quick)]
    folders = {entry.recipe.id: args.to / f"{entry.recipe.name}-{entry.recipe.id}" for entry in left}
    left = [entry for entry in left if not Run(folders[entry.recipe.id], entry.recipe).done]
    if args.dry_run:
        plan = [f"{one.recipe.name} seed {one.recipe.seed}, {one.recipe.steps:,} steps, {one.matmul}" for one in left]
        print_result("gpu_queue", minutes=args.minutes, plan=plan)
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        print_result("gpu_queue", skipped="there is no CUDA device here")
        return
    checked, done = check(args.device, min(CHECK, 60 * args.minutes / 4), quick=args.quick), {}
    for entry in left:
        if (seconds := end - time.monotonic()) > 0:
            done[f"{entry.recipe.name} {entry.recipe.seed}"] = go_on(
                entry, folders[entry.recipe.id], args.device, seconds
            )
    print_result("gpu_queue", checked=checked, trained=done)


if __name__ == "__main__":
    main()
