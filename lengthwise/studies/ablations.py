"""What the looped system owes to each of its parts, and a task that takes two loops one after the other."""

from __future__ import annotations

from lengthwise.recipes.ablations import ablations as recipes
from lengthwise.studies import Panel, Study, chosen

TASKS = {"parity": 20, "addition": 10, "flipped-copy": 20}  # and what they are trained up to
TIMES = (2, 3, 5, 10)


def ablations(tasks: str = "all") -> Study:
    """Ours with one part changed at a time, measured at 2, 3, 5 and 10 times the training length."""
    return Study(
        title="Ablations of the looped system",
        panels=tuple(_panel(task) for task in chosen(tasks, TASKS)),
        note="One thing is changed at a time; nothing was chosen by these figures.",
        samples=200,
    )


def _panel(task: str) -> Panel:
    top = TASKS[task]
    return Panel(
        title=f"{task.replace('-', ' ').capitalize()}, trained on up to {top}: one part changed",
        recipes=tuple(recipe for name, recipe in recipes().items() if name.startswith(f"ablation-{task}-")),
        sizes=(top // 2, top, *(times * top for times in TIMES)),
        strong=f"ablation-{task}-ours",
        name=task,
    )
