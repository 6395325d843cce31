"""Check that a faster runner supports a model, that is, computes exactly the formulas of the model's modules.

Every module and its parts must be of types that the runner lists, with an unpatched ``forward``, and without hooks,
parametrizations or methods set on the instance. Parameters must be float32 or float64 on the runner's device, and
autocast must be off.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules import module as hooks

from lengthwise.base.types import Inputs
from lengthwise.models import Model, State
from lengthwise.nn.position import Encoding
from lengthwise.registry import import_folder
from lengthwise.runners import LogitsAndState, Mask, RowLoops, Runner
from lengthwise.runners.plain import Plain

# Methods of encodings that runners call, so an instance must not replace them; of other modules, all methods count.
ENCODING_METHODS = {"vectors", "angles", "keys", "attention_bias", "blank"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
DTYPES = (torch.float32, torch.float64)
COMMON_TYPES = (nn.Embedding, nn.LayerNorm, nn.Linear, nn.Identity, nn.Dropout, nn.ModuleList, nn.Sequential)

SlotTypes = Mapping[str, tuple[type, ...] | list[type]]  # module types allowed for a part; in a list: for its entries
PartTypes = dict[type, SlotTypes]


class SpecializedRunner(Runner):
    """Base class of runners that support one type of model, built only from the module types in ``part_types``."""

    model_type: ClassVar[type[Model]]  # the type of model that it runs
    part_types: ClassVar[PartTypes]  # the module types that the model may contain
    devices: ClassVar[Sequence[str]] = ("cpu",)

    @classmethod
    def find_obstacle(cls, model: Model) -> str | None:
        """Return the reason why the runner does not support the model; None if it does."""
        return find_obstacle(model, cls.part_types, cls.devices)

    def carry(self, inputs: Inputs, loops: RowLoops, positions: Mask, state: State | None = None) -> LogitsAndState:
        return Plain(self.model).carry(inputs, loops, positions, state)


_ORIGINAL_METHODS: dict[type, dict[str, Any]] = {}  # the methods of classes, recorded before they can be patched


def register_types(part_types: PartTypes) -> PartTypes:
    """Return these module types and the common ones, and record their methods, so that later patches of a class are
    detected."""
    types: PartTypes = {module_type: {} for module_type in COMMON_TYPES} | part_types
    for module_type in types:
        for cls in module_type.__mro__[: module_type.__mro__.index(nn.Module)]:
            methods = {name: part for name, part in vars(cls).items() if inspect.isroutine(part)}
            _ORIGINAL_METHODS.setdefault(cls, methods)
    return types


def find_obstacle(model: nn.Module, part_types: PartTypes, devices: Sequence[str] = ("cpu",)) -> str | None:
    """Return a short reason why runners of these ``part_types`` do not support a model; None if they do.

    All encodings of the package are accepted, because runners call their methods. This check runs once per training
    step.
    """
    if any(getattr(hooks, name, None) for name in GLOBAL_HOOKS):
        return "hooks are set on all modules"
    kinds: dict[type, None] = {}  # a dict keeps the order, so that the reason is always the same
    for module in model.modules():
        if (reason := _find_changes(module, part_types, devices)) is not None:
            name = next(name for name, part in model.named_modules() if part is module)
            return f"{name or 'the model'} {reason}"
        kinds[type(module)] = None
    for one in dict.fromkeys(base for kind in kinds for base in kind.__mro__ if base in _ORIGINAL_METHODS):
        for name, method in _ORIGINAL_METHODS[one].items():
            if vars(one).get(name) is not method:
                return f"{one.__name__}.{name} was replaced"
    return "autocast is on" if any(map(torch.is_autocast_enabled, devices)) else None


def _find_changes(module: nn.Module, part_types: PartTypes, devices: Sequence[str]) -> str | None:
    """Describe how a module itself, apart from its parts, differs from supported ones; None if it does not differ."""
    attributes, module_type = vars(module), type(module)
    if module_type in part_types:
        methods, slots = _ORIGINAL_METHODS[module_type], part_types[module_type]
    elif module_type in _ORIGINAL_METHODS and issubclass(module_type, Encoding):
        methods, slots = ENCODING_METHODS, {}
    else:
        return f"is of an unknown type, {module_type.__name__}"
    for name, kinds in slots.items():
        if name in attributes:
            return f"has no module as its {name}"
        part = attributes["_modules"].get(name)
        if isinstance(kinds, list) and type(part) is nn.ModuleList and len(part):
            if foreign := [type(entry).__name__ for entry in part if type(entry) not in kinds]:
                return f"has {foreign[0]} among its {name}"
        elif part is not None and (isinstance(kinds, list) or type(part) not in kinds):
            return f"has {type(part).__name__} as its {name}"
    if isinstance(module, nn.GELU) and module.approximate != "tanh":
        return "is an exact GELU"
    if isinstance(module, nn.LayerNorm) and (module.weight is None or module.bias is None):
        return "is a norm without weights or without biases"
    if any(attributes[hook] for hook in HOOKS) or "forward" in attributes or not attributes.keys().isdisjoint(methods):
        return "has hooks or methods of its own"
    for parameter in attributes["_parameters"].values():
        if parameter is not None and (parameter.device.type not in devices or parameter.dtype not in DTYPES):
            return f"has parameters of {parameter.dtype} on {parameter.device.type}"
    return None


# Runners accept all encodings of the package.
_NN_CLASSES = (kind for module in import_folder("nn") for kind in vars(module).values())
register_types({kind: {} for kind in _NN_CLASSES if isinstance(kind, type) and issubclass(kind, Encoding)})
