"""What the verbs of the command line do: each takes the parsed arguments and returns an exit status."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable

from lengthwise import catalog
from lengthwise.base.types import UsageError
from lengthwise.training.loop import choose_device
from lengthwise.verbs.ask import ask
from lengthwise.verbs.look import list_, rasp, sample, show
from lengthwise.verbs.solve import solve
from lengthwise.verbs.study import report, reproduce
from lengthwise.verbs.train import evaluate_, train_


def _demo(args: argparse.Namespace) -> int:
    from lengthwise.demo import demo  # matplotlib is slow to import

    return demo(args)


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": _demo,
    "list": list_,
    "show": show,
    "sample": sample,
    "rasp": rasp,
    "train": train_,
    "evaluate": evaluate_,
    "solve": solve,
    "ask": ask,
    "reproduce": reproduce,
    "report": report,
}


def run(args: argparse.Namespace) -> int:
    """Do what was asked for; the exit status."""
    for name in ("samples", "curve_samples"):
        count = getattr(args, name, None)
        if count is not None and count < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be 1 or more, not {count}")
    if hasattr(args, "device"):
        choose_device(args.device)
    sys.path.insert(0, os.getcwd())  # a user's own modules stand where they work
    for name in vars(args)["import"]:
        try:
            catalog.add(importlib.import_module(name))
        except ImportError as error:
            raise UsageError(f"--import {name}: {error}") from None
    return VERBS[args.verb](args)
