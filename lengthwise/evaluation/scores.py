"""Scores of weights on fresh problems, and the likelihood of right answers: perplexity and validation loss."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.results import NORMAL_QUANTILE, AnySize, Outcomes, count_independent_trials, count_problems
from lengthwise.base.rows import shift_right, zero_after
from lengthwise.base.score_rows import KINDS_WITH_CURVE
from lengthwise.base.types import Batch, Kind, Problems, Rows, Score, Trace, UsageError, to_device, wilson_interval
from lengthwise.evaluation.answers import (
    Predictions,
    answer_to_text,
    decode,
    gather_slots,
    mask_answers,
    mask_filled_slots,
    predict_by_rules,
    trace_loops,
)
from lengthwise.evaluation.causality import check_model
from lengthwise.experiment.data import draw_recipe_problems
from lengthwise.experiment.layout import mask_before_end, mask_through_end
from lengthwise.experiment.recipe import Recipe, check_stopping
from lengthwise.experiment.source import describe_repeats, hash_prompts
from lengthwise.experiment.stopping import Stopping
from lengthwise.models import Model, get_device
from lengthwise.runners.cpu import choose_runner
from lengthwise.runs.run import Weights
from lengthwise.tasks import iterate_texts

MAX_POSITIONS = 32_768  # positions per forward pass, so that memory does not grow with length
GPU_POSITIONS_FACTOR = 16  # factor of MAX_POSITIONS on a GPU, where launches take longer than computing
SAMPLES = 1000  # problems per length, by default
MAX_SAMPLES = 10_000  # problems per length with a precision: enough for ±0.01
Watch = Callable[[Sequence[tuple[int, ...]], float], None]  # takes the sizes being measured, the fraction done
OnProgress = Callable[[float], None] | None  # takes the fraction that is done
CACHE_POSITIONS = 8_192  # positions per forward pass that fit the processor's cache, for rules of single rows


@dataclass(frozen=True)
class RowResults(Rows):
    """A model's answers by one stopping rule, compared with the right answers, per row."""

    counts: Int[Tensor, "b 8"]  # the columns of ``compute_row_counts``
    symbols: Int[Tensor, "b a"]  # predicted in the row's answer slots
    slots: Int[Tensor, " b"]  # number of answer slots
    confidence: Float[Tensor, " b"]  # mean log probability of the answer's symbols, in nats


def evaluate(
    weights: Weights,
    sizes: Iterable[AnySize],
    *,
    samples: int = SAMPLES,
    stopping: Stopping | Sequence[Stopping] | None = None,
    kind: Kind = "uniform",
    seed: int = 0,
    precision: float | None = None,
    watch: Watch | None = None,
    rows: bool = False,
) -> Iterator[Score]:
    """Yield one Score per size and stopping rule (by default the recipe's): exact match of the whole answer on fresh
    problems. A single number is the size on all axes. The model runs once for all rules, so that further rules cost
    little. With ``precision``, sampling a size stops once every rule's 95 % interval is within ± ``precision``, or
    after ``samples`` problems. ``watch`` is called after each batch. With ``rows``, each score has ``answers``, a row
    per problem."""
    sizes = list(sizes)
    recipe, rules = weights.recipe, resolve_rules(weights, samples, stopping, sizes)
    if precision is not None:
        options = {"kind": kind, "seed": seed, "watch": watch, "rows": rows}
        yield from _evaluate_to_precision(weights, sizes, rules, samples, precision, **options)
        return
    for group in _group_sizes(recipe, sizes, samples, kind=kind, seed=seed):
        group_watch = partial(watch, [size for size, _ in group]) if watch else None
        results = compute_group_results(weights.model, recipe, [problems for _, problems in group], rules, group_watch)
        for number, (size, problems) in enumerate(group):
            size_rows = slice(number * samples, (number + 1) * samples)
            for rule, rule_results in zip(rules, results, strict=True):
                part = rule_results.take(size_rows)
                yield build_score(weights, rule, kind, size, problems, part, measured_alone=True, rows=rows)


def _evaluate_to_precision(
    weights: Weights,
    sizes: Iterable[AnySize],
    rules: Sequence[Stopping],
    samples: int,
    precision: float,
    *,
    kind: Kind,
    seed: int,
    watch: Watch | None,
    rows: bool,
) -> Iterator[Score]:
    """Yield scores on the number of problems that a 95 % interval within ± ``precision`` needs, up to ``samples``."""
    check_precision(precision)
    recipe, together = weights.recipe, math.lcm(*(rule.together for rule in rules))
    for size in sizes:
        problems = draw_recipe_problems(recipe, size, samples, seed=seed, kind=kind)
        parts_by_rule: list[list[RowResults]] = [[] for _ in rules]
        done, until = 0, find_smallest_sample_size(precision)
        while done < samples and until > done:
            part = slice(done, min(samples, -(-until // together) * together))

            def on_progress(fraction: float, row_range: slice = part, size: AnySize = size) -> None:
                if watch:
                    rows_done = row_range.start + fraction * (row_range.stop - row_range.start)
                    watch([recipe.sizes(size)], rows_done / samples)

            results = compute_group_results(weights.model, recipe, [problems.take(part)], rules, on_progress)
            for parts, result in zip(parts_by_rule, results, strict=True):
                parts.append(result)
            done = part.stop
            # Repeats from a fixed set count once, and further problems repeat at least as often.
            repeats = describe_repeats(recipe.has_fixed_problems, problems.take(slice(done)))
            counted = count_problems({"count": done} | repeats)
            rights = [sum(int(part.counts[:, 0].sum()) for part in parts) * counted / done for parts in parts_by_rule]
            needed = [find_sample_size(n, counted, precision, r.together) for n, r in zip(rights, rules, strict=True)]
            until = done + math.ceil((max(needed) - counted) * done / counted)
        measured, early = problems.take(slice(done)), precision if done < samples else None
        for rule, parts in zip(rules, parts_by_rule, strict=True):
            marks = {"precision": early, "measured_alone": True, "rows": rows}
            yield build_score(weights, rule, kind, recipe.sizes(size), measured, RowResults.join(parts), **marks)


def check_precision(precision: float | None) -> None:
    """Raise UsageError unless ``precision``, half the width of an interval, is None or between 1e-6 and 0.5."""
    if precision is not None and not 1e-6 <= precision < 0.5:
        raise UsageError(f"precision, half the width of an interval, must be between 1e-6 and 0.5, not {precision}")


def find_smallest_sample_size(precision: float) -> int:
    """Return the number of problems that a 95 % interval within ± ``precision`` needs if all answers are right, or all
    are wrong; any other result needs more problems."""
    return math.ceil(NORMAL_QUANTILE**2 * (0.5 / precision - 1))


def find_sample_size(right_count: float, count: int, precision: float, batch_rows: int = 1) -> int:
    """Return the number of problems to measure, given that ``right_count`` of ``count`` answers are right: ``count`` if
    their interval is within ± ``precision``, otherwise at most twice as many. ``batch_rows`` is the rule's batch
    size."""
    low, high = wilson_interval(right_count / count, count_independent_trials(count, batch_rows))
    if high - low <= 2 * precision:
        return count
    middle = (low + high) / 2
    needed = math.ceil(batch_rows * NORMAL_QUANTILE**2 * middle * (1 - middle) / precision**2)
    return min(2 * count, max(count + 1, needed))


def build_score(
    weights: Weights,
    rule: Stopping,
    kind: Kind,
    sizes: tuple[int, ...],
    problems: Problems,
    results: RowResults,
    *,
    precision: float | None = None,
    measured_alone: bool = False,
    rows: bool = False,
) -> Score:
    """Return the Score of ``results`` on ``problems`` by one rule. A family that was ``measured_alone`` is marked, so
    that it is not reported as the worst. With ``rows``, the score has ``answers``, a row for each problem."""
    recipe, answers = weights.recipe, list[dict[str, Any]]()
    for i, (prompt, wanted) in enumerate(iterate_texts(recipe.task, problems) if rows else ()):
        row = {"sizes": list(sizes), "problems": kind, "stopping": rule.name, "prompt": prompt, "right_answer": wanted}
        row["answer"] = answer_to_text(recipe, results.symbols[i, : int(results.slots[i])])
        row |= {"correct": bool(results.counts[i, 0]), "loops": int(results.counts[i, 4])}
        answers.append(row | {"log_confidence": round(float(results.confidence[i]), 6)})
    exact, whole_row, tokens, total, loops, at_limit, ran, final = results.counts.sum(0).tolist()
    digest = hashlib.blake2b(hash_prompts(problems).numpy().tobytes(), digest_size=8).digest()
    return Score(
        recipe.task.name,
        weights.name,
        rule.name,
        kind,
        sizes,
        count := len(results),
        exact=exact / count,
        whole_row=whole_row / count,
        token_accuracy=tokens / total,
        loops=loops / count,
        at_limit=at_limit / count if rule.may_stop_early else None,
        ran=ran / count if rule.reads_output else None,
        precision=precision,
        family="alone" if measured_alone and kind not in KINDS_WITH_CURVE else None,
        chance=recipe.layout.chance(recipe.task),
        final=final / count if recipe.task.final_after else None,
        together=rule.together if rule.together > 1 else None,
        **describe_repeats(recipe.has_fixed_problems, problems),
        outcomes=Outcomes(digest, bytes(results.counts[:, 0].tolist())),
        answers=answers,
    )


def resolve_rules(
    weights: Weights, samples: int, stopping: Stopping | Sequence[Stopping] | None, sizes: Sequence[AnySize] = ()
) -> list[Stopping]:
    """Return the stopping rules, by default the recipe's rule. Raises UsageError if a rule does not fit the layout, if
    ``samples`` is below 1, or if ``check_model`` refuses the model, e.g. if it has too few positions."""
    rules = [stopping] if isinstance(stopping, Stopping) else list(stopping or [weights.recipe.stopping])
    for rule in rules:
        check_stopping(weights.recipe.layout, rule)
    if samples < 1:
        raise UsageError(f"samples must be 1 or more, not {samples}")
    check_model(weights.model, weights.recipe, sizes)
    return rules


def measure_exact_match(model: Model, recipe: Recipe, sizes: tuple[int, ...], count: int, *, step: int = 0) -> float:
    """Return the exact match of a model in training, on ``count`` problems that are new at each ``step``."""
    problems = draw_recipe_problems(recipe, sizes, count, seed=recipe.data_seed, step=step)
    (results,) = compute_group_results(model, recipe, [problems], [recipe.stopping])
    return int(results.counts[:, 0].sum()) / count


def _group_sizes(
    recipe: Recipe, sizes: Iterable[AnySize], samples: int, *, kind: Kind, seed: int
) -> Iterator[list[tuple[tuple[int, ...], Problems]]]:
    """Yield groups of sizes, in order, with ``samples`` fresh problems of each size. The rows of a group fit one
    forward pass, unless the group has a single size."""
    group: list[tuple[tuple[int, ...], Problems]] = []
    widest = 0
    for size in sizes:
        problems = draw_recipe_problems(recipe, size, samples, seed=seed, kind=kind)
        if group and max(widest, _estimate_row_width(recipe, problems)) * samples * (len(group) + 1) > MAX_POSITIONS:
            yield group
            group, widest = [], 0
        group.append((recipe.sizes(size), problems))
        widest = max(widest, _estimate_row_width(recipe, problems))
    if group:
        yield group


def compute_group_results(
    model: Model, recipe: Recipe, groups: Sequence[Problems], rules: Sequence[Stopping], on_progress: OnProgress = None
) -> list[RowResults]:
    """Return, for each rule, the results of all rows of all groups of problems. Batch-wise rules get one group at a
    time, in batches of ``together`` rows. ``on_progress`` is called after each batch with the fraction of a group's
    rows that is done."""
    results: dict[Stopping, list[RowResults]] = {rule: [] for rule in rules}
    first, *more = sorted({rule.together for rule in rules} - {1}) or [1]
    sharing = [[rule for rule in results if rule.together in sizes] for sizes in ({1, first}, *({n} for n in more))]
    for problems, chosen in product(groups if first > 1 else [Problems.join(groups)], sharing):
        cached = get_device(model).type == "cpu" and not any(rule.reads_output for rule in chosen)
        positions = min(CACHE_POSITIONS, MAX_POSITIONS) if cached else get_positions_per_pass(model)
        for rows, batch in split_batches(recipe, problems, positions, batch_rows=max(r.together for r in chosen)):
            for rule, predicted in zip(chosen, predict_by_rules(model, recipe, batch, chosen), strict=True):
                columns, slots = compute_row_counts(recipe, batch, predicted), batch.answer_slots.sum(1)
                if recipe.task.final_after:
                    columns[:, -1] = _is_final_part_right(model, recipe, batch, rule, predicted, columns[:, 0] > 0)
                results[rule].append(RowResults(columns, predicted.symbols.int(), slots, predicted.confidence))
            if on_progress:
                on_progress(min(1.0, rows.stop / len(problems)))
    return [RowResults.join(results[rule]) for rule in rules]


def compute_row_counts(recipe: Recipe, batch: Batch, predictions: Predictions) -> Int[Tensor, "b 8"]:
    """Return eight numbers per row. The first four: whether the answer is right, whether all slots are right, the
    number of right tokens, and the number of tokens. The last four: the chosen loop, whether the row ended at its
    limit, the number of loops run, and whether the final part (without ``final_after``, the answer) is right."""
    right_symbols, filled = gather_slots(batch.targets, batch.answer_slots), mask_filled_slots(batch.answer_slots)
    answer = mask_answers(right_symbols, batch.answer_slots, recipe.layout.end_id(recipe.task))
    same = (predictions.symbols == right_symbols) & filled
    columns = [
        (same | ~answer).all(1),
        (same | ~filled).all(1),
        (same & answer).sum(1),
        answer.sum(1),
        predictions.loops,
        torch.zeros_like(predictions.loops) if predictions.stopped_by_rule is None else ~predictions.stopped_by_rule,
        predictions.loops if predictions.loops_run is None else predictions.loops_run,
    ]
    return torch.stack([column.long() for column in (*columns, columns[0])], 1)


def _is_final_part_right(
    model: Model, recipe: Recipe, batch: Batch, rule: Stopping, predictions: Predictions, is_right: Bool[Tensor, " b"]
) -> Bool[Tensor, " b"]:
    """Return a mask of the rows whose final part, the symbols after the last ``Task.final_after``, is right. If answer
    tokens are inputs, wrong rows are decoded, because ``predictions`` were made from the right scratchpad. ``is_right``
    is True for rows whose whole answer is right."""
    symbols, wrong = predictions.symbols, (~is_right).nonzero()[:, 0]
    if recipe.layout.decodes and len(wrong):
        symbols = symbols.clone()
        part = batch.take(wrong)
        decoded = decode(model, recipe, part, rule).symbols
        symbols[wrong, : decoded.shape[1]] = decoded
    pair = torch.cat([symbols, gather_slots(batch.targets, batch.answer_slots)])
    end, mark = recipe.layout.end_id(recipe.task), recipe.layout.vocabs(recipe.task)[1].id(recipe.task.final_after)
    counted = mask_before_end(pair, end) & mask_filled_slots(batch.answer_slots).repeat(2, 1)
    index = torch.arange(1, pair.shape[1] + 1)
    first = ((pair == mark) & counted).mul(index).amax(1)  # where the final part begins; 0: no mark
    predicted, right = zero_after(shift_right(pair + 1, -first, pair.shape[1]), counted.sum(1) - first).chunk(2)
    same = (predicted == right).all(1)
    return same if end is None else same & ((symbols == end) & mask_filled_slots(batch.answer_slots)).any(1)


def mask_right_rows(recipe: Recipe, batch: Batch, predictions: Predictions) -> Bool[Tensor, " b"]:
    """Return a mask of the rows whose answers are right."""
    return compute_row_counts(recipe, batch, predictions)[:, 0] > 0


def split_batches(
    recipe: Recipe, problems: Problems, positions: int = MAX_POSITIONS, batch_rows: int = 1
) -> Iterator[tuple[slice, Batch]]:
    """Yield slices of ``problems``, each with its batch, which has at most about ``positions`` positions or, if
    ``batch_rows`` is above 1, ``batch_rows`` rows."""
    width = _estimate_row_width(recipe, problems)
    for part in _split_rows(len(problems), width, batch_rows * width if batch_rows > 1 else positions):
        yield part, recipe.layout.write(problems.take(part), recipe.task)


def get_positions_per_pass(model: Model) -> int:
    """Return the largest number of positions per forward pass on the model's device."""
    return MAX_POSITIONS if get_device(model).type == "cpu" else GPU_POSITIONS_FACTOR * MAX_POSITIONS


def _estimate_row_width(recipe: Recipe, problems: Problems) -> int:
    """Return the approximate width of the widest row, in positions: its prompt and answer slots."""
    return int((problems.prompt_length + recipe.task.answer_slots(problems.sizes)).max())


def _split_rows(count: int, width: int, positions: int = MAX_POSITIONS) -> list[slice]:
    """Split ``count`` rows of this width into slices of at most ``positions`` positions, each with one row or more."""
    rows = max(1, positions // width)
    return [slice(start, start + rows) for start in range(0, count, rows)]


def trace_answers(
    model: Model, recipe: Recipe, batch: Batch, limit: Int[Tensor, " b"], *, with_movement: bool = False
) -> tuple[Trace, Bool[Tensor, "k b"]]:
    """Return a trace up to ``limit`` (see ``trace_loops``), and a mask of the loops and rows whose answers are
    right."""
    model.eval()
    end = recipe.layout.end_id(recipe.task)
    parts = _split_rows(*batch.targets.shape)
    traces = [trace_loops(model, batch.take(part), limit[part], end, with_movement=with_movement) for part in parts]
    names = ["predictions", "ends", "confidence", *["movement"] * with_movement]
    traced = Trace(**{name: torch.cat([getattr(part, name) for part in traces], 1) for name in names}, loops=limit)
    right_symbols = gather_slots(batch.targets, batch.answer_slots)
    ignored = ~mask_answers(right_symbols, batch.answer_slots, end)
    return traced, ((traced.predictions == right_symbols) | ignored).all(-1)


@torch.no_grad()
def perplexity(model: Model, batch: Batch, loops: Int[Tensor, " b"], end_id: int | None) -> Float[Tensor, " b"]:
    """Return, on the CPU, the perplexity exp(−mean log p) of each row's right answer, end symbol included, after
    ``loops`` loops. If the answer is an input, each symbol is predicted from the right symbols before it."""
    counted = batch.loss_mask & mask_through_end(batch.targets.where(batch.loss_mask, -1), end_id)
    log_probabilities = _log_probs(model, batch, loops, counted)
    means = torch.stack([row.mean() for row in log_probabilities.split(counted.sum(1).tolist())])
    return means.neg().exp().float()


@torch.no_grad()
def validation_loss(model: Model, recipe: Recipe, problems: Problems) -> float:
    """Return the mean of −log p, in nats, over the supervised symbols of ``problems``, after the planned loops."""
    model.eval()
    total, count = 0.0, 0
    for _, batch in split_batches(recipe, problems, get_positions_per_pass(model)):
        batch = batch.cut_unsupervised() if recipe.layout.causal else batch
        logs = _log_probs(model, batch, recipe.loops.planned(batch.rounds), batch.loss_mask)
        total, count = total - float(logs.sum()), count + len(logs)
    return total / count


def _log_probs(model: Model, batch: Batch, loops: Int[Tensor, " b"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, " n"]:
    """Return the log probability, in nats, of each target in ``mask``, row by row, after each row's own number of
    loops."""
    log_probabilities = choose_runner(model).last(batch.inputs, loops, mask).log_softmax(-1)
    targets = to_device(batch.targets[mask], log_probabilities.device)
    return log_probabilities.gather(1, targets[:, None])[:, 0].cpu()
