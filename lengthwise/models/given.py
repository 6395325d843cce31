"""A torch module that Python hands over, where a recipe has the configuration of a model."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lengthwise.base.types import UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.models import Model, ModelSpec

_MODULES: dict[str, nn.Module] = {}  # by digest, as they were given; they last as long as the process


@dataclass(frozen=True)
class Given(ModelSpec):
    """A module given to ``lw.train`` or ``lw.evaluate`` from Python. No file can build it: give the module again."""

    name: str  # of its class
    digest: str  # of its weights when it was given, of which are frozen, and of its modules' plain attributes

    @staticmethod
    def of(module: nn.Module) -> Given:
        """What stands for the module in a recipe. UsageError for one whose weights are still to be made."""
        if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
            raise UsageError(f"{type(module).__name__} has lazy parts without weights: call it on some tokens first")
        digest = hashlib.blake2b(f"{type(module).__qualname__} {module}".encode(), digest_size=5)
        for name, value in module.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor_bytes(value) if isinstance(value, Tensor) else repr(value).encode())
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:  # a frozen weight makes another training
                digest.update(f"{name} is frozen".encode())
        for attribute in _attributes(module):
            digest.update(attribute.encode())
        return Given(type(module).__name__, digest.hexdigest())

    def remember(self, module: nn.Module) -> None:
        """Let this build the module as it is now, whatever becomes of it, for as long as the process lasts."""
        _MODULES[self.digest] = copy.deepcopy(module)

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model | nn.Module:
        if self.digest not in _MODULES:
            raise UsageError(
                f"this model is a module {self.name} that was given from Python, which no file can build: load "
                "model.safetensors into your module (names there begin with 'module.'), and give it to lw.evaluate"
            )
        return copy.deepcopy(_MODULES[self.digest])


def _attributes(module: nn.Module) -> Iterator[str]:
    """What neither weights nor ``repr`` need tell, as a number of heads or a configuration: what modules hold beside
    parts and parameters. Of what is private only numbers and words: the rest may be caches."""
    torchs = {*vars(nn.Module())}  # what torch keeps of every module, "training" among it
    for name, part in module.named_modules():
        for attribute, value in sorted(vars(part).items()):
            known = not attribute.startswith("_") or isinstance(value, _PLAIN)
            if attribute not in torchs and known and (text := _told(value)):
                yield f"{name}.{attribute} = {text}"


_PLAIN = bool, int, float, str, torch.dtype
DEEPEST = 8  # objects within objects that are told of


def _told(value: Any, deep: int = 0) -> str:
    """A value in words that are the same in every process: a tensor by its numbers, a function by its name, any other
    object by what it holds; empty for what holds nothing that one could see."""
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if hasattr(value, "__qualname__") or deep > DEEPEST:
        return getattr(value, "__qualname__", "")
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{list(value.shape)} {hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()}"
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)} {hashlib.blake2b(tensor_bytes(value), digest_size=8).hexdigest()}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_told(part, deep + 1) for part in value)}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_told(part, deep + 1) for part in value))}}}"
    if isinstance(value, dict):
        pairs = (f"{_told(name, deep + 1)}: {_told(part, deep + 1)}" for name, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    return f"{type(value).__qualname__}{_told(held, deep + 1)}" if (held := getattr(value, "__dict__", None)) else ""


def tensor_bytes(tensor: Tensor) -> bytes:
    """The numbers as they stand in memory, of any type."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
