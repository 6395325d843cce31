"""Decoding, to show answers. Scores do not need it, see ``answers.predict``."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.types import Batch, Problems
from lengthwise.evaluation.answers import Predictions, answer_mask, gather_slots, predict
from lengthwise.experiment.recipe import Recipe, check_stopping
from lengthwise.experiment.stopping import Stopping, loop_limits
from lengthwise.models import Model
from lengthwise.runners.cpu import choose_reader


def respond(model: Model, recipe: Recipe, problems: Problems, stopping: Stopping) -> Predictions:
    """Predict answers without access to the right answers. Raises UsageError if the rule does not fit the layout."""
    check_stopping(recipe.layout, stopping)
    batch = recipe.layout.write(problems, recipe.task)
    return decode(model, recipe, batch, stopping) if recipe.layout.decodes else predict(model, recipe, batch, stopping)


@torch.no_grad()
def decode(model: Model, recipe: Recipe, batch: Batch, stopping: Stopping) -> Predictions:
    """Decode greedily: each predicted symbol is the input at the next position.

    With a key–value cache, each position is computed once; a model without a cache computes the row again for every
    symbol. ``confidence`` is the mean log probability of the predicted answer.
    """
    model.eval()
    limit = loop_limits(stopping, recipe.loops.planned(batch.rounds))
    end_id = recipe.layout.end(recipe.task)
    predicted = torch.zeros_like(batch.targets)
    log_probability = torch.zeros(predicted.shape)
    for loops in limit.unique():  # a cache serves only rows with equal numbers of loops
        rows = (limit == loops).nonzero()[:, 0]
        part = batch.take(rows)
        reader = choose_reader(model, part.inputs)
        if reader is None:
            return decode_without_cache(model, recipe, batch, stopping)
        slots = part.answer_slots
        first, width = slots.long().argmax(1), slots.shape[1]
        tokens, ids, logs = _hide_answer(part, end_id or 0), predicted[rows], log_probability[rows]
        # Positions up to the shortest prompt's end are read at once, later positions one by one.
        start, stop = 0, int(first.min()) + 1
        while start < width:
            piece, slot = replace(part.inputs, tokens=tokens).columns(start, stop), slots[:, start:stop]
            best = reader.read(piece, int(loops))[slot].log_softmax(-1).max(-1)
            ids[:, start:stop][slot], logs[:, start:stop][slot] = best.indices, best.values.float()
            if stop < width:
                # Rows whose prompt continues keep their own token; the others get the symbol just predicted.
                fed = slots[:, stop] & (first < stop)
                tokens[:, stop] = torch.where(fed, ids[:, stop - 1], tokens[:, stop])
            start, stop = stop, stop + 1
        predicted[rows], log_probability[rows] = ids, logs
    symbols = gather_slots(predicted, batch.answer_slots)
    log_probability = gather_slots(log_probability, batch.answer_slots)
    counted = answer_mask(symbols, batch.answer_slots, end_id)
    return Predictions(symbols, (log_probability * counted).sum(1) / counted.sum(1), limit)


def _hide_answer(batch: Batch, end_id: int) -> Int[Tensor, "b t"]:
    """Return each row's tokens, with the answer replaced by end symbols."""
    first = batch.answer_slots.long().argmax(1, keepdim=True)
    after = torch.arange(batch.answer_slots.shape[1]) > first
    return batch.inputs.tokens.masked_fill(batch.answer_slots & after, end_id)


def decode_without_cache(model: Model, recipe: Recipe, batch: Batch, stopping: Stopping) -> Predictions:
    """Decode greedily without a cache: the row is computed again for every symbol."""
    first = batch.answer_slots.long().argmax(1)
    count = batch.answer_slots.sum(1)
    row, known = torch.arange(len(batch)), len(recipe.layout.vocabs(recipe.task)[0])
    end_id = recipe.layout.end(recipe.task) or 0
    tokens = _hide_answer(batch, end_id)

    def predict_all() -> Predictions:
        fed = replace(batch.inputs, tokens=tokens)
        return predict(model, recipe, replace(batch, inputs=fed), stopping)

    for slot in range(int(count.max()) - 1):
        more = slot + 1 < count
        symbols = predict_all().symbols
        symbols = symbols.where(symbols < known, end_id)  # a model may have more logits than there are symbols
        tokens[row[more], first[more] + slot + 1] = symbols[more, slot]
    return predict_all()
