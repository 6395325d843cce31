"""Checks of user-defined models before training or evaluation: symbols, randomness, causality, independence of rows.

A model that sees the symbol it should predict scores 1.000 at every length, and the answers of a model that reads
padding depend on the other rows of the batch. Scores do not reveal such errors, so these checks raise UsageError.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from lengthwise.base.results import AnySize
from lengthwise.base.rng import stream
from lengthwise.base.score_rows import format_size
from lengthwise.base.types import Batch, Inputs, Problems, UsageError
from lengthwise.experiment.data import check_size
from lengthwise.experiment.layout import Layout
from lengthwise.experiment.own_code import guard_foreign_code, is_foreign
from lengthwise.experiment.problem_set import format_symbols
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import Model, find_limited_encodings, get_device, preserve_modes
from lengthwise.models.single_pass import SinglePass, TooFewPositions, are_probabilities, describe_too_few_positions
from lengthwise.runners.plain import Plain

CHECKED_POSITIONS = 8  # number of answer positions after each of which the later tokens are changed, to test causality
ROWS, LOOPS = 6, 3  # rows and loops of a checked batch
LENGTH_RANGE = 6  # range of the short rows' lengths
MAX_SHORT_ROW_POSITIONS = 32  # in longer rows, a model can amplify rounding errors to relevant changes
MAX_POSITIONS = 32_768  # maximum number of positions of a checked batch, unless two rows are longer
SMALLEST_CHANGE_IN_DOUBLE = 2e-5  # smallest relevant change of a logit, relative to the largest logit, in 64 bits
MAX_COPIED_PARAMETERS = 100_000_000  # largest number of parameters of a model that is copied to 64 bits
SMALLEST_CHANGE = 1e-3  # smallest relevant change of a logit, relative to the largest logit, in 32 bits
MAX_ROUNDING_ERRORS = 8  # allowed error of a logit in coarser types, in relative rounding errors


@torch.no_grad()
def check_model(model: Model, recipe: Recipe, sizes: Sequence[AnySize] = ()) -> None:
    """Raise UsageError if a model lacks symbols or has too few positions for one of ``sizes``, is not deterministic in
    evaluation, returns NaN, or reads padding, other rows or (in a causal layout) later positions. A layout that shows
    the answer, and a task whose answers differ from its reference algorithm's, are refused too. The model is run on
    short rows, and on rows up to the largest of ``sizes`` (by default, of the training sizes). For the package's own
    models, only the number of positions is checked."""
    if is_foreign(type(recipe.layout)) and not recipe.layout.decodes:
        _check_layout(recipe)
    with preserve_modes(model), guard_foreign_code(recipe):
        if is_foreign(type(recipe.task)):
            _check_answers(recipe)
        model.eval()
        if not _is_foreign_model(model):
            _check_positions(model, recipe, sizes)
            return
        weight_names = [name for name, _ in model.named_parameters()]
        short = recipe.layout.write(_draw_short_problems(recipe), recipe.task)
        _check_symbols(model, short.inputs, recipe)
        _check_positions(model, recipe, sizes)
        name = _name_model(model)
        for part in model.modules():  # the other checks run in evaluation mode, where a BatchNorm reads no other row
            if isinstance(part, _BatchNorm):
                raise UsageError(
                    f"{name} reads other rows in training: {type(part).__name__} normalizes over the batch, "
                    "padding included; use LayerNorm"
                )
        model, tolerance = _copy_in_double_precision(model, short.inputs)
        if weight_names != [name for name, _ in model.named_parameters()]:
            raise UsageError(
                f"{name} builds weights in its first call; these are neither trained nor stored: build them in "
                "__init__, or call the model on some tokens first"
            )
        # A mistake at the border of two chunks, or only in wide batches, shows only in long rows.
        largest = [*map(recipe.task.round_to_valid_size, max(map(recipe.sizes, sizes or [recipe.tops]), key=sum))]
        long = recipe.layout.write(_draw_problems(recipe, recipe.task.smallest, largest), recipe.task)
        for batch in (short, long):
            logits = _compute_logits(model, batch.inputs)
            real_logits = logits[batch.inputs.padding_mask.cpu()]
            if are_probabilities(real_logits):  # training would take a second softmax, and learn slowly
                raise UsageError(f"{name} returns probabilities; return logits (before the softmax)")
            if real_logits.isnan().any() and all(weight.isfinite().all() for weight in model.parameters()):
                raise UsageError(  # its answers would be scored as wrong
                    f"{name} returns logits that are NaN for a batch with rows of {batch.inputs.tokens.shape[1]} "
                    "positions: look for a division by 0, or for a softmax over a row that is hidden entirely"
                )
            if _logits_differ(logits, _compute_logits(model, batch.inputs), batch.inputs.padding_mask, tolerance):
                raise UsageError(
                    f"{name} is random at test time, or keeps state from one call to the next: "
                    "the same rows got different logits in a second call; use random numbers in training only, as "
                    "nn.Dropout does, and start each call of forward from the same state"
                )
            _check_other_rows(model, batch.inputs, logits, tolerance)
            if recipe.layout.causal:
                _check_causality(model, batch, logits, recipe.layout, tolerance)
            _check_padding(model, batch.inputs, logits, tolerance)


def _is_foreign_model(model: Model) -> bool:
    """Return whether a model, or a part of it, is not the package's own."""
    return isinstance(model, SinglePass) or any(is_foreign(type(part)) for part in model.modules())


def _check_layout(recipe: Recipe) -> None:
    """Raise UsageError if the inputs that the recipe's layout writes depend on the answer."""
    problems, layout = _draw_short_problems(recipe), recipe.layout
    present = torch.arange(problems.answer.shape[1]) < problems.answer_length[:, None]
    other = replace(problems, answer=((problems.answer + 1) % 2).where(present, 0))
    inputs, changed = (layout.write(part, recipe.task).inputs for part in (problems, other))
    for name, value in vars(inputs).items():
        if not torch.equal(value, getattr(changed, name)):
            raise UsageError(
                f"the layout {type(layout).__name__} shows the answer: {name} changes with the answer, so that a model "
                "could copy it; omit the answer, or set decodes = True and causal = True"
            )


def _check_answers(recipe: Recipe) -> None:
    """Raise UsageError if one of a few short problems has another answer than that of the task's reference algorithm.
    ``lengthwise check`` tests many more."""
    task, problems = recipe.task, _draw_short_problems(recipe)
    prompts = format_symbols(task, problems.prompt, problems.prompt_length)
    answers = format_symbols(task, problems.answer, problems.answer_length)
    for prompt, answer in zip(prompts, answers, strict=True):
        if (right := task.reference(prompt)) != answer:
            raise UsageError(
                f"{type(task).__name__}: the problem {prompt!r} has the answer {answer!r}, "
                f"but reference returns {right!r}"
            )


def _draw_problems(recipe: Recipe, bottom: int, tops: Sequence[int]) -> Problems:
    """Draw ``ROWS`` problems, the longest first, of sizes from ``bottom`` to ``tops``; fewer if rows are very long."""
    draw, task = stream(0, "causality"), recipe.task
    sizes = torch.stack([torch.linspace(min(bottom, top), top, ROWS).round().long() for top in tops], 1)
    problems = task.sample(task.replace_missing_sizes(sizes, draw), draw)
    width = int((problems.prompt_length + task.answer_slots(problems.sizes)).max())
    rows = min(ROWS, max(2, MAX_POSITIONS // width))
    return problems.take(torch.linspace(ROWS - 1, 0, rows).round().long())


def _draw_short_problems(recipe: Recipe) -> Problems:
    """Draw a few problems of different lengths, even if the recipe trains on one length."""
    bottom = max(recipe.task.smallest, min(recipe.lengths.bottom, recipe.lengths.top - LENGTH_RANGE))
    top = max(bottom, min(recipe.lengths.top, bottom + LENGTH_RANGE))
    return _draw_problems(recipe, bottom, [min(top, max(cap, bottom)) for cap in recipe.tops])


Tolerance = tuple[float, float]  # (r, s): changes of a logit up to r · (s + the largest logit) are rounding errors


def _copy_in_double_precision(model: Model, inputs: Inputs) -> tuple[Model, Tolerance]:
    """Return a copy of the model with 64-bit weights (in lower precision, rounding would hide relevant changes) and the
    tolerance for changes of its logits. If the model is too large, or the copy fails on ``inputs``, 16-bit weights
    become 32 bits wide, and wider ones are kept. The tolerance is larger if weights have fewer than 64 bits, or
    operations fewer than 32, as under ``torch.autocast``."""

    def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
        if value.is_complex():
            return value.to(dtype.to_complex())
        return value.to(dtype) if value.is_floating_point() else value

    weights = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    has_coarse_weights = any(torch.finfo(weight.dtype).bits < 32 for weight in weights)
    small = sum(weight.numel() for weight in weights) <= MAX_COPIED_PARAMETERS
    for kind in [torch.float64] * small + [torch.float32] * has_coarse_weights:
        try:
            copied = deepcopy(model)._apply(partial(cast, dtype=kind))
            _compute_logits(copied, inputs)
        except Exception:  # it may cast to another type inside, or have parts that cannot be copied
            continue
        model = copied
        break
    try:
        with _CoarsestType() as recorder:
            _compute_logits(model, inputs)
    except Exception:  # compiled code may not support dispatch modes
        return model, (SMALLEST_CHANGE, 1)
    is_double = all(weight.dtype == torch.float64 for weight in model.parameters() if weight.is_floating_point())
    if is_double and recorder.eps <= torch.finfo(torch.float32).eps:
        return model, (SMALLEST_CHANGE_IN_DOUBLE, 0)
    return model, (max(SMALLEST_CHANGE, MAX_ROUNDING_ERRORS * recorder.eps), 1)


class _CoarsestType(TorchDispatchMode):
    """Records the largest relative rounding error of the floating-point types that operations in a ``with`` block
    return."""

    eps = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and (result.is_floating_point() or result.is_complex()):
            self.eps = max(self.eps, torch.finfo(result.dtype).eps)
        return result


def _compute_logits(model: Model, inputs: Inputs) -> Float[Tensor, "b t v"]:
    """Return the logits of all positions. Raises TooFewPositions if the model raises an IndexError, as one with too few
    positions or symbols does."""
    loops = torch.full((len(inputs),), LOOPS if not isinstance(model, SinglePass) else 1)
    try:
        logits = Plain(model).last(inputs, loops, torch.ones_like(inputs.padding_mask))
    except TooFewPositions:
        raise
    except IndexError as error:
        message = describe_too_few_positions(inputs.tokens.shape[1], error)
        raise TooFewPositions(f"{_name_model(model)} {message}") from None
    return logits.view(*inputs.tokens.shape, -1).cpu()


def _check_symbols(model: Model, inputs: Inputs, recipe: Recipe) -> None:
    """Raise UsageError unless the model embeds every input symbol and has a logit for every output symbol."""
    (reads, writes), name = recipe.layout.vocabs(recipe.task), _name_model(model)
    try:
        if get_device(model).type != "cpu":
            try:  # first on the CPU: a missing symbol on a CUDA device would stop all further computation
                _compute_logits(deepcopy(model).cpu(), inputs)
            except TooFewPositions:
                raise
            except Exception:
                pass
        logits = _compute_logits(model, inputs)
    except TooFewPositions:
        # If positions are missing, rows of a single symbol fail too. On a GPU, a second error would stop the process.
        _compute_logits(deepcopy(model).cpu(), replace(inputs, tokens=torch.zeros_like(inputs.tokens)))
        raise UsageError(
            f"{name} has too few embeddings for the {len(reads)} symbols of {recipe.task.name} with the layout "
            f"{type(recipe.layout).__name__}"
        ) from None
    if logits.shape[-1] < len(writes):
        raise UsageError(
            f"{name} gives {logits.shape[-1]} logits per position, but {recipe.task.name} with the layout "
            f"{type(recipe.layout).__name__} has {len(writes)} output symbols: {' '.join(writes.symbols)}"
        )


def _check_positions(model: Model, recipe: Recipe, sizes: Sequence[AnySize]) -> None:
    """Raise UsageError, with the largest size that fits, if the model has too few positions for one of ``sizes``."""
    if not sizes or not (_is_foreign_model(model) or find_limited_encodings(model)):
        return
    distinct, axes = sorted({*map(recipe.sizes, sizes)}, key=sum), len(recipe.task.axes)
    for size in distinct:
        if len(size) != axes or min(size) < recipe.task.smallest:
            check_size(recipe.task, size)
    measures = (sum, *map(itemgetter, range(axes)))
    for largest in {max(distinct, key=measure) for measure in measures}:
        if fault := _find_size_error(model, recipe, largest):
            fitting = (size for size in reversed(distinct) if not _find_size_error(model, recipe, size))
            fits = next((f"the largest that fits is {format_size(size)}" for size in fitting), "none fits")
            raise UsageError(f"{fault}; of the sizes to measure, {fits}")


def _find_size_error(model: Model, recipe: Recipe, size: tuple[int, ...]) -> UsageError | None:
    """Return the error that the model raises for rows of this size, or None if random rows fit."""
    nearest = [*map(recipe.task.round_to_valid_size, size)]
    problems = recipe.task.sample(torch.tensor([nearest] * ROWS), stream(0, "room"))
    inputs = recipe.layout.write(problems, recipe.task).inputs
    try:
        for encoding in find_limited_encodings(model):
            encoding.check(inputs)
        if _is_foreign_model(model):
            on_cpu = model if get_device(model).type == "cpu" else deepcopy(model).cpu()
            _compute_logits(on_cpu, inputs.take(slice(1)))
    except UsageError as fault:
        return fault
    return None


def _check_other_rows(model: Model, inputs: Inputs, logits: Float[Tensor, "b t v"], tolerance: Tolerance) -> None:
    """Raise UsageError if the tokens of the other rows change the logits of the first."""
    changed = (inputs.tokens + 1) % (int(inputs.tokens.max()) + 1)
    changed[0] = inputs.tokens[0]
    changed_logits = _compute_logits(model, replace(inputs, tokens=changed))
    if _logits_differ(logits[:1], changed_logits[:1], inputs.padding_mask[:1], tolerance):
        raise UsageError(
            f"{_name_model(model)} reads other rows: a row's logits change when other rows of the batch change; "
            "compute each row from its own tokens"
        )


def _check_causality(
    model: Model, batch: Batch, logits: Float[Tensor, "b t v"], layout: Layout, tolerance: Tolerance
) -> None:
    """Raise UsageError if the tokens after a position change the logits up to this position. One position of the prompt
    is checked, and ``CHECKED_POSITIONS`` positions from the first answer slot on, where looking ahead would help."""
    inputs = batch.inputs
    symbols = int(inputs.tokens.max()) + 1
    first, count = batch.answer_slots.long().argmax(1), batch.answer_slots.sum(1)
    for cut in (first // 2, *(first + count * part // CHECKED_POSITIONS for part in range(CHECKED_POSITIONS))):
        later = torch.arange(inputs.tokens.shape[1]) > cut[:, None]
        changed = inputs.tokens.where(~later, (inputs.tokens + 1) % symbols)
        changed_logits = _compute_logits(model, replace(inputs, tokens=changed))
        if _logits_differ(logits, changed_logits, inputs.padding_mask & ~later, tolerance):
            name = type(layout).__name__ if hasattr(layout, "causal") and not layout.decodes else "FullOutput"
            raise UsageError(
                f"{_name_model(model)} looks ahead: in a causal layout a position may see only itself and earlier "
                "tokens, but later tokens changed its logits; mask the attention, or let every position see the whole "
                f"row with layout={name}(causal=false)"
            )


def _check_padding(model: Model, inputs: Inputs, logits: Float[Tensor, "b t v"], tolerance: Tolerance) -> None:
    """Raise UsageError unless each row, run alone, gets the same logits as in the batch (``logits``)."""
    for row in range(len(inputs)):
        alone = inputs.take(slice(row, row + 1)).cut_padding()
        width = alone.tokens.shape[1]
        expected = _compute_logits(model, alone)
        if not _logits_differ(expected, logits[row : row + 1, :width], alone.padding_mask, tolerance):
            continue
        # A recurrent model can amplify the rounding errors of a long row without bound. If the row's logits differ in a
        # batch of copies of the row, rounding errors may have caused the other differences too.
        copies = _compute_logits(model, alone.take(torch.zeros(len(inputs), dtype=torch.long)))[:1]
        if width <= MAX_SHORT_ROW_POSITIONS or not _logits_differ(expected, copies, alone.padding_mask, tolerance):
            raise UsageError(
                f"{_name_model(model)} reads padding, or other rows: a row's logits change when longer rows are in the "
                "batch; give its forward a parameter padding_mask (rows × positions, True for a real token), hide "
                "positions where it is False, and compute no statistics over a batch"
            )


def _logits_differ(
    logits: Float[Tensor, "b t v"],
    other_logits: Float[Tensor, "b t v"],
    mask: Bool[Tensor, "b t"],
    tolerance: Tolerance,
) -> bool:
    """Return whether logits at the positions in ``mask`` differ by more than the ``tolerance``; False for NaN."""
    logits, other_logits, (relative, scale) = logits[mask].double(), other_logits[mask].double(), tolerance
    return bool(((logits - other_logits).abs() > relative * (scale + logits.abs().max())).any())


def _name_model(model: Model) -> str:
    """Return the model's name, or the name of a user-defined part, e.g. a mixer, in one of the package's models."""
    outer = model.module if isinstance(model, SinglePass) else model
    foreign = next((part for part in model.modules() if is_foreign(type(part))), outer)
    return type(foreign).__name__ + ("" if foreign is outer else f" in {type(outer).__name__}")
