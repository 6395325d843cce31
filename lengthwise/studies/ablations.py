"""What the looped system owes to each of its parts, and a task that takes two loops one after the other."""

from __future__ import annotations

from lengthwise.recipes.ablations import ablations as recipes
from lengthwise.recipes.looped import variation
from lengthwise.studies import Panel, Study, chosen

# And what they are trained up to; of `published-…`, the published form has no window and no positions.
TASKS = {"parity": 20, "addition": 10, "flipped-copy": 20, "published-parity": 20, "published-binary-sum": 20}
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
    found = [recipe for name, recipe in recipes().items() if name.startswith(f"ablation-{task}-")]
    if task.startswith("published-"):
        found.insert(0, variation(task.removeprefix("published-"), "fop-loop-adaptive"))
    return Panel(
        title=f"{task.replace('-', ' ').capitalize()}, trained on up to {top}: one part changed",
        recipes=tuple(found),
        sizes=(top // 2, top, *(times * top for times in TIMES)),
        strong=found[0].name,
        name=task,
    )
