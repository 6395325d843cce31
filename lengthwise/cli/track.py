"""Sending a run that is there to a tracker."""

from __future__ import annotations

import argparse

from lengthwise.base.types import UsageError
from lengthwise.cli.console import say
from lengthwise.runs.folder import RunFolder, run_path
from lengthwise.tracking import send_to_trackers


def run(args: argparse.Namespace) -> int:
    """Send what the trackers do not have of a run."""
    found = RunFolder(run_path(args.runs))
    if not (found.folder / "config.json").exists():
        raise UsageError(f"{found.folder}: no run: there is no config.json")
    said: list[str] = []
    with send_to_trackers(found, args.to, said.append) as trackers:
        pass  # leaving it sends all that is missing
    if said:
        raise UsageError("; ".join(said))
    result = {tracker.name: tracker.sent for tracker in trackers}
    lines = (f"{name}: {', '.join(f'{count} rows of {kind}' for kind, count in sent.items()) or 'nothing'}"
             for name, sent in result.items())  # fmt: skip
    return say(args, result, *lines)
