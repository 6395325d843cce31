"""Send a run's rows to a tracker: TensorBoard, trackio or wandb. The run's own files stay authoritative.

Each row of the run's files is sent once, however often the run is resumed: a file in the folder counts the rows sent. A
tracker that fails is reported once, and gets no further rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO

from lengthwise.base.errors import UsageError, remove_controls
from lengthwise.base.extras import import_library
from lengthwise.base.fields import suggest, validate
from lengthwise.base.files import read_json_object, write_json
from lengthwise.base.ranges import Whole
from lengthwise.base.score_rows import Row, format_size
from lengthwise.runs.folder import RunFolder

PROJECT_NAME = "lengthwise"
ROW_KINDS = ("metrics", "scores")  # kinds of rows, in chronological order


class TensorBoard:
    """Writes event files into the run's folder; ``tensorboard --logdir runs`` shows them."""

    def __init__(self, run: RunFolder) -> None:
        self.writer = import_library("tensorboard.summary", "tensorboard").Writer(str(run.folder / "tensorboard"))

    def log(self, axis: str, axis_value: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, axis_value)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """Logs to a run of Weights & Biases, which is offline without WANDB_API_KEY, unless WANDB_MODE is set."""

    def __init__(self, run: RunFolder) -> None:
        wandb = import_library("wandb", "wandb")
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True)
        options: Row = {"id": run.folder.name, "name": run.folder.name, "config": run.config(), "dir": str(run.folder)}
        self.run = wandb.init(project=PROJECT_NAME, mode=mode, resume="allow", settings=settings, **options)
        for axis, names in (("step", "*"), ("size", "exact match/*")):
            self.run.define_metric(names, step_metric=axis)

    def log(self, axis: str, axis_value: int, values: dict[str, float]) -> None:
        self.run.log({axis: axis_value, **values})

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """Logs to trackio's local database, which ``trackio show`` shows."""

    def __init__(self, run: RunFolder) -> None:
        self.library = import_library("trackio", "trackio")
        options: Row = {"resume": "allow", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self.run = self.library.init(project=PROJECT_NAME, name=run.folder.name, config=run.config(), **options)

    def log(self, axis: str, axis_value: int, values: dict[str, float]) -> None:
        self.run.log(values, step=axis_value)

    def close(self) -> None:
        self.library.finish()  # with `run.finish`, trackio would end the run again at exit


# ``log`` sends named values at a training step or, on the axis ``size``, at a problem size.
Client = TensorBoard | Trackio | Wandb
CLIENTS: dict[str, type[Client]] = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": Wandb}


class Tracker:
    """Sends the rows of one run to one tracker, at most once each."""

    def __init__(self, run: RunFolder, name: str, report: Callable[[str], None]) -> None:
        self.run, self.name, self.report = run, name, report
        self.ledger = run.folder / f"tracked-{name}.json"
        self.sent_counts: dict[str, int] = {}  # number of rows sent, by kind
        self.seen_counts: dict[str, int] = {}
        self.client: Client | None = None
        self.failed = False

    def send_rows(self, kind: str, rows: Sequence[Row]) -> None:
        """Send rows that were just appended to the run's file of this kind, and earlier rows that were never sent."""
        if kind not in ROW_KINDS or self.failed:
            return
        with self._ignore_errors():
            if kind not in self.seen_counts:
                rows, self.seen_counts[kind] = self.run.rows(kind), 0
                if self.ledger.exists():
                    self.sent_counts |= validate(dict[str, Whole], read_json_object(self.ledger), str(self.ledger))
            for row in rows:
                self.seen_counts[kind] += 1
                if self.seen_counts[kind] <= self.sent_counts.get(kind, 0):
                    continue
                self._send_row(kind, row)

    def _send_row(self, kind: str, row: Row) -> None:
        """Send row number ``self.seen_counts[kind]`` and count it as sent."""
        self.client = self.client or CLIENTS[self.name](self.run)
        self.sent_counts[kind] = self.seen_counts[kind]
        write_json(self.ledger, self.sent_counts)  # first: a process killed here skips a row, never sends one twice
        axis, axis_value = ("size", max(row["sizes"])) if kind == "scores" else ("step", row["step"])
        values = _label_score(row, self.run) if kind == "scores" else dict(_flatten_numbers(row))
        if not values:
            return
        try:
            self.client.log(axis, axis_value, values)
        except Exception:  # not sent: `lengthwise track` sends it later
            self.sent_counts[kind] -= 1
            write_json(self.ledger, self.sent_counts)
            raise

    def close(self) -> None:
        """Send rows that were never sent, and close the connection."""
        for kind in ROW_KINDS:
            if kind not in self.seen_counts:
                self.send_rows(kind, ())
        if self.client:
            with self._ignore_errors():
                self.client.close()

    @contextmanager
    def _ignore_errors(self) -> Iterator[None]:
        """End only the tracking, not the program, at an error in a ``with`` block; suppress the library's prints."""
        try:
            with redirect_stdout(StringIO()):
                yield
        except Exception as error:
            if not self.failed:
                reason = remove_controls(str(error)) if isinstance(error, UsageError) else type(error).__name__
                self.report(f"{self.name} stopped tracking {self.run.folder.name}: {reason}")
            self.failed = True


@contextmanager
def send_to_trackers(run: RunFolder, names: Sequence[str], report: Callable[[str], None]) -> Iterator[list[Tracker]]:
    """Send the rows that are appended to a run in a ``with`` block to the trackers ``names``. ``report`` is called with
    a message about each failure. Raises UsageError for an unknown name."""
    check_trackers(names)
    trackers = [Tracker(run, name, report) for name in dict.fromkeys(names)]
    with ExitStack() as stack:
        for tracker in trackers:
            stack.callback(tracker.close)
            run.listeners.append(tracker.send_rows)
            stack.callback(run.listeners.remove, tracker.send_rows)  # runs before close: a closed tracker gets no rows
        yield trackers


def check_trackers(names: Sequence[str]) -> None:
    """Raise UsageError for an unknown tracker name."""
    for name in names:
        if name not in CLIENTS:
            raise UsageError(f"{name} is not one of the trackers: {', '.join(CLIENTS)}{suggest(name, CLIENTS)}")


def _flatten_numbers(row: Row, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the names and values of a row's numbers, such as ``loss`` and ``exact/8``, except ``step``."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flatten_numbers(value, f"{path}{name}/")
        elif isinstance(value, int | float) and path + name != "step":
            yield path + name, float(value)


def _label_score(row: Row, run: RunFolder) -> dict[str, float]:
    """Return a score's exact match under a name such as ``exact match/uniform``. The name includes the stopping rule if
    it is not the recipe's, and the sizes if they differ between axes."""
    name = "exact match/" + row["problems"]
    if row["stopping"] != run.outline.stopping:
        name += f" {row['stopping']}"
    if len(set(row["sizes"])) > 1:
        name += f" at {format_size(row['sizes'])}"
    return {name: row["exact"]}
