"""A torch module that Python hands over, where a recipe has the configuration of a model."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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
        """What stands for the module in a recipe."""
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
    """What neither weights nor ``repr`` need tell, as a number of heads: plain values that modules hold."""
    for name, part in module.named_modules():
        for attribute, value in sorted(vars(part).items()):
            if attribute != "training" and not attribute.startswith("_") and (text := _told(value)):
                yield f"{name}.{attribute} = {text}"


def _told(value: Any) -> str:
    """A plain value, or a function by its name, the same in every process; empty for all else."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_told, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_told(name)}: {_told(part)}' for name, part in value.items())}}}"
    return getattr(value, "__qualname__", "")


def tensor_bytes(tensor: Tensor) -> bytes:
    """The numbers as they stand in memory, of any type."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
