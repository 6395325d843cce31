"""Control experiments that measure the effects of the loop and of the window."""

from __future__ import annotations

from lengthwise.experiment.study import Panel, Study, parse_names
from lengthwise.recipes.controls import build_controls as recipes
from lengthwise.recipes.pairs import looped_pairs, standard_pairs
from lengthwise.recipes.window import CONTROLLED_RECIPES


def controls(tasks: str = "pairs") -> Study:
    """Our looped models, and the same models without the loop, the window, or both, trained on the same data."""
    panels = []
    for task in parse_names(tasks, ("pairs", *CONTROLLED_RECIPES)):
        arms = tuple(recipe for name, recipe in recipes().items() if name.startswith(f"control-{task}-"))
        if task == "pairs":
            arms = (looped_pairs(), *arms, standard_pairs())
        top = arms[0].lengths.top
        title = f"{task.replace('-', ' ').capitalize()}, trained on up to {top}: loop, window, both or neither"
        panels.append(Panel(title, arms, (top // 2, top, 2 * top, 3 * top), highlight=arms[0].name, name=task))
    note = "Nothing was chosen by these figures. Ignore longer problems of a recipe that fails at training lengths."
    return Study("What the loop does, and what the window", tuple(panels), note, highlight="both")
