"""The training loop, with checkpoints from which training resumes bit for bit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lengthwise.base.errors import Diverged, Interrupted, UsageError, remove_controls
from lengthwise.base.fields import validate_arguments
from lengthwise.base.files import to_path
from lengthwise.base.progress import Progress, ProgressLine
from lengthwise.base.ranges import NotNegative, ThreadCount
from lengthwise.base.score_rows import format_loss, format_share
from lengthwise.evaluation import causality
from lengthwise.experiment import data
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.resources import estimate_training
from lengthwise.runners import cpu
from lengthwise.runners.graphs import is_worthwhile
from lengthwise.runs.folder import DIVERGED
from lengthwise.runs.run import Run, choose_device
from lengthwise.runs.tracking import check_trackers, send_to_trackers
from lengthwise.training import checkpoint
from lengthwise.training.arithmetic import Clock, Matmul, catch_stop_signals, check_matmul, computation_settings
from lengthwise.training.processes import open_process_group
from lengthwise.training.trainer import DrawnBatch, Trainer, try_training


@validate_arguments
def train(
    recipe: Recipe,
    folder: str | Path | None = None,
    *,
    device: str = "auto",
    threads: ThreadCount = 1,
    save_every: NotNegative = 60.0,
    progress: Progress | None = None,
    wait: bool = False,
    allow_divergence: bool = False,
    matmul: Matmul = "fp32",
    compile: bool = False,
    graphs: bool = True,
    track: Sequence[str] = (),
    keep_state: bool = False,
) -> Run:
    """Train a recipe, resuming an earlier call if there is a checkpoint, and return its run.

    ``folder`` defaults to the recipe's folder among the runs; ``save_every`` is in seconds. On a CPU, a resumed run
    equals an uninterrupted one bit for bit with the same ``threads``. Small models train fastest on one thread.
    ``track`` lists trackers of the metrics. With ``wait``, wait while another process trains this run. ``matmul`` is
    the precision of matrix products. With ``keep_state``, other runs can continue from the final state. With
    ``compile``, torch compiles the loops of a model that ``runners.Compiled`` supports. On CUDA, other steps are
    replayed as CUDA ``graphs``. If either fails, a note gives the reason. Under torchrun, only process 0 writes files.

    Raises Interrupted at Ctrl-C, SIGTERM or SIGHUP, after saving. Raises Diverged if the loss becomes NaN or infinite,
    and keeps the last finite checkpoint (with ``allow_divergence``, training continues). Raises UsageError for a
    leaking model, a missing device, a torch that cannot compile, another recipe's folder, or another process's run.
    """
    check_trackers(track)
    shown, target = progress or Progress(quiet=True), choose_device(device)
    run_folder = Run.locate(recipe).folder if folder in (None, "") else to_path(folder)
    check_matmul(matmul, target)
    if target.type == "cpu":
        estimate_training(recipe).check(f"{recipe.name}: its training")
    with open_process_group(target) as processes:
        if processes.is_first and not (run_folder / "config.json").exists():
            try_training(recipe, target, matmul)
        graphs = graphs and is_worthwhile(target) and not compile
        options: dict[str, Any] = {"matmul": matmul, "compile": compile, "graphs": graphs, "processes": processes}
        trainer = Trainer(recipe, target, allow_divergence=allow_divergence, **options)
        causality.check_model(trainer.model, recipe, [recipe.tops])
        if not Run(run_folder, recipe).done:
            with computation_settings(threads):
                prepare_steps(trainer, shown, explain=True)
        if not processes.is_first:
            with computation_settings(threads), catch_stop_signals() as should_stop, prefetch_batches([trainer]):
                return _train_in_other_process(trainer, run_folder, should_stop)
        run = Run.of(recipe, run_folder)
        run.record_code(trainer.model)
        with ExitStack() as contexts:
            waiting = Clock()
            contexts.enter_context(nullcontext() if run.done else run.lock(wait=wait))
            trainer.clock.wall += waiting.read()["wall_s"]  # do not count the time spent waiting for another process
            contexts.enter_context(computation_settings(threads))
            should_stop = contexts.enter_context(catch_stop_signals())
            contexts.enter_context(send_to_trackers(run, track, shown.note))
            if run.done:  # another process finished it, or this run was killed just before it cleaned up
                run.remove_state()
                processes.broadcast(None)
                return run
            with prefetch_batches([trainer]):
                _train(trainer, run, shown, should_stop, save_every)
                trainer.write_final_files(run, keep_state=keep_state)
    return run


def _train(trainer: Trainer, run: Run, progress: Progress, should_stop: Callable[[], bool], save_every: float) -> None:
    """Train from the last checkpoint to the end. If training diverges, record the reason in the run's folder."""
    recipe = trainer.recipe
    run.clear_failure()
    for change in trainer.restore_checkpoint(run):
        progress.note(change)
    if trainer.processes.count > 1:
        trainer.processes.broadcast(checkpoint.build_checkpoint_to_send(trainer.state()))
    course, saved = TrainingProgress(progress.add_line(recipe.name, recipe.steps, trainer.step)), time.monotonic()
    over = trainer.is_over
    while not over:
        parts = trainer.parts
        trainer.advance()
        if trainer.parts > parts:
            rows = f"{recipe.batch} rows run in {trainer.parts} parts"
            progress.note(f"{recipe.name}: memory does not hold a batch: from step {trainer.step} on, {rows}")
        try:
            for row in trainer.log(run):
                course.show(trainer.step, row)
            stop, over = trainer.processes.combine_flags(should_stop(), trainer.is_over)
            if stop or time.monotonic() - saved > save_every:
                trainer.save_checkpoint(run)
                saved = time.monotonic()
        except Diverged as error:
            run.record_failure(str(error), DIVERGED)
            raise
        if stop:
            raise Interrupted(f"stopped at step {trainer.step}; the same command continues from there: {run.folder}")


def _train_in_other_process(trainer: Trainer, folder: Path, should_stop: Callable[[], bool]) -> Run:
    """Take the same steps as the first process, on other rows of each batch, and write no files."""
    state = trainer.processes.broadcast(None)
    if state is not None:
        trainer.load_state(state)
        over = trainer.is_over
        while not over:
            trainer.advance()
            trainer.take_exam()
            if trainer.is_report_due():
                trainer.report()
            stop, over = trainer.processes.combine_flags(should_stop(), trainer.step >= trainer.recipe.steps)
            if stop:
                raise Interrupted(f"stopped at step {trainer.step}")
    return Run(folder, trainer.recipe)


def prepare_steps(trainer: Trainer, progress: Progress, *, explain: bool = False) -> None:
    """Compile or record a step with the first batch's shapes, if the trainer compiles or records steps; with
    ``explain``, print the reason if it does not. Raises UsageError if torch cannot compile."""
    runners, name = trainer.runners, trainer.recipe.name
    if explain and runners.compile and trainer.processes.is_first:
        if reason := cpu.find_compile_obstacle(trainer.model):
            progress.note(f"{name}: runs uncompiled: {reason}")
        elif trainer.device.type == "cpu":
            slow = "compiled steps on a CPU took 3.3 times as long as the package's own runner; omit compile"
            progress.note(f"{name}: {slow}")
    if not runners.compiles and not runners.choose_graphs(1):
        return
    line = progress.add_line(f"{name}: {'compiling' if runners.compiles else 'recording a step'}", 1.0)
    try:
        # The compiler's warnings are of use only to authors of kernels.
        with warnings.catch_warnings(action="ignore"), trainer.protect_generators():
            next(trainer.compute_losses(*trainer.draw_batch(trainer.recipe.start)))
    except RuntimeError as error:
        if not runners.compiles:
            raise
        reason = remove_controls(str(error).partition("Set TORCHDYNAMO")[0])[:200].strip()
        raise UsageError(f"{name}: torch cannot compile here ({reason}); omit compile") from None
    if explain and runners.graphs and runners.graphs.reason:
        progress.note(f"{name}: runs without CUDA graphs: {runners.graphs.reason}")
    trainer.optimizer.zero_grad()
    line.update(1.0)


class Prefetcher:
    """A source of a recipe's batches; a worker thread draws the next batch in advance. Batches stay the same, since
    they depend only on the recipe, the step and the number of exams passed."""

    def __init__(self, recipe: Recipe, worker: ThreadPoolExecutor) -> None:
        self.recipe, self.worker = recipe, worker
        self.pending: dict[tuple[int, int], Future[DrawnBatch]] = {}  # the next batch, by step and exams passed

    def __call__(self, step: int, exams_passed: int) -> DrawnBatch:
        """Return the batch of a step after ``exams_passed`` exams. A batch prefetched before an exam was passed is
        discarded."""
        future = self.pending.pop((step, exams_passed), None)
        batch = future.result() if future else data.draw_batch(self.recipe, step, exams_passed=exams_passed)
        self.pending = {}
        if step + 1 < self.recipe.steps:
            following = self.worker.submit(data.draw_batch, self.recipe, step + 1, exams_passed=exams_passed)
            self.pending = {(step + 1, exams_passed): following}
        return batch


@contextmanager
def prefetch_batches(trainers: Sequence[Trainer], *, on_any_device: bool = False) -> Iterator[None]:
    """Prefetch batches in a thread during a ``with`` block; for CPUs, which gain nothing, only if ``on_any_device``."""
    if trainers[0].device.type == "cpu" and not on_any_device:
        yield
        return
    draws = [trainer.draw for trainer in trainers]
    with ThreadPoolExecutor(1, "batches") as worker:
        try:
            for trainer in trainers:
                trainer.draw = Prefetcher(trainer.recipe, worker)
            yield
        finally:
            worker.shutdown(cancel_futures=True)
            for trainer, draw in zip(trainers, draws, strict=True):
                trainer.draw = draw


class TrainingProgress:
    """A line of progress with the step, the curriculum's length, the loss and exact match."""

    def __init__(self, line: ProgressLine) -> None:
        self.line, self.exact = line, ""

    def show(self, step: int, row: dict[str, Any]) -> None:
        """Show a row of metrics."""
        if "exact" in row:
            if row["exact"]:
                shares = (f"{size}: {format_share(share)}" for size, share in row["exact"].items())
                self.exact = f"exact match {' '.join(shares)}"
            return
        length = f"length {row['length']}" if "length" in row else ""
        parts = [f"step {step} of {self.line.total:.0f}", length, format_loss(row), self.exact]
        self.line.update(step, "  ".join(filter(None, parts)))
