"""The training loop, with checkpoints that resume to the bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from lengthwise.base.errors import Interrupted
from lengthwise.base.fields import validate_arguments
from lengthwise.base.files import path_of
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import NotNegative, Threads
from lengthwise.evaluation import causality
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.resources import estimate_training
from lengthwise.runs.run import Run, choose_device
from lengthwise.runs.tracking import check, send_to_trackers
from lengthwise.training import checkpoint
from lengthwise.training.arithmetic import Matmul, check_matmul, computing, stop_signal
from lengthwise.training.compiling import compile_first
from lengthwise.training.prefetch import prefetch_batches
from lengthwise.training.processes import join_processes
from lengthwise.training.progress import TrainingProgress, record_divergence
from lengthwise.training.trainer import Trainer, rehearse


@validate_arguments
def train(
    recipe: Recipe,
    folder: str | Path | None = None,
    *,
    device: str = "auto",
    threads: Threads = 1,
    save_every: NotNegative = 60.0,
    progress: Progress | None = None,
    wait: bool = False,
    allow_divergence: bool = False,
    matmul: Matmul = "fp32",
    compile: bool = False,
    track: Sequence[str] = (),
    keep_state: bool = False,
) -> Run:
    """Train a recipe to its end, resuming an earlier call if there is a checkpoint, and return its run.

    ``folder`` defaults to the recipe's folder among the runs; ``save_every`` is in seconds. On a CPU, a resumed run
    equals an uninterrupted one to the bit, for equal ``threads``; small models train fastest on one thread. ``track``
    names trackers that rows are sent to. Where another process trains this run, ``wait`` for it. With ``keep_state``,
    other trainings can go on from its end. ``matmul`` is the arithmetic of matrix products. With ``compile``, torch
    compiles the loops of a model that ``fast.Compiled`` claims; any other trains as ever, and a note says why. Started
    by torchrun, all processes train one run together, and the first one writes.

    Raises Interrupted at Ctrl-C, SIGTERM or SIGHUP, after saving; Diverged if the loss becomes NaN or infinite, with
    the last finite checkpoint kept (with ``allow_divergence`` training goes on, and rows say null); and UsageError if
    the model is not causal where its layout is, the device is missing, torch cannot compile here, the folder holds
    another recipe, the run's log disappears, or another process trains this run.
    """
    check(track)
    shown = progress or Progress(quiet=True)
    at, where = choose_device(device), Run.locate(recipe).folder if folder in (None, "") else path_of(folder)
    check_matmul(matmul, at)
    if at.type == "cpu":
        estimate_training(recipe).check(f"{recipe.name}: its training")
    with join_processes(at) as processes:
        if processes.first and not (where / "config.json").exists():
            rehearse(recipe, at, matmul)
        how = {"allow_divergence": allow_divergence, "matmul": matmul, "compile": compile}
        trainee = Trainer(recipe, at, processes=processes, **how)
        causality.check(trainee.model, recipe, [recipe.tops])
        if not Run(where, recipe).done:
            with computing(threads):
                compile_first(trainee, shown, note=True)
        if not processes.first:
            with computing(threads), stop_signal() as stopped, prefetch_batches([trainee]):
                return _train_beside_first(trainee, where, stopped)
        run = Run.of(recipe, where)
        run.hold_code(trainee.model)
        alone = nullcontext() if run.done else run.locked(wait=wait)
        with ExitStack() as held:
            with trainee.clock.exclude():  # waiting for another process is no training
                held.enter_context(alone)
            held.enter_context(computing(threads))
            stopped = held.enter_context(stop_signal())
            held.enter_context(send_to_trackers(run, track, shown.note))
            if run.done:  # another process finished it, or this run was killed just before it cleaned up
                run.forget_state()
                processes.from_first(None)
                return run
            with record_divergence(run), prefetch_batches([trainee]):
                _train(trainee, run, shown, stopped, save_every)
                trainee.end(run, keep_state=keep_state)
    return run


def _train(trainee: Trainer, run: Run, shown: Progress, stopped: Callable[[], bool], save_every: float) -> None:
    """Train from the last checkpoint to the end."""
    recipe = trainee.recipe
    for change in trainee.restore(run):
        shown.note(change)
    if trainee.processes.count > 1:
        trainee.processes.from_first(checkpoint.share_checkpoint(trainee.state()))
    course, saved = TrainingProgress(shown.line(recipe.name, recipe.steps, trainee.step)), time.monotonic()
    over = trainee.is_over
    while not over:
        parts = trainee.parts
        trainee.advance()
        if trainee.parts > parts:
            rows = f"{recipe.batch} rows run in {trainee.parts} parts"
            shown.note(f"{recipe.name}: memory does not hold a batch: from step {trainee.step} on, its {rows}")
        for row in trainee.log(run):
            course.show(trainee.step, row)
        stop, over = trainee.processes.any(stopped(), trainee.is_over)
        if stop or time.monotonic() - saved > save_every:
            trainee.keep(run)
            saved = time.monotonic()
        if stop:
            raise Interrupted(f"stopped at step {trainee.step}; the same command goes on from there: {run.folder}")


def _train_beside_first(trainee: Trainer, where: Path, stopped: Callable[[], bool]) -> Run:
    """What processes do beside the first: they take the same steps on other rows, and write nothing."""
    state = trainee.processes.from_first(None)
    if state is not None:
        trainee.load_state(state)
        over = trainee.is_over
        while not over:
            trainee.advance()
            trainee.take_exam()
            if trainee.is_report_due():
                trainee.report()
            stop, over = trainee.processes.any(stopped(), trainee.step >= trainee.recipe.steps)
            if stop:
                raise Interrupted(f"stopped at step {trainee.step}")
    return Run(where, trainee.recipe)
