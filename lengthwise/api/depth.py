"""The Python interface of ``depth``: run looped weights for more than T(n) loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.api.arguments import resolve_sizes
from lengthwise.base import fields
from lengthwise.base.formatting import PrintedTable
from lengthwise.base.results import VERDICT_RULE, AnySize, Fate, format_seeds, format_verdicts, group_seeds
from lengthwise.base.score_rows import Row, format_share, format_size
from lengthwise.base.types import UsageError
from lengthwise.evaluation.depth import measure_fate
from lengthwise.runs.run import Run, Weights, load

if TYPE_CHECKING:
    from lengthwise.report.style import Drawing

LATER_LOOPS = (0, 1, 2, 5, 20)  # columns of the table, in loops after T(n); a column for the last loop follows
COLUMNS = ("weights", "size", "T(n)", *(f"T+{k}" if k else "T" for k in LATER_LOOPS), "last", "moved", "over 2", "fate")


class Fates(PrintedTable, list[Fate]):
    """A list with a ``Fate`` for each set of weights: how its answers and states change in the loops after T(n)."""

    title_above = False

    def rows(self) -> list[Row]:
        """Return a row for each loop of each set of weights."""
        return [row for fate in self for row in fate.rows()]

    def plot(self, title: str | None = None) -> Drawing:
        """Draw exact match and movement against loops, counted from T(n). For up to three models, add a loop × position
        map of the movement and the state's path in its first two principal components, both of one problem."""
        from lengthwise.report.depth_figure import draw_fate_figure  # late: it imports matplotlib

        return draw_fate_figure(self, title or "What more loops do")

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return ``COLUMNS``, and a row of cells for each recipe, with the smallest and largest value of its seeds."""
        return COLUMNS, [
            [format_seeds(seeds), format_size(seeds[0].sizes), f"{seeds[0].planned:.3g}",
             *(_format_span([fate.exact_after(k) for fate in seeds], format_share) if k <= seeds[0].after[-1] else ""
               for k in (*LATER_LOOPS, seeds[0].after[-1])),
             *(_format_span([values[-1] for values in courses], "{:.0e}".format) for courses in
               zip(*((fate.moved, fate.moved_over_two) for fate in seeds), strict=True)),
             format_verdicts(seeds)] for seeds in group_seeds(self)
        ]  # fmt: skip

    def title(self) -> str:
        """Return a note that explains the columns and the fates."""
        last = sorted({fate.after[-1] for fate in self})
        return f"Exact match at T(n), later, and last (T + {', '.join(map(str, last))}); {VERDICT_RULE}"


def _format_span(values: Sequence[float | None], format_value: Callable[[float], str]) -> str:
    """Format the smallest and the largest value of several seeds, or one value if they look the same."""
    known_values = [value for value in values if value is not None]
    texts = [format_value(min(known_values)), format_value(max(known_values))] if known_values else ["–"]
    return " to ".join(dict.fromkeys(texts))


@fields.validate_arguments
def depth(
    weights: str | Path | Run | Weights | Sequence[str | Path | Run | Weights],
    size: AnySize | Sequence[AnySize] | None = None,
    *,
    more: int = 100,
    samples: int = 64,
    seed: int = 0,
) -> Fates:
    """Run looped weights for T(n) + ``more`` loops on ``samples`` new problems, chosen by ``seed``, and measure
    how answers and states change.

    ``weights`` are one or several sets of weights, e.g. ``["looped-pairs", "looped-parity"]``; ``size`` is the largest
    training size unless given. The result prints as a table of fates, the seeds of a recipe in one line. ``rows()`` has
    a row per loop (see ``Fate.rows``): exact match, how far one and two loops moved the state, and its cosine
    similarity to the last state. ``plot()`` draws them. Raises UsageError for a model that is not looped, or whose
    answer is part of its input.
    """
    listed: list[Any] = list(weights) if isinstance(weights, (list, tuple)) else [weights]
    if not listed:
        raise UsageError("depth: name weights, such as looped-parity")
    check_named_once([item for item in listed if isinstance(item, (str, Path))])
    if more < 1 or samples < 1:
        raise UsageError(f"depth: more and samples must be 1 or more, not {more} and {samples}")
    loaded = [item if isinstance(item, Weights) else load(item) for item in listed]
    fates = Fates()
    for item in loaded:
        sizes = [None] if size is None else resolve_sizes(size, item.recipe.task)
        if len(sizes) > 1:
            raise UsageError(f"depth: give one size, not {len(sizes)} sizes")
        fates.append(measure_fate(item, sizes[0], extra_loops=more, samples=samples, seed=seed))
    return fates


def check_named_once(names: Sequence[str | Path]) -> None:
    """Raise UsageError if weights are named twice, since they would count as two seeds."""
    if repeated := [name for place, name in enumerate(names) if name in names[:place]]:
        raise UsageError(f"depth: {repeated[0]} is given more than once: list it once")
