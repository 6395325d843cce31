"""Where training problems come from: new ones in every batch, or a fixed set that is gone through again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.types import Problems, UsageError

Part = Literal["train", "validation", "test"]


class Source(ABC):
    """Subclasses are frozen dataclasses."""

    @abstractmethod
    def of(self, part: Part, problems: Problems) -> Bool[Tensor, " b"]:
        """Which of these problems may be used for this part of the work."""


@dataclass(frozen=True)
class Fresh(Source):
    """New problems in every batch, at addresses of their own. Where there are few of a size, those of a test have been
    met in training."""

    def of(self, part: Part, problems: Problems) -> Bool[Tensor, " b"]:
        return torch.ones(len(problems), dtype=torch.bool)


FRESH = Fresh()
SHARES: dict[Part, range] = {"train": range(10), "validation": range(10, 12), "test": range(12, 13)}  # of 13


@dataclass(frozen=True)
class Finite(Source):
    """A fixed set of so many ``rows``, each once, gone through in a new order in every epoch; what is left when it has
    no whole batch more is left out. All runs share the set, whatever their seeds; ``seed`` names another one.

    A hash of its prompt decides for what a problem may be used: ten thirteenths of all there are for training, two for
    validation, one for tests. So no problem is in two of them.
    """

    rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UsageError(f"rows must be 1 or more, not {self.rows}")

    def of(self, part: Part, problems: Problems) -> Bool[Tensor, " b"]:
        share = SHARES[part]
        drawn = hashed(problems) % sum(map(len, SHARES.values()))
        return (drawn >= share.start) & (drawn < share.stop)


def hashed(problems: Problems) -> Int[Tensor, " b"]:
    """63 bits of each prompt, whatever padding stands behind it: FNV-1a over its symbols, its bits then mixed as by
    MurmurHash's finaliser. In torch's integers, so alike on every machine."""
    code = torch.full_like(problems.prompt_length, -3750763034362895579, dtype=torch.long)
    for position, symbols in enumerate(problems.prompt.T):
        code = torch.where(position < problems.prompt_length, (code ^ symbols) * 1099511628211, code)
    for factor in (-49064778989728563, -4265267296055464877):
        code = (code ^ (code >> 33 & 0x7FFFFFFF)) * factor
    return (code ^ (code >> 33 & 0x7FFFFFFF)) & 0x7FFFFFFFFFFFFFFF
