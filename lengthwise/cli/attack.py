"""The command ``attack``: search for problems that a model gets wrong."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from lengthwise.base.ranges import Count, Positive, Seed
from lengthwise.base.score_rows import format_share
from lengthwise.cli.console import print_result, show_elapsed
from lengthwise.cli.options import parse_single_rule, parse_sizes
from lengthwise.cli.shared import Argument, ComputeOptions, OutputOptions, Texts
from lengthwise.evaluation.attack import attack
from lengthwise.report.fitted_table import FittedTable
from lengthwise.runs.run import choose_device, load
from lengthwise.training.arithmetic import computation_settings

MAX_CELL_CHARACTERS = 34  # maximum characters of a prompt or an answer in the table
MAX_ORIGINS = 8  # maximum number of origins in the table


@dataclass(kw_only=True)
class Options(ComputeOptions, OutputOptions):
    """Search for problems that a model gets wrong, short ones first."""

    weights: Argument  # WEIGHTS: shipped weights by name, a folder, or hf:user/name
    seed: Seed | None = None  # N: seed of the problems (default: 0)
    # SIZES: 8,12,16 or 1-60 or 2x15 (default: half the training length, all of it, and one and a half)
    lengths: str | None = None
    seconds: Positive = 30.0  # S: time of the search (default: 30)
    tries: Count | None = None  # N: stop after about N problems; the same seed then finds the same failures
    # RULE: a stopping rule to use instead of the recipe's, e.g. Oracle, After(loops=10), MaxConfidence(extra=20)
    stopping: Texts = ()


def run(args: Options) -> int:
    """Search for wrong answers and print them; return the exit status 0."""
    weights = load(args.weights, choose_device(args.device))
    rule = parse_single_rule(args.stopping)
    sizes = parse_sizes(args.lengths) if args.lengths else None
    with computation_settings(args.threads), show_elapsed(f"{weights.name}: searching for wrong answers"):
        result = attack(weights, sizes, seconds=args.seconds, tries=args.tries, stopping=rule, seed=args.seed or 0)
    summary = f"{result['failed']} of {result['tries']} tries fail ({format_share(result['share'], 3)})"
    if not result["failed"]:
        found = "nothing found (not a proof; a longer search may find some)"
        return print_result(args, result, f"{summary}: {found}")
    columns = ("prompt", "answer", "right answer", "confidence", "from")
    shortest = FittedTable(*columns, left_aligned={*columns} - {"confidence"}, title="the shortest failures")
    for row in result["shortest"]:
        cells = [Text(row[name]) for name in ("prompt", "answer", "right")]
        for cell in cells:
            cell.truncate(MAX_CELL_CHARACTERS, overflow="ellipsis")
        shortest.add_row(*cells, format_share(row["confidence"], 3), row["origin"])
    origins = FittedTable("from", "tries", "fail", left_aligned=("from",), title="failures by origin")
    for row in result["origins"][:MAX_ORIGINS]:
        origins.add_row(row["origin"], str(row["tries"]), format_share(row["share"], 3))
    if len(result["origins"]) > MAX_ORIGINS:
        origins.caption = f"{len(result['origins']) - MAX_ORIGINS} further origins fail at most as often"
    return print_result(args, result, shortest, "", origins, "", summary)
