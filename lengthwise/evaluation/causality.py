"""Checks of user-defined models before training or evaluation: symbols, randomness, causality, independence of rows.

A model that sees the symbol it should predict scores 1.000 at every length, and the answers of one that reads padding
depend on the other rows of the batch. Scores show neither error, so they raise UsageError, as an unknown
symbol does.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from lengthwise.base.origin import foreign
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Inputs, UsageError
from lengthwise.depth.plain import Plain
from lengthwise.models import Model, Once, device_of, modes_kept
from lengthwise.recipe.own_code import running_foreign_code
from lengthwise.recipe.recipe import Recipe

CUTS = 8  # positions of an answer after which tokens are changed
ROWS, LOOPS = 6, 3  # of the batch on which a model is checked
SPREAD = 6  # of its lengths
MOVED = 1e-3  # smallest change of a logit that counts, relative to the largest logit


@torch.no_grad()
def check(model: Model, recipe: Recipe) -> None:
    """Raise UsageError if a model does not know all symbols, or is random at test, or sees later positions in a causal
    layout, or padding, or other rows. The package's own models are not checked."""
    if not isinstance(model, Once) and not any(foreign(type(part)) for part in model.modules()):
        return
    with modes_kept(model), running_foreign_code(recipe):
        model.eval()
        batch = _batch(recipe)
        _check_symbols(model, batch.inputs, recipe)
        _check_random(model, batch.inputs)
        if recipe.layout.causal:
            _check_causality(model, batch)
        _check_norms(model)
        _check_padding(model, batch.inputs)


def _batch(recipe: Recipe) -> Batch:
    """A few rows of different lengths, though the recipe may train on one: it is measured on several."""
    draw, task = stream(0, "causality"), recipe.task
    bottom = max(task.smallest, min(recipe.lengths.bottom, recipe.lengths.top - SPREAD))
    top = max(bottom, min(recipe.lengths.top, bottom + SPREAD))
    lengths = torch.linspace(bottom, top, ROWS).round().long()
    sizes = torch.stack([lengths.clamp(max=max(cap, bottom)) for cap in recipe.tops], 1)
    return recipe.layout.write(task.sample(sizes, draw), task)


def _logits(model: Model, inputs: Inputs) -> Float[Tensor, "b t v"]:
    loops = torch.full((len(inputs),), LOOPS if not isinstance(model, Once) else 1)
    logits = Plain(model).last(inputs, loops, torch.ones_like(inputs.padding_mask))
    return logits.view(*inputs.tokens.shape, -1).cpu()


def _check_symbols(model: Model, inputs: Inputs, recipe: Recipe) -> None:
    """It must know every symbol that it reads, and have a logit for every symbol that it writes."""
    (reads, writes), name = recipe.layout.vocabs(recipe.task), _name(model)
    try:
        if device_of(model).type != "cpu":
            _try_on_cpu(model, inputs)
        logits = _logits(model, inputs)
    except IndexError:
        raise UsageError(
            f"{name} does not know all {len(reads)} symbols of {recipe.task.name} in {type(recipe.layout).__name__}"
        ) from None
    if logits.shape[-1] < len(writes):
        raise UsageError(
            f"{name} gives {logits.shape[-1]} logits a position, but {recipe.task.name} in "
            f"{type(recipe.layout).__name__} writes {len(writes)} symbols: {' '.join(writes.symbols)}"
        )


def _try_on_cpu(model: Model, inputs: Inputs) -> None:
    """Raise IndexError for a symbol that it does not know, after which a CUDA device computes nothing any more."""
    try:
        _logits(deepcopy(model).cpu(), inputs)
    except IndexError:
        raise
    except Exception:  # it may know its own device alone; what else is wrong shows there
        return


def _check_random(model: Model, inputs: Inputs) -> None:
    """The same rows must get the same logits again: whatever is compared below would differ for this reason alone."""
    if _differ(_logits(model, inputs), _logits(model, inputs), inputs.padding_mask):
        raise UsageError(
            f"{_name(model)} is random at test: the same rows got other logits when they were given again; random "
            "numbers are for training alone, as in nn.Dropout or dropout(…, training=self.training)"
        )


def _check_causality(model: Model, batch: Batch) -> None:
    """Changing the tokens after a position must not change the logits up to it: one within the prompt, and several
    from the one at which the first symbol of the answer is predicted, where looking ahead pays."""
    inputs = batch.inputs
    before, symbols = _logits(model, inputs), int(inputs.tokens.max()) + 1
    first, count = batch.answer_slots.long().argmax(1), batch.answer_slots.sum(1)
    for cut in (first // 2, *(first + count * part // CUTS for part in range(CUTS))):
        later = torch.arange(inputs.tokens.shape[1]) > cut[:, None]
        changed = inputs.tokens.where(~later, (inputs.tokens + 1) % symbols)
        after = _logits(model, replace(inputs, tokens=changed))
        if _differ(before, after, inputs.padding_mask & ~later):
            raise UsageError(
                f"{_name(model)} looks ahead: other tokens after a position changed its logits at or before it, where "
                "a causal layout may see earlier tokens only; mask its attention, or use a layout that is not causal"
            )


def _check_norms(model: Model) -> None:
    """Batch normalisation reads the other rows in training alone, where nothing else here would show it."""
    for part in model.modules():
        if isinstance(part, _BatchNorm):
            raise UsageError(
                f"{_name(model)} reads its neighbours in training: {type(part).__name__} normalises over the batch, "
                "padding included; use LayerNorm"
            )


def _check_padding(model: Model, inputs: Inputs) -> None:
    """The logits of a row must be the same alone and beside longer rows."""
    together = _logits(model, inputs)
    for row in range(len(inputs)):
        alone = inputs.take(slice(row, row + 1)).narrow()
        width = alone.tokens.shape[1]
        if _differ(_logits(model, alone), together[row : row + 1, :width], alone.padding_mask):
            raise UsageError(
                f"{_name(model)} reads padding, or its neighbours: a row alone gets other logits than beside longer "
                "rows; give its forward a parameter padding_mask (rows × positions, True for a real token) and hide "
                "what is False, and normalise no statistics over a batch"
            )


def _differ(one: Float[Tensor, "b t v"], two: Float[Tensor, "b t v"], at: Bool[Tensor, "b t"]) -> bool:
    """Whether logits at the positions ``at`` differ by more than rounding; False for NaN."""
    one, two = one[at].double(), two[at].double()
    return bool(((one - two).abs() > MOVED * (1 + one.abs().max())).any())


def _name(model: Model) -> str:
    return type(model.module if isinstance(model, Once) else model).__name__
