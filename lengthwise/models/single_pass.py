"""A wrapper of user-defined modules and of modules of other libraries (transformers, x-transformers, nanoGPT)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.base.files import format_error
from lengthwise.base.types import Inputs, UsageError
from lengthwise.models import Context, Model, State

MASK_PARAMETERS = ("padding_mask", "attention_mask")  # parameters that may take the mask of real tokens


class SinglePass(Model):
    """A model of one loop that wraps a module; the module maps tokens "b t" to logits "b t v".

    A parameter ``padding_mask`` or ``attention_mask`` of the module's ``forward`` gets the mask "b t", True or 1 for a
    real token. ``forward`` returns logits, an object or dictionary with ``logits``, or a tuple that contains logits, as
    in transformers and nanoGPT; 16-bit logits are converted to 32 bits. Raises UsageError if ``forward`` requires more
    arguments, or if it returns no logits of this shape.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        kind = type(module)
        if isinstance(module, torch.jit.ScriptModule):
            raise UsageError(f"{kind.__name__} cannot be copied and checked: pass the module before torch.jit.script")
        if getattr(module.forward, "__func__", None) is nn.Module.forward:
            raise UsageError(f"{kind.__name__} has no forward: define forward(self, tokens), which returns logits")
        parameters = inspect.signature(module.forward).parameters
        # A wrapper of x-transformers whose layers see the whole row takes ``mask``, True for a real token.
        sees_whole_row = not getattr(getattr(module, "attn_layers", None), "causal", False)
        is_x_encoder = kind.__module__.partition(".")[0] == "x_transformers" and sees_whole_row
        masks = (*MASK_PARAMETERS, "mask") if is_x_encoder else MASK_PARAMETERS
        self.mask_name = next((name for name in masks if name in parameters), None)  # the parameter that takes the mask
        try:
            inspect.signature(module.forward).bind(None, **({self.mask_name: None} if self.mask_name else {}))
        except TypeError as error:
            allowed = "a module takes tokens and, optionally, padding_mask or attention_mask"
            raise UsageError(f"{allowed}, but {kind.__name__}.forward is {error}") from None
        self.fixed_keywords = {"use_cache": False} if "use_cache" in parameters else {}
        # Without ``targets``, such a module may return the logits of the last position alone, as nanoGPT does.
        self.takes_targets = "targets" in parameters

    def embed(self, inputs: Inputs) -> Context:
        return inputs.tokens, inputs.padding_mask

    def start(self, context: Context) -> State:
        return context[0]

    def advance(self, state: State, context: Context) -> State:
        tokens, padding_mask = context
        try:
            return self._compute_logits(tokens, padding_mask)
        except (IndexError, RuntimeError, AssertionError) as error:
            # A table of positions or symbols is too small: torch's IndexError, or an assertion of nanoGPT or
            # x-transformers.
            messages = ("must match the size of tensor", "must match the existing size")
            if isinstance(error, RuntimeError) and not any(text in str(error) for text in messages):
                raise
            message = describe_too_few_positions(tokens.shape[1], error)
            raise TooFewPositions(f"{type(self.module).__name__} {message}") from error

    def read(self, state: State) -> Float[Tensor, "r t v"]:
        return state

    def _compute_logits(self, tokens: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        keywords: dict[str, Any] = dict(self.fixed_keywords)
        if self.mask_name:
            # Models of the library transformers take integers.
            keywords[self.mask_name] = padding_mask.long() if self.mask_name == "attention_mask" else padding_mask
        output = self.module(tokens, **keywords)
        logits = find_logits(output, tokens.shape)
        if logits is None and self.takes_targets:
            output = self.module(tokens, **keywords, targets=tokens)
            logits = find_logits(output, tokens.shape)
        if logits is None:
            returned = type(output).__name__
            if isinstance(output, Tensor):
                returned = f"{tuple(output.shape)}{'' if output.is_floating_point() else f' of {output.dtype}'}"
            if hasattr(output, "last_hidden_state"):
                returned += " without logits: use the class with a head, such as …ForTokenClassification"
            wanted = f"a module must map tokens {tuple(tokens.shape)} to logits (rows, positions, vocabulary)"
            raise UsageError(f"{wanted}, but {type(self.module).__name__} returned {returned}")
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def find_logits(output: Any, shape: torch.Size) -> Tensor | None:
    """Return the logits in a module's output, which may be a tensor, an object or a dictionary with ``logits``, or a
    tuple. Return None if there is no tensor of real numbers with three axes of which the first two have the sizes
    ``shape``."""
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif not isinstance(output, Tensor) and hasattr(output, "logits"):
        output = output.logits
    values = output if isinstance(output, (tuple, list)) else [output]
    tensors = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    return next((value for value in tensors if value.dim() == 3 and value.shape[:2] == shape), None)


def are_probabilities(logits: Float[Tensor, "n v"]) -> bool:
    """Return whether all rows are probabilities, as after a softmax. Return False if all rows are one-hot: programs
    written by hand return such logits."""
    is_one_hot = bool(((logits == 0) | (logits == 1)).all())
    return not is_one_hot and bool((logits >= 0).all() and ((logits.sum(-1) - 1).abs() < 1e-4).all())


class TooFewPositions(UsageError, IndexError):
    """Raised if a module's table of positions or of symbols is too small."""


def describe_too_few_positions(positions: int, error: Exception) -> str:
    """Return an error message about a module that fails on rows of ``positions`` positions."""
    advice = "if its position table is shorter, enlarge it, or use shorter problems"
    return f"fails on rows of {positions} positions ({type(error).__name__}: {format_error(error)}): {advice}"
