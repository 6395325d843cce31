"""Scores as Python hands them out: a list of rows that can be seen, drawn, put into a data frame and compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.base.errors import UsageError
from lengthwise.base.results import RunOutline, Score, wilson
from lengthwise.base.score_rows import Row, size_text
from lengthwise.base.shown import as_grid, as_html
from lengthwise.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = ("size", "problems", "exact match", "95 % interval", "loops", "count")
RULE = "stopping"  # a further column where there are several rules


class Scores(list[Score]):
    """Score rows, in the order of the lengths asked for; ``outline`` says of which recipe."""

    def __init__(self, scores: Iterable[Score], outline: RunOutline) -> None:
        super().__init__(scores)
        self.outline = outline

    def rows(self) -> list[Row]:
        """Plain values, for JSON and CSV."""
        return [score.row() for score in self]

    def frame(self) -> Any:
        """A tidy pandas DataFrame: a row per score, a column per axis of size (``length``, or ``first`` and
        ``second``). UsageError where pandas is not installed."""
        rows = []
        for score in self:
            row = score.row()
            sizes = dict(zip(self.outline.axes, row.pop("sizes"), strict=True))
            rows.append(sizes | row)
        return _frame(rows)

    def plot(self, title: str | None = None) -> Figure:
        """Exact match against length, or a map of pairs of sizes, as ``report`` draws it. UsageError without scores."""
        return _drawn([self], [self.outline.name], title)

    def compare(self, *others: Scores) -> Comparison:
        """These scores beside others, size by size. UsageError where no size was measured in all of them."""
        return Comparison([self, *others])

    @property
    def rules(self) -> list[str]:
        """The stopping rules that it is by."""
        return list(dict.fromkeys(score.stopping for score in self))

    def _table(self) -> tuple[list[str], list[list[str]]]:
        several = len(self.rules) > 1
        rows = [
            [size_text(s.sizes), s.problems, *[s.stopping] * several, f"{s.exact:.3f}",
             "{:.3f}–{:.3f}".format(*s.interval), f"{s.loops:.1f}", str(s.count)] for s in self
        ]  # fmt: skip
        return [*HEADS[:2], *[RULE] * several, *HEADS[2:]], rows

    def __str__(self) -> str:
        return f"{self.outline.name}, trained up to {size_text(self.outline.tops)}\n{as_grid(*self._table())}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads, rows = self._table()
        return as_html(f"{self.outline.name}, trained up to {size_text(self.outline.tops)}", rows, heads)


class Comparison:
    """Several scores side by side, at the sizes and on the problems that all were measured on. Of scores by several
    stopping rules those by the recipe's own count.

    UsageError for scores of different tasks. Where names are alike, seeds or stopping rules tell scores apart.

    ``difference`` is the last one's exact match less the first one's, with Newcombe's 95 % interval for two independent
    samples: wider than needed where both saw the same problems, never narrower.
    """

    def __init__(self, scores: Sequence[Scores]) -> None:
        if len(scores) < 2:
            raise UsageError("compare takes two runs or scores, or more")
        scores = [_by_one_rule(one) for one in scores]
        self.scores = list(scores)
        if len(tasks := dict.fromkeys(one.outline.task for one in scores)) > 1:
            raise UsageError(f"compare: {' and '.join(tasks)} are different tasks")
        self.names = _told_apart(scores)
        found = [{(one.sizes, one.problems): one for one in reversed(part)} for part in scores]
        self.keys = [key for key in reversed(found[0]) if all(key in other for other in found)]
        if not self.keys:
            measured = "; ".join(", ".join(size_text(one.sizes) for one in part[:5]) for part in scores)
            raise UsageError(f"compare: no size and set of problems is in all of them: {measured}")
        self._found = found

    def rows(self) -> list[Row]:
        """A row per size and set of problems: exact match of each, and the difference with its interval."""
        rows = []
        for key in self.keys:
            each = [part[key] for part in self._found]
            difference, low, high = newcombe(each[0], each[-1])
            shares = {name: one.exact for name, one in zip(self.names, each, strict=True)}
            sizes, problems = key
            rows.append({"size": size_text(sizes), "problems": problems, **shares,
                         "difference": difference, "low": low, "high": high})  # fmt: skip
        return rows

    def frame(self) -> Any:
        """The rows as a pandas DataFrame. UsageError where pandas is not installed."""
        return _frame(self.rows())

    def plot(self, title: str | None = None) -> Figure:
        """Exact match against length, a line for each."""
        return _drawn(self.scores, self.names, title)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        heads = ["size", "problems", *self.names, "difference", "95 % interval"]
        rows = [
            [row["size"], row["problems"], *(f"{row[name]:.3f}" for name in self.names), f"{row['difference']:+.3f}",
             f"{row['low']:+.3f} … {row['high']:+.3f}"] for row in self.rows()
        ]  # fmt: skip
        return heads, rows

    def __str__(self) -> str:
        return as_grid(*self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads, rows = self._table()
        return as_html("exact match", rows, heads)


def newcombe(first: Score, second: Score) -> tuple[float, float, float]:
    """The difference of two shares, second − first, with Newcombe's (1998, method 10) 95 % interval."""
    difference = second.exact - first.exact
    (low1, high1), (low2, high2) = (wilson(one.exact, one.count) for one in (first, second))
    down = math.hypot(second.exact - low2, high1 - first.exact)
    up = math.hypot(high2 - second.exact, first.exact - low1)
    return difference, difference - down, difference + up


def _by_one_rule(scores: Scores) -> Scores:
    """Those by the recipe's own rule, if they are by several."""
    if len(scores.rules) <= 1:
        return scores
    name, own = scores.outline.name, scores.outline.stopping
    if own not in scores.rules:
        raise UsageError(f"compare: {name} was measured by {' and '.join(scores.rules)}: evaluate it by one rule")
    return Scores([score for score in scores if score.stopping == own], scores.outline)


class _Held(RunFolder):
    """Scores that are in no folder, as reports read them."""

    def __init__(self, scores: Scores, name: str, number: int) -> None:
        super().__init__(Path(f"{name}-{number}"))
        # A curve of its own, also where two scores are of one recipe: by two rules, or of two seeds.
        self.outline = replace(scores.outline, name=name, seedless_id=f"{scores.outline.seedless_id}-{number}")
        self.scores = scores

    def rows(self, name: str) -> list[Row]:
        return [row | {"seed": 0} for row in self.scores.rows()] if name == "scores" else []


def _drawn(scores: Sequence[Scores], names: Sequence[str], title: str | None) -> Figure:
    from lengthwise.report.length_figure import score_figure  # late: matplotlib is slow to import

    held = [_Held(one, name, number) for number, (one, name) in enumerate(zip(scores, names, strict=True))]
    return score_figure(held, title)


def _told_apart(scores: Sequence[Scores]) -> list[str]:
    """A name for each: the recipe's, with its seed, its stopping rule or its place where two share it."""
    for tell in ("{name}", "{name} {seed}", "{name} {rule}", "{name} {seed} {rule}"):
        names = [tell.format(name=one.outline.name, seed=one.outline.seed, rule=_rule(one)) for one in scores]
        if len(set(names)) == len(names):
            return names
    return [f"{one.outline.name} {one.outline.seed} ({number})" for number, one in enumerate(scores, 1)]


def _rule(scores: Scores) -> str:
    return scores.rules[0] if scores.rules else ""


def _frame(rows: Sequence[Row]) -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError("frame() needs pandas, which is not installed: pip install pandas") from None
    return pandas.DataFrame(rows)
