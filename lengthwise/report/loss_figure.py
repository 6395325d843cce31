"""The course of training: loss, and exact match measured meanwhile."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from lengthwise.base.errors import UsageError
from lengthwise.folder import RunFolder
from lengthwise.report import by_recipe
from lengthwise.report.lines import MARKS, Look, name_lines, up, width
from lengthwise.report.style import COLOURS, INK, MARKERS, settled, styled


@styled()
def loss_figure(runs: Iterable[RunFolder], *, watch: bool = True) -> Figure:
    """Loss against steps on a log axis: what was logged, thin, and its running geometric mean. With ``watch``, beneath
    it the exact match measured while training, where there is any. UsageError if no run has logged a loss."""
    groups = {name: [_Training.of(run) for run in group] for name, group in by_recipe(runs).items()}
    groups = {name: logged for name, group in groups.items() if (logged := [one for one in group if one.losses])}
    if not groups:
        raise UsageError("no loss to draw: these runs have logged none that is finite and above 0")
    sizes = list(dict.fromkeys(size for group in groups.values() for one in group for size in one.watched))
    below = watch and bool(sizes)
    figure = Figure((width(groups), 4.4 if below else 2.9), layout="constrained")
    panels = figure.subplots(1 + below, 1, sharex=True, squeeze=False, height_ratios=[3, 2] if below else [1])[:, 0]
    _draw_losses(panels[0], groups)
    if below:
        _draw_watched(panels[1], groups, sizes)
    panels[-1].set_xlabel("steps")
    panels[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panels[-1].set_xlim(left=0)
    return settled(figure)


@dataclass(frozen=True)
class _Training:
    """What a run has logged, as (step, value)."""

    losses: list[tuple[int, float]]  # finite and above 0: a log axis cannot show the rest
    watched: dict[str, list[tuple[int, float]]]  # exact match, by size

    @staticmethod
    def of(run: RunFolder) -> _Training:
        rows = run.rows("metrics")
        losses = [(row["step"], float(row["loss"])) for row in rows if row.get("loss") is not None]
        watched: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            for size, share in row.get("exact", {}).items():
                watched.setdefault(size, []).append((row["step"], float(share)))
        return _Training([(step, loss) for step, loss in losses if 0 < loss < math.inf], watched)


def _draw_losses(axes: Axes, groups: dict[str, list[_Training]]) -> None:
    axes.set_yscale("log")
    axes.set_ylabel("loss (nats)")
    looks, ends = [], []
    for number, (name, group) in enumerate(groups.items()):
        look = Look(name, COLOURS[number % len(COLOURS)], "")
        last = []
        for one in group:
            steps, losses = zip(*one.losses, strict=True)
            smooth = _running_mean(losses)
            axes.plot(steps, losses, color=look.colour, linewidth=0.4, alpha=0.35, zorder=2)
            axes.plot(steps, smooth, color=look.colour, linewidth=1.3, zorder=3)
            last.append(smooth[-1])
        looks.append(look)
        ends.append(statistics.geometric_mean(last))
    low, high = (math.log(limit) for limit in axes.get_ylim())
    name_lines(axes, looks, [(math.log(end) - low) / (high - low) for end in ends])


def _draw_watched(axes: Axes, groups: dict[str, list[_Training]], sizes: Sequence[str]) -> None:
    """Colours are the recipes' as above; a marker for each size."""
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("exact match")
    looks = [Look(f"at {size}", INK, MARKERS[number % len(MARKERS)]) for number, size in enumerate(sizes)]
    ends: dict[str, list[float]] = {size: [] for size in sizes}
    for number, group in enumerate(groups.values()):
        for one in group:
            for look, size in zip(looks, sizes, strict=True):
                if points := one.watched.get(size):
                    steps, shares = zip(*points, strict=True)
                    line = look.line() | {"color": COLOURS[number % len(COLOURS)], "linewidth": 0.9}
                    axes.plot(steps, shares, markevery=math.ceil(len(steps) / MARKS), zorder=3, **line)
                    ends[size].append(shares[-1])
    name_lines(axes, looks, [up(statistics.fmean(ends[size])) for size in sizes])


def _running_mean(losses: Sequence[float], memory: float = 1 / 50) -> list[float]:
    """The geometric mean of what went before, its weights halving every ``memory`` of all values."""
    decay = 0.5 ** (1 / max(1.0, memory * len(losses)))
    total = weight = 0.0
    means = []
    for loss in losses:
        total, weight = decay * total + math.log(loss), decay * weight + 1
        means.append(math.exp(total / weight))
    return means
