"""Which architecture generalizes on which formal language? All architectures are trained by the same protocol."""

from __future__ import annotations

from lengthwise.base.fields import validate_arguments
from lengthwise.base.formatting import format_task_name
from lengthwise.base.results import MATRIX_LENGTH_FACTORS
from lengthwise.experiment.study import Panel, Study, check_unique
from lengthwise.recipes.formal import ARCHITECTURES, TASKS, Scale, build_formal_recipe

TASK_TITLES = {"s3": "Words over S3", "s5": "Words over S5"}
SUFFIX = "-families"  # ends the name of a method that trains with half of each batch from families


@validate_arguments
def formal(tasks: str = "all", methods: str = "all", scale: Scale = "cpu") -> Study:
    """Formal languages: a panel per task, and a matrix of scores on uniform problems and worst families, at 1, 3.2 and
    6.4 times the training length. ``methods`` and ``tasks`` may name user-defined mixers and tasks. A method that ends
    in ``-families`` trains with half of each batch from the task's families.
    """
    task_names = [*TASKS] if tasks == "all" else tasks.split(",")
    names = [*ARCHITECTURES] if methods == "all" else methods.split(",")
    check_unique(task_names, "tasks")
    check_unique(names, "methods")
    panels = []
    for task in task_names:
        recipes = tuple(
            build_formal_recipe(task, name.removesuffix(SUFFIX), scale, families=0.5 * name.endswith(SUFFIX))
            for name in names
        )
        top = recipes[0].lengths.top
        title = TASK_TITLES.get(task, format_task_name(task)) + f", trained on up to {top}"
        sizes = tuple(round(times * top) for times in MATRIX_LENGTH_FACTORS)
        panels.append(Panel(title, recipes, sizes, far_families=True, highlight=recipes[-1].name, name=task))
    note = "1,000 steps at the cpu scale, 10,000 at paper, 30,000 at long; widths and curriculum are the same for all."
    return Study("Formal languages", tuple(panels), note, samples=200, matrix=True)
