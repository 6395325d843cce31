"""Checks of user-defined models before training or evaluation: symbols, randomness, causality, independence of rows.

A model that sees the symbol it should predict scores 1.000 at every length, and the answers of one that reads padding
depend on the other rows of the batch. Scores show neither error, so they raise UsageError, as an unknown
symbol does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from lengthwise.base.origin import foreign
from lengthwise.base.results import AnySize
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Inputs, Problems, UsageError
from lengthwise.experiment.layout import Layout
from lengthwise.experiment.own_code import running_foreign_code
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import Model, SinglePass, TooFewPositions, describe_too_few_positions, device_of, modes_kept
from lengthwise.runners.plain import Plain

CUTS = 8  # positions of an answer after which tokens are changed
ROWS, LOOPS = 6, 3  # of the batch on which a model is checked
SPREAD = 6  # of its lengths
MOVED_IN_DOUBLE = 2e-5  # smallest change of a logit that counts, relative to the largest logit, in 64 bits
MOST_COPIED = 100_000_000  # parameters of a model that is copied to 64 bits
MOVED = 1e-3  # smallest change of a logit that counts, relative to the largest logit, in 32 bits
ROUNDINGS = 8  # relative rounding errors that a logit may be off by in coarser types


@torch.no_grad()
def check(model: Model, recipe: Recipe, sizes: Sequence[AnySize] = ()) -> None:
    """Raise UsageError if a model does not know all symbols, or is random at test, or sees later positions in a causal
    layout, or padding, or other rows, or has too few positions for the largest of ``sizes``; or if a layout shows the
    answer. The package's own models and layouts are not checked."""
    if foreign(type(recipe.layout)) and not recipe.layout.decodes:
        _check_layout(recipe)
    if not isinstance(model, SinglePass) and not any(foreign(type(part)) for part in model.modules()):
        return
    with modes_kept(model), running_foreign_code(recipe):
        model.eval()
        batch = recipe.layout.write(_problems(recipe), recipe.task)
        _check_symbols(model, batch.inputs, recipe)
        _check_room(model, recipe, sizes)
        model = _in_double_precision(model, batch.inputs)
        least = _tolerance(model, batch.inputs)
        _check_repeatable(model, batch.inputs, least)
        if recipe.layout.causal:
            _check_causality(model, batch, recipe.layout, least)
        _check_norms(model)
        _check_padding(model, batch.inputs, least)


def _check_layout(recipe: Recipe) -> None:
    """Where answers are not decoded symbol by symbol, a model's inputs must be the same whatever the answer."""
    problems, layout = _problems(recipe), recipe.layout
    present = torch.arange(problems.answer.shape[1]) < problems.answer_length[:, None]
    other = replace(problems, answer=((problems.answer + 1) % 2).where(present, 0))
    one, two = (layout.write(part, recipe.task).inputs for part in (problems, other))
    for name, value in vars(one).items():
        if not torch.equal(value, getattr(two, name)):
            raise UsageError(
                f"the layout {type(layout).__name__} shows the answer: another answer changes {name}, which a model "
                "could copy; leave the answer out, or say decodes = True and causal = True"
            )


def _problems(recipe: Recipe) -> Problems:
    """A few problems of different lengths, though the recipe may train on one: it is measured on several."""
    draw, task = stream(0, "causality"), recipe.task
    bottom = max(task.smallest, min(recipe.lengths.bottom, recipe.lengths.top - SPREAD))
    top = max(bottom, min(recipe.lengths.top, bottom + SPREAD))
    lengths = torch.linspace(bottom, top, ROWS).round().long()
    sizes = torch.stack([lengths.clamp(max=max(cap, bottom)) for cap in recipe.tops], 1)
    return task.sample(sizes, draw)


def _in_double_precision(model: Model, inputs: Inputs) -> Model:
    """A copy with weights in 64 bits, or in 32 where it computes nothing with these: rounding hides small changes, such
    as a new model's with small weights, and looks like one. The model itself where no such copy can be computed."""
    weights = [one for one in model.parameters() if one.is_floating_point()]
    narrow = any(torch.finfo(one.dtype).bits < 32 for one in weights)
    small = sum(one.numel() for one in weights) <= MOST_COPIED
    for kind in [torch.float64] * small + [torch.float32] * narrow:
        try:
            copied = deepcopy(model).to(kind)
            _logits(copied, inputs)
        except Exception:  # it may cast to its own type within, or hold what cannot be copied
            continue
        return copied
    return model


class _CoarsestType(TorchDispatchMode):
    """The relative rounding error of the coarsest floating-point type that any operation within returns."""

    eps = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.is_floating_point():
            self.eps = max(self.eps, torch.finfo(found.dtype).eps)
        return found


class Tolerance(NamedTuple):
    """The change of a logit that counts: more than ``relative`` · (``scale`` + the largest logit)."""

    relative: float
    scale: float


def _tolerance(model: Model, inputs: Inputs) -> Tolerance:
    """What counts is more than rounding within the model can make, in ``torch.autocast`` for example: in 64 bits little
    is; where some operation, such as a norm, computes in 32 bits, somewhat more."""
    double = all(one.dtype == torch.float64 for one in model.parameters() if one.is_floating_point())
    try:
        with _CoarsestType() as seen:
            _logits(model, inputs)
    except Exception:  # compiled code may not let itself be watched
        return Tolerance(MOVED, 1)
    if double and seen.eps <= torch.finfo(torch.float32).eps:
        return Tolerance(MOVED_IN_DOUBLE, 0)
    return Tolerance(max(MOVED, ROUNDINGS * seen.eps), 1)


def _logits(model: Model, inputs: Inputs) -> Float[Tensor, "b t v"]:
    loops = torch.full((len(inputs),), LOOPS if not isinstance(model, SinglePass) else 1)
    logits = Plain(model).last(inputs, loops, torch.ones_like(inputs.padding_mask))
    return logits.view(*inputs.tokens.shape, -1).cpu()


def _check_symbols(model: Model, inputs: Inputs, recipe: Recipe) -> None:
    """It must know every symbol that it reads, and have a logit for every symbol that it writes."""
    (reads, writes), name = recipe.layout.vocabs(recipe.task), _name(model)
    try:
        if device_of(model).type != "cpu":
            _try_on_cpu(model, inputs)
        logits = _logits(model, inputs)
    except IndexError as error:
        _check_positions(deepcopy(model).cpu(), inputs, error)  # on a GPU a second error would stop the process
        raise UsageError(
            f"{name} does not know all {len(reads)} symbols of {recipe.task.name} in {type(recipe.layout).__name__}"
        ) from None
    if logits.shape[-1] < len(writes):
        raise UsageError(
            f"{name} gives {logits.shape[-1]} logits a position, but {recipe.task.name} in "
            f"{type(recipe.layout).__name__} writes {len(writes)} symbols: {' '.join(writes.symbols)}"
        )


def _check_positions(model: Model, inputs: Inputs, error: IndexError) -> None:
    """UsageError where rows of one symbol fail too: then it lacks positions, not symbols."""
    try:
        _logits(model, replace(inputs, tokens=torch.zeros_like(inputs.tokens)))
    except IndexError:
        if isinstance(error, TooFewPositions):
            raise error from None
        raise UsageError(f"{_name(model)} {describe_too_few_positions(inputs.tokens.shape[1], error)}") from None


def _check_room(model: Model, recipe: Recipe, sizes: Sequence[AnySize]) -> None:
    """UsageError where a row of the largest size has more positions than the model."""
    if not sizes:
        return
    largest = max(map(recipe.sizes, sizes), key=sum)
    inputs = recipe.layout.write(recipe.task.sample(torch.tensor([largest]), stream(0, "room")), recipe.task).inputs
    here = model if device_of(model).type == "cpu" else deepcopy(model).cpu()
    try:
        _logits(here, inputs)
    except IndexError as error:
        if isinstance(error, TooFewPositions):
            raise
        raise UsageError(f"{_name(model)} {describe_too_few_positions(inputs.tokens.shape[1], error)}") from None


def _try_on_cpu(model: Model, inputs: Inputs) -> None:
    """Raise IndexError for a symbol that it does not know, after which a CUDA device computes nothing any more."""
    try:
        _logits(deepcopy(model).cpu(), inputs)
    except IndexError:
        raise
    except Exception:  # it may know its own device alone; what else is wrong shows there
        return


def _check_repeatable(model: Model, inputs: Inputs, least: Tolerance) -> None:
    """The same rows must get the same logits again: whatever is compared below would differ for this reason alone."""
    if not _differ(_logits(model, inputs), _logits(model, inputs), inputs.padding_mask, least):
        return
    with _same_random_numbers() as restart:
        first = _logits(model, inputs)
        restart()
        again = _logits(model, inputs)
    if _differ(first, again, inputs.padding_mask, least):
        raise UsageError(
            f"{_name(model)} carries something from one call to the next, such as a hidden state, a cache or a count: "
            "the same rows got other logits when they were given again, with the same random numbers; let each call of "
            "forward start afresh"
        )
    raise UsageError(
        f"{_name(model)} is random at test: the same rows got other logits when they were given again; random "
        "numbers are for training alone, as in nn.Dropout or dropout(…, training=self.training)"
    )


@contextmanager
def _same_random_numbers() -> Iterator[Callable[[], None]]:
    """Context manager: torch's, numpy's and Python's generators start at a seed, and again whenever what it yields is
    called; on exit they are as before."""

    def restart() -> None:
        torch.manual_seed(0)
        numpy.random.seed(0)
        random.seed(0)

    of_python, of_numpy = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng():
            restart()
            yield restart
    finally:
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)


def _check_causality(model: Model, batch: Batch, layout: Layout, least: Tolerance) -> None:
    """Changing the tokens after a position must not change the logits up to it: one within the prompt, and several
    from the one at which the first symbol of the answer is predicted, where looking ahead pays."""
    inputs = batch.inputs
    before, symbols = _logits(model, inputs), int(inputs.tokens.max()) + 1
    first, count = batch.answer_slots.long().argmax(1), batch.answer_slots.sum(1)
    for cut in (first // 2, *(first + count * part // CUTS for part in range(CUTS))):
        later = torch.arange(inputs.tokens.shape[1]) > cut[:, None]
        changed = inputs.tokens.where(~later, (inputs.tokens + 1) % symbols)
        after = _logits(model, replace(inputs, tokens=changed))
        if _differ(before, after, inputs.padding_mask & ~later, least):
            raise UsageError(
                f"{_name(model)} looks ahead: other tokens after a position changed its logits at or before it, where "
                f"a causal layout may see earlier tokens only; mask its attention, or {_bidirectional(layout)}"
            )


def _bidirectional(layout: Layout) -> str:
    """The layout that lets a model see the whole row, for a message."""
    name = type(layout).__name__ if hasattr(layout, "causal") and not layout.decodes else "FullOutput"
    return f"let it see the whole row with layout={name}(causal=false)"


def _check_norms(model: Model) -> None:
    """Batch normalisation reads the other rows in training alone, where nothing else here would show it."""
    for part in model.modules():
        if isinstance(part, _BatchNorm):
            raise UsageError(
                f"{_name(model)} reads its neighbours in training: {type(part).__name__} normalises over the batch, "
                "padding included; use LayerNorm"
            )


def _check_padding(model: Model, inputs: Inputs, least: Tolerance) -> None:
    """The logits of a row must be the same alone and beside longer rows."""
    together = _logits(model, inputs)
    for row in range(len(inputs)):
        alone = inputs.take(slice(row, row + 1)).narrow()
        width = alone.tokens.shape[1]
        if _differ(_logits(model, alone), together[row : row + 1, :width], alone.padding_mask, least):
            raise UsageError(
                f"{_name(model)} reads padding, or its neighbours: a row alone gets other logits than beside longer "
                "rows; give its forward a parameter padding_mask (rows × positions, True for a real token) and hide "
                "what is False, and normalise no statistics over a batch"
            )


def _differ(
    one: Float[Tensor, "b t v"], two: Float[Tensor, "b t v"], at: Bool[Tensor, "b t"], least: Tolerance
) -> bool:
    """Whether logits at the positions ``at`` differ by more than rounding; False for NaN."""
    one, two = one[at].double(), two[at].double()
    return bool(((one - two).abs() > least.relative * (least.scale + one.abs().max())).any())


def _name(model: Model) -> str:
    return type(model.module if isinstance(model, SinglePass) else model).__name__
