"""What a runner may claim: models of which every part is known by its exact type, and nothing was put in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from lengthwise.nn.position import Encoding

# What a module's instance may have been given of its own, and what is called around it.
MODEL, ENCODING = {"embed", "start", "advance", "read"}, {"vectors", "angles", "keys", "attention_bias", "blank"}
METHODS = {"forward", *MODEL, *ENCODING}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
DTYPES = (torch.float32, torch.float64)
COMMON = (nn.Embedding, nn.LayerNorm, nn.Linear, nn.Identity, nn.Dropout, nn.ModuleList, nn.Sequential)

Known = dict[type, Callable[..., Any]]


def known(kinds: Iterable[type]) -> Known:
    """These types of modules, with what they compute as they are now: later patches of a class are noticed."""
    return {kind: kind.forward for kind in (*COMMON, *kinds)}


def declined(model: nn.Module, parts: Known) -> str | None:
    """Why such a model is not claimed, in a few words; None where it is. Of the package's own encodings all are known:
    their methods are called as they are."""
    if any(getattr(hooks, name, None) for name in GLOBAL_HOOKS):
        return "hooks are set on all modules"
    for name, module in model.named_modules():
        kind = type(module)
        own = issubclass(kind, Encoding) and kind.__module__.startswith("lengthwise.nn.")
        if not own and parts.get(kind) is not kind.forward:
            return f"{name or 'the model'} is of a type of its own, {kind.__name__}"
        if any(getattr(module, hook) for hook in HOOKS) or not METHODS.isdisjoint(vars(module)):
            return f"{name or 'the model'} has hooks or methods of its own"
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu" or parameter.dtype not in DTYPES:
            return f"{name} is {parameter.dtype} on {parameter.device.type}"
    return "autocast is on" if torch.is_autocast_enabled("cpu") else None
