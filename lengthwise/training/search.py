"""Search through a sweep's ranges with Optuna, an extra. Its trials are in a file, so that a search goes on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lengthwise.base.extras import library
from lengthwise.base.rng import address
from lengthwise.recipe.axes import Axis, Point

STARTUP = 4  # trials before one is given up


def _library() -> Any:
    optuna = library("optuna", "sweep", "--trials searches with Optuna, which is not here")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def check_search() -> None:
    """UsageError where Optuna is not here."""
    _library()


class Search:
    """Trials of an Optuna study, kept in ``optuna.log``. Suggestions are drawn from ``seed``."""

    def __init__(self, folder: Path, axes: Sequence[Axis], seed: int) -> None:
        self.library, self.axes = _library(), axes
        backend = self.library.storages.journal.JournalFileBackend(str(folder / "optuna.log"))
        with warnings.catch_warnings(action="ignore"):  # some of its parts call themselves experimental
            self.study = self.library.create_study(
                storage=self.library.storages.JournalStorage(backend),
                study_name="sweep",
                direction="maximize",
                pruner=self.library.pruners.MedianPruner(n_startup_trials=STARTUP),
                load_if_exists=True,
            )
        # A search that goes on must not suggest its first trials again.
        self.study.sampler = self.library.samplers.TPESampler(seed=address(seed, len(self.study.trials)) % 2**32)

    def ended(self) -> int:
        """How many trials have come to an end."""
        return sum(trial.state.is_finished() for trial in self.study.trials)

    def begun(self) -> list[Any]:
        """Trials that an earlier call began and did not end."""
        states = [self.library.trial.TrialState.RUNNING]
        return [self.library.trial.Trial(self.study, one._trial_id) for one in self.study.get_trials(states=states)]

    def ask(self) -> Any:
        """A further trial."""
        return self.study.ask()

    def point(self, trial: Any) -> Point:
        """What a trial tries."""
        return {axis.path: self._suggested(trial, axis) for axis in self.axes}

    def points(self) -> list[Point]:
        """What all trials tried, from the first on, each once."""
        tried = [self.point(self.library.trial.FixedTrial(one.params)) for one in self.study.trials if one.params]
        return [point for number, point in enumerate(tried) if point not in tried[:number]]

    def _suggested(self, trial: Any, axis: Axis) -> str:
        if axis.values:
            return trial.suggest_categorical(axis.path, axis.values)
        if axis.whole:
            return str(trial.suggest_int(axis.path, int(axis.low), int(axis.high), log=axis.log))
        return axis.text(trial.suggest_float(axis.path, axis.low, axis.high, log=axis.log))

    def goes_on(self, trial: Any, seeds: int, exact: float) -> bool:
        """Is a trial worth a further seed, now that seed ``seeds`` has this exact match? Not below the median."""
        with warnings.catch_warnings(action="ignore"):  # an earlier call, which was killed, may have reported it
            trial.report(exact, seeds)
        return not trial.should_prune()

    def tell(self, trial: Any, exact: float | None) -> None:
        """End a trial; None if it cannot be trained."""
        failed = self.library.trial.TrialState.FAIL
        self.study.tell(trial, exact, state=failed if exact is None else None)
