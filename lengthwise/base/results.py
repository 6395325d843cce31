"""Dataclasses of results; separate from ``types`` so that reports can read results without importing torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import NormalDist
from typing import Any

from lengthwise.base.errors import UsageError
from lengthwise.base.ranges import Count, Name, OneLine, Seed, Size, Sizes
from lengthwise.base.score_rows import (
    NON_FAMILIES,
    Row,
    group_by,
    is_full_family_run,
    select_reported_rows,
    select_worst_row,
    update_rule_name,
)

# The kind of a set of problems: "uniform" (random, at given sizes), "natural" (from the task's own distribution over
# sizes), a family's name, "hard" (the task's harder set, which is one family), or "every" (all problems of a size).
Kind = str

AnySize = int | tuple[int, ...]  # one number is used on all of a task's axes (``Recipe.sizes``)


NORMAL_QUANTILE = 1.959964  # the normal quantile of a 95 % interval


@dataclass(frozen=True)
class Outcomes:
    """The outcome of each of a score's problems, to compare two scores problem by problem."""

    problems_digest: bytes  # a digest of the problems, in their order
    correct_flags: bytes  # a byte for each problem: 1 if the whole answer is right, else 0


@dataclass(frozen=True)
class Score:
    """The accuracy of one set of weights on new problems of one size."""

    task: str
    weights: str
    stopping: str
    problems: Kind
    sizes: tuple[int, ...]
    count: int
    exact: float  # fraction of problems whose answer is correct in every symbol, including its end
    # Fraction that is also correct at every position after the end (the measure of Fan et al.'s code); None: unknown.
    whole_row: float | None
    token_accuracy: float  # fraction of answer symbols that are correct
    loops: float  # loops used, mean over problems
    precision: float | None = None  # half the interval's width at which sampling stopped early; None: it did not stop
    family: str | None = None  # "alone": a family measured without the others; None: with all families, or no family
    together: int | None = None  # batch size of a rule that chooses one loop for a batch; None: one loop per problem
    distinct: int | None = None  # number of different problems among ``count``; None: all differ, or unknown
    fixed_set: bool | None = None  # True: drawn with repetition from the test part of a fixed set
    chance: float | None = None  # the per-symbol accuracy of guessing; None: the layout does not report it
    # Fraction of problems that were stopped by the rule's limit on loops; None: the rule has no other criterion.
    at_limit: float | None = None
    ran: float | None = None  # loops run to choose ``loops``, mean over problems; None: the rule reads no outputs
    final: float | None = None  # fraction whose final part (``Task.final_after``) is right; None: answers have none
    outcomes: Outcomes | None = field(default=None, compare=False, repr=False)  # in memory only; None: unknown
    answers: list[dict[str, Any]] = field(default_factory=list, compare=False, repr=False)  # in memory only

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of ``exact`` over independent trials (see ``count_effective_trials``)."""
        return wilson_interval(self.exact, count_effective_trials(vars(self)))

    @property
    def scaled(self) -> float | None:
        """Accuracy per symbol, scaled so that guessing is 0 and all correct is 1; negative if worse than guessing. None
        without ``chance``, or if guessing is always right."""
        if self.chance is None or self.chance == 1:
            return None
        return (self.token_accuracy - self.chance) / (1 - self.chance)

    def row(self) -> dict[str, Any]:
        """Return plain values for JSON and CSV."""
        low, high = self.interval
        scaled = {} if self.scaled is None else {"scaled": self.scaled}
        names = [item.name for item in fields(self) if item.name not in ("outcomes", "answers")]
        values = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {**values, **scaled, "sizes": list(self.sizes), "low": low, "high": high}


@dataclass(frozen=True)
class RunOutline:
    """The facts of a run's recipe that a report shows, as plain values."""

    id: Name
    seedless_id: Name  # the id of the recipe with both seeds 0: runs that differ only in their seeds share it
    name: Name
    seed: Seed
    data_seed: Seed
    task: OneLine
    axes: tuple[OneLine, ...]
    top: Size  # the largest training size; 0 if unknown, as for a module evaluated from Python
    tops: Sizes  # the largest training size on each axis, or 0
    steps: Count
    stopping: OneLine  # the recipe's own stopping rule
    model: OneLine
    looked_at: tuple[Size, ...] = ()  # sizes that may have been used to choose the recipe; empty if unknown

    def __post_init__(self) -> None:
        object.__setattr__(self, "stopping", update_rule_name(self.stopping))
        if len(self.axes) != len(self.tops):
            raise UsageError(f"an outline needs a largest size for each of {len(self.axes)} axes, not {len(self.tops)}")


@dataclass(frozen=True)
class InquiryOutline:
    """The facts about an inquiry to a language model that a report shows."""

    id: Name
    model: OneLine
    task: OneLine
    axes: tuple[OneLine, ...]
    problems: OneLine
    seed: Seed


def count_independent_trials(count: int, together: int | None = None) -> float:
    """Return the effective number of independent trials in ``count`` problems (Kish 1965). If a rule chose one loop for
    each batch of ``together`` problems, a batch is one trial, and a partial batch counts for less."""
    full, remainder = divmod(count, together or 1)
    return count**2 / (full * (together or 1) ** 2 + remainder**2)


def count_problems(row: Mapping[str, Any]) -> int:
    """Return the number of problems that a row's interval counts: problems repeated from a fixed set count once."""
    return row.get("distinct", row["count"]) if row.get("fixed_set") else row["count"]


def count_effective_trials(row: Mapping[str, Any]) -> float:
    """Return the effective number of independent trials of a score's row."""
    return count_independent_trials(count_problems(row), row.get("together"))


def wilson_interval(proportion: float, count: float, z: float = NORMAL_QUANTILE) -> tuple[float, float]:
    """Return the lower and upper end of Wilson's (1927) interval of a ``proportion`` of ``count`` trials. ``count`` may
    be fractional (see ``count_independent_trials``); ``z`` is the normal quantile. Raises ValueError if ``count`` is
    below 1."""
    if count < 1:
        raise ValueError(f"an interval needs at least one trial, not {count}")
    centre = proportion + z * z / (2 * count)
    spread = z * math.sqrt(proportion * (1 - proportion) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    # Rounding must not put a proportion of 0 or 1 outside its own interval.
    low = 0.0 if proportion == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if proportion == 1 else min(1.0, (centre + spread) / scale)
    return low, high


def select_worst_families(rows: Iterable[Row]) -> list[Row]:
    """Return the worst family's row for each size and stopping rule at which all families were measured, with the
    interval of ``compute_worst_interval``."""
    rows = list(rows)
    structured = [row for row in select_reported_rows(rows) if row["problems"] not in NON_FAMILIES]
    groups = group_by(structured, lambda row: (tuple(row["sizes"]), row["stopping"]))
    complete = {(tuple(row["sizes"]), row["stopping"]) for row in rows if is_full_family_run(row)}
    return [select_worst_row(group) | compute_worst_interval(group) for key, group in groups.items() if key in complete]


def compute_worst_interval(rows: Sequence[Row]) -> dict[str, float]:
    """Return the 95 % interval of the lowest exact match of several families, as ``low`` and ``high``. The family with
    the lowest score was picked among all, so the interval is that of a minimum, from Wilson intervals that hold for
    all families at once (Bonferroni's correction)."""
    z = NormalDist().inv_cdf(1 - 0.025 / len(rows))
    lows, highs = zip(*(wilson_interval(row["exact"], count_effective_trials(row), z) for row in rows), strict=True)
    return {"low": min(lows), "high": min(highs)}


def student_quantile(degrees_of_freedom: float, bins: int = 1_000) -> float:
    """Return the .975 quantile of Student's t to three decimals, for 1 to 1,000 degrees of freedom. With t = √f · tan a
    for f degrees of freedom, the density is proportional to cos(a)^(f − 1); it is summed numerically over the angle
    a."""
    import numpy as np  # late: `list` and most reports do not need it

    if degrees_of_freedom < 1:
        raise ValueError(f"Student's t needs one degree of freedom or more, not {degrees_of_freedom}")
    edges = np.linspace(0, math.pi / 2, bins + 1)
    sums = np.cumsum(np.cos((edges[1:] + edges[:-1]) / 2) ** (degrees_of_freedom - 1))
    return math.sqrt(degrees_of_freedom) * math.tan(np.interp(0.95 * sums[-1], sums, edges[1:]))


def welch_interval(
    difference: float, standard_errors: tuple[float, float], counts: tuple[int, int]
) -> tuple[float, float]:
    """Return Welch's (1947) 95 % interval of a ``difference`` of two means, from their ``standard_errors`` and
    the ``counts`` of values, two or more each. Raises ValueError if both standard errors are 0."""
    first, second = (error**2 for error in standard_errors)
    if first + second == 0:
        raise ValueError("Welch's interval needs values that differ")
    freedom = (first + second) ** 2 / (first**2 / (counts[0] - 1) + second**2 / (counts[1] - 1))
    margin = student_quantile(max(1.0, freedom)) * math.sqrt(first + second)
    return difference - margin, difference + margin


@dataclass(frozen=True)
class Claim:
    """A published result, shown next to this package's results."""

    system: str  # the name of the published model
    size: int
    reported: str  # the result as published, in numbers or words
    standing: str  # its source, and how reliable that is
    exact: float | None = None  # the result as exact match, if it can be plotted


MATRIX_LENGTH_FACTORS = (1.0, 3.2, 6.4)  # sizes in a cell of the task matrix, in multiples of the training length


# Thresholds that describe how the answers and states of looped weights change in the loops after T(n).
STILL_MOVEMENT = 5e-4  # mean relative movement below which a state counts as standing still
SLOW_MOVEMENT = 0.05  # mean relative movement below which a state counts as slow: between standing still and moving
RIGHT_EXACT_MATCH = 0.99  # exact match from which an answer counts as right
VERDICT_RULE = (
    f"settles: the last loop moves the state by less than {STILL_MOVEMENT:g} of its norm (mean over positions and "
    f"problems), right if exact match is then {RIGHT_EXACT_MATCH} or more; marginal: by less than {SLOW_MOVEMENT:g}; "
    f"cycles: by more, but by less than {STILL_MOVEMENT:g} over two loops; drifts: by more"
)


@dataclass(frozen=True)
class Fate:
    """The exact match of a set of weights after each loop, and how far each loop moves the state; h_k is the state
    after loop k. ``seed`` is the seed of the problems."""

    weights: str
    recipe: str
    trained_seed: int
    task: str
    sizes: tuple[int, ...]
    count: int
    seed: int
    planned: float  # T(n), mean over problems
    after: list[int]  # loops after each problem's own T(n); negative before it
    exact: list[float | None]  # fraction of problems whose answer is right
    moved: list[float | None]  # relative movement ‖h_k − h_{k−1}‖ / ‖h_k‖, mean over positions and problems
    moved_over_two: list[float | None]  # ‖h_k − h_{k−2}‖ / ‖h_k‖: small if the state returns after two loops
    cosine: list[float | None]  # cosine similarity of h_k to the state after the last loop
    map: list[list[float | None]] = field(repr=False)  # movement by loop and position, of one problem
    path: list[list[float]] = field(repr=False)  # the same problem's states on two principal components, by loop
    map_planned: int = 0  # T(n) of the problem of ``map`` and ``path``

    def exact_after(self, loops: int) -> float:
        """Return the exact match after T(n) + ``loops`` loops."""
        return self.exact[self.after.index(loops)] or 0.0

    @property
    def verdict(self) -> str:
        """``settles right``, ``settles wrong``, ``cycles``, ``marginal`` or ``drifts``: see ``VERDICT_RULE``."""
        last_moves = self.moved[-1], self.moved_over_two[-1]
        one_loop, two_loops = (math.inf if move is None else move for move in last_moves)
        if one_loop < STILL_MOVEMENT:
            return "settles right" if self.exact_after(self.after[-1]) >= RIGHT_EXACT_MATCH else "settles wrong"
        if one_loop < SLOW_MOVEMENT:
            return "marginal"
        return "cycles" if two_loops < STILL_MOVEMENT else "drifts"

    def rows(self) -> list[Row]:
        """Return one row per loop, with the measured fields of this class. ``moved`` and ``moved_over_two`` are None
        where there is no earlier state."""
        constants: Row = {
            "weights": self.weights, "recipe": self.recipe, "seed": self.trained_seed,
            "task": self.task, "sizes": list(self.sizes), "count": self.count,
        }  # fmt: skip
        names = ("after", "exact", "moved", "moved_over_two", "cosine")
        columns = zip(self.after, self.exact, self.moved, self.moved_over_two, self.cosine, strict=True)
        return [constants | dict(zip(names, values, strict=True)) for values in columns]


def group_seeds(fates: Iterable[Fate]) -> list[list[Fate]]:
    """Group the fates of each recipe's seeds, in the order in which recipes first occur."""
    return [*group_by(fates, lambda fate: (fate.recipe, fate.task, fate.sizes)).values()]


def format_seeds(fates: Sequence[Fate]) -> str:
    """Return the name of the weights if there is one set, else the recipe and the number of seeds."""
    return fates[0].weights if len(fates) == 1 else f"{fates[0].recipe}, {len(fates)} seeds"


def format_verdicts(fates: Sequence[Fate]) -> str:
    """Return the verdict if all seeds have the same verdict, else the number of seeds with each verdict."""
    verdicts = Counter(fate.verdict for fate in fates)
    return ", ".join(name if len(verdicts) == 1 else f"{name} {count}" for name, count in verdicts.most_common())
