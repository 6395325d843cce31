"""Several seeds of one recipe, trained together in one process.

Each seed is a ``Trainer`` with its own batches, objective, optimizer, log, checkpoint and folder. Logits and their
gradients are computed together (``runners.stacked``). On a GPU this computation and the update of all weights are
recorded once per shape and replayed (``runners.stacked_graphs``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from lengthwise.base.errors import Diverged, Interrupted, UsageError, is_out_of_memory
from lengthwise.base.fields import validate_arguments
from lengthwise.base.files import format_error
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import NotNegative, ThreadCount
from lengthwise.base.types import Loss
from lengthwise.evaluation import causality
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.resources import estimate_training
from lengthwise.runners import Runner
from lengthwise.runners.graphs import is_worthwhile
from lengthwise.runners.stacked import Answer, Query, QueryRecorder, QueryReplayer, compute_answers
from lengthwise.runners.stacked_graphs import StackedGraphs
from lengthwise.runs.folder import DIVERGED
from lengthwise.runs.run import Run, choose_device
from lengthwise.runs.tracking import check_trackers, send_to_trackers
from lengthwise.training.arithmetic import (
    Matmul,
    autocast,
    catch_stop_signals,
    check_matmul,
    computation_settings,
    step_precision,
)
from lengthwise.training.descent import ReplayedUpdate
from lengthwise.training.loop import TrainingProgress, prefetch_batches
from lengthwise.training.processes import count_processes
from lengthwise.training.trainer import Trainer, shrink, try_training


@validate_arguments
def train_stacked(
    recipes: Sequence[Recipe],
    *,
    device: str = "auto",
    threads: ThreadCount = 1,
    save_every: NotNegative = 60.0,
    progress: Progress | None = None,
    wait: bool = False,
    allow_divergence: bool = False,
    matmul: Matmul = "fp32",
    graphs: bool = True,
    track: Sequence[str] = (),
) -> list[Run]:
    """Train recipes that differ only in their seeds, in one process, and return their runs. Each result equals that of
    ``train``, up to the order of sums; arguments and files are the same. Finished runs are not changed. On CUDA, steps
    are replayed as CUDA ``graphs``; if that is impossible, a note gives the reason.

    A seed that diverges is recorded in its folder and reported, its run is not ``done``, and the other seeds continue.
    Seeds whose checkpoints are behind catch up first. A resumed stack of the same seeds equals an uninterrupted one bit
    for bit on a CPU; with ``Mastery``, only if it was not killed between writing two seeds' checkpoints.

    Raises Interrupted as ``train`` does. Raises UsageError also for recipes with other differences, and for a model
    that cannot be stacked because it draws random numbers in training, branches on its inputs, or changes its buffers.
    """
    check_trackers(track)
    shown, target = progress or Progress(quiet=True), choose_device(device)
    check_matmul(matmul, target)
    check_seeds(recipes)
    reason = _check_before_training(recipes, target, matmul, graphs=graphs and is_worthwhile(target))
    if reason:
        shown.note(f"{recipes[0].name}: runs without CUDA graphs: {reason}")
    runs = [Run.of(recipe) for recipe in recipes]
    with ExitStack() as entered:
        for run in sorted(runs, key=lambda run: run.folder):  # a fixed order prevents deadlocks
            entered.enter_context(nullcontext() if run.done else run.lock(wait=wait))
        unfinished = [run for run in runs if not run.done]
        for run in runs:
            if run.done:
                run.remove_state()
            else:
                entered.enter_context(send_to_trackers(run, track, shown.note))
        entered.enter_context(computation_settings(threads))
        should_stop = entered.enter_context(catch_stop_signals())
        if unfinished:
            count = len(unfinished)
            settings: dict[str, Any] = {"allow_divergence": allow_divergence, "matmul": matmul, "stacked": count}
            members = [Member(run, Trainer(run.recipe, target, **settings)) for run in unfinished]
            for member in members:
                member.run.record_code(member.trainer.model)
            stack = Stack(members, shown, graphs=graphs and is_worthwhile(target) and not reason)
            with prefetch_batches([member.trainer for member in members]):
                _train(stack, should_stop, save_every)
    return runs


def _check_before_training(
    recipes: Sequence[Recipe], device: torch.device, matmul: Matmul, *, graphs: bool
) -> str | None:
    """Raise UsageError, before any file is written, for errors that would stop the training. If ``graphs`` are
    requested and cannot be recorded, return the reason."""
    first, runs = recipes[0], [Run.locate(recipe) for recipe in recipes]
    if device.type == "cpu":
        estimate = estimate_training(first)
        together = replace(estimate, memory=len(recipes) * estimate.memory)
        together.check(f"{first.name}: training {len(recipes)} seeds at once")
    if not all((run.folder / "config.json").exists() for run in runs):
        try_training(first, device, matmul)
    causality.check_model(first.build(), first, [first.tops])
    return None if all(run.done for run in runs) else try_stacked_training(recipes, device, matmul, graphs=graphs)


def try_stacked_training(
    recipes: Sequence[Recipe], device: torch.device, matmul: Matmul = "fp32", *, graphs: bool = False
) -> str | None:
    """Train two of the seeds on a few rows at the first and the last step. Raises UsageError if they cannot be stacked.
    Return the reason if ``graphs`` are requested and cannot be recorded."""
    trainers = [Trainer(shrink(recipe), device, matmul=matmul) for recipe in recipes[:2]]
    recording = RecordedSteps(trainers) if graphs else None
    if recording:
        recording.graphs.compiles = False  # compiling takes longer than running these few rows
    try:
        advance_together(trainers, recording)
        for trainer in trainers:
            trainer.step, trainer.exams_passed = trainer.recipe.steps - 1, trainer.recipe.lengths.top
        advance_together(trainers, recording)
        return recording.graphs.reason if recording else None
    except (RuntimeError, TypeError, ValueError) as error:
        draws = "the model draws random numbers in training, as dropout and noise do"
        reason = draws if "random operation" in str(error) else format_error(error)
        raise UsageError(f"{recipes[0].name}: its seeds cannot be stacked ({reason}); omit --stack") from None


def check_seeds(recipes: Sequence[Recipe]) -> None:
    """Raise UsageError unless the recipes are several seeds of one recipe that one process can train together."""
    if count_processes() > 1:
        raise UsageError("torchrun's processes train one run together: omit --stack, or torchrun")
    if len({recipe.id for recipe in recipes}) < max(2, len(recipes)):
        raise UsageError("a stack needs two or more different seeds")
    first = recipes[0]
    if first.objective.takes_several_steps:
        kind = type(first.objective).__name__
        raise UsageError(f"{kind} takes several steps on a batch, which --stack does not support: omit --stack")
    if first.parent or first.patience or first.accumulate > 1:
        raise UsageError("--stack does not support --from, patience or accumulate: omit --stack")
    if len({recipe.seedless_id for recipe in recipes}) > 1:
        raise UsageError("stacked recipes may differ only in seed and data_seed")


def prefers_stack(recipes: Sequence[Recipe], device: torch.device, matmul: Matmul) -> bool:
    """Return whether the recipes can be stacked and train faster in a stack: on a single GPU with enough memory."""
    if len(recipes) < 2 or not is_worthwhile(device) or torch.cuda.device_count() > 1:
        return False
    estimate = 3 * len(recipes) * estimate_training(recipes[0]).memory  # with a margin, since no user asked for a stack
    try:
        check_seeds(recipes)
        fits = estimate < torch.cuda.mem_get_info(device)[0]
        return fits and not try_stacked_training(recipes, device, matmul, graphs=True)
    except UsageError:
        return False


@dataclass(frozen=True)
class Member:
    """A seed in a stack: its trainer and its run."""

    run: Run
    trainer: Trainer


class Stack:
    """Seeds that train together. A seed that diverges is recorded in its folder and removed."""

    def __init__(self, members: Sequence[Member], progress: Progress, *, graphs: bool = False) -> None:
        self.members, self.progress, self.graphs = [*members], progress, graphs
        self.recording: RecordedSteps | None = None
        if graphs:
            for member in members:
                member.trainer.runners.stack_runner_name = StackedGraphs.__name__

    @property
    def step(self) -> int:
        """The lowest step of any member; ``sys.maxsize`` without members."""
        return min((one.trainer.step for one in self.members), default=sys.maxsize)

    def advance(self) -> list[dict[str, Any]]:
        """Take a step, log it, and return the new rows of metrics."""
        trainers = [one.trainer for one in self.members]
        if self.graphs and (self.recording is None or self.recording.trainers != trainers):
            self.recording = RecordedSteps(trainers)
        try:
            taken = advance_together(trainers, self.recording)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            advice = f"memory does not hold {len(self.members)} seeds at once: stack fewer, or omit --stack"
            raise UsageError(f"{self.members[0].run.recipe.name}: {advice}") from None
        return self.apply_to_members(lambda one: one.trainer.log(one.run) if one.trainer in taken else [])

    def apply_to_members(self, function: Callable[[Member], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the rows of metrics that a function returns for each seed, and remove the seeds for which it raises
        Diverged."""
        rows: list[dict[str, Any]] = []
        for member in [*self.members]:
            try:
                rows += function(member)
            except Diverged as error:
                self.members.remove(member)
                member.run.record_failure(str(error), DIVERGED)
                self.progress.note(f"seed {member.run.recipe.seed} leaves the stack: {error}")
        return rows


def _train(stack: Stack, should_stop: Callable[[], bool], save_every: float) -> None:
    """Train the seeds from their last checkpoints to the end, except those that diverge."""
    members, shown = [*stack.members], stack.progress
    for member in members:
        member.run.clear_failure()
        for change in member.trainer.restore_checkpoint(member.run):
            shown.note(change)
    recipe, saved = members[0].run.recipe, time.monotonic()
    course = TrainingProgress(shown.add_line(f"{recipe.name}, {len(members)} seeds", recipe.steps, stack.step))
    while stack.step < recipe.steps:
        rows = stack.advance()  # rows of several seeds; their means are shown
        if losses := [row["loss"] for row in rows if row.get("loss") is not None]:
            lengths = [row["length"] for row in rows if "length" in row]
            course.show(stack.step, {"loss": mean(losses), **({"length": min(lengths)} if lengths else {})})
        if watched := [row["exact"] for row in rows if "exact" in row]:
            shares = {size: mean(exact[size] for exact in watched) for size in watched[0]}
            course.show(stack.step, {"exact": shares})
        stop = should_stop()
        # Save at the end too: after a kill, unfinished runs would otherwise continue as a smaller stack.
        if stop or stack.step >= recipe.steps or time.monotonic() - saved > save_every:
            stack.apply_to_members(lambda member: member.trainer.save_checkpoint(member.run) or [])
            saved = time.monotonic()
        if stop and stack.members:
            where = f"{len(stack.members)} runs in {stack.members[0].run.folder.parent}"
            raise Interrupted(f"stopped at step {stack.step}; the same command continues from there: {where}")
    for member in stack.members:
        member.trainer.write_final_files(member.run)


class RecordedSteps:
    """The recordings of a stack's steps: forward and backward passes, and the updates of all weights."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = [*trainers]
        self.graphs, self.replayed_update = self._build_recordings()

    def _build_recordings(self) -> tuple[StackedGraphs, ReplayedUpdate]:
        first, models = self.trainers[0], [one.model for one in self.trainers]
        return StackedGraphs(models, bf16=first.matmul == "bf16"), ReplayedUpdate(first.device)

    def begin_step(self) -> None:
        """Start a step: set all gradients to 0."""
        if not self.graphs.is_valid:  # a checkpoint has been loaded, for example
            self.graphs, self.replayed_update = self._build_recordings()
        self.graphs.begin_step()

    def update_weights(self, losses: Sequence[Loss]) -> None:
        """Update the weights of all models by their gradients, count a step of each trainer, and add all values to log
        to the trainers' sums in a single operation."""
        recipe, step = self.trainers[0].recipe, self.trainers[0].step
        averages = [trainer.average if step >= recipe.ema_start else None for trainer in self.trainers]
        descents = [trainer.descent for trainer in self.trainers]
        logs_of_descents = self.replayed_update(descents, recipe.rate_at(step), averages, self.graphs.all_gradients)
        sums, values = list[Tensor](), list[Tensor]()
        for trainer, average, loss, logs in zip(self.trainers, averages, losses, logs_of_descents, strict=True):
            if average:
                average.n_averaged += 1
            for name, value in (loss.logs | logs).items():
                if name in trainer.sums:
                    sums.append(trainer.sums[name])
                    values.append(value.detach())
                else:
                    trainer.sums[name] = value.detach().clone()
            trainer.step += 1
        if sums:
            torch._foreach_add_(sums, values)


def advance_together(trainers: Sequence[Trainer], recording: RecordedSteps | None = None) -> list[Trainer]:
    """Take a step with those trainers that have taken the fewest steps, and return these trainers.

    Results of the other trainers are also computed, and then discarded. Shapes, and therefore the last bits, thus stay
    the same if a run was killed between writing the checkpoints of two seeds.
    """
    step, models = min(trainer.step for trainer in trainers), [trainer.model for trainer in trainers]
    batches = [trainer.draw_batch(step) for trainer in trainers]

    def compute_losses(runners: Sequence[Runner]) -> list[Loss]:
        arguments = zip(trainers, runners, batches, strict=True)
        return [next(trainer.objective_losses(step, runner, *batch)) for trainer, runner, batch in arguments]

    with trainers[0].protect_generators():
        recorders = _record_queries(trainers, compute_losses, recording)
        queries = [recorder.queries for recorder in recorders]
        if recording:
            recording.begin_step()
        with step_precision(trainers[0].matmul):
            answers = [_answer_queries(trainers, together, recording) for together in zip(*queries, strict=True)]
            # An objective may run the model itself and call no runner; then there are no queries.
            replies = zip(*answers, strict=True) if answers else [()] * len(models)
            replayers = [QueryReplayer(model, *own) for model, *own in zip(models, queries, replies, strict=True)]
            pairs = zip(trainers, compute_losses(replayers), strict=True)
            due = [(trainer, loss) for trainer, loss in pairs if trainer.step == step]
            torch.stack([loss.value for _, loss in due]).sum().backward()
        if recording and len(due) == len(trainers):
            recording.update_weights([loss for _, loss in due])
        else:
            for trainer, loss in due:
                trainer.count_step([trainer.update_weights(loss)])
    return [trainer for trainer, _ in due]


def _record_queries(
    trainers: Sequence[Trainer],
    compute_losses: Callable[[Sequence[Runner]], list[Loss]],
    recording: RecordedSteps | None,
) -> list[QueryRecorder]:
    """Return, for each trainer, a recorder of the calls that its objective makes to the runner."""
    symbols = len(trainers[0].recipe.layout.vocabs(trainers[0].recipe.task)[1])
    recorders = [QueryRecorder(trainer.model, symbols) for trainer in trainers]
    models = [trainer.model for trainer in trainers]
    buffers = recording.graphs.own_buffers if recording else [buffer for model in models for buffer in model.buffers()]
    versions = [buffer._version for buffer in buffers]
    compute_losses(recorders)  # the losses are meaningless; only the calls are recorded
    if versions != [buffer._version for buffer in buffers]:
        raise UsageError("the objective calls the model without the runner, and the call changes the model's buffers")
    if len({tuple(query.shared_properties for query in recorder.queries) for recorder in recorders}) > 1:
        raise UsageError("the objective calls the runners of two seeds differently")
    return recorders


def _answer_queries(
    trainers: Sequence[Trainer], queries: Sequence[Query], recording: RecordedSteps | None
) -> list[Answer]:
    if recording and (answers := recording.graphs.answer_queries(queries)) is not None:
        return answers
    with autocast(trainers[0].device, trainers[0].matmul):
        return compute_answers([one.model for one in trainers], queries)
