"""Length generalization of a looped and a standard model: the demo, the notebook's experiment, and parity."""

from __future__ import annotations

from lengthwise.experiment.study import Panel, Study, parse_names
from lengthwise.recipes.pairs import build_notebook_models as recipes
from lengthwise.recipes.pairs import looped_pairs, standard_pairs
from lengthwise.recipes.window import looped_parity

TASK_TITLES = {"decimal": "Decimal sums of 8 digits", "binary": "Binary sums of 8 bits, modulo 2ⁿ"}


def pairs() -> Study:
    """A looped and a standard model, trained on the same kinds of sums."""
    title = "Sums of stacked digits, trained on up to 8"
    sizes = (4, 8, 12, 16, 20, 24, 50, 100)
    return Study(title, (Panel(title, (looped_pairs(), standard_pairs()), sizes, hard=True, highlight="looped-pairs"),))


def notebook(tasks: str = "all") -> Study:
    """A standard and a looped encoder, trained on exactly 8 digits with the notebook's optimizer, steps and dropout."""
    panels, sizes = [], (4, 6, 8, 10, 12, 16, 20, 24)
    for name in parse_names(tasks, TASK_TITLES):
        selected = tuple(recipe for recipe in recipes().values() if recipe.name.endswith(name))
        panels.append(Panel(TASK_TITLES[name], selected, sizes, highlight=f"notebook-looped-{name}", name=name))
    note = "Nothing was chosen by these figures; dropout is off at test time, while the notebook left it on."
    return Study("Standard against looped, as in the notebook", tuple(panels), note)


def parity() -> Study:
    """The looped model on parity, trained on up to 20 bits."""
    title = "Parity, trained on up to 20 bits"
    return Study(title, (Panel(title, (looped_parity(),), (10, 20, 26, 30, 40, 60, 100)),))
