"""Selection and formatting of score rows: one row per size, rows of families, and the worst family."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

from lengthwise.base.ranges import Sizes

Row = dict[str, Any]  # from `Score.row`, or a row of metrics
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


SOLVED = 0.99  # exact match from which a size counts as solved
NON_FAMILIES = ("uniform", "natural")  # kinds of problems outside families
KINDS_WITH_CURVE = (*NON_FAMILIES, "hard")  # these get their own curve; a family gets one only if measured alone


# Former names of the fields of stopping rules, for scores stored before they changed. The rules declare them too, but
# reports read scores without importing torch.
FORMER_FIELDS = {
    "Oracle": {"more": "offset"},
    "Halted": {"more": "delay", "most": "max_loops"},
    "MaxConfidence": {"most": "max_loops"},
    "Converged": {"most": "max_loops"},
    "Settled": {"most": "max_loops"},
}


@cache
def update_rule_name(name: str) -> str:
    """Return a stopping rule's name in scores with today's names of its fields."""

    def update_fields(match: re.Match[str]) -> str:
        names = FORMER_FIELDS.get(match[1], {})
        return f"{match[1]}({re.sub(r'[a-z_]+(?==)', lambda field: names.get(field[0], field[0]), match[2])})"

    return re.sub(r"([A-Za-z]+)\(([^()]*)\)", update_fields, name)


def format_size(sizes: Iterable[int]) -> str:
    """Format a size as it is typed: ``40``, or ``20x40`` on two axes."""
    return "x".join(map(str, sizes))


def format_problem_kind(problems: str) -> str:
    """Format a kind of problems for tables: ``every`` becomes ``all problems``."""
    return "all problems" if problems == "every" else problems


def format_problem_count(count: int, distinct: int | None) -> str:
    """Format a number of problems, with the number of different ones if some repeat."""
    return str(count) if distinct is None else f"{count} ({distinct} different)"


def format_share(fraction: float, decimals: int = 2) -> str:
    """Format a fraction to ``decimals`` places; ``<.01`` and ``>.99`` replace values that would round to 0 or 1."""
    half = 0.5 * 10**-decimals
    if 1 - half <= fraction < 1:
        return f">.{'9' * decimals}"
    return f"<.{1:0{decimals}}" if 0 < fraction < half else f"{fraction:.{decimals}f}"


def format_scaled(scaled: float | None) -> str:
    """Format a scaled accuracy (0: guessing, 1: all correct; may be negative) to three decimals."""
    if scaled is None:
        return "–"
    return format_share(scaled, 3) if scaled >= 0 else f"{scaled:.3f}"


def format_interval(row: Row) -> str:
    """Format a row's 95 % interval to three decimals."""
    return f"{format_share(row['low'], 3)}–{format_share(row['high'], 3)}"


def format_loops(row: Row) -> str:
    """Format the mean chosen loop and, if further loops were run to choose it, the mean number of loops run."""
    used, ran = f"{row['loops']:.1f}", f"{row.get('ran', row['loops']):.1f}"
    return used if ran == used else f"{used} of {ran}"


def list_loop_notes(rows: Iterable[Row]) -> list[str]:
    """Return notes that explain the column of loops, and state the fraction of problems stopped at each rule's
    limit."""
    rows = list(rows)
    notes = ["loops: the chosen loop, of all loops run"] * any(format_loops(row).count("of") for row in rows)
    by_rule = group_by(rows, lambda row: row["stopping"])
    for rule, rule_rows in by_rule.items():
        limited = [row for row in rule_rows if row.get("at_limit")]
        ended = dict.fromkeys(f"{format_share(row['at_limit'])} at {format_size(row['sizes'])}" for row in limited)
        whose = "the rule's limit" if len(by_rule) == 1 else f"the limit of {rule}"
        notes += [f"fraction stopped by {whose}: {', '.join(ended)}"] * bool(ended)
    return notes


def is_within_training_sizes(sizes: Sequence[int], largest_training_sizes: Sequence[int]) -> bool:
    """Return whether each size is at most the largest training size of its axis."""
    return all(size <= top for size, top in zip(sizes, largest_training_sizes, strict=True))


def select_reported_rows(rows: Iterable[Row]) -> list[Row]:
    """Return one row per size, kind of problems and stopping rule. A sealed row (measured on a seed that nothing else
    uses) takes precedence, then the row with the most problems; on a tie, the last row."""
    groups = group_by(rows, lambda row: (tuple(row["sizes"]), row["problems"], row["stopping"])).values()
    return [max(reversed(group), key=lambda row: ("sealed" in row, row["count"])) for group in groups]


def list_interval_notes(rows: Iterable[Row]) -> list[str]:
    """Return notes on intervals that do not count every problem as one trial; empty if all intervals do."""
    rows = list(rows)
    sizes = sorted({row["together"] for row in rows if row.get("together")})
    notes = [f"the rule chose one loop per {size} problems: their intervals are over batches" for size in sizes]
    repeats = any(row.get("fixed_set") for row in rows)
    return notes + ["a fixed set repeats problems: their intervals count each problem once"] * repeats


def select_uniform_rows(rows: Iterable[Row]) -> dict[Sizes, Row]:
    """Return the row of uniform problems for each size: the last one if there are several."""
    return {tuple(row["sizes"]): row for row in rows if row["problems"] == "uniform"}


def select_training_length_rows(rows: Iterable[Row], tops: Sizes) -> list[Row]:
    """Return a run's rows at its training length, ``tops``: rows on all problems of that length or, if there are none,
    on uniform problems. Such a sample may misjudge a score near the threshold of 0.99."""
    at_length = [row for row in rows if tuple(row["sizes"]) == tuple(tops)]
    on_all_problems = [row for row in at_length if row["problems"] == "every"]
    return on_all_problems or [row for row in at_length if row["problems"] == "uniform"]


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by their keys, in the order in which keys first occur."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def group_family_rows(rows: Iterable[Row]) -> dict[Sizes, list[Row]]:
    """Return the rows of families of structured problems, including the harder set, for each size."""
    return group_by((row for row in rows if row["problems"] not in NON_FAMILIES), lambda row: tuple(row["sizes"]))


def select_worst_row(rows: Sequence[Row]) -> Row:
    """Return the row with the lowest exact match; on a tie, the first by name."""
    return min(rows, key=lambda row: (row["exact"], row["problems"]))


def is_full_family_run(row: Row) -> bool:
    """Return whether a row's problems are a family that was measured together with all other families."""
    return row["problems"] not in KINDS_WITH_CURVE and row.get("family") != "alone"


def format_loss(row: Row) -> str:
    """Format the loss in a row of metrics: empty if its objective reports no loss, ``diverged`` if it is not finite."""
    if "loss" not in row:
        return ""
    return "diverged" if row["loss"] is None else f"loss {row['loss']:.4f}"
