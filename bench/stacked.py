"""The time of a step of several seeds as one stack, compared with steps of the same seeds one after the other. It is
measured on one CPU thread, at three sizes of looped parity with lengths uniform in 1…20. There is no claim: the figures
show when a stack saves time on a CPU.

``separate`` is the ratio of the time of separate steps to that of the stack. ``plainly`` is the same ratio if separate
steps use the plain runner, which computes the same as the stack. If a ratio is above 1, the stack is faster.
"""

import statistics
from dataclasses import replace

import torch
from common import QUICK, measure_seconds, print_result

from lengthwise.api import catalog
from lengthwise.experiment.lengths import Uniform
from lengthwise.experiment.recipe import Recipe, Watch
from lengthwise.runners import cpu
from lengthwise.training.arithmetic import computation_settings
from lengthwise.training.stacked import advance_together
from lengthwise.training.trainer import Trainer

SIZES = {  # recipe, changes, and number of measured steps
    "width 16, 8 rows": ("looped-parity", ["model.width=16", "batch=8"], 8),
    "ours: width 64, 32 rows": ("looped-parity", [], 4),
    "published: width 256, 64 rows": ("paper-fop-loop-adaptive-parity", [], 1),
}
SEED_COUNTS = (2,) if QUICK else (2, 4, 8)


def measure_ratios(recipe: Recipe, count: int, times: int) -> dict[str, list[float]]:
    """Return the median, smallest and largest of each ratio, over steps that are measured in turns."""
    recipes = [replace(recipe, seed=seed, data_seed=seed) for seed in range(count)]
    alone, plainly, together = ([Trainer(one, torch.device("cpu")) for one in recipes] for _ in range(3))

    def advance_separately(trainees: list[Trainer]) -> None:
        for one in trainees:
            one.advance()

    found: dict[str, list[float]] = {"separate": [], "plainly": []}
    for _ in range(times + 1):  # all of a turn take the same step, on the same problems
        stacked = measure_seconds(lambda: advance_together(together))
        found["separate"].append(measure_seconds(lambda: advance_separately(alone)) / stacked)
        with cpu.plain():
            found["plainly"].append(measure_seconds(lambda: advance_separately(plainly)) / stacked)
    # The first turn is left out: it allocates.
    summary = statistics.median, min, max
    return {name: [round(function(ratios[1:]), 2) for function in summary] for name, ratios in found.items()}


def main() -> None:
    result = {}
    for size, (name, changes, times) in [*SIZES.items()][: 1 if QUICK else None]:
        whole = catalog.find_recipe(name, changes)
        recipe = replace(whole, lengths=Uniform(20), watch=Watch(), keep="last")
        with computation_settings(1):
            result[size] = {count: measure_ratios(recipe, count, 1 if QUICK else times) for count in SEED_COUNTS}
    print_result("stacked", ratios=result)


if __name__ == "__main__":
    main()
