"""Scores and comparisons in the Python API, which can be printed, plotted and converted to data frames. A comparison
shows scores side by side; ``pooled`` compares recipes by their means over seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lengthwise.base.errors import UsageError, quote_value
from lengthwise.base.extras import import_library
from lengthwise.base.files import to_path
from lengthwise.base.formatting import PrintedTable
from lengthwise.base.results import RunOutline, Score
from lengthwise.base.score_rows import (
    Row,
    format_loops,
    format_problem_count,
    format_scaled,
    format_share,
    format_size,
    list_interval_notes,
    list_loop_notes,
)
from lengthwise.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Scores(PrintedTable, list[Score]):
    """Score rows, in the order of the requested lengths; ``outline`` describes their recipe."""

    def __init__(self, scores: Iterable[Score], outline: RunOutline) -> None:
        super().__init__(scores)
        self.outline = outline

    @property
    def answers(self) -> list[Row]:
        """A row per problem, in the order of the scores; empty unless ``evaluate`` was called with ``rows``."""
        return [row for score in self for row in score.answers]

    def rows(self) -> list[Row]:
        """Return the scores as plain values, for JSON and CSV."""
        return [score.row() for score in self]

    def frame(self) -> Any:
        """Return a tidy pandas DataFrame: a row per score, a column per size axis (``length``, or ``first`` and
        ``second``). Raises UsageError if pandas is not installed."""
        rows = []
        for score in self:
            row = score.row()
            sizes = dict(zip(self.outline.axes, row.pop("sizes"), strict=True))
            rows.append(sizes | row)
        return to_data_frame(rows)

    def plot(self, title: str | None = None) -> Figure:
        """Draw exact match against length, or a heat map over two sizes. Raises UsageError without scores."""
        return _draw_scores([self], [self.outline.name], title)

    def savefig(self, path: str | Path, title: str | None = None) -> Path:
        """Save the figure in the format of the file's extension, .png, .svg or .pdf; return its path."""
        return save_figure(lambda: self.plot(title), path)

    def compare(self, *others: Scores) -> Comparison:
        """Compare these scores with others, size by size. Raises UsageError if they have no size in common."""
        if strangers := [other for other in others if not isinstance(other, Scores)]:
            raise UsageError(f"compare takes scores, not {quote_value(strangers[0])}; lw.compare takes runs")
        return Comparison([self, *others])

    @property
    def rules(self) -> list[str]:
        """The stopping rules of these scores."""
        return list(dict.fromkeys(score.stopping for score in self))

    def table(self) -> tuple[list[str], list[list[str]]]:
        several = len(self.rules) > 1
        scaled, final = (any(getattr(score, name) is not None for score in self) for name in ("scaled", "final"))
        rows = [
            [format_size(s.sizes), s.problems, *[s.stopping] * several, format_share(s.exact, 3),
             "–".join(format_share(end, 3) for end in s.interval), *[format_scaled(s.final)] * final,
             *[format_scaled(s.scaled)] * scaled, format_loops(s.row()), format_problem_count(s.count, s.distinct)]
            for s in self
        ]  # fmt: skip
        heads = ["size", "problems", *["stopping"] * several, "exact match", "95 % interval"]
        return [*heads, *["final part"] * final, *["scaled"] * scaled, "loops", "count"], rows

    def title(self) -> str:
        """Return the recipe's name, its training length if known, and notes on intervals and loops."""
        trained = [f"trained up to {format_size(self.outline.tops)}"] if self.outline.top else []
        rows = self.rows()
        return "; ".join([", ".join([self.outline.name, *trained]), *list_interval_notes(rows), *list_loop_notes(rows)])


class Comparison(PrintedTable):
    """Two or more ``Scores`` side by side, for each size and set of problems that all of them share. If a recipe was
    measured by several stopping rules, only its own rule is compared. ``difference`` is the exact match of the last
    scores minus that of the first, with Newcombe's 95 % interval (see ``newcombe_interval``). This covers the sampling
    of problems, but not the spread between training seeds. Raises UsageError for scores of different tasks."""

    title_above = False

    def __init__(self, scores: Sequence[Scores]) -> None:
        if len(scores) < 2:
            raise UsageError("compare takes two or more runs or scores")
        self.scores: list[Scores] = []
        for one in scores:
            name, own = one.outline.name, one.outline.stopping
            if len(one.rules) > 1 and own not in one.rules:
                raise UsageError(f"compare: {name} was measured by {' and '.join(one.rules)}: evaluate it by one rule")
            kept = [score for score in one if score.stopping == own]
            self.scores.append(Scores(kept, one.outline) if len(one.rules) > 1 else one)
        if len(tasks := dict.fromkeys(one.outline.task for one in scores)) > 1:
            raise UsageError(f"compare: {' and '.join(tasks)} are different tasks; compare scores of one task")
        # Names are the recipes' names; if these repeat, seed, stopping rule, id or position are added.
        forms = "{name}", "{name} {seed}", "{name} {rule}", "{name} {seed} {rule}", "{name}-{id}"
        for form in (*forms, "{name} {seed} ({number})"):
            self.names = [
                form.format(**vars(one.outline), rule="".join(one.rules), number=number)
                for number, one in enumerate(self.scores, 1)
            ]
            if len(set(self.names)) == len(scores):
                break
        self._found = [{(one.sizes, one.problems): one for one in reversed(part)} for part in self.scores]
        self.keys = [key for key in reversed(self._found[0]) if all(key in other for other in self._found)]
        if not self.keys:
            measured = "; ".join(", ".join(format_size(one.sizes) for one in part[:5]) for part in self.scores)
            raise UsageError(f"compare: no problem set was measured at the same size in all scores (sizes {measured})")

    def rows(self) -> list[Row]:
        """Return a row per size and set of problems: exact match in each of the scores, and the difference with its
        interval."""
        rows = []
        for key in self.keys:
            scores_at_key = [part[key] for part in self._found]
            first, last = scores_at_key[0], scores_at_key[-1]
            # Answers cannot be paired if a stopping rule chose loops for a whole batch, nor if counts differ, since the
            # larger set may then contain the smaller.
            pairing: Pairing = "unknown"
            if first.outcomes and last.outcomes and not (first.together or last.together) and first.count == last.count:
                pairing = "paired" if first.outcomes.problems_digest == last.outcomes.problems_digest else "independent"
            difference, low, high = newcombe_interval(first, last, pairing)
            shares = {name: score.exact for name, score in zip(self.names, scores_at_key, strict=True)}
            rows.append({"size": format_size(first.sizes), "problems": first.problems, **shares,
                         "difference": difference, "low": low, "high": high, "pairing": pairing})  # fmt: skip
        return rows

    def frame(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        return to_data_frame(self.rows())

    def plot(self, title: str | None = None) -> Figure:
        """Draw exact match against length, with a line for each of the scores."""
        return _draw_scores(self.scores, self.names, title)

    def savefig(self, path: str | Path, title: str | None = None) -> Path:
        """Save the figure in the format of the file's extension, .png, .svg or .pdf; return its path."""
        return save_figure(lambda: self.plot(title), path)

    def table(self) -> tuple[list[str], list[list[str]]]:
        heads = ["size", "problems", *self.names, "difference", "95 % interval"]
        rows = [
            [row["size"], row["problems"], *(format_share(row[name], 3) for name in self.names),
             f"{row['difference']:+.3f}", f"{row['low']:+.3f} … {row['high']:+.3f}"] for row in self.rows()
        ]  # fmt: skip
        return heads, rows

    def title(self) -> str:
        used = {row["pairing"] for row in self.rows()}
        pairings = "; ".join(text for pairing, text in PAIRINGS.items() if pairing in used)
        return f"difference: the last minus the first. {pairings}. They do not cover the spread between training seeds."


Pairing = Literal["paired", "independent", "unknown"]
PAIRINGS: dict[Pairing, str] = {
    "paired": "Intervals are paired: the problems are the same",
    "independent": "Intervals are for independent samples: the problems differ",
    "unknown": "Without single answers, as in a run's rows, intervals are the widest consistent with the scores",
}


def newcombe_interval(first: Score, second: Score, pairing: Pairing = "independent") -> tuple[float, float, float]:
    """Return the difference of exact match, second − first, and both ends of Newcombe's 95 % interval: for independent
    samples (1998, Statistics in Medicine 17, 873–890, method 10), or for pairs (ibid., 2635–2650, method 10), which
    need both scores' ``outcomes``. "unknown" pairing takes the lowest correlation that the scores permit."""
    (low1, high1), (low2, high2) = first.interval, second.interval
    p, q, phi = first.exact, second.exact, 0.0
    if pairing == "paired":
        if first.outcomes is None or second.outcomes is None:
            raise ValueError("paired intervals need the outcomes of both scores")
        pairs = Counter(zip(first.outcomes.correct_flags, second.outcomes.correct_flags, strict=True))
        both, neither, first_only, second_only = pairs[1, 1], pairs[0, 0], pairs[1, 0], pairs[0, 1]
        product = (both + first_only) * (second_only + neither) * (both + second_only) * (first_only + neither)
        excess = both * neither - first_only * second_only
        excess = max(0.0, excess - first.count / 2) if excess > 0 else excess  # Newcombe's correction
        phi = excess / math.sqrt(product) if product else 0.0
    elif pairing == "unknown":  # as few problems as possible are right in both
        spread = math.sqrt(p * (1 - p) * q * (1 - q))
        phi = max(-1.0, (max(0.0, p + q - 1) - p * q) / spread) if spread else 0.0

    def compute_margin(p_gap: float, q_gap: float) -> float:
        return math.sqrt(max(0.0, p_gap * p_gap - 2 * phi * p_gap * q_gap + q_gap * q_gap))

    return q - p, q - p - compute_margin(q - low2, high1 - p), q - p + compute_margin(high2 - q, p - low1)


class _UnsavedScores(RunFolder):
    """Scores that are not saved, in the form of a run's folder, which reports read."""

    def __init__(self, scores: Scores, name: str, number: int) -> None:
        super().__init__(Path(f"{name}-{number}"))
        # Numbered, so that two scores of one recipe (two rules, or two seeds) are separate curves.
        self.outline = replace(scores.outline, name=name, seedless_id=f"{scores.outline.seedless_id}-{number}")
        self.scores = scores

    def rows(self, name: str) -> list[Row]:
        return [row | {"seed": 0} for row in self.scores.rows()] if name == "scores" else []


def _draw_scores(scores: Sequence[Scores], names: Sequence[str], title: str | None) -> Figure:
    from lengthwise.report.length_figure import draw_score_figure  # late: matplotlib is slow to import

    folders = [_UnsavedScores(*pair, number) for number, pair in enumerate(zip(scores, names, strict=True))]
    return draw_score_figure(folders, title)


def save_figure(draw: Callable[[], Figure], path: str | Path) -> Path:
    """Save the figure that ``draw`` returns; return its path. Raises UsageError if the extension is unknown."""
    from lengthwise.report.style import KNOWN_FORMATS, save  # late: matplotlib is slow to import

    target = to_path(path)
    file_format = target.suffix.lstrip(".").lower()
    if file_format not in KNOWN_FORMATS:
        raise UsageError(f"{target}: a figure's name must end in one of .{', .'.join(KNOWN_FORMATS)}")
    save(draw(), target.with_suffix(""), [file_format])
    return target


def to_data_frame(rows: Sequence[Row]) -> Any:
    """Return rows as a pandas DataFrame. Raises UsageError if pandas is not installed."""
    return import_library("pandas", "frame", "frame() needs pandas, which is not installed").DataFrame(rows)
