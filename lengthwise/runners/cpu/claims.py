"""The check that a faster runner may run a model: its formulas must be those of the model's modules.

Every module must have a known type, parts of known types, and an unpatched ``forward``, without hooks, parametrisations
or methods set on the instance; parameters must be float32 or float64 on the runner's device; autocast must be off.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules import module as hooks

from lengthwise.base.types import Inputs
from lengthwise.models import Model, State
from lengthwise.nn.position import Encoding
from lengthwise.registry.loading import import_folder
from lengthwise.runners import Logits, RowLoops, Runner, Selected
from lengthwise.runners.plain import Plain

# The methods of encodings that the package calls. Of other modules it calls ``forward`` and their classes' methods.
ENCODING = {"vectors", "angles", "keys", "attention_bias", "blank"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
DTYPES = (torch.float32, torch.float64)
COMMON = (nn.Embedding, nn.LayerNorm, nn.Linear, nn.Identity, nn.Dropout, nn.ModuleList, nn.Sequential)

Slots = Mapping[str, tuple[type, ...] | list[type]]  # the types allowed for each part (a list: for its entries)
Known = dict[type, Slots]


class Claiming(Runner):
    """A runner that claims models of one type, made of known parts."""

    kind: ClassVar[type[Model]]  # the type of model that it runs
    parts: ClassVar[Known]  # the module types that the model may contain
    devices: ClassVar[Sequence[str]] = ("cpu",)

    @classmethod
    def handles_type(cls, model: Model) -> bool:
        """Return whether this runner is for models of this type."""
        return isinstance(model, cls.kind)

    @classmethod
    def declines(cls, model: Model) -> str | None:
        """Return the reason why the model is not claimed; None if it is."""
        return why_declined(model, cls.parts, cls.devices)

    def carry(self, inputs: Inputs, loops: RowLoops, at: Selected, state: State | None = None) -> tuple[Logits, State]:
        return Plain(self.model).carry(inputs, loops, at, state)


_WRITTEN: dict[type, dict[str, Any]] = {}  # the methods of classes, recorded before they can be patched


def register_types(kinds: Known) -> Known:
    """Return these module types and the common ones, and record their methods, so that later patches of a class are
    detected."""
    found: Known = {module_type: {} for module_type in COMMON} | kinds
    for module_type in found:
        _record_methods(module_type)
    return found


def _record_methods(module_type: type) -> None:
    for one in module_type.__mro__[: module_type.__mro__.index(nn.Module)]:
        _WRITTEN.setdefault(one, {name: part for name, part in vars(one).items() if inspect.isroutine(part)})


def why_declined(model: nn.Module, parts: Known, devices: Sequence[str] = ("cpu",)) -> str | None:
    """Return the reason, in a few words, why a model is not claimed; None if it is claimed.

    All encodings of the package are accepted, because runners call their methods. This runs once per training step.
    """
    if any(getattr(hooks, name, None) for name in GLOBAL_HOOKS):
        return "hooks are set on all modules"
    kinds: dict[type, None] = {}  # in order, so that the same reason is given again
    for module in model.modules():
        if (reason := _find_changes(module, parts, devices)) is not None:
            name = next(name for name, part in model.named_modules() if part is module)
            return f"{name or 'the model'} {reason}"
        kinds[type(module)] = None
    for one in dict.fromkeys(base for module_type in kinds for base in _defining_classes(module_type)):
        own = vars(one)
        for name, method in _WRITTEN[one].items():
            if own.get(name) is not method:
                return f"{one.__name__}.{name} was replaced"
    return "autocast is on" if any(map(torch.is_autocast_enabled, devices)) else None


def _find_changes(module: nn.Module, parts: Known, devices: Sequence[str]) -> str | None:
    """Describe how a module itself, apart from its parts, differs from what runners implement; None if it does not."""
    own, module_type = vars(module), type(module)
    if module_type in parts:
        methods, slots = _WRITTEN[module_type], parts[module_type]
    elif _is_shipped_encoding(module_type):
        methods, slots = ENCODING, {}
    else:
        return f"is of an unknown type, {module_type.__name__}"
    if (reason := next(filter(None, (_find_foreign_part(own, *slot) for slot in slots.items())), None)) is not None:
        return reason
    if isinstance(module, nn.GELU) and module.approximate != "tanh":
        return "is an exact GELU"
    if isinstance(module, nn.LayerNorm) and (module.weight is None or module.bias is None):
        return "is a norm without weights or without biases"
    if any(own[hook] for hook in HOOKS) or "forward" in own or not own.keys().isdisjoint(methods):
        return "has hooks or methods of its own"
    for parameter in own["_parameters"].values():
        if parameter is not None and (parameter.device.type not in devices or parameter.dtype not in DTYPES):
            return f"has parameters of {parameter.dtype} on {parameter.device.type}"
    return None


def _find_foreign_part(attributes: dict[str, Any], name: str, kinds: tuple[type, ...] | list[type]) -> str | None:
    """Describe the part in this slot of a module if its type is not allowed there; else return None."""
    if name in attributes:
        return f"has a {name} that is not a module"
    part = attributes["_modules"].get(name)
    if isinstance(kinds, list) and type(part) is nn.ModuleList and len(part):
        return next((f"has a {type(one).__name__} among its {name}" for one in part if type(one) not in kinds), None)
    known = part is None or (type(part) in kinds and not isinstance(kinds, list))
    return None if known else f"has a {type(part).__name__} as its {name}"


@cache
def _defining_classes(module_type: type) -> tuple[type, ...]:
    """Return the classes that define what a module of this type computes."""
    return tuple(one for one in module_type.__mro__ if one in _WRITTEN)


def _list_encodings(module_type: type = Encoding) -> Iterator[type]:
    """Yield all subclasses."""
    for one in module_type.__subclasses__():
        yield one
        yield from _list_encodings(one)


@cache
def _is_shipped_encoding(module_type: type) -> bool:
    return issubclass(module_type, Encoding) and module_type.__module__.startswith("lengthwise.nn.")


import_folder("nn")  # all that may define encodings
for _kind in filter(_is_shipped_encoding, _list_encodings()):
    _record_methods(_kind)
