"""A model and rows of problems → what it answers, by one stopping rule or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Batch, Trace
from lengthwise.experiment.layout import up_to_end
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Stopping, choose_loops, done_rows, first_done, limit_of
from lengthwise.models import Model
from lengthwise.runners.cpu import choose
from lengthwise.runners.movement import PERIODS

LEAVE_TOGETHER = 8  # rows that stop early leave when one of so many does


@dataclass(frozen=True)
class Predictions:
    """What a model answered, per row: symbols in the row's slots, how sure it was, and after how many loops."""

    symbols: Int[Tensor, "b a"]
    confidence: Float[Tensor, " b"]  # mean log probability, in nats, up to its own first end
    loops: Int[Tensor, " b"]
    stopped: Bool[Tensor, " b"] | None = None  # by the rule, not by its limit; None: the rule has no ``done``
    ran: Int[Tensor, " b"] | None = None  # loops that were run to choose ``loops``; None: as many


def answer(model: Model, recipe: Recipe, batch: Batch, stopping: Stopping) -> Predictions:
    """What the model answers to each row. In a layout that feeds the answer in, an answer is right if and only if
    greedy decoding would give it: every symbol is the likeliest, given the right ones before it."""
    return answers(model, recipe, batch, [stopping])[0]


@torch.no_grad()
def answers(model: Model, recipe: Recipe, batch: Batch, rules: Sequence[Stopping]) -> list[Predictions]:
    """What the model answers under several stopping rules, from one run of the model as far as the furthest looks."""
    model.eval()
    planned = recipe.loops.planned(batch.rounds)
    limits, end = [limit_of(rule, planned) for rule in rules], recipe.layout.end(recipe.task)
    if len(rules) == 1 and not rules[0].reads_output:
        logits = choose(model).last(batch.inputs, limits[0], batch.answer_slots)
        (best,) = _on_host([_likeliest(logits)])
        symbols, _, confidence = _read(*best, batch.answer_slots, end)
        return [Predictions(symbols, confidence, limits[0])]
    movement = any(rule.needs_movement for rule in rules)
    if all(rule.stops or not rule.reads_output for rule in rules):
        followed = [_Followed(rule, limit, planned, batch) for rule, limit in zip(rules, limits, strict=True)]
        _run_until_done(model, batch, followed, end, movement)
        return [one.predictions() for one in followed]
    traced = trace(model, batch, torch.stack(limits).amax(0), end, movement=movement)
    row = torch.arange(len(planned))
    found = []
    for rule, limit in zip(rules, limits, strict=True):
        seen, stopped, ran = replace(traced, loops=limit), None, None
        chosen = choose_loops(rule, seen, planned, limit)
        if rule.stops:
            stopped = first_done(rule, seen, planned)[1]
            ran = torch.where(stopped, chosen + rule.back, limit)
        elif rule.reads_output:
            ran = limit
        said, sure = traced.predictions[chosen - 1, row], traced.confidence[chosen - 1, row]
        found.append(Predictions(said, sure, chosen, stopped, ran))
    return found


class _Followed:
    """One stopping rule, loop by loop, and what it has chosen of a batch so far."""

    def __init__(self, rule: Stopping, limit: Int[Tensor, " b"], planned: Int[Tensor, " b"], batch: Batch) -> None:
        self.rule, self.limit, self.planned = rule, limit, planned
        self.open = torch.ones(len(batch), dtype=torch.bool)  # the rows that go on
        self.stopped = torch.zeros_like(self.open)
        self.symbols = torch.zeros(filled_slots(batch.answer_slots).shape, dtype=torch.long)
        self.confidence, self.loops = torch.zeros(len(batch)), limit.clone()

    def look(self, latest: Trace, loop: int) -> None:
        """Choose for the rows that stop after this loop, by the rule or at their limit."""
        if self.rule.stops:
            done = done_rows(self.rule, latest, loop, self.planned) & self.open
            self._take(done, latest, self.rule.back, loop)
            self.stopped |= done
        self._take(self.open & (self.limit == loop), latest, 0, loop)

    def _take(self, chosen: Bool[Tensor, " b"], latest: Trace, back: int, loop: int) -> None:
        if not chosen.any():
            return
        rows = chosen.nonzero()[:, 0]
        self.symbols[rows] = latest.predictions[-1 - back, rows]
        self.confidence[rows] = latest.confidence[-1 - back, rows]
        self.loops[rows] = loop - back
        self.open &= ~chosen

    def predictions(self) -> Predictions:
        if not self.rule.stops:
            return Predictions(self.symbols, self.confidence, self.loops)
        ran = self.loops + self.rule.back * self.stopped
        return Predictions(self.symbols, self.confidence, self.loops, self.stopped, ran)


def _run_until_done(model: Model, batch: Batch, followed: Sequence[_Followed], end: int | None, movement: bool) -> None:
    """Run each row until every rule has chosen a loop for it. The loops before those that a rule looks at are
    forgotten, so that memory does not grow with the number of loops."""
    limit = torch.stack([one.limit for one in followed]).amax(0)
    window = max(one.rule.window for one in followed)
    steps, stay, kept = choose(model).steps(batch.inputs, limit, batch.answer_slots, movement=movement), None, None
    while True:
        try:
            loop, rows, logits, far = steps.send(stay)
        except StopIteration:
            return
        ((best, logs),) = _on_host([_likeliest(logits)])
        now = _empty_trace(1, batch, movement)
        _fill(now, 0, rows, _read(best, logs, batch.answer_slots[rows], end), far)
        kept = now if kept is None else _append_loop(kept, now, window)
        for one in followed:
            one.look(kept, loop)
        goes_on = torch.stack([one.open[rows] for one in followed]).any(0)
        # Leaving takes a copy of the others' states, so rows leave together. Those at their limit leave by themselves.
        early = int((~goes_on & (limit[rows] > loop)).sum())
        stay = goes_on if early * LEAVE_TOGETHER >= len(rows) else None


def _append_loop(kept: Trace, now: Trace, window: int) -> Trace:
    """The latest ``window`` loops."""

    def join(old: Tensor, new: Tensor) -> Tensor:
        return torch.cat([old[-(window - 1) :], new]) if window > 1 else new

    moved = None
    if kept.movement is not None and now.movement is not None:
        moved = join(kept.movement, now.movement)
    predictions, ends = join(kept.predictions, now.predictions), join(kept.ends, now.ends)
    return Trace(predictions, ends, join(kept.confidence, now.confidence), now.loops, moved)


def _empty_trace(loops: int, batch: Batch, movement: bool) -> Trace:
    """A trace of so many loops that holds nothing yet."""
    rows, width = filled_slots(batch.answer_slots).shape
    return Trace(
        torch.zeros(loops, rows, width, dtype=torch.long),
        torch.zeros(loops, rows, dtype=torch.long),
        torch.zeros(loops, rows),
        torch.full((rows,), loops),
        torch.full((loops, rows, PERIODS), torch.inf) if movement else None,
    )


def _fill(
    trace: Trace, at: int, rows: Int[Tensor, " r"], read: tuple[Tensor, Tensor, Tensor], far: Tensor | None
) -> None:
    """Write what these rows answered, and how far their states moved, to loop ``at`` + 1 of a trace."""
    symbols, length, sure = read
    trace.predictions[at, rows, : symbols.shape[1]] = symbols
    trace.ends[at, rows], trace.confidence[at, rows] = length, sure
    if trace.movement is not None and far is not None:
        trace.movement[at, rows] = far.amax(1).float().cpu()


@torch.no_grad()
def trace(model: Model, batch: Batch, limit: Int[Tensor, " b"], end: int | None, *, movement: bool = False) -> Trace:
    """What each loop up to each row's ``limit`` would have answered, and how far it moved the state where that is asked
    for; all on the CPU."""
    found = replace(_empty_trace(int(limit.max()), batch, movement), loops=limit)
    steps, best = [], []
    for loop, rows, logits, far in choose(model).steps(batch.inputs, limit, batch.answer_slots, movement=movement):
        steps.append((loop, rows, None if far is None else far.amax(1, keepdim=True)))
        best.append(_likeliest(logits))
    for (loop, rows, far), one in zip(steps, _on_host(best), strict=True):
        _fill(found, loop - 1, rows, _read(*one, batch.answer_slots[rows], end), far)
    return found


Best = tuple[Tensor, Tensor]  # the likeliest symbols "n", as floats, and their log probabilities


def _likeliest(logits: Float[Tensor, "n v"]) -> Best:
    best = logits.log_softmax(-1).max(-1)
    return best.indices.float(), best.values.float()


def _on_host(found: Sequence[Best]) -> Iterator[Best]:
    """Bring tensors to the CPU, copied at once: each copy waits for the device."""
    counts = [len(symbols) for symbols, _ in found]
    symbols, logs = torch.stack([torch.cat(parts) for parts in zip(*found, strict=True)]).cpu()
    yield from zip(symbols.split(counts), logs.split(counts), strict=True)


def _read(
    best: Float[Tensor, " n"], logs: Float[Tensor, " n"], answer_slots: Bool[Tensor, "r t"], end: int | None
) -> tuple[Int[Tensor, "r a"], Int[Tensor, " r"], Float[Tensor, " r"]]:
    """The symbols predicted in each row's slots, how many of them are its answer, and the confidence in that."""
    filled = filled_slots(answer_slots)
    symbols = torch.zeros(filled.shape, dtype=torch.long)
    symbols[filled] = best.long()
    sure = torch.zeros(filled.shape)
    sure[filled] = logs
    counted = answer_mask(symbols, answer_slots, end)
    length = counted.sum(1)
    return symbols, length, (sure * counted).sum(1) / length


def slots(row: Tensor, answer_slots: Bool[Tensor, "b t"]) -> Tensor:
    """The answer slots of each row, moved to its front: "b t" → "b a", zeros after them."""
    filled = filled_slots(answer_slots)
    moved = torch.zeros(filled.shape, dtype=row.dtype)
    moved[filled] = row[answer_slots]
    return moved


def answer_mask(symbols: Int[Tensor, "b a"], answer_slots: Bool[Tensor, "b t"], end: int | None) -> Bool[Tensor, "b a"]:
    """True at the slots of each row's answer, its end symbol included; ``symbols`` are those in the row's slots."""
    return filled_slots(answer_slots) & up_to_end(symbols, end)


def filled_slots(answer_slots: Bool[Tensor, "b t"]) -> Bool[Tensor, "b a"]:
    """True in as many of a row's first positions as it has slots."""
    count = answer_slots.sum(1)
    return torch.arange(int(count.max())) < count[:, None]
