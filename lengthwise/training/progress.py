"""The progress bar of one training run."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows steps, steps per second, loss and time left on standard error; nothing if ``quiet``."""

    def __init__(self, name: str, steps: int, *, quiet: bool) -> None:
        self.exact = ""
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=quiet,
        )
        self.task = self.bar.add_task(name, total=steps, note="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, step: int, row: dict[str, Any]) -> None:
        """Show a row of metrics."""
        if "exact" in row:
            self.exact = "  exact match " + " ".join(f"{size}: {share:.2f}" for size, share in row["exact"].items())
            return
        speed = self.bar.tasks[0].speed
        rate = f"{speed:.1f} steps/s  " if speed else ""
        length = f"length {row['length']}  " if "length" in row else ""
        loss = "diverged" if row["loss"] is None else f"loss {row['loss']:.4f}"
        self.bar.update(self.task, completed=step, note=f"{rate}{length}{loss}{self.exact}")

    def note(self, text: str) -> None:
        """Say something that matters, ``quiet`` or not."""
        self.bar.console.print(f"lengthwise: {text}", markup=False, highlight=False, soft_wrap=True)
