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
from lengthwise.experiment.stopping import Stopping, chosen_by, first_done, limit_of
from lengthwise.models import Model
from lengthwise.runners.cpu import choose
from lengthwise.runners.movement import PERIODS


@dataclass(frozen=True)
class Predictions:
    """What a model answered, per row: symbols in the row's slots, how sure it was, and after how many loops."""

    symbols: Int[Tensor, "b a"]
    confidence: Float[Tensor, " b"]  # mean log probability, in nats, up to its own first end
    loops: Int[Tensor, " b"]
    stopped: Bool[Tensor, " b"] | None = None  # by the rule, not by its limit; None: the rule has no ``done``


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
    traced = trace(model, batch, torch.stack(limits).amax(0), end, movement=movement)
    row = torch.arange(len(planned))
    found = []
    for rule, limit in zip(rules, limits, strict=True):
        seen = replace(traced, loops=limit)
        stopped = first_done(rule, seen, planned)[1] if rule.stops else None
        chosen = chosen_by(rule, seen, planned, limit)
        said, sure = traced.predictions[chosen - 1, row], traced.confidence[chosen - 1, row]
        found.append(Predictions(said, sure, chosen, stopped))
    return found


@torch.no_grad()
def trace(model: Model, batch: Batch, limit: Int[Tensor, " b"], end: int | None, *, movement: bool = False) -> Trace:
    """What each loop up to each row's ``limit`` would have answered, and how far it moved the state where that is asked
    for; all on the CPU."""
    shape = int(limit.max()), len(batch), int(batch.answer_slots.sum(1).max())
    predicted, ends = torch.zeros(shape, dtype=torch.long), torch.zeros(shape[:2], dtype=torch.long)
    confidence = torch.zeros(shape[:2])
    moved = torch.full((*shape[:2], PERIODS), torch.inf) if movement else None
    ran, found = [], []
    for k, rows, logits, far in choose(model).steps(batch.inputs, limit, batch.answer_slots, movement=movement):
        ran.append((k - 1, rows))
        found.append(_likeliest(logits))
        if moved is not None and far is not None:
            moved[k - 1, rows] = far.amax(1).float().cpu()
    for (k, rows), best in zip(ran, _on_host(found), strict=True):
        symbols, length, sure = _read(*best, batch.answer_slots[rows], end)
        predicted[k, rows, : symbols.shape[1]] = symbols
        ends[k, rows], confidence[k, rows] = length, sure
    return Trace(predicted, ends, confidence, limit, moved)


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
