"""Rows → tables and figures. Reports know only files: nothing here imports a task, a model, a client or torch.

    curves(runs) → Curve     one per recipe, set of problems and stopping rule, with all its seeds
    Curve.points() → Point   one per size: the mean over seeds, with a band

``tables`` prints them, ``csv_files`` writes them, ``terminal`` draws them with characters, the modules named
``…_figure`` with matplotlib, in one ``style``; ``publish`` writes all of it into a folder.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from lengthwise.base.errors import UsageError
from lengthwise.base.results import problems_counted
from lengthwise.base.score_rows import (
    ALONE,
    DRAWN,
    SOLVED,
    Row,
    Sizes,
    is_full_family_run,
    latest,
    share_text,
    trained_on,
    worst_rows,
)
from lengthwise.runs.folder import DIVERGED, InquiryFolder, RunFolder

TRAINED = "▪"  # marks a size within the training range
WORST = "worst family"  # what the curve of the worst family at each size is called

Named = TypeVar("Named", RunFolder, InquiryFolder)  # a folder that somebody names
SeedPair = tuple[int, int]  # a recipe's seed and data_seed


@dataclass(frozen=True)
class Claim:
    """What somebody has published, to stand beside ours."""

    who: str
    size: int
    figure: str  # as published, in numbers or words
    standing: str  # where it is from, and how sure that is
    exact: float | None = None  # the same as exact match, to be drawn


@dataclass(frozen=True)
class Point:
    """Exact match at one size, over seeds."""

    sizes: Sizes
    mean: float
    low: float  # the band: the worst and the best seed; of a single seed Wilson's 95 % interval
    high: float
    error: float | None  # standard error of the mean over seeds; None of a single seed
    seeds: int
    solved: int  # seeds that reach SOLVED
    count: int  # problems per seed, repeats from a fixed set once; where seeds differ, the fewest
    families: tuple[str, ...] = ()  # of structured problems: which these are, in each seed; those not right, if any

    @property
    def length(self) -> int:
        """Its size on the longest axis."""
        return max(self.sizes)


@dataclass(frozen=True)
class Curve:
    """The scores of runs that differ only in their seeds, on one set of problems under one stopping rule."""

    label: str
    top: int  # the largest size trained on; 0 where nobody knows, as of a language model that was asked
    axes: tuple[str, ...]
    problems: str  # "uniform", "hard", "natural"; WORST: at each size the worst family; or one family, by its name
    stopping: str  # empty where no rule stops anything
    rows_by_seed: Mapping[SeedPair, Sequence[Row]]
    looked_at: tuple[int, ...] = ()  # sizes that may have chosen the recipe; none where that is not known
    most: tuple[int, ...] = ()  # the largest size trained on, on each axis
    diverged: int = 0  # seeds whose loss became no number
    own_rule: str = ""  # the recipe's own stopping rule

    @property
    def tops(self) -> Sizes:
        """The largest size trained on, on each axis; the same on all where nobody says otherwise."""
        return self.most or (self.top,) * len(self.axes)

    def points(self) -> list[Point]:
        """One per size, smallest first. A seed counts at the sizes it was measured at."""
        return [*self._points]

    @cached_property
    def _points(self) -> Sequence[Point]:
        by_size: dict[Sizes, list[Row]] = {}
        for rows in self.rows_by_seed.values():
            for row in latest(rows):
                by_size.setdefault(tuple(row["sizes"]), []).append(row)
        return [_point(sizes, rows) for sizes, rows in sorted(by_size.items())]

    def diagonal(self) -> list[Point]:
        """The points whose sizes are equal on all axes, short of those that are kept short: with one axis, all."""
        return [point for point in self.points() if point.sizes == self._diagonal(point)]

    def _diagonal(self, point: Point) -> Sizes:
        return tuple(min(point.length, cap) if cap < self.top else point.length for cap in self.tops)

    def fit(self) -> float | None:
        """Exact match at the training length, the mean over seeds; None where that was not measured."""
        return next((point.mean for point in self.diagonal() if point.length == self.top), None)

    def is_of_all(self) -> bool:
        """Were all problems of the training length measured, in every seed?"""
        rows = [row for seed in self.rows_by_seed.values() for row in latest(seed)]
        found = [row["problems"] for row in rows if tuple(row["sizes"]) == self.tops]
        return {*found} == {"every"} and len(found) == len(self.rows_by_seed)

    def sealed(self) -> bool:
        """Were all of its points measured on problems that nothing else used?"""
        return all("sealed" in row for rows in self.rows_by_seed.values() for row in latest(rows))

    def trained_at(self, sizes: Sizes) -> bool:
        """Do these sizes lie within the training range?"""
        return len(sizes) == len(self.tops) and trained_on(sizes, self.tops)


def curves(runs: Iterable[RunFolder]) -> list[Curve]:
    """The curves of these runs, in their order, by a recipe's own stopping rule first; runs not yet evaluated add
    nothing. UsageError if none has scores."""
    runs = list(runs)
    found = [curve for label, group in by_recipe(runs).items() for curve in _curves(label, group)]
    if not found:
        raise UsageError(f"{_list(runs)}: no scores yet; `lengthwise evaluate RUN` measures a run")
    return found


def _curves(label: str, group: Sequence[RunFolder]) -> list[Curve]:
    kinds: dict[tuple[str, str], dict[SeedPair, list[Row]]] = {}
    for run in group:
        rows = run.rows("scores")
        alone = [(row["problems"], row) for row in rows if not is_full_family_run(row)]
        for problems, row in [*alone, *((WORST, row) for row in worst_rows(rows))]:
            seeds = kinds.setdefault((problems, row["stopping"]), {})
            seeds.setdefault((run.outline.seed, run.outline.data_seed), []).append(row)
    first, diverged = group[0].outline, sum(run.diverged for run in group)
    # Single families last; of the others, and of these, the recipe's own rule first.
    in_order = sorted(kinds.items(), key=lambda kind: (_of_a_family(kind[0][0]), kind[0][1] != first.stopping))
    return [
        Curve(
            label,
            first.top,
            first.axes,
            problems,
            stopping,
            seeds,
            looked_at=first.looked_at,
            most=first.tops,
            diverged=diverged,
            own_rule=first.stopping,
        )
        for (problems, stopping), seeds in in_order
    ]


def all_curves(runs: Sequence[RunFolder], asked: Sequence[InquiryFolder]) -> list[Curve]:
    """The curves of runs, then of language models that were ``asked``; of those that were measured."""
    measured = any(run.rows("scores") for run in runs)
    return (curves(runs) if measured else []) + language_model_curves(asked)


def language_model_curves(folders: Iterable[InquiryFolder]) -> list[Curve]:
    """A curve for each language model that was asked, to stand beside those of runs; folders without whole scores add
    nothing. Where a model was asked in several ways, the folder's name tells them apart."""
    folders = list(folders)
    shared = Counter((one.outline.model, one.outline.problems) for one in folders)
    found = []
    for one in folders:
        if rows := one.rows("scores"):
            asked = one.outline
            label = asked.model if shared[asked.model, asked.problems] == 1 else one.folder.name
            found.append(Curve(label, 0, asked.axes, asked.problems, "", {(asked.seed, 0): rows}))
    return found


def by_recipe(runs: Iterable[RunFolder]) -> dict[str, list[RunFolder]]:
    """Runs under the name of their recipe; those that differ only in their seeds stand together. Where two recipes
    share a name, each is called by its first run's folder name, ``<name>-<id>``. A folder that is named twice counts
    once. UsageError if there are no runs, or if two folders hold the same run, which would count as two seeds."""
    seeds: dict[str, dict[SeedPair, RunFolder]] = {}
    for run in runs:
        outline = run.outline
        first = seeds.setdefault(outline.seedless_id, {}).setdefault((outline.seed, outline.data_seed), run)
        if first.folder.resolve() != run.folder.resolve():
            raise UsageError(f"{run.folder}: {first.folder} is the same run, of the same seed: name one of them")
    groups = {recipe: [*found.values()] for recipe, found in seeds.items()}
    if not groups:
        raise UsageError("there is nothing to report: name at least one run")
    shared = Counter(group[0].outline.name for group in groups.values())
    firsts = [(group[0].outline, group) for group in groups.values()]
    return {first.name if shared[first.name] == 1 else f"{first.name}-{first.id}": group for first, group in firsts}


def drop_repeats(folders: Iterable[Named]) -> list[Named]:
    """Each once, however often its folder is named."""
    return [*{one.folder.resolve(): one for one in folders}.values()]


def not_fitted(fit: float | None, size: int | str) -> str:
    """What is said of a model that has not learned its training length; nothing of one that has, or was not measured
    there."""
    # A mean such as that of .98, .99 and 1 is .99 but for the last bit.
    return "" if fit is None or round(fit, 9) >= SOLVED else f"not fitted: {share_text(fit, 3)} at {size}"


def lost(diverged: int) -> str:
    """What is said where seeds diverged; nothing where none did."""
    return f"{diverged} seed{'s' * (diverged > 1)} {DIVERGED}" if diverged else ""


def fits_of(curves: Iterable[Curve]) -> dict[str, float]:
    """Return exact match at the training length, by the stopping rule that is best there, of each recipe that was
    measured there: of all problems of that size where these were measured, else of uniform ones."""
    uniform: dict[str, float] = {}
    every: dict[str, float] = {}
    for curve in curves:
        if (fit := curve.fit()) is not None and curve.problems in ("uniform", WORST):
            found = uniform if curve.problems == "uniform" else every
            if curve.problems == "uniform" or curve.is_of_all():
                found[curve.label] = max(fit, found.get(curve.label, 0.0))
    return uniform | every


def names(curves: Sequence[Curve]) -> list[str]:
    """What tells each curve from the others: its label, then its stopping rule and problems where these differ; and
    whether it has not learned its training length, or seeds of it diverged."""
    fits = fits_of(curves)
    rules = {curve.stopping for curve in curves if curve.stopping}
    sets = {curve.problems for curve in curves}
    return [
        ", ".join(
            [curve.label]
            + ([rule_text(curve.stopping)] if len(rules) > 1 and curve.stopping else [])
            + (
                [curve.problems]
                if (len(sets) > 1 and curve.problems != "uniform") or _of_a_family(curve.problems)
                else []
            )
            + ([said] if (said := not_fitted(fits.get(curve.label), curve.top)) else [])
            + ([said] if (said := lost(curve.diverged)) else [])
        )
        for curve in curves
    ]


def rule_text(stopping: str) -> str:
    """A stopping rule as headings and names have it: After(loops=8) in words, others as recipes write them."""
    found = re.fullmatch(r"After\(loops=(\d+)\)", stopping)
    return f"after {found[1]} loop{'s' * (found[1] != '1')}" if found else stopping


def _of_a_family(problems: str) -> bool:
    return problems not in (*ALONE, WORST)


def _point(sizes: Sizes, rows: Sequence[Row]) -> Point:
    shares = [row["exact"] for row in rows]
    if len(rows) == 1:
        low, high, error = rows[0]["low"], rows[0]["high"], None
    else:
        low, high, error = min(shares), max(shares), statistics.stdev(shares) / math.sqrt(len(shares))
    solved, count = sum(share >= SOLVED for share in shares), min(map(problems_counted, rows))
    return Point(sizes, statistics.fmean(shares), low, high, error, len(rows), solved, count, _families(rows))


def _families(rows: Sequence[Row]) -> tuple[str, ...]:
    """What families these rows are of. Where one seed fails, that of another which fails nowhere says nothing."""
    failing = [row for row in rows if row["exact"] < 1]
    return tuple(sorted({row["problems"] for row in failing or rows} - {*DRAWN}))


def _list(runs: Sequence[RunFolder]) -> str:
    first = ", ".join(run.folder.name for run in runs[:3])
    return first + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
