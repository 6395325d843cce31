"""The command ``track``: send an existing run to a tracker."""

from __future__ import annotations

import argparse

from lengthwise.base.types import UsageError
from lengthwise.cli.console import say
from lengthwise.runs.folder import RunFolder, run_path
from lengthwise.runs.tracking import send_to_trackers


def run(args: argparse.Namespace) -> int:
    """Send the trackers what they lack of a run."""
    folder = RunFolder(run_path(args.runs))
    if not (folder.folder / "config.json").exists():
        raise UsageError(f"{folder.folder}: not a run: it has no config.json")
    errors: list[str] = []
    with send_to_trackers(folder, args.to, errors.append) as trackers:
        pass  # rows are sent on exit
    if errors:
        raise UsageError("; ".join(errors))
    result = {tracker.name: tracker.sent for tracker in trackers}
    lines = (f"{name}: {', '.join(f'{count} rows of {kind}' for kind, count in sent.items()) or 'nothing'}"
             for name, sent in result.items())  # fmt: skip
    return say(args, result, *lines)
