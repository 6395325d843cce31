"""Call modules of other libraries, and find their logits: transformers, x-transformers, nanoGPT."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from lengthwise.base.types import UsageError

MASKS = ("padding_mask", "attention_mask")  # parameters that may take the mask of real tokens


@dataclass(frozen=True)
class Call:
    """The arguments of a module's ``forward`` beside tokens."""

    mask: str | None  # the parameter that takes the padding mask, True for a real token
    whole: bool  # the mask is passed as integers, as transformers takes it
    fixed: Mapping[str, Any]  # parameters that always have one value
    targets: bool  # without ``targets`` it may give the logits of the last position alone, as nanoGPT does

    @staticmethod
    def of(module: nn.Module) -> Call:
        """Read the signature of ``forward``. Raises UsageError if it needs more than tokens and a mask."""
        parameters, kind = inspect.signature(module.forward).parameters, type(module)
        known = (*MASKS, "mask") if _is_x_encoder(module) else MASKS
        mask = next((name for name in known if name in parameters), None)
        if further := [name for name, part in [*parameters.items()][1:] if name != mask and _is_required(part)]:
            raise UsageError(
                f"a module takes tokens and, optionally, padding_mask or attention_mask, but {kind.__name__}.forward "
                f"also takes {', '.join(further)}"
            )
        fixed = {"use_cache": False} if "use_cache" in parameters else {}
        return Call(mask, mask == "attention_mask", fixed, "targets" in parameters)

    def logits(self, module: nn.Module, tokens: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"]) -> Tensor:
        """Return the module's logits "b t v", in 32 bits at least. Raises UsageError if it returns none of this
        shape."""
        keywords = dict(self.fixed)
        if self.mask:
            keywords[self.mask] = padding_mask.long() if self.whole else padding_mask
        output = module(tokens, **keywords)
        logits = find_logits(output, tokens.shape)
        if logits is None and self.targets:
            output = module(tokens, **keywords, targets=tokens)
            logits = find_logits(output, tokens.shape)
        if logits is None:
            raise UsageError(
                f"a module takes tokens {tuple(tokens.shape)} to logits (rows, positions, vocabulary), "
                f"but {type(module).__name__} gave {_describe_output(output)}"
            )
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def find_logits(output: Any, shape: torch.Size) -> Tensor | None:
    """Return the logits of a module's output: a tensor, an object or a dictionary with ``logits``, or a tuple with
    them. None if there is no tensor of three axes that starts with ``shape``."""
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif not isinstance(output, Tensor) and hasattr(output, "logits"):
        output = output.logits
    values = output if isinstance(output, (tuple, list)) else [output]
    return next((v for v in values if isinstance(v, Tensor) and v.dim() == 3 and v.shape[:2] == shape), None)


def _describe_output(output: Any) -> str:
    if isinstance(output, Tensor):
        return str(tuple(output.shape))
    if hasattr(output, "last_hidden_state"):
        return f"{type(output).__name__} without logits: take its class with a head, such as …ForTokenClassification"
    return type(output).__name__


def _is_x_encoder(module: nn.Module) -> bool:
    """Return whether a module is a wrapper of x-transformers whose layers see the whole row; its ``mask`` is True for a
    real token."""
    library = type(module).__module__.partition(".")[0]
    return library == "x_transformers" and not getattr(getattr(module, "attn_layers", None), "causal", False)


def _is_required(part: inspect.Parameter) -> bool:
    return part.default is part.empty and part.kind not in (part.VAR_POSITIONAL, part.VAR_KEYWORD)
