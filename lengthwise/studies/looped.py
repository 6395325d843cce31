"""Length generalization of eight methods on six tasks (Fan et al., 2025, figure 4), and of our variant."""

from __future__ import annotations

from typing import Any

from lengthwise.base.results import Claim
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import MaxConfidence, Oracle
from lengthwise.experiment.study import Panel, Study, check_unique
from lengthwise.recipes.looped import METHODS, SETTINGS, Scale, build_variation
from lengthwise.recipes.window import CONTROLLED_RECIPES

TEST_LENGTHS = {"parity": 40, "copy": 30, "addition": 30, "binary-sum": 24, "multiplication": 15, "unique-set": 30}
# Tasks where MaxConfidence searches up to 30 loops beyond the planned ones.
LONG_SEARCH_TASKS = ("multiplication", "unique-set")

OUR_METHOD = "looped"
MAIN_METHODS = (OUR_METHOD, "fop-loop-adaptive")  # the main method of figures: the first that is present

PAPER_SOURCE, CSV_SOURCE = "text of the paper; per-point figures are in plots only", "released CSV"
CLAIMS = {
    "parity": (
        Claim("NoPE decoder, 110M parameters", 22, "0.992", CSV_SOURCE),
        Claim("NoPE decoder, 110M parameters", 25, "0.962", CSV_SOURCE),
        Claim("NoPE decoder, 110M parameters", 30, "0.684", CSV_SOURCE),
        Claim("NoPE decoder, 110M parameters", 40, "0.421", CSV_SOURCE),
    )
}


def looped(tasks: str = "parity,copy", methods: str = "all", scale: Scale = "cpu") -> Study:
    """Looped transformers and their baselines (Fan et al., 2025): a curve per method, a figure per task.

    The cpu scale has one more method, ``looped``: our variant of the published one.
    """
    own_methods = [OUR_METHOD] if scale == "cpu" else []
    chosen = [*METHODS, *own_methods] if methods == "all" else methods.split(",")
    task_names = list(SETTINGS[scale]) if tasks == "all" and scale in SETTINGS else tasks.split(",")
    highlight, panels = next((name for name in MAIN_METHODS if name in chosen), chosen[-1]), []
    for task in task_names:
        recipes = {method: _find_recipe(task, method, scale) for method in chosen}
        top, tested = recipes[chosen[0]].lengths.top, scale_test_length(task, scale)
        extra = 30 if task in LONG_SEARCH_TASKS else 20
        claim = Claim("FOP-Loop-Adaptive", tested, "near-perfect; next-token baselines fail", PAPER_SOURCE)
        panel = Panel(
            title=f"{task.replace('-', ' ').capitalize()}, trained on up to {top}",
            recipes=tuple(recipes.values()),
            sizes=(tested,),
            curve=tuple(range(1, 3 * top + 1)),
            further_rules=(Oracle(), MaxConfidence(extra), MaxConfidence(extra, per="batch")),
            # There are no published results for half the range.
            claims=() if scale == "half" else (claim, *CLAIMS.get(task, ())),
            highlight=recipes[highlight].name,
            name=task,
        )
        panels.append(panel)
    check_unique(task_names, "tasks")
    check_unique(chosen, "methods")
    return Study("Looped transformers and their baselines", tuple(panels), samples=6400, highlight=highlight)


def scale_test_length(task: str, scale: Scale) -> int:
    """Return the test length of a task: the published test length, scaled to the training length of this scale."""
    return TEST_LENGTHS[task] * SETTINGS[scale][task].top // SETTINGS["paper"][task].top


def _find_recipe(task: str, method: Any, scale: Scale) -> Recipe:
    if method == OUR_METHOD and scale == "cpu" and task in CONTROLLED_RECIPES:
        return CONTROLLED_RECIPES[task]()
    return build_variation(task, method, scale)
