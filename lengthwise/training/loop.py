"""The training loop, with checkpoints that resume to the bit."""

from __future__ import annotations

import math
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from lengthwise.base.lifeline import STOPS, ignored
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import NotNegative, Threads
from lengthwise.base.types import Problems
from lengthwise.evaluation import causality, scores
from lengthwise.folder import DIVERGED, one_line, path_of
from lengthwise.models import Model
from lengthwise.recipe import data
from lengthwise.recipe.demand import KEPT, of_model, of_training, parameters
from lengthwise.recipe.lengths import Growing, Mastery
from lengthwise.recipe.recipe import Recipe
from lengthwise.recipe.source import Finite, Fresh
from lengthwise.run import Run, choose_device, commit, named_now, save
from lengthwise.training import checkpoint
from lengthwise.training.progress import Course

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
) -> Run:
    """Train a recipe to its end, resuming an earlier call if there is a checkpoint, and return its run.

    ``folder`` defaults to the recipe's folder among the runs; ``save_every`` is in seconds. On a CPU, a resumed run
    equals an uninterrupted one to the bit, for equal ``threads``; small models train fastest on one thread. Steps are
    shown on a line of ``progress``. Where another process trains this run, ``wait`` for it.

    Raises Interrupted at Ctrl-C, SIGTERM or SIGHUP, after saving; Diverged where the loss is no number any more, with
    the last finite checkpoint kept, unless to ``allow_divergence``: then rows say null; and UsageError if the model is
    not causal where its layout is, the device is missing, the folder holds another recipe, its log vanishes, or another
    process trains it.
    """
    at, where = choose_device(device), Run.expected(recipe).folder if folder in (None, "") else path_of(folder)
    if at.type == "cpu":
        of_training(recipe).check(f"{recipe.name}: its training")
    if not (where / "config.json").exists():
        rehearse(recipe, at)
    trainee = Trainee(recipe, at, allow_divergence=allow_divergence)
    causality.check(trainee.model, recipe)
    run = Run.of(recipe, where)
    if run.done:
        return run
    with run.locked(wait=wait), computing(threads), stop_signal() as stopped, _verdict(run):
        if run.done:  # by whom we waited for
            return run
        shown = progress or Progress(quiet=True)
        for change in trainee.restore(run):
            shown.note(change)
        course = Course(shown.line(recipe.name, recipe.steps, trainee.step))
        saved = time.monotonic()
        while trainee.step < recipe.steps:
            trainee.advance()
            trainee.examine()
            if trainee.step % LOG_EVERY == 0 or trainee.step == recipe.steps:
                row = trainee.report()
                run.append("metrics", row)
                course.show(trainee.step, row)
            if recipe.watch.every and trainee.step % recipe.watch.every == 0:
                row = trainee.watch()
                run.append("metrics", row)
                course.show(trainee.step, row)
            if stopped() or time.monotonic() - saved > save_every:
                trainee.check_finite()
                run.save_state(trainee.state())
                saved = time.monotonic()
            if stopped():
                raise Interrupted(f"stopped at step {trainee.step}; the same command goes on from there: {run.folder}")
        # The weights come last: their file marks the run as done.
        run.describe(trainee.about())
        save(run.folder, recipe, trainee.best_weights())
        (run.folder / "state.pt").unlink(missing_ok=True)
    return run


@contextmanager
def _verdict(run: Run) -> Iterator[None]:
    """Keep in the run's folder that its training diverged, if it does."""
    run.forgive()
    try:
        yield
    except Diverged as error:
        run.fail(str(error), DIVERGED)
        raise


class Trainee:
    """A model in training, with the optimizer and everything else that a checkpoint holds."""

    def __init__(self, recipe: Recipe, device: torch.device, *, allow_divergence: bool = False) -> None:
        self.recipe, self.device, self.allow_divergence = recipe, device, allow_divergence
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
        torch.manual_seed(rng.address(recipe.seed, "dropout", step))
        draw = rng.stream(recipe.seed, "objective", step)
        # Chosen at every step: hooks may have been set since the last one.
        loss = recipe.objective(fast.choose(self.model), batch, loops, draw)
        loss.value.backward()
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

    def examine(self) -> None:
        """With ``Mastery``, let the model take its exam if one is due, and admit the next length if it passes."""
        lengths = self.recipe.lengths
        if not isinstance(lengths, Mastery) or self.step % lengths.every or self.length() == lengths.top:
            return
        size = self.recipe.sizes(self.length())
        right = scores.exact_match(self.model, self.recipe, size, lengths.count, part=self.step)
        self.model.train()
        self.passed += right >= lengths.least

    def length(self) -> int:
        """The largest size at this step."""
        lengths = self.recipe.lengths
        return lengths.maximum(lengths.clock(self.step, self.passed)) if isinstance(lengths, Growing) else lengths.top

    def evaluated(self) -> Model:
        """The model to evaluate and save: the moving average if the recipe has one and it has started."""
        averaged = self.average is not None and self.average.n_averaged > 0
        return self.average.module if averaged else self.model  # type: ignore[return-value,union-attr]

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
            "runner": fast.described(self.model),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": self.step,
            "kept_step": self.best["step"] or self.step,
            **({"diverged": self.diverged} if self.diverged else {}),
            **({"resumed": self.resumed} if self.resumed else {}),
            **self.time(),
        }

    def surroundings(self) -> dict[str, Any]:
        """What the last bits of the weights may depend on, beside the recipe."""
        return {"torch": str(torch.__version__), "device": self.device.type, "threads": torch.get_num_threads()}

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
                before |= state.get("surroundings", {})  # an older version has not kept them
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
        checkpoint.check(state, rehearse(self.recipe, self.device).state())
        self.model.load_state_dict(state["model"])
        if self.average:
            self.average.load_state_dict(state["average"])
        checkpoint.restored(self.optimizer, state["optimizer"])
        self.step, self.sums, self.best, self.spent = (state[k] for k in ("step", "sums", "best", "spent"))
        self.passed, self.diverged = state.get("passed", 0), state.get("diverged", 0)
        self.resumed = [*state.get("resumed", [])]


def rehearse(recipe: Recipe, device: torch.device) -> Trainee:
    """Train on a few rows at the first step and at the last, and measure what the recipe watches and its longest
    problems on a few: what cannot work raises UsageError here, before anything is written or hours have passed."""
    watch = replace(recipe.watch, count=1, validation=min(recipe.watch.validation, REHEARSED))
    small = replace(recipe, batch=min(recipe.batch, REHEARSED), watch=watch, source=Fresh())
    trainee = Trainee(small, device)
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


class Clock:
    """Measures wall and processor seconds since its creation."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {"wall_s": time.perf_counter() - self.wall, "cpu_s": time.process_time() - self.cpu}


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """A context with this number of torch threads and with denormal numbers flushed to 0: with tiny losses, they would
    slow down a CPU step several times. Raises UsageError if ``threads`` is below 1."""
    if threads < 1:
        raise UsageError(f"threads must be 1 or more, not {threads}")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


@contextmanager
def stop_signal() -> Iterator[Any]:
    """Yield a function that returns True once Ctrl-C, SIGTERM or SIGHUP has come, so that a step can finish first.

    A second signal acts at once. Outside the main thread, where Python cannot catch signals, it always returns False.
    """
    came: list[int] = []
    before = {}

    def note(number: int, _: Any) -> None:
        came.append(number)
        signal.signal(number, before[number])

    try:
        for number in STOPS:
            if ignored(number):
                continue
            before[number] = signal.signal(number, note)
    except ValueError:
        pass
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
