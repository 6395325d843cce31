"""The command ``verify``: check weights from a third party."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from lengthwise.base.files import check_writable, write_json
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import Positive, Seed, Size
from lengthwise.base.types import UsageError
from lengthwise.cli.console import print_result
from lengthwise.cli.options import parse_sizes
from lengthwise.cli.shared import Argument, ComputeOptions, OutputOptions, ProgressOptions
from lengthwise.report.fitted_table import FittedTable
from lengthwise.report.tables import build_worst_table
from lengthwise.runs.hub import REQUIRED_FILES
from lengthwise.runs.run import choose_device, find_weights_folder, get_weights_name, load
from lengthwise.training.arithmetic import computation_settings
from lengthwise.verify.claims import read_claims
from lengthwise.verify.verification import (
    file_digest,
    has_passed,
    read_record,
    retrain_and_compare,
    sign_record,
    verify,
)

VERDICT_STYLES = {"passed": "green", "exposed": "bold red", "open": "yellow"}


@dataclass(kw_only=True)
class Options(ComputeOptions, OutputOptions, ProgressOptions):
    """Check weights from a third party: their scores, and whether the model itself computes its answers."""

    weights: Argument  # WEIGHTS: weights, as for `evaluate`; or FILE.json, the record of an earlier verification
    # SIZES: 8,12,16 or 1-60 or 10-100:10 or 2x15 (default: 1, 1.5, 2, 3, 5 times the training length)
    lengths: str | None = None
    samples: Size = 1000  # N: fresh problems per length (default: 1000)
    seconds: Positive = 30.0  # S: time of the search for wrong answers (default: 30)
    seed: Seed | None = None  # N: seed of the problems (default: random, and recorded)
    minutes: Positive = 6.0  # M: processor time for scores (default: 6)
    retrain: bool = False  # train the recipe too, and compare
    out: str | None = None  # FILE: where the record goes; missing folders are created (default: NAME.verified.json)


def run(args: Options) -> int:
    """Verify weights, or a record of an earlier verification; return 1 if a check exposed a problem."""
    if args.weights.endswith(".json"):
        path = Path(args.weights)
        if not path.exists():
            raise UsageError(f"{path}: no such record; `lengthwise verify WEIGHTS` writes one")
        return _print_record(args, read_record(path), f"{path}: unchanged")
    folder = find_weights_folder(args.weights)
    weights, claims = load(folder, choose_device(args.device)), read_claims(folder)
    weights = replace(weights, name=get_weights_name(args.weights, folder))
    files = {name: file_digest(folder / name) for name in REQUIRED_FILES}
    sizes = parse_sizes(args.lengths) if args.lengths else None
    out = Path(args.out or f"{weights.name.replace('/', '-')}.verified.json")
    check_writable("--out", out)
    options: dict[str, Any] = {"seed": args.seed, "samples": args.samples, "seconds": args.seconds}
    with computation_settings(args.threads), Progress(quiet=args.quiet) as progress:
        record = verify(weights, claims, sizes, minutes=args.minutes, files=files, progress=progress, **options)
        if args.retrain:
            write_json(out, sign_record(record))  # saved first, since training takes long and may be interrupted
            how = {"device": args.device, "threads": args.threads}
            retrained = retrain_and_compare(weights, record["scores"], record["about"]["seed"], progress, **how)
            record["checks"].append(asdict(retrained))
    record = sign_record(record)
    write_json(out, record)
    return _print_record(args, record, f"written to {out}")


def _print_record(args: Options, record: dict[str, Any], file_note: str) -> int:
    about = record["about"]
    title = f"{about['name']}: {about['task']}, trained to {about['trained_to']}"
    table = FittedTable("check", "verdict", "finding", title=title)
    for check in record["checks"]:
        table.add_row(check["name"], Text(check["verdict"], VERDICT_STYLES[check["verdict"]]), Text(check["told"]))
    scores = build_worst_table(record["scores"], tuple(map(int, about["trained_to"].split("x"))))
    uniform = record["longest_uniform"] or "none"
    longest = f"longest solved: {record['longest'] or 'none'}; on uniform problems alone: {uniform}"
    if record["left_out"]:
        longest += f"; not measured for lack of time: {', '.join(record['left_out'])} (--minutes)"
    print_result(args, record, table, "", scores, "", Text(longest), Text(file_note, "dim"))
    return 0 if has_passed(record) else 1
