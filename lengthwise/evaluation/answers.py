"""A model's answers to problems, chosen by stopping rules, or decoded symbol by symbol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Inputs, Problems, Trace, UsageError
from lengthwise.experiment.layout import mask_through_end
from lengthwise.experiment.own_code import wrap_user_errors
from lengthwise.experiment.recipe import Recipe, check_stopping
from lengthwise.experiment.stopping import (
    Restarts,
    Stopping,
    choose_loops,
    compute_loop_limits,
    find_done_rows,
    find_first_done,
)
from lengthwise.models import Model, State
from lengthwise.runners.cpu import choose_decoder, choose_runner
from lengthwise.runners.plain import PERIOD_COUNT

LEAVE_TOGETHER = 8  # stopped rows leave the batch, which copies the others, once they are 1/8 of its rows


@dataclass(frozen=True)
class Predictions:
    """A model's answers to the rows of a batch."""

    symbols: Int[Tensor, "b a"]  # predicted in the row's answer slots
    confidence: Float[Tensor, " b"]  # mean log probability, in nats, up to the answer's first end symbol
    loops: Int[Tensor, " b"]  # the loop whose answer is used, from 1
    stopped_by_rule: Bool[Tensor, " b"] | None = None  # not by the rule's limit; None: the rule has no ``done``
    loops_run: Int[Tensor, " b"] | None = None  # loops that were run to choose ``loops``; None: ``loops``
    residual: Float[Tensor, " b"] | None = None  # largest relative movement of the state in the answer's loop
    start: Int[Tensor, " b"] | None = None  # number of the initial state (see ``select_initial_state``); None: 0


def predict(model: Model, recipe: Recipe, batch: Batch, stopping: Stopping) -> Predictions:
    """Return the model's answer to each row. If the layout's inputs contain the right answer, each symbol is predicted
    from the right symbols before it. Such an answer is right if and only if greedy decoding gives the right answer."""
    return predict_by_rules(model, recipe, batch, [stopping])[0]


@torch.no_grad()
def predict_by_rules(model: Model, recipe: Recipe, batch: Batch, rules: Sequence[Stopping]) -> list[Predictions]:
    """Return, for each stopping rule, the model's answers. The model runs once for all rules, up to their largest
    limit, and once more for each restart."""
    model.eval()
    models = [select_initial_state(model, number) for number in range(max(rule.starts for rule in rules))]
    inner_rules = [rule.rule if isinstance(rule, Restarts) else rule for rule in rules]
    movement = any(rule.needs_movement for rule in rules)
    predictions = _predict_from_one_start(model, recipe, batch, inner_rules, movement)
    for number, rule in enumerate(rules):
        if isinstance(rule, Restarts):
            predictions[number] = _predict_with_restarts(models[: rule.count], recipe, batch, rule, predictions[number])
    return predictions


def _predict_with_restarts(
    models: Sequence[Model], recipe: Recipe, batch: Batch, rule: Restarts, first_answers: Predictions
) -> Predictions:
    """Return the best answer to each row, by ``rule.pick``, among the answers of ``models``, which differ in their
    initial states. ``first_answers`` are those of the first model."""
    total = first_answers.loops if first_answers.loops_run is None else first_answers.loops_run
    best = replace(first_answers, start=torch.zeros_like(first_answers.loops))
    for number, model in enumerate(models[1:], 1):
        (predictions,) = _predict_from_one_start(model, recipe, batch, [rule.rule], best.residual is not None)
        total = total + (predictions.loops if predictions.loops_run is None else predictions.loops_run)
        better = predictions.confidence > best.confidence
        if predictions.residual is not None and best.residual is not None and rule.pick == "residual":
            better = predictions.residual < best.residual
        predictions = replace(predictions, start=torch.full_like(predictions.loops, number))
        merged: dict[str, Any] = {}
        for name, old in vars(best).items():
            rows = better[:, None] if name == "symbols" else better
            merged[name] = None if old is None else torch.where(rows, getattr(predictions, name), old)
        best = Predictions(**merged)
    return replace(best, loops_run=total)


def _predict_from_one_start(
    model: Model, recipe: Recipe, batch: Batch, rules: Sequence[Stopping], with_movement: bool
) -> list[Predictions]:
    """Return, for each rule, the model's answers from one initial state, with residuals if ``with_movement``."""
    planned = recipe.loops.planned(batch.rounds)
    limits, end_id = [compute_loop_limits(rule, planned) for rule in rules], recipe.layout.end_id(recipe.task)
    if len(rules) == 1 and not rules[0].reads_output and not with_movement:
        logits = choose_runner(model).last(batch.inputs, limits[0], batch.answer_slots)
        symbols, _, confidence = _read_slots(_find_likeliest_symbols(logits).cpu(), batch.answer_slots, end_id)
        return [Predictions(symbols, confidence, limits[0])]
    if all(rule.may_stop_early or not rule.reads_output for rule in rules):
        pairs = zip(rules, limits, strict=True)
        progress = [_RuleProgress(rule, limit, planned, batch, with_movement) for rule, limit in pairs]
        _run_until_done(model, batch, progress, end_id, with_movement)
        return [rule.predictions() for rule in progress]
    traced = trace_loops(model, batch, torch.stack(limits).amax(0), end_id, with_movement=with_movement)
    row = torch.arange(len(planned))
    predictions = []
    for rule, limit in zip(rules, limits, strict=True):
        limited, stopped, ran = replace(traced, loops=limit), None, None
        with wrap_user_errors(rule):
            chosen = choose_loops(rule, limited, planned, limit)
        if rule.may_stop_early:
            stopped = find_first_done(rule, limited, planned)[1]
            ran = torch.where(stopped, chosen + rule.answer_lag, limit)
        elif rule.reads_output:
            ran = limit
        symbols, confidence = traced.predictions[chosen - 1, row], traced.confidence[chosen - 1, row]
        residual = None if traced.movement is None else traced.movement[chosen - 1, row, 0]
        predictions.append(Predictions(symbols, confidence, chosen, stopped, ran, residual))
    return predictions


class _RuleProgress:
    """The answers to a batch that one stopping rule, applied loop by loop, has chosen so far."""

    def __init__(
        self, rule: Stopping, limit: Int[Tensor, " b"], planned: Int[Tensor, " b"], batch: Batch, movement: bool
    ) -> None:
        self.rule, self.limit, self.planned = rule, limit, planned
        self.running = torch.ones(len(batch), dtype=torch.bool)  # rows without a chosen answer
        self.stopped_by_rule = torch.zeros_like(self.running)  # rows stopped by the rule, not by its limit
        self.symbols = torch.zeros(mask_filled_slots(batch.answer_slots).shape, dtype=torch.long)
        self.confidence, self.loops = torch.zeros(len(batch), dtype=torch.float32), limit.clone()
        self.residual = torch.zeros_like(self.confidence) if movement else None

    def choose_answers(self, trace: Trace, loop: int) -> None:
        """Choose the answers of rows that stop after ``loop``, the last loop of ``trace``, because of the rule or their
        limit."""
        if self.rule.may_stop_early:
            with wrap_user_errors(self.rule):
                done = find_done_rows(self.rule, trace, loop, self.planned) & self.running
            self._take_answers(done, trace, self.rule.answer_lag, loop)
            self.stopped_by_rule |= done
        self._take_answers(self.running & (self.limit == loop), trace, 0, loop)

    def _take_answers(self, mask: Bool[Tensor, " b"], trace: Trace, lag: int, loop: int) -> None:
        """Choose the answers after loop ``loop`` − ``lag`` for the rows in ``mask``."""
        if not mask.any():
            return
        rows = mask.nonzero()[:, 0]
        self.symbols[rows] = trace.predictions[-1 - lag, rows]
        self.confidence[rows] = trace.confidence[-1 - lag, rows]
        self.loops[rows] = loop - lag
        if self.residual is not None and trace.movement is not None:
            self.residual[rows] = trace.movement[-1 - lag, rows, 0]
        self.running &= ~mask

    def predictions(self) -> Predictions:
        predictions = Predictions(self.symbols, self.confidence, self.loops, residual=self.residual)
        if not self.rule.may_stop_early:
            return predictions
        loops_run = self.loops + self.rule.answer_lag * self.stopped_by_rule
        return replace(predictions, stopped_by_rule=self.stopped_by_rule, loops_run=loops_run)


def _run_until_done(
    model: Model, batch: Batch, progress: Sequence[_RuleProgress], end_id: int | None, with_movement: bool
) -> None:
    """Run each row until every rule has chosen a loop for the row. Only answers of loops in the rules' windows are
    kept, so memory does not grow with the number of loops."""
    limit = torch.stack([rule.limit for rule in progress]).amax(0)
    window = max(rule.rule.window for rule in progress)
    steps = choose_runner(model).steps(batch.inputs, limit, batch.answer_slots, movement=with_movement)
    stay = latest = None
    while True:
        try:
            loop, rows, logits, moved = steps.send(stay)
        except StopIteration:
            return
        current = _build_empty_trace(1, batch, with_movement)
        answers = _read_slots(_find_likeliest_symbols(logits).cpu(), batch.answer_slots[rows], end_id)
        _store_answers(current, 0, rows, answers, moved)
        if latest is not None:
            past = {name: value for name, value in vars(latest).items() if name != "loops" and value is not None}
            joined = {name: torch.cat([value, getattr(current, name)])[-window:] for name, value in past.items()}
            current = replace(current, **joined)
        latest = current
        for rule in progress:
            rule.choose_answers(latest, loop)
        goes_on = torch.stack([rule.running[rows] for rule in progress]).any(0)
        # When rows leave, all other states are copied, so rows leave together. At its limit a row leaves anyway.
        early = int((~goes_on & (limit[rows] > loop)).sum())
        stay = goes_on if early * LEAVE_TOGETHER >= len(rows) else None


def _build_empty_trace(loops: int, batch: Batch, with_movement: bool) -> Trace:
    """Return a trace of ``loops`` loops whose answers are not set yet."""
    rows, width = mask_filled_slots(batch.answer_slots).shape
    return Trace(
        torch.zeros(loops, rows, width, dtype=torch.long),
        torch.zeros(loops, rows, dtype=torch.long),
        torch.zeros(loops, rows, dtype=torch.float32),
        torch.full((rows,), loops),
        torch.full((loops, rows, PERIOD_COUNT), torch.inf, dtype=torch.float32) if with_movement else None,
    )


def _store_answers(
    trace: Trace, index: int, rows: Int[Tensor, " r"], answers: tuple[Tensor, Tensor, Tensor], movement: Tensor | None
) -> None:
    """Write these rows' answers (from ``_read_slots``) and their states' movement to entry ``index`` of a trace."""
    symbols, length, confidence = answers
    trace.predictions[index, rows, : symbols.shape[1]] = symbols
    trace.ends[index, rows], trace.confidence[index, rows] = length, confidence
    if trace.movement is not None and movement is not None:
        trace.movement[index, rows] = movement.amax(1).float().cpu()


@torch.no_grad()
def trace_loops(
    model: Model, batch: Batch, limit: Int[Tensor, " b"], end_id: int | None, *, with_movement: bool = False
) -> Trace:
    """Return a trace, on the CPU: each row's answers after each loop up to the row's ``limit`` and, if
    ``with_movement``, the movement of its state."""
    traced = replace(_build_empty_trace(int(limit.max()), batch, with_movement), loops=limit)
    steps, best = [], []
    runner = choose_runner(model)
    for loop, rows, logits, moved in runner.steps(batch.inputs, limit, batch.answer_slots, movement=with_movement):
        steps.append((loop, rows, None if moved is None else moved.amax(1, keepdim=True)))
        best.append(_find_likeliest_symbols(logits))
    # All are copied to the CPU at once, because each copy waits for the device.
    on_host = torch.cat(best, 1).cpu().split([part.shape[1] for part in best], 1)
    for (loop, rows, moved), likeliest in zip(steps, on_host, strict=True):
        _store_answers(traced, loop - 1, rows, _read_slots(likeliest, batch.answer_slots[rows], end_id), moved)
    return traced


def _find_likeliest_symbols(logits: Float[Tensor, "n v"]) -> Float[Tensor, "2 n"]:
    """Return the likeliest symbols' ids, as floats, and their log probabilities, in nats."""
    best = logits.log_softmax(-1).max(-1)
    return torch.stack([best.indices.float(), best.values.float()])


def _read_slots(
    likeliest_symbols: Float[Tensor, "2 n"], answer_slots: Bool[Tensor, "r t"], end_id: int | None
) -> tuple[Int[Tensor, "r a"], Int[Tensor, " r"], Float[Tensor, " r"]]:
    """Return each row's predicted symbols, its answer's length (end symbol included) and its confidence: the answer's
    mean log probability. ``likeliest_symbols`` is the result of ``_find_likeliest_symbols`` for all answer slots, row
    by row."""
    filled = mask_filled_slots(answer_slots)
    symbols, log_probability = torch.zeros(filled.shape, dtype=torch.long), likeliest_symbols.new_zeros(filled.shape)
    symbols[filled], log_probability[filled] = likeliest_symbols[0].long(), likeliest_symbols[1]
    counted = mask_answers(symbols, answer_slots, end_id)
    length = counted.sum(1)
    return symbols, length, (log_probability * counted).sum(1) / length


def gather_slots(values: Shaped[Tensor, "b t"], answer_slots: Bool[Tensor, "b t"]) -> Shaped[Tensor, "b a"]:
    """Return the values in each row's answer slots, moved to the row's start and followed by zeros."""
    filled = mask_filled_slots(answer_slots)
    moved = torch.zeros(filled.shape, dtype=values.dtype)
    moved[filled] = values[answer_slots]
    return moved


def answer_to_text(recipe: Recipe, symbols: Int[Tensor, " a"]) -> str:
    """Return the answer in ``symbols``, the symbols of a row's slots, as text: in the task's notation or, if the answer
    has symbols that the task lacks, symbol by symbol."""
    answer = recipe.layout.answer(symbols, recipe.task)
    if len(answer) and int(answer.max()) < len(recipe.task.symbols):
        return recipe.task.format(answer)
    return recipe.layout.vocabs(recipe.task)[1].decode(answer)


def mask_answers(
    symbols: Int[Tensor, "b a"], answer_slots: Bool[Tensor, "b t"], end_id: int | None
) -> Bool[Tensor, "b a"]:
    """Return a mask of the slots that hold each row's answer, end symbol included. ``symbols`` has the symbols of all
    slots."""
    return mask_filled_slots(answer_slots) & mask_through_end(symbols, end_id)


def mask_filled_slots(answer_slots: Bool[Tensor, "b t"]) -> Bool[Tensor, "b a"]:
    """Return a mask whose first k positions in each row are True, where k is the row's number of answer slots."""
    count = answer_slots.sum(1)
    return torch.arange(int(count.max())) < count[:, None]


def select_initial_state(model: Model, start: int) -> Model:
    """Return the model with initial state number ``start``: 0 is its own, other numbers mean random states (see
    ``RandomStart``). Raises UsageError if the model's initial state is never random, not even in training."""
    return RandomStart(model, start) if start else model


class RandomStart(Model):
    """A model whose initial state is h_0 + σ ε, where σ is its ``start_noise`` and ε is standard normal. A row's ε
    depends only on its symbols and ``number``, not on other rows or padding."""

    def __init__(self, model: Model, number: int) -> None:
        super().__init__()
        if not model.start_noise:
            raise UsageError(
                f"{type(model).__name__} always starts from one state: Restarts needs a model whose initial state is "
                "random in training, e.g. Transformer(noise=1)"
            )
        self.model, self.number = model, number

    def embed(self, inputs: Inputs) -> tuple[Any, Int[Tensor, "b t"], Tensor]:
        return self.model.embed(inputs), inputs.tokens, inputs.padding_mask

    def start(self, context: tuple[Any, Tensor, Tensor]) -> State:
        inner, tokens, padding_mask = context
        state = self.model.start(inner)
        noise = torch.zeros(state.shape)
        for row, (symbols, real) in enumerate(zip(tokens.cpu(), padding_mask.cpu(), strict=True)):
            generator = stream(self.number, "start", *symbols[real].tolist())
            noise[row, real] = torch.randn(int(real.sum()), *state.shape[2:], generator=generator)
        return state + self.model.start_noise * noise.to(state)

    def advance(self, state: State, context: tuple[Any, Tensor, Tensor]) -> State:
        return self.model.advance(state, context[0])

    def read(self, state: State) -> Float[Tensor, "r t v"]:
        return self.model.read(state)

    def answer_state(self, state: State) -> State:
        return self.model.answer_state(state)


# Decoding, to show answers; scores do not need it (see ``predict``)


def respond(model: Model, recipe: Recipe, problems: Problems, stopping: Stopping) -> Predictions:
    """Return the model's answers to problems, predicted without access to the right answers. Raises UsageError if the
    rule does not fit the layout."""
    check_stopping(recipe.layout, stopping)
    batch = recipe.layout.write(problems, recipe.task)
    return decode(model, recipe, batch, stopping) if recipe.layout.decodes else predict(model, recipe, batch, stopping)


@torch.no_grad()
def decode(model: Model, recipe: Recipe, batch: Batch, stopping: Stopping) -> Predictions:
    """Decode each row's answer greedily: each predicted symbol is the input at the next position. With a key–value
    cache, each position is computed once."""
    model.eval()
    limit = compute_loop_limits(stopping, recipe.loops.planned(batch.rounds))
    end_id = recipe.layout.end_id(recipe.task)
    predicted = torch.zeros_like(batch.targets)
    log_probability = torch.zeros(predicted.shape)
    for loops in limit.unique():  # a cache serves only rows with equal numbers of loops
        rows = (limit == loops).nonzero()[:, 0]
        part = batch.take(rows)
        decoder = choose_decoder(model, part.inputs)
        if decoder is None:
            return decode_without_cache(model, recipe, batch, stopping)
        slots = part.answer_slots
        first, width = slots.long().argmax(1), slots.shape[1]
        tokens, ids, logs = _hide_answer(part, end_id or 0), predicted[rows], log_probability[rows]
        # Positions up to the shortest prompt's end are read at once, later positions one by one.
        start, stop = 0, int(first.min()) + 1
        while start < width:
            piece, slot = replace(part.inputs, tokens=tokens).columns(start, stop), slots[:, start:stop]
            best = decoder.compute_next_logits(piece, int(loops))[slot].log_softmax(-1).max(-1)
            ids[:, start:stop][slot], logs[:, start:stop][slot] = best.indices, best.values.float()
            if stop < width:
                # Rows whose prompt continues keep their own token; the others get the symbol just predicted.
                is_answer = slots[:, stop] & (first < stop)
                tokens[:, stop] = torch.where(is_answer, ids[:, stop - 1], tokens[:, stop])
            start, stop = stop, stop + 1
        predicted[rows], log_probability[rows] = ids, logs
    symbols = gather_slots(predicted, batch.answer_slots)
    log_probability = gather_slots(log_probability, batch.answer_slots)
    counted = mask_answers(symbols, batch.answer_slots, end_id)
    return Predictions(symbols, (log_probability * counted).sum(1) / counted.sum(1), limit)


def _hide_answer(batch: Batch, end_id: int) -> Int[Tensor, "b t"]:
    """Return each row's tokens, with the answer replaced by end symbols."""
    first = batch.answer_slots.long().argmax(1, keepdim=True)
    after = torch.arange(batch.answer_slots.shape[1]) > first
    return batch.inputs.tokens.masked_fill(batch.answer_slots & after, end_id)


def decode_without_cache(model: Model, recipe: Recipe, batch: Batch, stopping: Stopping) -> Predictions:
    """Decode each row's answer greedily without a cache: the row is computed again for every symbol."""
    first = batch.answer_slots.long().argmax(1)
    count = batch.answer_slots.sum(1)
    row, symbol_count = torch.arange(len(batch)), len(recipe.layout.vocabs(recipe.task)[0])
    end_id = recipe.layout.end_id(recipe.task) or 0
    tokens = _hide_answer(batch, end_id)

    def predict_all_rows() -> Predictions:
        inputs = replace(batch.inputs, tokens=tokens)
        return predict(model, recipe, replace(batch, inputs=inputs), stopping)

    for slot in range(int(count.max()) - 1):
        has_next = slot + 1 < count
        symbols = predict_all_rows().symbols
        symbols = symbols.where(symbols < symbol_count, end_id)  # a model may have more logits than there are symbols
        tokens[row[has_next], first[has_next] + slot + 1] = symbols[has_next, slot]
    return predict_all_rows()
