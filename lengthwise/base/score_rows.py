"""Rows of scores, as every layer reads them: which one counts, which are of families, which is the worst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lengthwise.base.ranges import Sizes

Row = dict[str, Any]  # of `Score.row`, or of metrics


SOLVED = 0.99  # exact match from which a size counts as solved
DRAWN = ("uniform", "natural")  # problems that are no family's
ALONE = (*DRAWN, "hard")  # sets of problems that always have a curve of their own; a family has one where it is alone


def size_text(sizes: Iterable[int]) -> str:
    """A size as it is typed and printed: ``40``, or ``20x40`` on two axes."""
    return "x".join(map(str, sizes))


def count_text(count: int, distinct: int | None) -> str:
    """A number of problems, with how many of them are different where some are drawn several times."""
    return str(count) if distinct is None else f"{count} ({distinct} different)"


def share_text(share: float, decimals: int = 2) -> str:
    """A fraction in so many decimals, which never rounds to a clean 0 or 1 what is not: ``>.99`` and ``<.01``
    instead."""
    half = 0.5 * 10**-decimals
    if 1 - half <= share < 1:
        return f">.{'9' * decimals}"
    return f"<.{1:0{decimals}}" if 0 < share < half else f"{share:.{decimals}f}"


def scaled_text(scaled: float | None) -> str:
    """An accuracy from guessing, 0, to all right, 1, in three decimals; it is below 0 if it is worse than guessing."""
    if scaled is None:
        return "–"
    return share_text(scaled, 3) if scaled >= 0 else f"{scaled:.3f}"


def interval_text(row: Row) -> str:
    """A row's 95 % interval in three decimals."""
    return f"{share_text(row['low'], 3)}–{share_text(row['high'], 3)}"


def loops_text(row: Row) -> str:
    """The mean loop whose answer counts, and how many loops were run to choose it, where these were more."""
    used, ran = f"{row['loops']:.1f}", f"{row.get('ran', row['loops']):.1f}"
    return used if ran == used else f"{used} of {ran}"


def loops_notes(rows: Iterable[Row]) -> list[str]:
    """Explain the column of loops; name the sizes at which a rule had to be ended by its limit."""
    rows = list(rows)
    said = ["loops: that of the answer, of those run"] * any(loops_text(row).count("of") for row in rows)
    ended = {f"{share_text(row['at_limit'])} at {size_text(row['sizes'])}": row for row in rows if row.get("at_limit")}
    return said + [f"never stopped, so ended by the rule's limit: {', '.join(ended)} of the problems"] * bool(ended)


def trained_on(sizes: Sequence[int], tops: Sequence[int]) -> bool:
    """Do sizes lie within the training range, which ends at ``tops``, one for each axis?"""
    return all(size <= top for size, top in zip(sizes, tops, strict=True))


def latest(rows: Iterable[Row]) -> list[Row]:
    """One row per sizes, problems and stopping rule, where a run was measured more than once: the sealed one, else the
    one on the most problems, of equals the last. A quick measurement does not replace a careful one."""
    found: dict[tuple[Sizes, str, str], Row] = {}
    for row in rows:
        key = tuple(row["sizes"]), row["problems"], row["stopping"]
        if key not in found or _weight(row) >= _weight(found[key]):
            found[key] = row
    return list(found.values())


def _weight(row: Row) -> tuple[bool, int]:
    return "sealed" in row, row["count"]


def interval_notes(rows: Iterable[Row]) -> list[str]:
    """Explain the intervals that do not count every problem; nothing where there is no such row."""
    rows = list(rows)
    sizes = sorted({row["together"] for row in rows if row.get("together")})
    said = [f"one loop was chosen for each {size} problems: those intervals are over batches" for size in sizes]
    repeats = any(row.get("fixed_set") for row in rows)
    return said + ["a fixed set repeats problems: those intervals count each problem once"] * repeats


def uniform_in(rows: Iterable[Row]) -> dict[Sizes, Row]:
    """Rows of uniform problems, by their sizes; of several the last."""
    return {tuple(row["sizes"]): row for row in rows if row["problems"] == "uniform"}


def fit_rows(rows: Iterable[Row], tops: Sizes) -> list[Row]:
    """Return the rows of one run that decide whether it is fitted, at its training length ``tops``: of all problems of
    that size where these were measured, else of uniform ones. A sample near 0.99 may fall on either side of it."""
    found = [row for row in rows if tuple(row["sizes"]) == tuple(tops)]
    every = [row for row in found if row["problems"] == "every"]
    return every or [row for row in found if row["problems"] == "uniform"]


def families_in(rows: Iterable[Row]) -> dict[Sizes, list[Row]]:
    """Rows of families of structured problems, the harder set among them, by their sizes."""
    found: dict[Sizes, list[Row]] = {}
    for row in rows:
        if row["problems"] not in DRAWN:
            found.setdefault(tuple(row["sizes"]), []).append(row)
    return found


def worst(rows: Sequence[Row]) -> Row:
    """The row of the lowest exact match; of equals, the first by name."""
    return min(rows, key=lambda row: (row["exact"], row["problems"]))


def worst_rows(rows: Iterable[Row]) -> list[Row]:
    """The row of the worst family at each size, by each stopping rule; none where no more than the harder set was
    measured, or single families by name: the worst may be another."""
    rows, found = list(rows), dict[tuple[Sizes, str], list[Row]]()
    whole = {(tuple(row["sizes"]), row["stopping"]) for row in rows if is_full_family_run(row)}
    for row in latest(rows):
        if row["problems"] not in DRAWN and (at := (tuple(row["sizes"]), row["stopping"])) in whole:
            found.setdefault(at, []).append(row)
    return [*map(worst, found.values())]


def is_full_family_run(row: Row) -> bool:
    """Is this of a family that was measured with all the others?"""
    return row["problems"] not in ALONE and row.get("family") != "alone"
