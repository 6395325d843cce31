"""Decoding, for showing answers. Scoring never needs it: see ``evaluation.answer``."""

from __future__ import annotations

from dataclasses import replace

import torch

from lengthwise.evaluation import Said, answer
from lengthwise.models import Model
from lengthwise.recipe import Recipe, check_stopping
from lengthwise.stopping import Stopping
from lengthwise.types import Batch, Problems


def respond(model: Model, recipe: Recipe, problems: Problems, stopping: Stopping) -> Said:
    """What the model answers on its own: nothing of the right answer reaches it."""
    check_stopping(recipe.layout, stopping)
    batch = recipe.layout.write(problems, recipe.task)
    return decode(model, recipe, batch, stopping) if recipe.layout.decodes else answer(model, recipe, batch, stopping)


def decode(model: Model, recipe: Recipe, batch: Batch, stopping: Stopping) -> Said:
    """Greedy decoding: each symbol said is fed in at the next place. The row is run again for every symbol."""
    first = batch.room.long().argmax(1)
    count = batch.room.sum(1)
    row = torch.arange(len(batch))
    end = recipe.layout.end(recipe.task)
    tokens = batch.inputs.tokens.masked_fill(
        batch.room & (torch.arange(batch.room.shape[1]) > first[:, None]), end or 0
    )

    def said_so_far() -> Said:
        fed = replace(batch.inputs, tokens=tokens)
        return answer(model, recipe, replace(batch, inputs=fed), stopping)

    for slot in range(int(count.max()) - 1):
        more = slot + 1 < count
        symbols = said_so_far().symbols
        tokens[row[more], first[more] + slot + 1] = symbols[more, slot]
    return said_so_far()
