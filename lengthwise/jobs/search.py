"""The points that a sweep tries: values of a recipe's fields, from a grid or from a search with Optuna (an optional
extra). The trials of a search are stored in a file, so that the search can be resumed."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from lengthwise.base.errors import UsageError
from lengthwise.base.extras import import_library
from lengthwise.base.files import append, format_error, remove, translate_disk_errors
from lengthwise.base.rng import derive_seed

NUMBER_PATTERN = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
MAX_POINTS = 1000  # maximum number of points of a range
SEED_FIELDS = ("seed", "data_seed")  # names of fields whose best value would be chosen by luck
Point = dict[str, str]  # a field's path → its value, as a user would type it


@dataclass(frozen=True)
class Axis:
    """A field that a sweep varies: its values or, for a search, its range from ``low`` to ``high``."""

    path: str  # the field's path in the recipe
    values: tuple[str, ...] = ()  # values as a user would type them; (): the range
    low: float = 0.0
    high: float = 0.0
    log: bool = False  # True if the search draws the logarithm uniformly
    is_integer: bool = False

    @staticmethod
    def parse(word: str) -> Axis | None:
        """Parse ``path=a,b,c``, or ``path=low..high`` with an optional ``:log`` and ``:count``. Return None for a
        single value. Raises UsageError for an invalid range."""
        path, _, text = word.partition("=")
        if match := re.fullmatch(rf"({NUMBER_PATTERN})\.\.({NUMBER_PATTERN})(:log)?(?::(\d+))?", text):
            low, high, log = float(match[1]), float(match[2]), bool(match[3])
            if not low < high or (log and low <= 0):
                raise UsageError(f"{path}: a range must ascend, and a log range must start above 0, not {text}")
            is_integer = all(re.fullmatch(r"[-+]?\d+", match[n]) for n in (1, 2))
            axis = Axis(path, (), low, high, log, is_integer)
            return Axis(path, axis.space_evenly(int(match[4]))) if match[4] else axis
        parts, depth = [""], 0  # split at the commas that are outside parentheses and brackets
        for letter in text:
            depth += (letter in "([") - (letter in ")]")
            if letter == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += letter
        return Axis(path, tuple(dict.fromkeys(part.strip() for part in parts))) if len(parts) > 1 else None

    def space_evenly(self, count: int) -> tuple[str, ...]:
        """Return ``count`` evenly spaced values as text, including both ends of the range."""
        if not 2 <= count <= MAX_POINTS:
            raise UsageError(f"{self.path}: a range has 2 to {MAX_POINTS} points, not {count}")
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        spaced = (low + (high - low) * i / (count - 1) for i in range(1, count - 1))
        between = (self.format_value(math.exp(value) if self.log else value) for value in spaced)
        return tuple(dict.fromkeys((self._format_end(self.low), *between, self._format_end(self.high))))

    def format_value(self, value: float) -> str:
        """Format a value with four significant digits. A value beyond an end of the range is replaced by this end."""
        short = self._format_end(value) if self.is_integer else f"{value:.4g}"
        in_range = self.low <= float(short) <= self.high
        return short if in_range else self._format_end(min(max(value, self.low), self.high))

    def _format_end(self, value: float) -> str:
        return str(round(value)) if self.is_integer else repr(value).removesuffix(".0")


def parse_axes(words: Iterable[str]) -> tuple[list[Axis], list[str]]:
    """Return the axes of a sweep, and the words that set a field to a single value. Raises UsageError if there is no
    axis, a field is varied twice, or a field must not vary."""
    found = [(word, Axis.parse(word)) for word in words]
    axes = [axis for _, axis in found if axis]
    if not axes:
        example = "model.width=32,64, or a range, as in optimizer.rate=1e-3..1e-2:log"
        raise UsageError(f"nothing varies: write several values, as in {example}")
    if len({axis.path for axis in axes}) < len(axes):
        raise UsageError("a field is varied twice: vary each field only once")
    for axis in axes:
        if axis.path == "name":
            raise UsageError("name cannot be varied, because a name does not change training")
        if axis.path.rpartition(".")[2] in SEED_FIELDS:
            raise UsageError(f"{axis.path} cannot be varied: do not choose a seed; average with --seeds 3")
    return axes, [word for word, axis in found if not axis]


def generate_grid_points(axes: Sequence[Axis]) -> Iterator[Point]:
    """Yield every combination of the axes' values. Raises UsageError for a range without a number of points."""
    for axis in axes:
        if not axis.values:
            raise UsageError(f"{axis.path}: a grid needs a number of points (1..3:4); a search needs --trials 20")
    for values in product(*(axis.values for axis in axes)):
        yield {axis.path: value for axis, value in zip(axes, values, strict=True)}


# Search


def load_optuna() -> Any:
    """Import Optuna. Raises UsageError if it is not installed."""
    optuna = import_library("optuna", "sweep", "--trials needs Optuna, which is not installed")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Search:
    """An Optuna study, whose trials are stored in ``optuna.log``. The points that it suggests depend on ``seed``."""

    def __init__(self, folder: Path, axes: Sequence[Axis], seed: int) -> None:
        self.library, self.axes, path = load_optuna(), axes, folder / "optuna.log"
        with translate_disk_errors(folder):
            append(path, b"")  # removes an incomplete last line, and refuses a link
            remove(path.with_name("optuna.log.lock"))  # of a killed call, since the sweep's folder is locked
        try:
            with warnings.catch_warnings(action="ignore"):  # Optuna warns that parts of it are experimental
                storages = self.library.storages
                storage = storages.JournalStorage(storages.journal.JournalFileBackend(str(path)))
                pruner = self.library.pruners.MedianPruner(n_startup_trials=4)
                self.study = self.library.create_study(
                    storage=storage, study_name="sweep", direction="maximize", pruner=pruner, load_if_exists=True
                )
            trials = len(self.study.trials)
        except Exception as error:  # Optuna does not validate entries
            message = f"{path}: Optuna cannot read it ({type(error).__name__}: {format_error(error)})"
            raise UsageError(f"{message}; delete {path.name} to restart the search (trained runs are kept)") from None
        # A resumed search must not suggest its first trials again.
        self.study.sampler = self.library.samplers.TPESampler(seed=derive_seed(seed, trials) % 2**32)

    def count_finished(self) -> int:
        """Return the number of finished trials."""
        return sum(trial.state.is_finished() for trial in self.study.trials)

    def list_unfinished_trials(self) -> list[Any]:
        """Return the trials that an earlier command started and did not finish."""
        states = [self.library.trial.TrialState.RUNNING]
        return [self.library.trial.Trial(self.study, trial._trial_id) for trial in self.study.get_trials(states=states)]

    def ask(self) -> Any:
        """Return a new Optuna trial; ``suggest_point`` returns its values."""
        return self.study.ask()

    def suggest_point(self, trial: Any) -> Point:
        """Return the values that Optuna suggests for a trial."""
        point = {}
        for axis in self.axes:
            if axis.values:
                point[axis.path] = trial.suggest_categorical(axis.path, axis.values)
            elif axis.is_integer:
                point[axis.path] = str(trial.suggest_int(axis.path, int(axis.low), int(axis.high), log=axis.log))
            else:
                point[axis.path] = axis.format_value(trial.suggest_float(axis.path, axis.low, axis.high, log=axis.log))
        return point

    def list_points(self) -> list[Point]:
        """Return the values of all trials in order, without duplicates."""
        trials = [self.library.trial.FixedTrial(trial.params) for trial in self.study.trials if trial.params]
        tried = [self.suggest_point(trial) for trial in trials]
        return [point for number, point in enumerate(tried) if point not in tried[:number]]

    def should_continue(self, trial: Any, seeds: int, exact: float) -> bool:
        """Report a trial's exact match after ``seeds`` seeds to Optuna; return False if below the trials' median."""
        with warnings.catch_warnings(action="ignore"):  # a killed command may already have reported it
            trial.report(exact, seeds)
        return not trial.should_prune()

    def tell(self, trial: Any, exact: float | None) -> None:
        """Finish a trial with its exact match; ``exact`` is None if the recipe could not be trained."""
        failed = self.library.trial.TrialState.FAIL
        self.study.tell(trial, exact, state=failed if exact is None else None)
