"""The command ``depth``: run looped weights for more than T(n) loops."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lengthwise.api.depth import COLUMNS, Fates, check_named_once, depth
from lengthwise.base.csv_files import write_csv
from lengthwise.base.ranges import Seed, Size
from lengthwise.base.results import VERDICT_RULE
from lengthwise.base.types import UsageError
from lengthwise.cli.console import print_result, show_elapsed
from lengthwise.cli.options import parse_sizes
from lengthwise.cli.shared import Arguments, ComputeOptions, OutputOptions
from lengthwise.report.fitted_table import FittedTable
from lengthwise.report.style import save
from lengthwise.runs.run import choose_device, load
from lengthwise.training.arithmetic import computation_settings


@dataclass(kw_only=True)
class Options(ComputeOptions, OutputOptions):
    """Run looped weights for more than T(n) loops (the rounds of the task's algorithm), and measure whether the state
    settles and the answer is right."""

    weights: Arguments  # WEIGHTS: shipped weights by name, a folder, or hf:user/name
    seed: Seed | None = None  # N: seed of the problems (default: 0)
    lengths: str | None = None  # SIZE: one size, e.g. 20 or 2x11 (default: the largest trained on)
    out: str | None = None  # FOLDER: where tables and figures go
    more: Size = 100  # K: loops beyond T(n) (default: 100)
    samples: Size = 64  # N: fresh problems (default: 64)


def run(args: Options) -> int:
    """Run more than T(n) loops; print a line per set of weights; with ``--out``, write a table and a figure."""
    sizes = list(parse_sizes(args.lengths)) if args.lengths else [None]
    if len(sizes) > 1:
        raise UsageError("--lengths: give one size; run depth again for another size")
    check_named_once(args.weights)
    fates = Fates()
    with computation_settings(args.threads):
        for name in args.weights:
            with show_elapsed(f"{name}: T(n) + {args.more} loops"):
                weights = load(name, choose_device(args.device))
                fates += depth(weights, sizes[0], more=args.more, samples=args.samples, seed=args.seed or 0)
    left, optional = ("weights", "fate"), COLUMNS.index("T+5")
    table = FittedTable(*COLUMNS, left_aligned=left, optional_column=optional, caption=VERDICT_RULE)
    for cells in fates.table()[1]:
        table.add_row(*cells)
    written = []
    if args.out:
        out = Path(args.out)
        write_csv(out / "depth.csv", fates.rows())
        written = [f"written to {', '.join(map(str, [out / 'depth.csv', *save(fates.plot(), out / 'depth')]))}"]
    return print_result(args, [vars(fate) | {"verdict": fate.verdict} for fate in fates], table, *written)
