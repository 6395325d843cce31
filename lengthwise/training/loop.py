"""The training loop, with checkpoints that resume to the bit."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lengthwise import fast
from lengthwise.base import rng
from lengthwise.base.errors import Diverged, Interrupted, UsageError
from lengthwise.base.fields import checked
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import NotNegative, Threads
from lengthwise.base.types import Problems
from lengthwise.depth import Runner
from lengthwise.evaluation import causality, scores
from lengthwise.folder import one_line, path_of
from lengthwise.models import Model
from lengthwise.recipe import data
from lengthwise.recipe.demand import KEPT, of_model, of_training, parameters
from lengthwise.recipe.lengths import Growing, Mastery
from lengthwise.recipe.recipe import Recipe
from lengthwise.recipe.source import Finite, Fresh
from lengthwise.run import Run, choose_device, commit, named_now, save
from lengthwise.share.tracking import check, tracked
from lengthwise.training import checkpoint
from lengthwise.training.computing import Bf16, Clock, Matmul, check_matmul, computing, stop_signal
from lengthwise.training.processes import Alone, Divided, Processes, joined
from lengthwise.training.progress import Course, verdict

LOG_EVERY = 10  # steps
REHEARSED = 2  # rows


@checked
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
    track: Sequence[str] = (),
) -> Run:
    """Train a recipe to its end, resuming an earlier call if there is a checkpoint, and return its run.

    ``folder`` defaults to the recipe's folder among the runs; ``save_every`` is in seconds. On a CPU, a resumed run
    equals an uninterrupted one to the bit, for equal ``threads``; small models train fastest on one thread. Steps are
    shown on a line of ``progress``; ``track`` names trackers that rows are sent to. Where another process trains this
    run, ``wait`` for it. ``matmul`` is the arithmetic of matrix products in training steps. Started by torchrun, all
    processes train one run together, and the first one writes.

    Raises Interrupted at Ctrl-C, SIGTERM or SIGHUP, after saving; Diverged where the loss is no number any more, with
    the last finite checkpoint kept, unless to ``allow_divergence``: then rows say null; and UsageError if the model is
    not causal where its layout is, the device is missing, the folder holds another recipe, its log vanishes, or another
    process trains it.
    """
    check(track)
    shown = progress or Progress(quiet=True)
    at, where = choose_device(device), Run.expected(recipe).folder if folder in (None, "") else path_of(folder)
    check_matmul(matmul, at)
    if at.type == "cpu":
        of_training(recipe).check(f"{recipe.name}: its training")
    with joined(at) as processes:
        if processes.first and not (where / "config.json").exists():
            rehearse(recipe, at, matmul)
        trainee = Trainee(recipe, at, allow_divergence=allow_divergence, matmul=matmul, processes=processes)
        causality.check(trainee.model, recipe)
        if not processes.first:
            with computing(threads, matmul), stop_signal() as stopped:
                return _help(trainee, where, stopped)
        run = Run.of(recipe, where)
        alone = nullcontext() if run.done else run.locked(wait=wait)
        with alone, computing(threads, matmul), stop_signal() as stopped, tracked(run, track, shown.note):
            if run.done:  # by whom we waited for, perhaps
                processes.from_first(None)
                return run
            with verdict(run):
                _train(trainee, run, shown, stopped, save_every)
    return run


def _train(trainee: Trainee, run: Run, shown: Progress, stopped: Callable[[], bool], save_every: float) -> None:
    """Train from the last checkpoint to the end; the weights come last: their file marks the run as done."""
    recipe = trainee.recipe
    for change in trainee.restore(run):
        shown.note(change)
    trainee.processes.from_first(trainee.state())
    course, saved = Course(shown.line(recipe.name, recipe.steps, trainee.step)), time.monotonic()
    while trainee.step < recipe.steps:
        trainee.advance()
        trainee.examine()
        rows = [trainee.report()] if trainee.reports() else []
        if recipe.watch.every and trainee.step % recipe.watch.every == 0:
            rows.append(trainee.watch())
        for row in rows:
            run.append("metrics", row)
            course.show(trainee.step, row)
        (stop,) = trainee.processes.any(stopped())
        if stop or time.monotonic() - saved > save_every:
            trainee.check_finite()
            run.save_state(trainee.state())
            saved = time.monotonic()
        if stop:
            raise Interrupted(f"stopped at step {trainee.step}; the same command goes on from there: {run.folder}")
    run.describe(trainee.about())
    save(run.folder, recipe, trainee.best_weights())
    (run.folder / "state.pt").unlink(missing_ok=True)


def _help(trainee: Trainee, where: Path, stopped: Callable[[], bool]) -> Run:
    """What processes do beside the first: they take the same steps on other rows, and write nothing."""
    state = trainee.processes.from_first(None)
    if state is not None:
        trainee.adopt(state)
        while trainee.step < trainee.recipe.steps:
            trainee.advance()
            trainee.examine()
            if trainee.reports():
                trainee.report()
            if any(trainee.processes.any(stopped())):
                raise Interrupted(f"stopped at step {trainee.step}")
    return Run(where, trainee.recipe)


class Trainee:
    """A model in training, with the optimizer and everything else that a checkpoint holds."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        *,
        allow_divergence: bool = False,
        matmul: Matmul = "fp32",
        processes: Processes | None = None,
    ) -> None:
        self.recipe, self.device, self.allow_divergence = recipe, device, allow_divergence
        self.matmul, self.processes = matmul, processes or Alone()
        of_model(recipe, KEPT).check(f"{recipe.name}: training a model of {parameters(recipe):,} parameters")
        self.model = recipe.build().to(device)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(recipe.ema)) if recipe.ema else None
        self.optimizer = recipe.optimizer.build(self.model.parameters())
        self.step = 0
        self.passed = 0  # exams, with Mastery
        self.sums: dict[str, Tensor] = {}  # of logged values, since the last report
        self.last = (0, math.nan)  # step and loss of the last report
        self.diverged = 0  # the step at which that was found
        self.resumed: list[dict[str, Any]] = []  # with what each change of versions or threads came
        self.best: dict[str, Any] = {"merit": -math.inf, "step": 0, "weights": {}}
        self.spent = {"wall_s": 0.0, "cpu_s": 0.0}
        self.clock = Clock()

    def advance(self) -> None:
        """Take one optimizer step."""
        recipe, step = self.recipe, self.step
        batch, loops = data.batch(recipe, step, passed=self.passed)
        # Seeded per step, so that a resumed run draws the same dropout as an uninterrupted one.
        torch.manual_seed(rng.address(recipe.seed, "dropout", step, *self.processes.address))
        draw = rng.stream(recipe.seed, "objective", step)
        loss = recipe.objective(self.runner(), batch, loops, draw)
        loss.value.backward()
        self.processes.add_gradients(self.model)
        logs = dict(loss.logs)
        if recipe.clip:
            logs["gradient_norm"] = clip_grad_norm_(self.model.parameters(), recipe.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.optimizer.rate * recipe.schedule.factor(step, recipe.steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average and step >= recipe.ema_start:
            self.average.update_parameters(self.model)
        # Summed on the device: reading a number at every step would make a GPU wait.
        self.sums = {name: self.sums.get(name, 0.0) + value.detach() for name, value in logs.items()}
        self.step += 1

    def runner(self) -> Runner:
        """Chosen at every step: hooks may have been set since the last one."""
        runner = Bf16(self.model) if self.matmul == "bf16" else fast.choose(self.model)
        return Divided(runner, self.processes) if self.processes.count > 1 else runner

    def examine(self) -> None:
        """With ``Mastery``, let the model take its exam if one is due, and admit the next length if it passes."""
        lengths = self.recipe.lengths
        if not isinstance(lengths, Mastery) or self.step % lengths.every or self.length() == lengths.top:
            return
        passed = False
        if self.processes.first:
            size = self.recipe.sizes(self.length())
            passed = scores.exact_match(self.model, self.recipe, size, lengths.count, part=self.step) >= lengths.least
            self.model.train()
        self.passed += self.processes.from_first(passed)

    def length(self) -> int:
        """The largest size at this step."""
        lengths = self.recipe.lengths
        return lengths.maximum(lengths.clock(self.step, self.passed)) if isinstance(lengths, Growing) else lengths.top

    def evaluated(self) -> Model:
        """The model to evaluate and save: the moving average if the recipe has one and it has started."""
        averaged = self.average is not None and self.average.n_averaged > 0
        return self.average.module if averaged else self.model  # type: ignore[return-value,union-attr]

    def reports(self) -> bool:
        """Is a report due after this step?"""
        return self.step % LOG_EVERY == 0 or self.step == self.recipe.steps

    def report(self) -> dict[str, Any]:
        """A row of metrics: means over the steps since the last report."""
        self.check_finite()
        steps = (self.step - 1) % LOG_EVERY + 1
        means = {name: _number(float(value) / steps) for name, value in self.sums.items()}
        self.sums = {}
        if (loss := means.get("loss")) is not None:
            self.last = (self.step, loss)
        length = {"length": self.length()} if isinstance(self.recipe.lengths, Growing) else {}
        return {"step": self.step, **means, "rate": self.optimizer.param_groups[0]["lr"], **length, **self.time()}

    def check_finite(self) -> None:
        """Diverged unless every weight, and every value logged since the last report, is a number; where that is
        allowed, it is noted."""
        weights = torch.stack([parameter.isfinite().all() for parameter in self.model.parameters()])
        if weights.all() and all(math.isfinite(value) for value in self.sums.values()):
            return
        self.diverged = self.diverged or self.step
        if self.allow_divergence:
            return
        step, loss = self.last
        before = f"the last finite loss was {loss:.4g} at step {step}" if step else "it never was finite"
        rate, clip = self.recipe.optimizer.rate, self.recipe.clip
        advice = f"a lower optimizer.rate than {rate:g}" + ("" if clip else ", or clip=1")
        raise Diverged(f"{self.recipe.name}: the loss is not finite at step {self.step}; {before}; try {advice}")

    def watch(self) -> dict[str, Any]:
        """Measure what the recipe watches, as a row of metrics, and remember the best weights."""
        recipe, watch, model = self.recipe, self.recipe.watch, self.evaluated()
        exact = {}
        for size in dict.fromkeys(watch.sizes):  # without repeated sizes
            exact[str(size)] = scores.exact_match(model, recipe, recipe.sizes(size), watch.count, part=self.step)
        row: dict[str, Any] = {"step": self.step, "exact": exact}
        if watch.probes:
            row["perplexity"] = {probe: self._perplexity(model, probe) for probe in watch.probes}
        if watch.validation:
            row["validation_loss"] = _number(scores.loss(model, recipe, self.held_out))
        model.train()
        merit = sum(exact.values()) / len(exact) if recipe.keep == "best" else -(row.get("validation_loss") or math.inf)
        if recipe.keep != "last" and merit > self.best["merit"]:
            weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
            self.best = {"merit": merit, "step": self.step, "weights": weights}
        return row | self.time()

    @cached_property
    def held_out(self) -> Problems:
        """The problems of the validation loss."""
        return data.held_out(self.recipe, self.recipe.watch.validation)

    def _perplexity(self, model: Model, probe: str) -> float | None:
        recipe = self.recipe
        batch = recipe.layout.write(recipe.task.parse(probe), recipe.task)
        loops = scores.answer(model, recipe, batch, recipe.stopping).loops
        return _number(float(scores.perplexity(model, batch, loops)))

    def best_weights(self) -> dict[str, Tensor]:
        """The weights to save: the best or the last, as the recipe says."""
        return self.best["weights"] or self.evaluated().state_dict()

    def time(self) -> dict[str, float]:
        """Wall and processor seconds so far, including earlier calls that trained this run."""
        return {name: round(self.spent[name] + value, 3) for name, value in self.clock.read().items()}

    def about(self) -> dict[str, Any]:
        """The provenance of the results: versions, commit, device, runner, time."""
        from lengthwise import __version__

        return {
            "lengthwise": __version__,
            "commit": commit(),
            "python": platform.python_version(),
            **self.surroundings(),
            "runner": "Bf16" if self.matmul == "bf16" else fast.described(self.model),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": self.step,
            "kept_step": self.best["step"] or self.step,
            **({"diverged": self.diverged} if self.diverged else {}),
            **({"resumed": self.resumed} if self.resumed else {}),
            **self.time(),
        }

    def surroundings(self) -> dict[str, Any]:
        """What the last bits of the weights may depend on, beside the recipe."""
        machine = {"torch": str(torch.__version__), "device": self.device.type, "processes": self.processes.count}
        return {**machine, "threads": torch.get_num_threads(), "matmul": self.matmul}

    def state(self) -> dict[str, Any]:
        """The checkpoint: everything that resuming needs."""
        return {
            "step": self.step,
            "passed": self.passed,
            "model": self.model.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "optimizer": self.optimizer.state_dict(),
            "sums": self.sums,
            "best": self.best,
            "spent": self.time(),
            "surroundings": self.surroundings(),
            "resumed": self.resumed,
            "diverged": self.diverged,
        }

    def restore(self, run: Run) -> list[str]:
        """Load the run's checkpoint, if there is one, and drop metrics that were logged after it; what a user should
        know of that, a line each. Raises UsageError if the checkpoint does not fit this recipe."""
        state, before = run.state(self.device), self.surroundings()
        if state:
            try:
                self._resume(state)
                before |= checkpoint.UNSAID | state.get("surroundings", {})  # an older version has not kept them
            except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
                path, reason = run.folder / "state.pt", one_line(error)
                raise UsageError(
                    f"{path}: not a checkpoint of this recipe ({reason}); delete it to start over"
                ) from None
        run.cut("metrics", self.step)
        rows = run.rows("metrics")
        losses = [(row["step"], row["loss"]) for row in rows if row.get("loss") is not None]
        self.last = losses[-1] if losses else self.last
        if not state:
            return []
        changes = checkpoint.changed(before, self.surroundings())
        self.resumed += [{"step": self.step, **changes}] if changes else []
        said = [
            checkpoint.told(changes, self.surroundings(), self.step),
            checkpoint.lost(rows, self.step // LOG_EVERY),
        ]
        return [f"{self.recipe.name}: {text}" for text in said if text]

    def _resume(self, state: dict[str, Any]) -> None:
        for name in ("model", "average"):
            if isinstance(state.get(name), dict):
                state[name] = named_now(state[name])
        checkpoint.check(state, rehearse(self.recipe, self.device, self.matmul).state())
        self.adopt(state)

    def adopt(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint of this recipe."""
        self.model.load_state_dict(state["model"])
        if self.average:
            self.average.load_state_dict(state["average"])
        checkpoint.restored(self.optimizer, state["optimizer"])
        self.step, self.sums, self.best, self.spent = (state[k] for k in ("step", "sums", "best", "spent"))
        self.passed, self.diverged = state.get("passed", 0), state.get("diverged", 0)
        self.resumed = [*state.get("resumed", [])]


def rehearse(recipe: Recipe, device: torch.device, matmul: Matmul = "fp32") -> Trainee:
    """Train on a few rows at the first step and at the last, and measure what the recipe watches and its longest
    problems on a few: what cannot work raises UsageError here, before anything is written or hours have passed."""
    watch = replace(recipe.watch, count=1, validation=min(recipe.watch.validation, REHEARSED))
    small = replace(recipe, batch=min(recipe.batch, REHEARSED), watch=watch, source=Fresh())
    trainee = Trainee(small, device, matmul=matmul)
    causality.check(trainee.model, recipe)
    if isinstance(recipe.source, Finite):
        data.fixed_set(recipe.task, recipe.lengths, recipe.source)
    trainee.advance()
    trainee.step, trainee.passed = recipe.steps - 1, recipe.lengths.top
    trainee.advance()
    if recipe.watch.every:
        trainee.watch()
    scores.exact_match(trainee.model, small, recipe.sizes(recipe.lengths.top), 1)
    return trainee


def _number(value: float) -> float | None:
    """The value if it is finite, for JSON."""
    return value if math.isfinite(value) else None
