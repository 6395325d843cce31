"""The problems of scores with the model's answers, as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lengthwise.base.score_rows import Row
from lengthwise.evaluation.answers import answers
from lengthwise.evaluation.families import all_problems
from lengthwise.evaluation.scores import row_counts, split_batches
from lengthwise.experiment.data import evaluation_problems
from lengthwise.experiment.stopping import Stopping
from lengthwise.runs.run import Weights
from lengthwise.tasks import texts_of


def answer_rows(
    weights: Weights, scores: Iterable[Mapping[str, Any]], rules: Sequence[Stopping], *, seed: int = 0
) -> Iterator[Row]:
    """Yield a row for each problem of these scores' rows: its size and set of problems, the prompt, the right answer,
    the model's answer, whether it is right, its number of loops, and its confidence, the mean log probability (nats) of
    its symbols.

    ``rules`` are the stopping rules of the scores, ``seed`` that of their problems. The problems are drawn again, and
    the model runs again.
    """
    recipe, by_name = weights.recipe, {rule.name: rule for rule in rules}
    task, layout = recipe.task, recipe.layout
    for score in scores:
        rule, size, kind = by_name[score["stopping"]], tuple(score["sizes"]), score["problems"]
        if kind == "every":
            problems = all_problems(recipe, size, score["count"])
            assert problems is not None
        else:
            problems = evaluation_problems(recipe, size, score["count"], seed=seed, kind=kind)
        for part, batch in split_batches(recipe, problems, together=rule.together):
            (predicted,) = answers(weights.model, recipe, batch, [rule])
            texts = texts_of(task, problems.take(part))
            values = (row_counts(recipe, batch, predicted)[:, 0], predicted.loops, predicted.confidence)
            rows = zip(texts, *(value.tolist() for value in values), strict=True)
            for number, ((prompt, right_answer), is_right, loops, confidence) in enumerate(rows):
                answer = layout.answer(predicted.symbols[number, : int(batch.answer_slots[number].sum())], task)
                is_known = not len(answer) or int(answer.max()) < len(task.symbols)
                yield {
                    "sizes": list(size),
                    "problems": kind,
                    "stopping": rule.name,
                    "prompt": prompt,
                    "right_answer": right_answer,
                    "answer": task.format(answer) if is_known else layout.vocabs(task)[1].decode(answer),
                    "right": bool(is_right),
                    "loops": loops,
                    "confidence": round(confidence, 6),
                }
