"""Ablations of the looped system and of our variant of Abacus, and a task that needs two loops in sequence."""

from __future__ import annotations

from lengthwise.experiment.study import Panel, Study, parse_names
from lengthwise.recipes.ablations import build_ablations as recipes
from lengthwise.recipes.looped import SETTINGS, build_variation

# Tasks and their largest training size. `published-…` and `half-…` (half the training range) vary the published form,
# which has neither a window nor positions.
LARGEST_SIZES = {"parity": 20, "addition": 10, "flipped-copy": 20, "abacus": 10}
LARGEST_SIZES |= {"published-parity": 20, "published-binary-sum": 20}
LARGEST_SIZES |= {f"half-{task}": setting.top for task, setting in SETTINGS["half"].items()}


def ablations(tasks: str = "all") -> Study:
    """Our looped models with one part changed at a time, measured at 2, 3, 5 and 10 times the training length."""
    panels = []
    for task in parse_names(tasks, LARGEST_SIZES):
        top = LARGEST_SIZES[task]
        selected = [recipe for name, recipe in recipes().items() if name.startswith(f"ablation-{task}-")]
        if task.startswith("published-"):
            selected.insert(0, build_variation(task.removeprefix("published-"), "fop-loop-adaptive"))
        sizes: tuple[int, ...] = (top // 2, top, *(times * top for times in (2, 3, 5, 10)))
        if task.startswith("half-"):
            selected.insert(0, build_variation(task.removeprefix("half-"), "fop-loop-adaptive", "half"))
            sizes = tuple(range(top, 2 * top + 1))
        title = f"{task.replace('-', ' ').capitalize()}, trained on up to {top}: one part changed"
        panels.append(Panel(title, tuple(selected), sizes, highlight=selected[0].name, name=task))
    note = "One part is changed at a time; nothing was chosen by these figures."
    return Study("Ablations of the looped system", tuple(panels), note, samples=200)
