"""Each problem of a score with what the model answered, as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lengthwise.base.score_rows import Row
from lengthwise.evaluation.answers import answers
from lengthwise.evaluation.families import all_of
from lengthwise.evaluation.scores import hits, in_parts
from lengthwise.experiment.data import evaluation_problems
from lengthwise.experiment.stopping import Stopping
from lengthwise.runs.run import Weights


def answer_rows(
    weights: Weights, scores: Iterable[Mapping[str, Any]], rules: Sequence[Stopping], *, seed: int = 0
) -> Iterator[Row]:
    """A row for each problem of these scores' rows: its size and set of problems, the prompt, the right answer, the
    model's answer, whether that is right, the loops it took, and its confidence, the mean log probability (nats) of the
    answer's symbols.

    ``rules`` are those by which it was measured, ``seed`` that of the problems. The problems are drawn, and the model
    is run, again.
    """
    recipe, by_name = weights.recipe, {rule.name: rule for rule in rules}
    task, layout = recipe.task, recipe.layout
    for score in scores:
        rule, size, kind = by_name[score["stopping"]], tuple(score["sizes"]), score["problems"]
        if kind == "every":
            problems = all_of(recipe, size, score["count"])
            assert problems is not None
        else:
            problems = evaluation_problems(recipe, size, score["count"], seed=seed, kind=kind)
        for part, batch in in_parts(recipe, problems, together=rule.together):
            (predicted,) = answers(weights.model, recipe, batch, [rule])
            right, shown = hits(recipe, batch, predicted)[:, 0].tolist(), problems.take(part)
            for number, (is_right, loops, sure) in enumerate(
                zip(right, predicted.loops.tolist(), predicted.confidence.tolist(), strict=True)
            ):
                answer = layout.answer(predicted.symbols[number, : int(batch.answer_slots[number].sum())], task)
                known = not len(answer) or int(answer.max()) < len(task.symbols)
                yield {
                    "sizes": list(size),
                    "problems": kind,
                    "stopping": rule.name,
                    "prompt": task.to_text(shown.prompt[number, : int(shown.prompt_length[number])]),
                    "right_answer": task.format(shown.answer[number, : int(shown.answer_length[number])]),
                    "answer": task.format(answer) if known else layout.vocabs(task)[1].decode(answer),
                    "right": bool(is_right),
                    "loops": loops,
                    "confidence": round(sure, 6),
                }
