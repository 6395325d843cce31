"""What a head may see: neighbours in the row, neighbours in a number, or what came before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lengthwise.nn.position import Encoding, Position, distance
from lengthwise.types import Inputs, UsageError


@dataclass(frozen=True)
class Local(Position):
    """Attention sees ``reach`` neighbours on either side, with a learned bias per head and relative offset
    (Shaw et al. 2018; Raffel et al. 2020, without their buckets)."""

    reach: int = 1

    def __post_init__(self) -> None:
        if self.reach < 0:
            raise UsageError(f"reach must be 0 or more, not {self.reach}")

    def build(self, width: int, heads: int) -> Encoding:
        return _Local(self.reach, heads)


class _Local(Encoding):
    def __init__(self, reach: int, heads: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(heads, 2 * reach + 1))

    def window(self) -> Float[Tensor, "h w"]:
        return self.bias


@dataclass(frozen=True)
class LocalHeads(Position):
    """The first ``count`` heads see ``reach`` neighbours on either side, the others the whole row; nothing is learned
    (as in Longformer, Beltagy et al. 2020, by head instead of by place)."""

    count: int
    reach: int = 1

    def __post_init__(self) -> None:
        if self.reach < 0 or self.count < 1:
            raise UsageError(f"reach must be 0 or more and count 1 or more, not {self.reach} and {self.count}")

    def build(self, width: int, heads: int) -> Encoding:
        if self.count > heads:
            raise UsageError(f"LocalHeads: count must be at most the model's {heads} heads, not {self.count}")
        return _LocalHeads(self, heads)


class _LocalHeads(Encoding):
    def __init__(self, spec: LocalHeads, heads: int) -> None:
        super().__init__()
        self.reach = spec.reach
        self.register_buffer("local", torch.arange(heads) < spec.count, persistent=False)

    def scores(self, inputs: Inputs) -> Float[Tensor, "h t t"]:
        far = distance(inputs.index.shape[1], self.local.device) > self.reach
        return torch.zeros(far.shape, device=far.device).masked_fill(self.local[:, None, None] & far, -torch.inf)


@dataclass(frozen=True)
class CoupledHeads(Position):
    """The last ``count`` heads see what stands in the same place of its number, or up to ``reach`` places off: all
    numbers of a row are laid one above the other (places as in position coupling, Cho et al. 2024, but as a window in
    which nothing is learned, so that no length is new to it)."""

    count: int
    reach: int = 0

    def __post_init__(self) -> None:
        if self.reach < 0 or self.count < 1:
            raise UsageError(f"reach must be 0 or more and count 1 or more, not {self.reach} and {self.count}")

    def build(self, width: int, heads: int) -> Encoding:
        if self.count > heads:
            raise UsageError(f"CoupledHeads: count must be at most the model's {heads} heads, not {self.count}")
        return _CoupledHeads(self, heads)


class _CoupledHeads(Encoding):
    def __init__(self, spec: CoupledHeads, heads: int) -> None:
        super().__init__()
        self.reach = spec.reach
        self.register_buffer("coupled", torch.arange(heads) >= heads - spec.count, persistent=False)

    def scores(self, inputs: Inputs) -> Float[Tensor, "b h t t"]:
        off = (inputs.place[:, :, None] - inputs.place[:, None]).abs() > self.reach
        hidden = self.coupled[:, None, None] & off[:, None]
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, -torch.inf)


@dataclass(frozen=True)
class EarlierHeads(Position):
    """The last ``count`` heads see what comes before their own place, not that itself; and a blank, a key of zero with
    a value of zero, so that they may see nothing (a softmax with one added to its sum, Miller 2023). So a head can tell
    whether its symbol has stood before, which in plain attention it cannot: its own place looks the same. Their keys
    start with the weights of their queries, as finding one's like takes long to learn from nothing."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"count must be 1 or more, not {self.count}")

    def build(self, width: int, heads: int) -> Encoding:
        if self.count > heads:
            raise UsageError(f"EarlierHeads: count must be at most the model's {heads} heads, not {self.count}")
        return _EarlierHeads(self, heads)


class _EarlierHeads(Encoding):
    def __init__(self, spec: EarlierHeads, heads: int) -> None:
        super().__init__()
        self.register_buffer("earlier", torch.arange(heads) >= heads - spec.count, persistent=False)

    def scores(self, inputs: Inputs) -> Float[Tensor, "h t t"]:
        place = torch.arange(inputs.index.shape[1], device=self.earlier.device)
        hidden = self.earlier[:, None, None] & (place[:, None] <= place)
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, -torch.inf)

    def alike(self) -> Bool[Tensor, " h"]:
        return self.earlier

    def blank(self) -> Float[Tensor, " h"]:
        return torch.zeros(len(self.earlier), device=self.earlier.device).masked_fill(~self.earlier, -torch.inf)
