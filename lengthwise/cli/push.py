"""The command ``push``: upload a run's weights to the Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from lengthwise.api import UsageError, stream
from lengthwise.cli.console import print_result
from lengthwise.cli.shared import Argument, OutputOptions, Several
from lengthwise.evaluation.attack import format_prompts
from lengthwise.report.card import build_model_card
from lengthwise.runs.folder import RunFolder, require_run
from lengthwise.runs.hub import parse_address, push_weights
from lengthwise.runs.run import find_weights_folder, load


@dataclass(kw_only=True)
class Options(OutputOptions):
    """Send a run's weights to the Hugging Face Hub, with a model card from the run's data."""

    weights: Argument  # RUN: a finished run, or a folder of weights
    repository: Argument  # USER/NAME: the repository; it is created if missing
    controls: Several = ()  # RUN: runs with which the card compares these weights
    license: str = "apache-2.0"  # ID: license of the weights (default: apache-2.0)
    private: bool = False  # create the repository as private
    dry_run: bool = False  # print the card, and send nothing


def run(args: Options) -> int:
    """Upload weights with a model card; or print the card."""
    where = parse_address(args.repository)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,40}", args.license):
        raise UsageError(f"--license: {args.license!r} is not a licence id of the Hub, e.g. apache-2.0 or mit")
    folder = find_weights_folder(args.weights)
    weights = load(folder)
    # The card shows a prompt longer than in training, if the task has one.
    recipe, task = weights.recipe, weights.recipe.task
    size = task.round_to_valid_size(min(recipe.lengths.top + 2, task.largest or recipe.lengths.top + 2))
    (example,) = format_prompts(task, task.sample(torch.tensor([list(recipe.sizes(size))]), stream(0, "card")))
    controls = [RunFolder(require_run(name)) for name in args.controls]
    options = {"license_": args.license, "example": example, "controls": controls}
    card = build_model_card(RunFolder(folder), where.repository, **options)
    if args.dry_run:
        if not args.json:
            print(card)  # printed without rich, which would wrap its lines
        return print_result(args, {"card": card})
    url = push_weights(folder, str(where), card, private=args.private)
    return print_result(args, {"repository": where.repository, "commit": url}, url)
