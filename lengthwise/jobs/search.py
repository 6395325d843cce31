"""Search a sweep's ranges with Optuna (an optional extra). Trials are stored in a file, so that a search can be
resumed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lengthwise.base.errors import UsageError
from lengthwise.base.extras import import_library
from lengthwise.base.files import append, check_no_link, error_line, parse_object, read_bytes, translate_disk_errors
from lengthwise.base.rng import derive_seed
from lengthwise.jobs.axes import Axis, Point

STARTUP = 4  # trials before pruning starts


def load_optuna() -> Any:
    """Import Optuna. Raises UsageError if it is not installed."""
    optuna = import_library("optuna", "sweep", "--trials needs Optuna, which is not installed")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class _Journal:
    """The file that stores an Optuna study, one entry per line, in the format of Optuna's own backend. The sweep's
    folder is locked, so no other process writes to it. An incomplete last line is ignored, as in all row files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with translate_disk_errors(path.parent):
            lines = read_bytes(path).split(b"\n")[:-1] if path.exists() else []
        self.entries = [parse_object(line, f"{path}: line {number}") for number, line in enumerate(lines, 1)]

    def read_logs(self, parse_log_number: int) -> Iterator[dict[str, Any]]:
        """Return the entries from number ``parse_log_number`` on."""
        return iter(self.entries[parse_log_number:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append entries, all or none."""
        lines = [json.dumps(log, separators=(",", ":")) + "\n" for log in logs]
        with translate_disk_errors(self.path.parent):
            append(self.path, "".join(lines).encode())
        self.entries += map(json.loads, lines)


class Search:
    """Trials of an Optuna study, stored in ``optuna.log``. Suggestions depend on ``seed``. Raises UsageError if the log
    is damaged, except by a truncated last line."""

    def __init__(self, folder: Path, axes: Sequence[Axis], seed: int) -> None:
        self.library, self.axes, path = load_optuna(), axes, folder / "optuna.log"
        check_no_link(path)
        try:
            with warnings.catch_warnings(action="ignore"):  # warnings that parts of it are experimental
                storage = self.library.storages.JournalStorage(_Journal(path))
            pruner = self.library.pruners.MedianPruner(n_startup_trials=STARTUP)
            with warnings.catch_warnings(action="ignore"):  # warnings that parts of it are experimental
                self.study = self.library.create_study(
                    storage=storage, study_name="sweep", direction="maximize", pruner=pruner, load_if_exists=True
                )
            trials = len(self.study.trials)
        except Exception as error:  # Optuna does not validate entries
            what = f"{path}: Optuna cannot read it ({type(error).__name__}: {error_line(error)})"
            reason = error if isinstance(error, UsageError) else what
            raise UsageError(f"{reason}; delete {path.name} to restart the search: trained runs are kept") from None
        # A resumed search must not suggest its first trials again.
        self.study.sampler = self.library.samplers.TPESampler(seed=derive_seed(seed, trials) % 2**32)

    def count_finished(self) -> int:
        """Return the number of finished trials."""
        return sum(trial.state.is_finished() for trial in self.study.trials)

    def unfinished_trials(self) -> list[Any]:
        """Return trials that an earlier call started and did not finish."""
        states = [self.library.trial.TrialState.RUNNING]
        return [self.library.trial.Trial(self.study, one._trial_id) for one in self.study.get_trials(states=states)]

    def ask(self) -> Any:
        """Return a new trial."""
        return self.study.ask()

    def point(self, trial: Any) -> Point:
        """Return the values that a trial tries."""
        found = {}
        for axis in self.axes:
            if axis.values:
                found[axis.path] = trial.suggest_categorical(axis.path, axis.values)
            elif axis.whole:
                found[axis.path] = str(trial.suggest_int(axis.path, int(axis.low), int(axis.high), log=axis.log))
            else:
                found[axis.path] = axis.format_value(trial.suggest_float(axis.path, axis.low, axis.high, log=axis.log))
        return found

    def points(self) -> list[Point]:
        """Return the values of all trials in order, without duplicates."""
        tried = [self.point(self.library.trial.FixedTrial(one.params)) for one in self.study.trials if one.params]
        return [point for number, point in enumerate(tried) if point not in tried[:number]]

    def should_continue(self, trial: Any, seeds: int, exact: float) -> bool:
        """Report the exact match of seed ``seeds``; return False if the trial should be pruned, that is, if it is below
        the median."""
        with warnings.catch_warnings(action="ignore"):  # a killed call may already have reported it
            trial.report(exact, seeds)
        return not trial.should_prune()

    def tell(self, trial: Any, exact: float | None) -> None:
        """Finish a trial; ``exact`` is None if it cannot be trained."""
        failed = self.library.trial.TrialState.FAIL
        self.study.tell(trial, exact, state=failed if exact is None else None)
