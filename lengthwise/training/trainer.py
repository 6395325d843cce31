"""A model in training: its steps, its log, and its checkpoint."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lengthwise.base import rng
from lengthwise.base.errors import Diverged, UsageError, is_out_of_memory, remove_controls
from lengthwise.base.fields import encode
from lengthwise.base.files import format_error
from lengthwise.base.results import AnySize
from lengthwise.base.types import Batch, Loss, validate_loss
from lengthwise.evaluation import causality, scores
from lengthwise.experiment import data
from lengthwise.experiment.lengths import Growing, Mastery
from lengthwise.experiment.own_code import guard_foreign_code, has_foreign_code, wrap_user_errors
from lengthwise.experiment.recipe import Parent, Recipe
from lengthwise.experiment.resources import TRAINING_NUMBERS, count_parameters, estimate_model, is_small_model
from lengthwise.experiment.source import Finite, Fresh
from lengthwise.models import Model
from lengthwise.runners import Runner
from lengthwise.runners.plain import Plain
from lengthwise.runs.run import FINAL_FILE, Run, check_storable, read_git_commit, save_weights
from lengthwise.training import checkpoint
from lengthwise.training.arithmetic import Clock, Matmul, check_matmul
from lengthwise.training.choice import RunnerChoice
from lengthwise.training.descent import EMA, Descent, ReplayedUpdate, compute_gradients
from lengthwise.training.processes import Processes
from lengthwise.training.validation import Validator, finite_or_none

DrawnBatch = tuple[Batch, Int[Tensor, " b"]]  # a batch, with its rows' loops

LOG_EVERY = 10  # steps between rows of the log
TRIAL_ROWS = 2  # rows of each batch in ``try_training``


class Trainer:
    """A model in training, and everything else that a checkpoint holds. ``stacked`` is the number of seeds that train
    together, 0 without a stack."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        *,
        allow_divergence: bool = False,
        matmul: Matmul = "fp32",
        compile: bool = False,
        graphs: bool = False,
        processes: Processes | None = None,
        stacked: int = 0,
    ) -> None:
        self.recipe, self.device, self.allow_divergence = recipe, device, allow_divergence
        self.matmul, self.processes, self.stacked = matmul, processes or Processes(), stacked
        if not is_small_model(recipe.model):
            what = f"{recipe.name}: training a model of {count_parameters(recipe):,} parameters"
            estimate_model(recipe, TRAINING_NUMBERS).check(what)
        self.model = recipe.build().to(device).train()  # an external module may be in evaluation mode
        if not any(weight.requires_grad for weight in self.model.parameters()):
            raise UsageError(f"{recipe.name}: the model has no trainable weights: set requires_grad=True for some")
        self.average = EMA(self.model, recipe.ema) if recipe.ema else None
        self.optimizer = recipe.optimizer.build(self.model.parameters())
        self.descent = Descent(self.model, self.optimizer, recipe.clip)
        options: dict[str, Any] = {"matmul": matmul, "compile": compile, "graphs": graphs, "stacked": stacked > 0}
        self.runners, self.replayed_update = RunnerChoice(self.model, self.processes, **options), ReplayedUpdate(device)
        self.draw: Callable[[int, int], DrawnBatch] = lambda step, passed: data.draw_batch(
            recipe, step, exams_passed=passed
        )
        self.step = recipe.start
        self.exams_passed = 0  # with Mastery
        self.parts = recipe.accumulate  # number of parts of a batch; doubled when memory runs out
        self.sums: dict[str, Tensor] = {}  # sums of logged values since the last report
        self.last_report = (0, math.nan)  # step and loss of the last report
        self.divergence_step = 0  # the step at which divergence was found; 0: none
        self.resumptions: list[dict[str, Any]] = []  # the step of each resumption, and the settings that had changed
        self.validator = Validator(recipe)
        # Steps seed torch's global generators, for dropout; a user's code may draw from Python's too.
        foreign = has_foreign_code(recipe, self.model)
        self.protect_generators = partial(guard_foreign_code, recipe) if foreign else rng.borrow_torch_generators
        self.spent = {"wall_s": 0.0, "cpu_s": 0.0}  # seconds of earlier calls for this run
        self.clock = Clock()

    def advance(self) -> None:
        """Take a training step on the next batch: an optimizer step for each loss that the objective yields."""
        batch, loops = self.draw_batch(self.step)
        with self.protect_generators():
            logs = []
            for loss in self.compute_losses(batch, loops):
                self.processes.all_reduce_gradients(self.model)
                logs.append(self.update_weights(loss))
            self.count_step(logs)

    def compute_losses(self, batch: Batch, loops: Int[Tensor, " b"]) -> Iterator[Loss]:
        """Yield each loss on a batch, with its gradients computed. If memory runs out, divide this batch and later ones
        into twice as many parts and start again; raise UsageError if they cannot be divided."""
        while True:
            runner = self.runners.choose(self.parts)  # at every step, since hooks may have been set
            try:
                yield from compute_gradients(self.objective_losses(self.step, runner, batch, loops), self.matmul)
                return
            except (MemoryError, RuntimeError) as error:
                if "once_differentiable" in str(error) and type(runner) is not Plain:
                    fault = "the objective takes second derivatives, which faster runners do not support"
                    raise UsageError(f"{fault}: train within lw.plain(), or with LENGTHWISE_PLAIN=1") from error
                if not is_out_of_memory(error):
                    raise
                self.optimizer.zero_grad()
                if self.runners.graphs:
                    self.runners.graphs.release()
            if self.recipe.objective.takes_several_steps or self.processes.count > 1 or self.parts >= len(loops):
                rows = f"{-(-len(loops) // self.parts)} of {len(loops)} rows"
                raise UsageError(f"{self.recipe.name}: memory does not hold {rows} at a time: reduce batch")
            self.parts *= 2

    def draw_batch(self, step: int) -> DrawnBatch:
        """Return the batch of a step, with its rows' loops."""
        return self.draw(step, self.exams_passed)

    def objective_losses(self, step: int, runner: Runner, batch: Batch, loops: Int[Tensor, " b"]) -> Iterator[Loss]:
        """Yield the objective's losses on a batch, computed by a runner."""
        # Seeded per step, so that a resumed run draws the same dropout as an uninterrupted one.
        rng.seed_torch(rng.derive_seed(self.recipe.seed, "dropout", step, *self.processes.rng_address))
        objective, generator = self.recipe.objective, rng.stream(self.recipe.seed, "objective", step)
        yield from map(partial(validate_loss, objective), objective.steps(runner, batch, loops, generator))

    def update_weights(self, loss: Loss) -> dict[str, Tensor]:
        """Update the weights by their gradients, and return the values to log."""
        recipe, step = self.recipe, self.step
        rate, average = recipe.rate_at(step), self.average if step >= recipe.ema_start else None
        if graphs := self.runners.choose_graphs(self.parts):
            (logs,) = self.replayed_update([self.descent], rate, [average], graphs.gradients.values())
        else:
            logs = self.descent(rate, average)
        self.optimizer.zero_grad()
        if average:
            average.n_averaged += 1
        return loss.logs | logs

    def count_step(self, logs: Sequence[dict[str, Tensor]]) -> None:
        """Count a step on one batch, and add each logged value's mean over ``logs`` to the sums."""
        # Summed on the device: reading a number at every step would make a GPU wait.
        for values in logs:
            for name, value in values.items():
                self.sums[name] = self.sums.get(name, 0.0) + value.detach() / len(logs)
        self.step += 1

    def take_exam(self) -> None:
        """With ``Mastery``, run the exam on the current length if it is due; admit the next length if it is passed."""
        lengths = self.recipe.lengths
        if not isinstance(lengths, Mastery) or self.step % lengths.every or self.current_length() == lengths.top:
            return
        is_passed = False
        if self.processes.is_first:
            size = self.recipe.sizes(self.current_length())
            try:
                exact = scores.measure_exact_match(self.model, self.recipe, size, lengths.count, step=self.step)
                is_passed = exact >= lengths.pass_accuracy
            except data.NoProblemsLeft:  # a task's file of problems may lack this length
                is_passed = True
            self.model.train()
        self.exams_passed += self.processes.broadcast(is_passed)

    def current_length(self) -> int:
        """Return the largest size that training draws at this step."""
        lengths = self.recipe.lengths
        if not isinstance(lengths, Growing):
            return lengths.top
        return lengths.maximum(lengths.curriculum_step(self.step, self.exams_passed))

    def model_to_evaluate(self) -> Model:
        """Return the model to evaluate and save: the moving average if the recipe has one and it has started."""
        averaged = self.average is not None and self.average.n_averaged > 0
        return self.average.module if averaged else self.model  # type: ignore[return-value,union-attr]

    def log(self, run: Run) -> list[dict[str, Any]]:
        """Run the exam, report and validation that are due after a step, and return the new, logged rows of metrics."""
        with self.protect_generators():
            self.take_exam()
            rows = [self.report()] if self.is_report_due() else []
            if self.recipe.watch.every and self.step % self.recipe.watch.every == 0:
                rows.append(self.measure())
        for row in rows:
            run.append("metrics", row)
        return rows

    def save_checkpoint(self, run: Run) -> None:
        """Write the checkpoint."""
        self.check_finite()
        run.save_state(self.state())

    @property
    def is_over(self) -> bool:
        """True once training has ended: at the last step, or after ``patience`` measurements without better weights."""
        recipe, best = self.recipe, max(self.validator.best["step"], self.recipe.start)
        early = recipe.patience and self.step - best >= recipe.patience * recipe.watch.every
        return self.step >= recipe.steps or bool(early)

    def write_final_files(self, run: Run, *, keep_state: bool = False) -> None:
        """Write the final files, the weights last, because their file marks the run as done."""
        run.write_about(self.about())
        if keep_state:
            run.save_state(self.state(), FINAL_FILE)
        save_weights(run.folder, self.recipe, self.validator.best["weights"] or self.model_to_evaluate().state_dict())
        run.remove_state()

    def is_report_due(self) -> bool:
        """Return whether a report is due after this step."""
        return self.step % LOG_EVERY == 0 or self.step == self.recipe.steps

    def report(self) -> dict[str, Any]:
        """Return a row of metrics: means over the steps since the last report."""
        self.check_finite()
        steps = min((self.step - 1) % LOG_EVERY + 1, self.step - self.recipe.start)
        means, self.sums = {name: finite_or_none(float(value) / steps) for name, value in self.sums.items()}, {}
        if (loss := means.get("loss")) is not None:
            self.last_report = (self.step, loss)
        length = {"length": self.current_length()} if isinstance(self.recipe.lengths, Growing) else {}
        return {"step": self.step, **means, "rate": self.optimizer.param_groups[0]["lr"], **length, **self.read_times()}

    def check_finite(self) -> None:
        """Raise Diverged unless all weights, and all values logged since the last report, are finite. If divergence is
        allowed, record its step instead."""
        weights = torch.stack([parameter.isfinite().all() for parameter in self.model.parameters()])
        if weights.all() and all(math.isfinite(value) for value in self.sums.values()):
            return
        self.divergence_step = self.divergence_step or self.step
        if self.allow_divergence:
            return
        (step, loss), recipe = self.last_report, self.recipe
        before = f"the last finite loss was {loss:.4g} at step {step}" if step else "none was finite before"
        advice = f"try a lower optimizer.rate than {recipe.optimizer.rate:g}" + ("" if recipe.clip else ", or clip=1")
        if not step and has_foreign_code(recipe, self.model):
            advice = f"look for NaN and infinity in your own code, or {advice}"
        raise Diverged(f"{recipe.name}: the loss is not finite at step {self.step}; {before}; {advice}")

    def measure(self) -> dict[str, Any]:
        """Measure the model as the recipe's ``watch`` specifies; return a row of metrics."""
        return self.validator.measure(self.model_to_evaluate(), self.step) | self.read_times()

    def read_times(self) -> dict[str, float]:
        """Return wall and processor seconds so far, including earlier calls for this run. A stack's processor
        time is divided equally among its seeds."""
        now = self.clock.read()
        now["cpu_s"] /= self.stacked or 1
        return {name: round(self.spent[name] + value, 3) for name, value in now.items()}

    def about(self) -> dict[str, Any]:
        """Return the provenance of the results: versions, commit, device, runner, time."""
        return {
            "commit": read_git_commit(),
            "python": platform.python_version(),
            **self.environment(),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            **({"length": self.current_length()} if isinstance(self.recipe.lengths, Growing) else {}),
            **({"parts": self.parts} if self.parts > 1 else {}),
            "steps": self.step,
            **({"parent": encode(self.recipe.parent)} if self.recipe.parent else {}),
            "kept_step": self.validator.best["step"] or self.step,
            **({"diverged": self.divergence_step} if self.divergence_step else {}),
            **({"resumed": self.resumptions} if self.resumptions else {}),
            **self.read_times(),
        }

    def environment(self) -> dict[str, Any]:
        """Return settings outside the recipe that may change the last bits of the weights."""
        from lengthwise import __version__

        versions = {"lengthwise": __version__, "torch": str(torch.__version__)}
        machine = {"device": self.device.type, "processes": self.processes.count, "stacked": self.stacked or 1}
        runner = self.runners.describe(self.parts)
        how = {"matmul": self.matmul, "compiled": self.runners.compiles, "runner": runner}
        return {**versions, **machine, "threads": torch.get_num_threads(), **how}

    def state(self) -> dict[str, Any]:
        """Return the checkpoint: everything that resuming needs."""
        return {
            "step": self.step,
            "passed": self.exams_passed,
            "parts": self.parts,
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},  # not a view of a stack
            "average": self.average.state_dict() if self.average else None,
            "optimizer": self.optimizer.state_dict(),
            "sums": self.sums,
            "best": self.validator.best,
            "spent": self.read_times(),
            "surroundings": self.environment(),
            "resumed": self.resumptions,
            "diverged": self.divergence_step,
        }

    def restore_checkpoint(self, run: Run) -> list[str]:
        """Load the run's checkpoint, if there is one, drop metrics logged after it, and return notes for the user.
        Raises UsageError if the checkpoint does not fit this recipe."""
        state, before = run.load_state(), self.environment()
        if state:
            try:
                self.load_state(state)
                before |= state["surroundings"]
            except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
                fault = f"not a checkpoint of this recipe ({format_error(error)}); delete it to start over"
                raise UsageError(f"{run.folder / 'state.pt'}: {fault}") from None
        elif self.recipe.parent:
            self._load_parent(self.recipe.parent)
        run.remove_rows_after("metrics", self.step)
        rows = run.rows("metrics")
        losses = [(row["step"], row["loss"]) for row in rows if row.get("loss") is not None]
        self.last_report = losses[-1] if losses else self.last_report
        if not state or self.step == self.recipe.steps:  # no step follows
            return []
        notes, now = list[str](), self.environment()
        if changes := {key: remove_controls(str(before[key])) for key in now if str(before[key]) != str(now[key])}:
            self.resumptions.append({"step": self.step, **changes})
            what = ", ".join(f"{key} {now[key]} instead of {value}" for key, value in changes.items())
            notes.append(f"continues from step {self.step} with {what}: the last bits of its weights may differ")
        logged, expected = sum("rate" in row for row in rows), self.step // LOG_EVERY - self.recipe.start // LOG_EVERY
        if logged < expected:
            notes.append(f"metrics.jsonl has {logged} of {expected} rows: the others are lost")
        return [f"{self.recipe.name}: {note}" for note in notes]

    def _load_parent(self, parent: Parent) -> None:
        """Load the weights of the run that this one continues from, or its whole state if the recipe requests it."""
        provided, recipe = checkpoint.read_parent(parent)
        if not parent.state:
            self.model.load_state_dict(provided["model"])
            return
        same = (recipe.keep, recipe.watch) == (self.recipe.keep, self.recipe.watch)
        best = provided["best"] if same else self.validator.best
        self.load_state(provided | {"best": best, "sums": {}})  # drop sums that the parent had not reported
        self.spent, self.resumptions, self.parts = {"wall_s": 0.0, "cpu_s": 0.0}, [], self.recipe.accumulate

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint of this recipe."""
        self.model.load_state_dict(state["model"])
        if self.average:
            self.average.load_state_dict(state["average"])
        groups = self.optimizer.state_dict()["param_groups"]
        for group, saved in zip(groups, state["optimizer"]["param_groups"], strict=True):  # keep the recipe's settings
            group |= {"step": saved["step"]} if "step" in saved else {}
        copy = partial(torch.clone, memory_format=torch.contiguous_format)
        parameter_states = tree_map_only(Tensor, copy, state["optimizer"]["state"])
        self.optimizer.load_state_dict({"state": parameter_states, "param_groups": groups})
        self.replayed_update = ReplayedUpdate(self.device)  # earlier captures would change the former state
        self.step, self.validator.best, self.spent = (state[k] for k in ("step", "best", "spent"))
        self.sums = {name: value.to(self.device) for name, value in state["sums"].items()}
        self.exams_passed, self.parts = state["passed"], state["parts"]
        self.divergence_step, self.resumptions = state["diverged"], [*state["resumed"]]


def try_training(
    recipe: Recipe, device: torch.device, matmul: Matmul = "fp32", sizes: Sequence[AnySize] = ()
) -> Trainer:
    """Run the first and the last training step on a few rows, then evaluate the model at the watched sizes and the
    largest one; return the trainer. Raises UsageError for errors of the recipe, and for ``sizes`` at which its model
    cannot be measured. No file is written."""
    check_matmul(matmul, device)
    with wrap_user_errors(recipe), rng.preserve_generators():
        trainer = Trainer(shrink(recipe), device, matmul=matmul)
        causality.check_model(trainer.model, recipe, [recipe.tops, *sizes])
        data.check_training_problems(recipe, sizes)
        check_storable(trainer.model.state_dict())
        trainer.advance()
        trainer.step, trainer.exams_passed = recipe.steps - 1, recipe.lengths.top
        trainer.advance()
        if recipe.watch.every:
            trainer.measure()
        longest = data.find_nearest_size(recipe, recipe.lengths.top, "validation")
        scores.measure_exact_match(trainer.model, trainer.recipe, longest, 1)
        return trainer


def shrink(recipe: Recipe) -> Recipe:
    """Return the recipe for ``try_training``, with a few rows in every batch and measurement."""
    watch = replace(recipe.watch, count=1, validation=min(recipe.watch.validation, TRIAL_ROWS))
    source = Fresh() if isinstance(recipe.source, Finite) else recipe.source  # drawing a fixed set takes long
    return replace(recipe, batch=min(recipe.batch, TRIAL_ROWS), accumulate=1, watch=watch, source=source)
