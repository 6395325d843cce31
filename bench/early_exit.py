"""The processor time of rules that stop rows early, compared with a trace that runs every row and position to its limit
and then chooses a loop. Both are measured in turns on the same problems. Claims: answers are equal, and early stopping
is 12 times as fast as the trace on random sums of 100 digits, 3.5 times on carry chains of 100 digits, and 1.4 times on
parity by weights that halt.

``to_dropping`` compares early stopping with the trace that the package uses for rules that read all loops: this trace
drops positions that the last loops do not need.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import torch
from common import QUICK, print_result, summarize_ratios

from lengthwise.base.types import Batch
from lengthwise.evaluation.answers import Predictions, predict_by_rules, trace_loops
from lengthwise.evaluation.scores import split_batches
from lengthwise.experiment.data import draw_recipe_problems
from lengthwise.experiment.stopping import choose_loops, compute_loop_limits
from lengthwise.runners.cpu import transformer
from lengthwise.runs.run import Weights, load

# Weights, kind and number of problems, size, and the least ratio that is claimed. Carry chains differ widely in length,
# so the ratio over 64 of them would vary from 3.5 to 6 with the draw.
CASES = {
    "uniform": ("looped-pairs", "uniform", 64, 100, 12.0),
    "carries": ("looped-pairs", "carry-chain", 256, 100, 3.5),
    "halting": ("halting-parity", "uniform", 256, 40, 1.4),
}
Predict = Callable[[Weights, Batch], Predictions]


def predict_early(weights: Weights, batch: Batch) -> Predictions:
    return predict_by_rules(weights.model, weights.recipe, batch, [weights.recipe.stopping])[0]


@torch.no_grad()
def predict_from_trace(weights: Weights, batch: Batch) -> Predictions:
    """Trace all loops, and return the answers after the loops that the rule chooses."""
    model, recipe, rule = weights.model, weights.recipe, weights.recipe.stopping
    planned, row = recipe.loops.planned(batch.rounds), torch.arange(len(batch))
    limit = compute_loop_limits(rule, planned)
    found = trace_loops(model, batch, limit, recipe.layout.end_id(recipe.task))
    chosen = choose_loops(rule, replace(found, loops=limit), planned, limit)
    return Predictions(found.predictions[chosen - 1, row], found.confidence[chosen - 1, row], chosen, loops_run=limit)


def predict_from_whole_trace(weights: Weights, batch: Batch) -> Predictions:
    """Return the answers from a trace that computes all positions in all loops."""
    with mock.patch.object(transformer, "MAX_NEEDED_FRACTION", -1.0):
        return predict_from_trace(weights, batch)


PREDICTORS: dict[str, Predict] = {
    "early": predict_early,
    "dropping": predict_from_trace,
    "whole": predict_from_whole_trace,
}


def measure(name: str, kind: str, samples: int, size: int, claim: float) -> dict[str, object]:
    weights = load(name)
    weights.model.eval()
    recipe = weights.recipe
    samples, size, repeats = (8, 6, 1) if QUICK else (samples, size, 3)
    problems = draw_recipe_problems(recipe, recipe.sizes(size), samples, seed=0, kind=kind)
    batches = [batch for _, batch in split_batches(recipe, problems)]
    times: dict[str, list[float]] = {way: [] for way in PREDICTORS}
    found = {}
    for _ in range(repeats):
        for way, answer in PREDICTORS.items():
            start = time.process_time()
            found[way] = [answer(weights, batch) for batch in batches]
            times[way].append(time.process_time() - start)
    ratios, to_dropping = (
        [slow / fast for slow, fast in zip(times[way], times["early"], strict=True)] for way in ("whole", "dropping")
    )
    pairs = list(zip(found["early"], found["whole"], strict=True))
    return {
        "problems": samples,
        **summarize_ratios(ratios),
        "claim": claim,
        "to_dropping": round(statistics.median(to_dropping), 2),
        "loops_run": [round(float(torch.cat([one[i].loops_run for one in pairs]).float().mean()), 1) for i in (0, 1)],
        "unlike": sum(
            int((one.symbols != two.symbols).any(1).sum() + (one.loops != two.loops).sum()) for one, two in pairs
        ),
    }


def main() -> None:
    torch.set_num_threads(1)
    result = {case: measure(*how) for case, how in CASES.items()}
    met = all(found["ratio"] >= found["claim"] and not found["unlike"] for found in result.values())
    print_result("early_exit", **result, met=met)


if __name__ == "__main__":
    main()
