"""The command ``track``: send an existing run to a tracker."""

from __future__ import annotations

from dataclasses import dataclass

from lengthwise.base.types import UsageError
from lengthwise.cli.console import print_result
from lengthwise.cli.shared import Argument, OutputOptions, Texts
from lengthwise.runs.folder import RunFolder, require_run
from lengthwise.runs.tracking import send_to_trackers


@dataclass(kw_only=True)
class Options(OutputOptions):
    """Send a run's rows to a tracker, except the rows that the tracker already has."""

    run_folder: Argument  # RUN: a run's folder
    to: Texts  # NAME: tensorboard, trackio or wandb


def run(args: Options) -> int:
    """Send to each tracker the rows of a run that the tracker lacks."""
    folder = RunFolder(require_run(args.run_folder))
    if not (folder.folder / "config.json").exists():
        raise UsageError(f"{folder.folder}: not a run: it has no config.json")
    errors: list[str] = []
    with send_to_trackers(folder, args.to, errors.append) as trackers:
        pass  # rows are sent on exit
    if errors:
        raise UsageError("; ".join(errors))
    result = {tracker.name: tracker.sent_counts for tracker in trackers}
    lines = (f"{name}: {', '.join(f'{count} rows of {kind}' for kind, count in sent.items()) or 'nothing'}"
             for name, sent in result.items())  # fmt: skip
    return print_result(args, result, *lines)
