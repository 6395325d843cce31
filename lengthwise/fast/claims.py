"""Decides whether a faster runner may claim a model.

Every module must have an exactly known type and an unpatched ``forward``, without hooks, parametrisations or methods
set on the instance; parameters must be float32 or float64 on the CPU; autocast must be off. Then the runner's formulas
are those of the modules; otherwise the model runs plainly.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from lengthwise.nn.position import Encoding

# What the package calls of encodings; of other modules it calls ``forward`` and what their classes define.
ENCODING = {"vectors", "angles", "keys", "attention_bias", "blank"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
DTYPES = (torch.float32, torch.float64)
COMMON = (nn.Embedding, nn.LayerNorm, nn.Linear, nn.Identity, nn.Dropout, nn.ModuleList, nn.Sequential)

Known = dict[type, dict[str, Any]]


def known(kinds: Iterable[type]) -> Known:
    """Map module types to their present methods, so that a later patch of a class is noticed."""
    return {
        kind: {name: part for name, part in vars(kind).items() if inspect.isroutine(part)} for kind in (*COMMON, *kinds)
    }


def declined(model: nn.Module, parts: Known) -> str | None:
    """The reason why a model is not claimed, in a few words; None if it is claimed.

    All encodings of the package are accepted, because runners call their methods.
    """
    if any(getattr(hooks, name, None) for name in GLOBAL_HOOKS):
        return "hooks are set on all modules"
    for name, module in model.named_modules():
        kind = type(module)
        own = issubclass(kind, Encoding) and kind.__module__.startswith("lengthwise.nn.")
        methods = ENCODING if own else parts.get(kind)
        if methods is None:
            return f"{name or 'the model'} is of an unknown type, {kind.__name__}"
        if any(getattr(module, hook) for hook in HOOKS) or not vars(module).keys().isdisjoint(("forward", *methods)):
            return f"{name or 'the model'} has hooks or methods of its own"
    for kind in {type(module) for module in model.modules()} & parts.keys():
        for name, method in parts[kind].items():
            if vars(kind).get(name) is not method:
                return f"{kind.__name__}.{name} was replaced"
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu" or parameter.dtype not in DTYPES:
            return f"{name} is {parameter.dtype} on {parameter.device.type}"
    return "autocast is on" if torch.is_autocast_enabled("cpu") else None
