"""The demo: length generalization of a looped and a standard model."""

from __future__ import annotations

from lengthwise.experiment.study import Panel, Study
from lengthwise.recipes.pairs import looped_pairs, standard_pairs


def pairs() -> Study:
    """Both models of the pairs system, on the same kinds of sums."""
    title = "Sums of stacked digits, trained on up to 8"
    sizes = (4, 8, 12, 16, 20, 24, 50, 100)
    return Study(
        title=title,
        panels=(Panel(title, (looped_pairs(), standard_pairs()), sizes, hard=True, strong="looped-pairs"),),
    )
