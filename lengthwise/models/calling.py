"""How modules of other libraries are called, and where their logits are: transformers, x-transformers, nanoGPT."""

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
    """What a module's ``forward`` takes beside tokens."""

    mask: str | None  # the parameter that takes the padding mask, True for a real token
    whole: bool  # is the mask passed as whole numbers, as transformers takes it?
    fixed: Mapping[str, Any]  # parameters that always have one value
    targets: bool  # without ``targets`` it may give the logits of the last position alone, as nanoGPT does

    @staticmethod
    def of(module: nn.Module) -> Call:
        """Read it from the signature. UsageError where ``forward`` needs more than tokens and a mask."""
        asked, kind = inspect.signature(module.forward).parameters, type(module)
        known = (*MASKS, "mask") if _is_x_encoder(module) else MASKS
        mask = next((name for name in known if name in asked), None)
        if further := [name for name, part in [*asked.items()][1:] if name != mask and _is_required(part)]:
            raise UsageError(
                f"a module takes tokens, and padding_mask or attention_mask if it wants, but {kind.__name__}.forward "
                f"also takes {', '.join(further)}"
            )
        fixed = {"use_cache": False} if "use_cache" in asked else {}
        return Call(mask, mask == "attention_mask", fixed, "targets" in asked)

    def logits(self, module: nn.Module, tokens: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"]) -> Tensor:
        """The module's logits "b t v", in 32 bits at least. UsageError where it returns none of this shape."""
        given = dict(self.fixed)
        if self.mask:
            given[self.mask] = padding_mask.long() if self.whole else padding_mask
        found = module(tokens, **given)
        logits = logits_in(found, tokens.shape)
        if logits is None and self.targets:
            found = module(tokens, **given, targets=tokens)
            logits = logits_in(found, tokens.shape)
        if logits is None:
            raise UsageError(
                f"a module takes tokens {tuple(tokens.shape)} to logits (rows, positions, vocabulary), "
                f"but {type(module).__name__} gave {_described(found)}"
            )
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def logits_in(found: Any, shape: torch.Size) -> Tensor | None:
    """The logits in what a module returned: a tensor, an object or a dictionary with ``logits``, or a tuple that has
    them. None if there is no tensor of three axes that starts with ``shape``."""
    if isinstance(found, Mapping):
        found = found.get("logits")
    elif not isinstance(found, Tensor) and hasattr(found, "logits"):
        found = found.logits
    several = found if isinstance(found, (tuple, list)) else [found]
    return next((one for one in several if isinstance(one, Tensor) and one.dim() == 3 and one.shape[:2] == shape), None)


def _described(found: Any) -> str:
    if isinstance(found, Tensor):
        return str(tuple(found.shape))
    if hasattr(found, "last_hidden_state"):
        return f"{type(found).__name__} without logits: take its class with a head, such as …ForTokenClassification"
    return type(found).__name__


def _is_x_encoder(module: nn.Module) -> bool:
    """Is it a wrapper of x-transformers whose layers see the whole row? Its ``mask`` is True for a real token."""
    library = type(module).__module__.partition(".")[0]
    return library == "x_transformers" and not getattr(getattr(module, "attn_layers", None), "causal", False)


def _is_required(part: inspect.Parameter) -> bool:
    return part.default is part.empty and part.kind not in (part.VAR_POSITIONAL, part.VAR_KEYWORD)
