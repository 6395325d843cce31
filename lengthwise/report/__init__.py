"""Turn rows into tables and figures. Reports read only files: nothing here imports a task, a model, a client or torch.

    curves(runs) → Curve     one per recipe, set of problems and stopping rule, with all its seeds
    Curve.points → Point     one per size: the mean over seeds, with a band

``tables`` formats curves for the terminal, ``terminal`` plots with characters, and the modules named ``…_figure`` plot
with matplotlib in one ``style``. ``publish`` writes rows and figures into a folder.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from lengthwise.base.errors import UsageError
from lengthwise.base.results import count_problems, select_worst_families
from lengthwise.base.score_rows import (
    KINDS_WITH_CURVE,
    NON_FAMILIES,
    SOLVED,
    Row,
    Sizes,
    format_problem_kind,
    format_share,
    group_by,
    is_full_family_run,
    is_within_training_sizes,
    select_reported_rows,
)
from lengthwise.runs.folder import DIVERGED, InquiryFolder, RunFolder

TRAINED_MARK = "▪"  # in front of a size within the training range
WORST_FAMILY = "worst family"  # the ``problems`` of a curve that takes the worst family at each size

AnyFolder = TypeVar("AnyFolder", RunFolder, InquiryFolder)
SeedPair = tuple[int, int]  # a recipe's seed and data_seed


@dataclass(frozen=True)
class Point:
    """Exact match at one size, over seeds."""

    sizes: Sizes
    mean: float
    low: float  # exact match of the worst seed; of a single seed, the lower end of Wilson's 95 % interval
    high: float  # exact match of the best seed, or the interval's upper end
    standard_error: float | None  # of the mean over seeds; None for a single seed
    seed_count: int
    solved_seed_count: int  # seeds with exact match of SOLVED (.99) or more
    problem_count: int  # problems per seed, repeated ones counted once; the minimum over seeds
    families: tuple[str, ...] = ()  # families of structured problems; if some have wrong answers, only those

    @property
    def length(self) -> int:
        """The size along the longest axis."""
        return max(self.sizes)


@dataclass(frozen=True)
class Curve:
    """The scores of runs that differ only in their seeds, on one set of problems under one stopping rule."""

    label: str
    top: int  # the largest size trained on; 0 if unknown, as for language models
    axes: tuple[str, ...]
    problems: str  # "uniform", "hard", "natural", the name of a family, or WORST_FAMILY: the worst one at each size
    stopping: str  # the stopping rule; empty for language models
    rows_by_seed: Mapping[SeedPair, Sequence[Row]]
    chosen_on: tuple[int, ...] = ()  # sizes that the recipe may have been selected on; empty if unknown
    top_per_axis: tuple[int, ...] = ()  # the largest size trained on, per axis
    diverged_seed_count: int = 0  # seeds whose loss became NaN or infinite
    own_rule: str = ""  # the recipe's own stopping rule

    @property
    def tops(self) -> Sizes:
        """The largest size trained on, per axis; by default ``top`` on every axis."""
        return self.top_per_axis or (self.top,) * len(self.axes)

    @cached_property
    def _latest_rows(self) -> list[Row]:
        return [row for rows in self.rows_by_seed.values() for row in select_reported_rows(rows)]

    @cached_property
    def points(self) -> Sequence[Point]:
        """One point per size, smallest first. Each point averages the seeds that were measured at its size."""
        points = []
        for sizes, rows in sorted(group_by(self._latest_rows, lambda row: tuple(row["sizes"])).items()):
            scores = [row["exact"] for row in rows]
            if len(rows) == 1:
                low, high, error = rows[0]["low"], rows[0]["high"], None
            else:
                low, high, error = min(scores), max(scores), statistics.stdev(scores) / math.sqrt(len(scores))
            solved, count = sum(score >= SOLVED for score in scores), min(map(count_problems, rows))
            failing = [row for row in rows if row["exact"] < 1]
            families = tuple(sorted({row["problems"] for row in failing or rows} - {*NON_FAMILIES}))
            points.append(Point(sizes, statistics.fmean(scores), low, high, error, len(rows), solved, count, families))
        return points

    @property
    def diagonal(self) -> list[Point]:
        """The points with equal sizes on all axes, except that an axis trained to less than ``top`` is limited to its
        largest training size."""
        short = [top if top < self.top else math.inf for top in self.tops]
        return [point for point in self.points if point.sizes == tuple(min(point.length, top) for top in short)]

    def has_all_seeds(self, point: Point) -> bool:
        """Return True if every seed was measured at this point's size."""
        return point.seed_count == len(self.rows_by_seed)

    def has_all_problems(self) -> bool:
        """Return True if every seed was measured on all problems of the training length."""
        names = [row["problems"] for row in self._latest_rows if tuple(row["sizes"]) == self.tops]
        return {*names} == {"every"} and len(names) == len(self.rows_by_seed)

    def is_sealed(self) -> bool:
        """Return True if all points were measured on sealed problems, which nothing else uses."""
        return all("sealed" in row for row in self._latest_rows)

    def is_trained_size(self, sizes: Sizes) -> bool:
        """Return True if these sizes lie within the training range."""
        return len(sizes) == len(self.tops) and is_within_training_sizes(sizes, self.tops)


def curves(runs: Iterable[RunFolder]) -> list[Curve]:
    """Return the curves of these runs, in the order of the runs; for each recipe, curves of its own stopping rule come
    first. Runs without scores are skipped. Raises UsageError if no run has scores."""
    runs = list(runs)
    drawn: list[Curve] = []
    for label, group in by_recipe(runs).items():
        kinds: dict[tuple[str, str], dict[SeedPair, list[Row]]] = {}
        for run in group:
            rows = run.rows("scores")
            scored = [(row["problems"], row) for row in rows if not is_full_family_run(row)]
            for problems, row in [*scored, *((WORST_FAMILY, row) for row in select_worst_families(rows))]:
                seeds = kinds.setdefault((problems, row["stopping"]), {})
                seeds.setdefault((run.outline.seed, run.outline.data_seed), []).append(row)
        first = group[0].outline
        facts: dict[str, Any] = {"chosen_on": first.looked_at, "top_per_axis": first.tops, "own_rule": first.stopping}
        facts["diverged_seed_count"] = sum(run.diverged for run in group)
        # Single families come last; within both groups the recipe's own rule comes first.
        for problems, stopping in sorted(kinds, key=lambda kind: (_is_family(kind[0]), kind[1] != first.stopping)):
            seeds = kinds[problems, stopping]
            drawn.append(Curve(label, first.top, first.axes, problems, stopping, seeds, **facts))
    if not drawn:
        rest_text = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
        first = ", ".join(run.folder.name for run in runs[:3])
        raise UsageError(f"{first}{rest_text}: no scores yet; {runs[0].measure_advice}")
    return drawn


def build_all_curves(runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder]) -> list[Curve]:
    """Return the curves of runs with scores, then those of the language models in ``inquiries``."""
    measured = any(run.rows("scores") for run in runs)
    return (curves(runs) if measured else []) + build_language_model_curves(inquiries)


def build_language_model_curves(folders: Iterable[InquiryFolder]) -> list[Curve]:
    """Return a curve per folder that has scores, labelled by the language model's name. Folders that share a model and
    a set of problems are labelled by their folder names instead."""
    folders = list(folders)
    shared = Counter((folder.outline.model, folder.outline.problems) for folder in folders)
    drawn = []
    for folder in folders:
        outline = folder.outline
        label = outline.model if shared[outline.model, outline.problems] == 1 else folder.folder.name
        if rows := folder.rows("scores"):
            drawn.append(Curve(label, 0, outline.axes, outline.problems, "", {(outline.seed, 0): rows}))
    return drawn


def by_recipe(runs: Iterable[RunFolder]) -> dict[str, list[RunFolder]]:
    """Group runs by recipe: runs that differ only in their seeds share a group, under the recipe's name. Recipes that
    share a name are labelled ``<name>-<id>``, the folder name of their first run. A folder given twice counts once.
    Raises UsageError without runs, or if two folders hold the same run, which would count as two seeds."""
    seeds: dict[str, dict[SeedPair, RunFolder]] = {}
    for run in runs:
        outline = run.outline
        first = seeds.setdefault(outline.seedless_id, {}).setdefault((outline.seed, outline.data_seed), run)
        if first.folder.resolve() != run.folder.resolve():
            raise UsageError(f"{run.folder}: {first.folder} is the same run, with the same seed; list only one")
    if not seeds:
        raise UsageError("there is nothing to report: list at least one run")
    groups = [[*runs_by_seed.values()] for runs_by_seed in seeds.values()]
    firsts = [group[0].outline for group in groups]
    shared = Counter(first.name for first in firsts)
    labels = [first.name if shared[first.name] == 1 else f"{first.name}-{first.id}" for first in firsts]
    return dict(zip(labels, groups, strict=True))


def select_own_scores(run: RunFolder) -> list[Row]:
    """Return the latest scores of a run under its recipe's own stopping rule."""
    return [row for row in select_reported_rows(run.rows("scores")) if row["stopping"] == run.outline.stopping]


def drop_repeated_folders(folders: Iterable[AnyFolder]) -> list[AnyFolder]:
    """Return the folders without duplicates of the same path."""
    return [*{folder.folder.resolve(): folder for folder in folders}.values()]


def describe_misfit(exact_at_training_length: float | None, size: int | str) -> str:
    """Return a warning if exact match at the training length was measured and is below .99, else an empty string."""
    # Rounded, because the mean of .98, .99 and 1 may be one bit less than .99.
    if exact_at_training_length is None or round(exact_at_training_length, 9) >= SOLVED:
        return ""
    return f"not fitted: {format_share(min(exact_at_training_length, SOLVED - 0.001), 3)} at {size}"  # never 0.990


def format_training_warnings(exact_at_training_length: float | None, size: int | str, diverged_seed_count: int) -> str:
    """Return the warning of ``describe_misfit`` and the number of diverged seeds, if any, joined by a comma."""
    seeds = f"{diverged_seed_count} seed{'s' * (diverged_seed_count > 1)} {DIVERGED}" if diverged_seed_count else ""
    return ", ".join(part for part in (describe_misfit(exact_at_training_length, size), seeds) if part)


def find_scores_at_training_length(curves: Iterable[Curve]) -> dict[str, float]:
    """Return each recipe's exact match at the training length, the highest over stopping rules. Scores on all problems
    of this length take precedence over scores on uniform problems."""
    best_fits: dict[str, dict[str, float]] = {"uniform": {}, WORST_FAMILY: {}}
    for curve in curves:
        if curve.problems == "uniform" or (curve.problems == WORST_FAMILY and curve.has_all_problems()):
            fit = next((point.mean for point in curve.diagonal if point.length == curve.top), None)
            if fit is not None:
                best = best_fits[curve.problems]
                best[curve.label] = max(fit, best.get(curve.label, 0.0))
    return best_fits["uniform"] | best_fits[WORST_FAMILY]


def collect_warnings_by_recipe(curves: Sequence[Curve]) -> dict[str, str]:
    """Return the text of ``format_training_warnings`` by recipe. If exact match was measured on all problems of the
    training length, the text states this."""
    fits = find_scores_at_training_length(curves)
    exhaustive = {curve.label for curve in curves if curve.problems == WORST_FAMILY and curve.has_all_problems()}
    warnings = {}
    for curve in curves:
        top = f"{curve.top} ({format_problem_kind('every')})" if curve.label in exhaustive else curve.top
        warnings[curve.label] = format_training_warnings(fits.get(curve.label), top, curve.diverged_seed_count)
    return warnings


def name_curves(curves: Sequence[Curve]) -> list[str]:
    """Return a unique name per curve: its label; its stopping rule and problems, if these differ between curves; and a
    warning if exact match at the training length is below .99 or some seeds diverged."""
    warnings = collect_warnings_by_recipe(curves)
    rules = {curve.stopping for curve in curves if curve.stopping}
    sets = {curve.problems for curve in curves}
    names: list[str] = []
    for curve in curves:
        rule = format_rule(curve.stopping) if len(rules) > 1 else ""
        several = len(sets) > 1 and curve.problems != "uniform"
        problems = curve.problems if several or _is_family(curve.problems) else ""
        names.append(", ".join(filter(None, [curve.label, rule, problems, warnings[curve.label]])))
    return names


def format_rule(stopping: str) -> str:
    """Return a stopping rule as text for headings and names: After(loops=8) becomes ``after 8 loops``."""
    match = re.fullmatch(r"After\(loops=(\d+)\)", stopping)
    return f"after {match[1]} loop{'s' * (match[1] != '1')}" if match else stopping


def _is_family(problems: str) -> bool:
    return problems not in (*KINDS_WITH_CURVE, WORST_FAMILY)
