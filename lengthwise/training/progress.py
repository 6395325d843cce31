"""The progress display of a training run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lengthwise.base.errors import Diverged
from lengthwise.base.progress import Line
from lengthwise.base.score_rows import loss_text, share_text
from lengthwise.runs.folder import DIVERGED
from lengthwise.runs.run import Run


class TrainingProgress:
    """Shows steps, the curriculum's length, loss and exact match on a line of progress."""

    def __init__(self, line: Line) -> None:
        self.line, self.exact = line, ""

    def show(self, step: int, row: dict[str, Any]) -> None:
        """Show a row of metrics."""
        if "exact" in row:
            if row["exact"]:
                self.exact = "exact match " + " ".join(
                    f"{size}: {share_text(share)}" for size, share in row["exact"].items()
                )
            return
        length = f"length {row['length']}" if "length" in row else ""
        parts = [f"step {step} of {self.line.total:.0f}", length, loss_text(row), self.exact]
        self.line.show(step, "  ".join(filter(None, parts)))


@contextmanager
def record_divergence(run: Run) -> Iterator[None]:
    """A context that records in the run's folder if its training diverges."""
    run.clear_failure()
    try:
        yield
    except Diverged as error:
        run.record_failure(str(error), DIVERGED)
        raise
