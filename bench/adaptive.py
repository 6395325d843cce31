"""Evaluation of a looped model at every length from 1 to 60, with the shipped weights of parity. Claim: the package is
twice as fast as the plain loop (plain.py), with equal answers.

The package groups rows of similar length, and stops each row when no rule can change its answer. The plain loop runs
all rows for the largest number of loops in the batch, and computes logits at all positions after each loop. For
comparison, the plain loop is also measured on one length at a time, without padding.
"""

import statistics
import time
from collections.abc import Callable

import plain
import torch
from common import QUICK, print_result, summarize_ratios
from torch import Tensor

from lengthwise.base.types import Problems
from lengthwise.evaluation.answers import gather_slots, predict_by_rules
from lengthwise.evaluation.scores import split_batches
from lengthwise.experiment.data import draw_recipe_problems
from lengthwise.experiment.stopping import MaxConfidence, Oracle, Stopping
from lengthwise.models.transformer import TransformerModel
from lengthwise.runs.run import Weights, load

LENGTHS, SAMPLES, ROWS, REPEATS = (range(1, 7), 2, 8, 1) if QUICK else (range(1, 61), 4, 512, 5)
RULES: dict[str, Stopping] = {"oracle": Oracle(), "most confident": MaxConfidence(extra=20)}
Predict = Callable[[Weights, Problems, Stopping], Tensor]


def predict_with_package(weights: Weights, problems: Problems, rule: Stopping) -> Tensor:
    """Return the package's predictions "b s": a symbol per row and answer slot."""
    model, recipe = weights.model, weights.recipe
    return torch.cat(
        [predict_by_rules(model, recipe, batch, [rule])[0].symbols for _, batch in split_batches(recipe, problems)]
    )


@torch.no_grad()
def predict_mixed_lengths(weights: Weights, problems: Problems, rule: Stopping) -> Tensor:
    """Return the plain loop's predictions "b s", with rows of all lengths in one batch."""
    model, recipe, found = weights.model, weights.recipe, []
    assert isinstance(model, TransformerModel)
    for start in range(0, len(problems), ROWS):
        batch = recipe.layout.write(problems.take(slice(start, start + ROWS)), recipe.task)
        planned = recipe.loops.planned(batch.rounds)
        limit = rule.limit(planned)
        best = torch.stack(plain.compute_logits_by_loop(model, batch.inputs, int(limit.max()))).log_softmax(-1).max(-1)
        # Parity answers with one symbol and the end: confidence is their mean log probability.
        chosen = planned
        if rule.reads_output:
            sure = torch.stack([gather_slots(values, batch.answer_slots).mean(1) for values in best.values])
            past = torch.arange(1, len(sure) + 1)[:, None] > limit
            chosen = sure.masked_fill(past, -torch.inf).argmax(0) + 1
        found.append(gather_slots(best.indices[chosen - 1, torch.arange(len(planned))], batch.answer_slots))
    return torch.cat(found)


def predict_length_by_length(weights: Weights, problems: Problems, rule: Stopping) -> Tensor:
    """Return the plain loop's predictions "b s", with one length per batch."""
    lengths = problems.sizes[:, 0]
    predicted = torch.zeros(len(problems), 2, dtype=torch.long)
    for length in lengths.unique():
        rows = (lengths == length).nonzero()[:, 0]
        predicted[rows] = predict_mixed_lengths(weights, problems.take(rows), rule)
    return predicted


PREDICTORS: dict[str, Predict] = {
    "package": predict_with_package,
    "mixed": predict_mixed_lengths,
    "alone": predict_length_by_length,
}


def measure(weights: Weights, problems: Problems, rule: Stopping) -> dict[str, object]:
    times: dict[str, list[float]] = {name: [] for name in PREDICTORS}
    predicted = {}
    for _ in range(REPEATS):
        for name, predict in PREDICTORS.items():
            start = time.process_time()
            predicted[name] = predict(weights, problems, rule)
            times[name].append(time.process_time() - start)
    ratios = [slow / fast for slow, fast in zip(times["mixed"], times["package"], strict=True)]
    single = [slow / fast for slow, fast in zip(times["alone"], times["package"], strict=True)]
    return {
        **summarize_ratios(ratios),
        "one_length_at_a_time": round(statistics.median(single), 2),
        "unlike": sum(int((predicted["package"] != predicted[name]).any(1).sum()) for name in ("mixed", "alone")),
    }


def main() -> None:
    torch.set_num_threads(1)
    weights = load("looped-parity")
    weights.model.eval()
    every = Problems.join([draw_recipe_problems(weights.recipe, length, SAMPLES, seed=0) for length in LENGTHS])
    problems = every.take(torch.randperm(len(every), generator=torch.Generator().manual_seed(0)))
    result = {name: measure(weights, problems, rule) for name, rule in RULES.items()}
    met = all(found["ratio"] >= 2 and not found["unlike"] for found in result.values())
    print_result("adaptive", lengths=[LENGTHS[0], LENGTHS[-1]], problems=len(problems), **result, met=met)


if __name__ == "__main__":
    main()
