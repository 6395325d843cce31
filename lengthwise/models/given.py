"""A torch module that Python hands over, where a recipe has the configuration of a model."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthwise.base.types import UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.models import Model, ModelSpec

_MODULES: dict[str, nn.Module] = {}  # by digest; they last as long as the process


@dataclass(frozen=True)
class Given(ModelSpec):
    """A module given to ``lw.train`` or ``lw.evaluate`` from Python. No file can build it: give the module again."""

    name: str  # of its class
    digest: str  # of its weights when it was given, and of which are frozen

    @staticmethod
    def of(module: nn.Module) -> Given:
        """The module's place in a recipe. It is remembered for as long as the process lasts."""
        digest = hashlib.blake2b(f"{type(module).__qualname__} {module}".encode(), digest_size=5)
        for name, value in module.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor_bytes(value) if isinstance(value, Tensor) else repr(value).encode())
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:  # a frozen weight makes another training
                digest.update(f"{name} is frozen".encode())
        given = Given(type(module).__name__, digest.hexdigest())
        _MODULES[given.digest] = module
        return given

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model | nn.Module:
        if self.digest not in _MODULES:
            raise UsageError(
                f"this model is a module {self.name} that was given from Python, which no file can build: "
                "load model.safetensors into your module, and give it to lw.evaluate"
            )
        return copy.deepcopy(_MODULES[self.digest])


def tensor_bytes(tensor: Tensor) -> bytes:
    """The numbers as they stand in memory, of any type."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
