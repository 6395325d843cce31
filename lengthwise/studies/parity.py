"""Parity: does a loop per bit generalize to five times the training length?"""

from __future__ import annotations

from lengthwise.experiment.study import Panel, Study
from lengthwise.recipes.window import looped_parity


def parity() -> Study:
    """The looped model on parity, trained on up to 20 bits."""
    title = "Parity, trained on up to 20 bits"
    return Study(title, (Panel(title, (looped_parity(),), (10, 20, 26, 30, 40, 60, 100)),))
