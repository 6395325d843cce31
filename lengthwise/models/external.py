"""Recipes that contain a torch module passed from Python instead of a model's configuration."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import FunctionType, ModuleType, NoneType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lengthwise.base.extras import import_library
from lengthwise.base.files import format_error
from lengthwise.base.types import UsageError, Vocab
from lengthwise.models import Model, ModelSpec

PLAIN_TYPES = bool, int, float, complex, str, bytes, range, torch.dtype, torch.device, torch.layout
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # torch's own attributes of every module, such as "training"
_MODULES: dict[str, nn.Module] = {}  # copies of modules, by digest and by form, kept until the process ends


@dataclass(frozen=True)
class ExternalModule(ModelSpec):
    """A module passed to ``lw.train`` or ``lw.evaluate`` from Python. Another process rebuilds a model of the library
    transformers from the configuration; it rebuilds any other module by an imported function that is annotated to
    return the module's class."""

    recorded_name: ClassVar[str] = "Given"

    name: str  # name of its class
    digest: str  # hash of its weights, of the names of frozen ones, and of all other attributes of its modules
    form: str = field(default="", metadata={"identity": False})  # ``digest`` without the weights' numbers
    # The configuration of a model of the library transformers, and its weights' type, in JSON; empty for other modules.
    config: str = field(default="", metadata={"identity": False, "shown": False})

    @staticmethod
    def from_module(module: nn.Module) -> ExternalModule:
        """Return the specification of a module. Raises UsageError if its weights are not initialized yet."""
        tensors = [*module.parameters(), *module.buffers()]
        if any(map(is_lazy, tensors)):
            raise UsageError(f"{type(module).__name__} has lazy layers without weights: call it on some tokens first")
        if any(tensor.is_meta for tensor in tensors):
            raise UsageError(f"{type(module).__name__} has weights on the meta device: build it on the CPU")
        digest, form = _hash_weights(module), _hash_weights(module, with_values=False)
        # Attributes of all modules, e.g. a number of heads, which neither weights nor ``repr`` need to show.
        seen: dict[int, int] = {}
        for name, part in module.named_modules():
            for attribute, value in _list_contents(part).items():
                text = _describe_value(value, seen)
                line = f"{name}.{attribute} = {text}".encode() if text else b""
                digest.update(line)
                form.update(line)
        config = _read_transformers_config(module)
        return ExternalModule(type(module).__name__, digest.hexdigest(), form.hexdigest(), config)

    @property
    def spec_without_seed(self) -> ModelSpec:
        return replace(self, digest=self.form) if self.form else self

    def store_copy(self, module: nn.Module) -> None:
        """Store a copy of the module; ``build`` returns copies of this copy until the process ends."""
        try:
            _MODULES[self.digest] = _MODULES[self.form] = copy.deepcopy(module)
        except Exception as error:  # e.g. a TypeError for an attribute that is a lock or an open file
            raise UsageError(f"{self.name} cannot be copied by copy.deepcopy: {format_error(error)}") from error

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model | nn.Module:
        if (known := _MODULES.get(self.digest, _MODULES.get(self.form))) is not None:
            return copy.deepcopy(known)
        if self.config:
            return _build_from_config(self.name, self.config)
        built = {name: function() for name, function in _find_builders(self.name).items()}
        same_class = {name: module for name, module in built.items() if type(module).__name__ == self.name}
        for module in same_class.values():
            if self.form in ("", ExternalModule.from_module(module).form):
                return module
        if names := ", ".join(same_class):
            raise UsageError(f"{names}: the returned {self.name} differs from the trained one in layers or settings")
        fault = f"this model is a module {self.name} passed in from Python, which the saved files cannot build"
        advice = f"import a file with a function that returns it, e.g. def build() -> {self.name}"
        raise UsageError(f"{fault}: {advice} (on the command line: --import)")


def _find_builders(class_name: str) -> dict[str, Callable[[], nn.Module]]:
    """Return a dictionary from names to functions of imported files that need no arguments and are annotated to return
    the class ``class_name``. A string annotation may include the module's name."""
    functions = {}
    for module in [*sys.modules.values()]:
        for function in [*getattr(module, "__dict__", {}).values()]:
            if type(function) is FunctionType and function.__module__ == getattr(module, "__name__", ""):
                returned = function.__annotations__.get("return")
                returned = str(getattr(returned, "__name__", returned)).rpartition(".")[2]
                if returned == class_name and all(
                    parameter.default is not parameter.empty
                    for parameter in inspect.signature(function).parameters.values()
                ):
                    functions[function.__qualname__] = function
    return functions


def _read_transformers_config(module: nn.Module) -> str:
    """Return the configuration and the weights' type of a model of the library transformers, as JSON. Return "" for
    other modules."""
    config: Any = getattr(module, "config", None)
    if type(module).__module__.partition(".")[0] != "transformers" or config is None:
        return ""
    kinds = {str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()}
    return json.dumps({"dtype": min(kinds, default="float32"), "config": json.loads(config.to_json_string())})


def _build_from_config(name: str, text: str) -> nn.Module:
    """Build a model of the library transformers with new weights; ``text`` is a result of
    ``_read_transformers_config``. Raises UsageError if the library is missing or has no class ``name``."""
    transformers = import_library("transformers", "transformers", f"this model, {name}, needs transformers")
    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise UsageError(f"transformers {transformers.__version__} has no model {name}")
    try:
        stored = json.loads(text)
        module = kind(kind.config_class.from_dict(stored["config"]))
        return module.to(getattr(torch, stored["dtype"]))
    except Exception as error:  # any error with a configuration of another version
        message = f"{name}: transformers cannot build it from its configuration ({format_error(error)})"
        raise UsageError(message) from None


def _hash_weights(module: nn.Module, *, with_values: bool = True) -> hashlib.blake2b:
    """Return a hash of a module's structure, its weights, and the names of frozen weights. Without ``with_values``,
    only types and shapes of weights are hashed."""
    digest = hashlib.blake2b(f"{type(module).__qualname__} {module}".encode(), digest_size=5)
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(read_tensor_bytes(value) if with_values else f"{value.dtype} {tuple(value.shape)}".encode())
        else:
            digest.update(repr(value).encode())
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:  # freezing a weight changes training
            digest.update(f"{name} is frozen".encode())
    return digest


def _list_contents(value: Any) -> dict[str, Any]:
    """Return a dictionary, sorted by key, of an object's attributes and, with numbers as keys, of the other values that
    ``pickle`` stores. Private attributes, which may be caches, are left out unless their type is in ``PLAIN_TYPES`` and
    the class is not torch's."""
    if isinstance(value, nn.Module):
        contents = {name: part for name, part in vars(value).items() if name not in MODULE_ATTRIBUTES}
    else:
        try:
            _, arguments, state, *_ = *value.__reduce_ex__(2), None
        except TypeError:  # such as a lock
            arguments, state = (), getattr(value, "__dict__", None)
        parts = [*arguments, *(state if isinstance(state, tuple) else [state])]
        contents = {
            str(number): part for number, part in enumerate(parts) if not isinstance(part, dict | type | NoneType)
        }
        for part in parts:
            contents |= {str(name): own for name, own in part.items()} if isinstance(part, dict) else {}
    plain = () if type(value).__module__.startswith("torch.") else PLAIN_TYPES
    return {
        name: part
        for name, part in sorted(contents.items())
        if (not name.startswith("_") or isinstance(part, plain))
        and not isinstance(inspect.getattr_static(type(value), name, None), functools.cached_property)
    }


def _describe_value(value: Any, object_numbers: dict[int, int], depth: int = 0) -> str:
    """Return a description of a value; the description is the same in every process.

    A tensor or module is described by a hash, a named object by its name, and any other object by its attributes. An
    object that occurs again is described by its number in ``object_numbers``. An object without visible attributes is
    described by "".
    """

    def describe_all(values: Iterable[Any]) -> list[str]:
        return [_describe_value(part, object_numbers, depth + 1) for part in values]

    if value is None or isinstance(value, PLAIN_TYPES):
        return repr(value)
    if isinstance(value, ModuleType | logging.Logger):  # these refer to all other modules or loggers
        return value.__name__ if isinstance(value, ModuleType) else value.name
    if hasattr(value, "__qualname__") or depth > 8:
        return getattr(value, "__qualname__", "")
    if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
        numbers = read_tensor_bytes(value.resolve_conj().resolve_neg())
        return f"{value.dtype}{list(value.shape)} {hashlib.blake2b(numbers, digest_size=8).hexdigest()}"
    if isinstance(value, nn.Module):
        return f"{type(value).__qualname__} {_hash_weights(value).hexdigest()}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe_all(value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(describe_all(value)))}}}"
    if isinstance(value, dict):
        items = zip(describe_all(value), describe_all(value.values()), strict=True)
        return f"{{{', '.join(map(': '.join, items))}}}"
    if id(value) in object_numbers:
        return f"{type(value).__qualname__} {object_numbers[id(value)]}"
    object_numbers[id(value)] = len(object_numbers)
    contents = _list_contents(value)
    return f"{type(value).__qualname__}{_describe_value(contents, object_numbers, depth + 1)}" if contents else ""


def read_tensor_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor's numbers, on any device and of any type."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
