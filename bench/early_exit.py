"""Stopping early: answers by rules that stop, in processor time, against the full trace, which runs every row to its
limit and then chooses; in turns, on the same problems. Claim: uniform sums of 100 digits ≥ 12×; equal answers. Of carry
chains 34 of 123 loops are run, which allows 3.6×, with few rows in most of them; of parity by weights that halt two
thirds, and the full trace already drops the positions that its last loops do not need."""

import statistics
import time
from dataclasses import replace

import torch
from common import QUICK, print_result

from lengthwise.base.types import Batch
from lengthwise.evaluation.answers import Predictions, predict_by_rules, trace_loops
from lengthwise.evaluation.scores import split_batches
from lengthwise.experiment.data import evaluation_problems
from lengthwise.experiment.stopping import choose_loops, loop_limits
from lengthwise.runs.run import Weights, load

SAMPLES, REPEATS = (8, 1) if QUICK else (64, 3)
# Weights, kind of problems, size, and the least ratio that is claimed.
CASES = {
    "uniform": ("looped-pairs", "uniform", 6 if QUICK else 100, 12.0),
    "carries": ("looped-pairs", "carry-chain", 6 if QUICK else 100, 1.0),
    "halting": ("halting-parity", "uniform", 6 if QUICK else 40, 1.0),
}


def early(weights: Weights, batch: Batch) -> Predictions:
    return predict_by_rules(weights.model, weights.recipe, batch, [weights.recipe.stopping])[0]


@torch.no_grad()
def traced(weights: Weights, batch: Batch) -> Predictions:
    """Answer as before: trace all loops, then choose one."""
    model, recipe, rule = weights.model, weights.recipe, weights.recipe.stopping
    planned, row = recipe.loops.planned(batch.rounds), torch.arange(len(batch))
    limit = loop_limits(rule, planned)
    found = trace_loops(model, batch, limit, recipe.layout.end(recipe.task))
    chosen = choose_loops(rule, replace(found, loops=limit), planned, limit)
    return Predictions(found.predictions[chosen - 1, row], found.confidence[chosen - 1, row], chosen, ran=limit)


def measured(name: str, kind: str, size: int, claim: float) -> dict[str, object]:
    weights = load(name)
    weights.model.eval()
    recipe = weights.recipe
    batches = [
        batch
        for _, batch in split_batches(
            recipe, evaluation_problems(recipe, recipe.sizes(size), SAMPLES, seed=0, kind=kind)
        )
    ]
    ways, times, found = {"early": early, "traced": traced}, {"early": [], "traced": []}, {}
    for _ in range(REPEATS):
        for way, function in ways.items():
            start = time.process_time()
            found[way] = [function(weights, batch) for batch in batches]
            times[way].append(time.process_time() - start)
    ratios = [slow / fast for slow, fast in zip(times["traced"], times["early"], strict=True)]
    pairs = list(zip(found["early"], found["traced"], strict=True))
    return {
        "ratio": round(statistics.median(ratios), 2),
        "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        "claim": claim,
        "loops_run": [round(float(torch.cat([one[i].ran for one in pairs]).float().mean()), 1) for i in (0, 1)],
        "unlike": sum(
            int((one.symbols != two.symbols).any(1).sum() + (one.loops != two.loops).sum()) for one, two in pairs
        ),
    }


def main() -> None:
    torch.set_num_threads(1)
    result = {case: measured(*how) for case, how in CASES.items()}
    met = all(found["ratio"] >= found["claim"] and not found["unlike"] for found in result.values())
    print_result("early_exit", samples=SAMPLES, **result, met=met)


if __name__ == "__main__":
    main()
