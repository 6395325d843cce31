"""Distribution of curves over panels, and their styles and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lengthwise.report import Curve, fits_of, lost, not_fitted, rule_text
from lengthwise.report.lines import Look, look, short
from lengthwise.report.style import COLOURS, DASHES

Aspect = Literal["label", "stopping", "problems"]  # fields that together identify a curve
ASPECTS: tuple[Aspect, ...] = ("label", "stopping", "problems")


@dataclass(frozen=True)
class Plot:
    """One panel with its curves; ``strong`` if it is highlighted."""

    title: str
    curves: list[Curve]
    looks: list[Look]
    strong: bool = False


def plots(curves: Sequence[Curve], strong: str | None) -> tuple[list[Plot], str]:
    """Return the panels, and what the names of all recipes have in common. ``strong`` is the recipe to highlight.

    There is one panel unless there are more recipes and rules than colours: then one per recipe if recipes have several
    stopping rules, otherwise one per set of problems if there are several.
    """
    heading, labels = short([curve.label for curve in curves])
    brief = dict(zip((curve.label for curve in curves), labels, strict=True))
    split = _choose_aspect(curves)
    looks = _looks(curves, split, brief, strong)
    groups: dict[str, list[int]] = {}
    for number, curve in enumerate(curves):
        groups.setdefault(str(getattr(curve, split)) if split else "", []).append(number)
    panels = [
        Plot(_title(key, split, brief), [curves[i] for i in group], [looks[i] for i in group], key == strong)
        for key, group in groups.items()
    ]
    return panels, heading


def _choose_aspect(curves: Sequence[Curve]) -> Aspect | None:
    kinds = {(curve.label, curve.stopping) for curve in curves}
    if len(kinds) <= len(COLOURS):
        return None
    if 1 < len({label for label, _ in kinds}) < len(kinds):
        return "label"
    return "problems" if len({curve.problems for curve in curves}) > 1 else None


def _title(key: str, split: Aspect | None, brief: dict[str, str]) -> str:
    return brief[key] if split == "label" else f"{key} problems" if split else ""


def _looks(curves: Sequence[Curve], split: Aspect | None, brief: dict[str, str], strong: str | None) -> list[Look]:
    """Return a style per curve. Within a panel the colour identifies the curve and the dash its set of problems; if
    there are too few colours or dashes, each curve is numbered instead."""

    def identity(curve: Curve, *but: str | None) -> tuple[Any, ...]:
        return tuple(getattr(curve, part) for part in ASPECTS if part not in (split, *but))

    first = sorted(curves, key=lambda curve: curve.label != strong)  # the order of colours
    colours = list(dict.fromkeys(identity(curve, "problems") for curve in first))
    numbers = list(dict.fromkeys(identity(curve) for curve in first))
    sets = sorted({curve.problems for curve in curves}, key=lambda problems: problems != "uniform")
    twins = split != "problems" and len(colours) <= len(COLOURS) and len(sets) <= len(DASHES)
    fits = fits_of(curves)
    return [
        look(
            colours.index(identity(curve, "problems")) if twins else numbers.index(identity(curve)),
            sets.index(curve.problems) if twins else None,
            name=_name(curve, curves, split, brief),
            strong=curve.stopping == first[0].stopping if split == "label" else curve.label == strong and split is None,
            note=_note(curve, fits.get(curve.label)) if curve.problems == "uniform" and not split else "",
        )
        for curve in curves
    ]


def _note(curve: Curve, fit: float | None) -> str:
    return ", ".join(filter(None, [not_fitted(fit, curve.top), lost(curve.diverged)]))


def _name(curve: Curve, curves: Sequence[Curve], split: Aspect | None, brief: dict[str, str]) -> str:
    rules = {other.stopping for other in curves if other.label == curve.label}
    parts = [
        *([brief[curve.label]] if split != "label" else []),
        *([rule_text(curve.stopping)] if curve.stopping and (split == "label" or len(rules) > 1) else []),
        *([curve.problems] if curve.problems != "uniform" and split != "problems" else []),
    ]
    return ", ".join(parts)
