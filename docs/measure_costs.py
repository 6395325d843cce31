"""Measure the cost of a training step of every recipe of the studies, for `--dry-run` and `show`: `make costs`.

Stored costs are not measured again, and costs of recipes that no study has any more are removed. To measure all costs
again, delete `lengthwise/training/costs.json` first.
"""

import inspect
import json

from lengthwise.api import catalog
from lengthwise.base.files import write
from lengthwise.base.progress import Progress
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.resources import estimate_training
from lengthwise.training.cost import STORED_COSTS, measure_cost, read_stored_costs

SCALES = ("cpu", "half", "paper")
MAX_STEP_SECONDS = 1.0  # approximate; of larger batches only some rows are run


def list_study_recipes() -> dict[str, Recipe]:
    """Return all recipes of all studies, with all tasks and sizes at every scale, by id without seeds."""
    found: dict[str, Recipe] = {}
    for name, study in catalog.list_studies().items():
        known = inspect.signature(study).parameters
        wide = {option: "all" for option in ("tasks", "sizes") if option in known}
        scales = SCALES if "scale" in known else ("",)
        for scale in scales:
            try:
                made = catalog.find_study(name, **wide, **({"scale": scale} if scale else {}))
            except catalog.UsageError:  # a study need not have every scale
                continue
            found |= {recipe.seedless_id: recipe for recipe in made.recipes}
    return found


def main() -> None:
    """Measure missing costs, and store each immediately, so that the command can be interrupted."""
    wanted = list_study_recipes()
    stored = {key: row for key, row in read_stored_costs().items() if key in wanted}
    missing = [recipe for key, recipe in wanted.items() if key not in stored]
    with Progress() as progress:
        line = progress.add_line("costs", len(missing))
        for number, recipe in enumerate(missing):
            line.update(number, recipe.name)
            seconds = estimate_training(recipe).seconds / recipe.steps
            count = max(1, min(recipe.batch, round(recipe.batch * MAX_STEP_SECONDS / seconds)))
            price = measure_cost(recipe, n_steps=2, rows=count)
            stored[recipe.seedless_id] = {
                "recipe": recipe.name,
                "parameters": price.parameters,
                "memory": float(f"{price.memory:.3g}"),
                "operations": float(f"{price.operations:.3g}"),
                "seconds": float(f"{price.seconds:.3g}"),
                "source": price.source.replace("measured", "stored"),
            }
            rows = sorted(stored.items(), key=lambda item: (item[1]["recipe"], item[0]))
            lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows)
            write(STORED_COSTS, f"{{\n{lines}\n}}\n".encode())
    print(f"{STORED_COSTS}: {len(stored)} of {len(wanted)} recipes")


if __name__ == "__main__":
    main()
