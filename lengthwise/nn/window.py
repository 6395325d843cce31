"""What a head may see: neighbours in the row, neighbours in a number, or what came before."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lengthwise.base.types import Inputs, UsageError
from lengthwise.nn.position import Encoding, Position, distance, gaps


@dataclass(frozen=True)
class Local(Position):
    """Attention sees ``reach`` neighbours on either side, with a learned bias per head and relative offset
    (Shaw et al. 2018; Raffel et al. 2020, without their buckets)."""

    reach: int = 1

    def __post_init__(self) -> None:
        if self.reach < 0:
            raise UsageError(f"reach must be 0 or more, not {self.reach}")

    def build(self, width: int, heads: int) -> Encoding:
        return LocalEncoding(self.reach, heads)


class LocalEncoding(Encoding):
    """See ``Local``."""

    def __init__(self, reach: int, heads: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(heads, 2 * reach + 1))

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"]:
        reach = self.bias.shape[1] // 2
        position = torch.arange(inputs.tokens.shape[1], device=self.bias.device)
        offset = position - position[:, None]
        return self.bias[:, offset.clamp(-reach, reach) + reach].masked_fill(offset.abs() > reach, -torch.inf)


@dataclass(frozen=True)
class _Heads(Position):
    """Some of a model's heads see less than the others; nothing is learned."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"count must be 1 or more, not {self.count}")

    def _fits(self, heads: int) -> None:
        if self.count > heads:
            raise UsageError(
                f"{type(self).__name__}: count must be at most the model's {heads} heads, not {self.count}"
            )


@dataclass(frozen=True)
class _Reaching(_Heads):
    """They see so far, and no farther."""

    reach: int

    def __post_init__(self) -> None:
        if self.reach < 0 or self.count < 1:
            raise UsageError(f"reach must be 0 or more and count 1 or more, not {self.reach} and {self.count}")


class _Hiding(Encoding):
    """Hides positions from the chosen heads."""

    chosen: Bool[Tensor, " h"]

    def __init__(self, chosen: Bool[Tensor, " h"]) -> None:
        super().__init__()
        self.all = bool(chosen.all())
        self.register_buffer("chosen", chosen, persistent=False)

    @abstractmethod
    def hidden(self, inputs: Inputs) -> Bool[Tensor, "t t"] | Bool[Tensor, "b 1 t t"]:
        """True for each pair of positions of which the first does not see the second."""

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "... t t"]:
        chosen = self.chosen[:1] if self.all else self.chosen  # one table for all heads, where all see the same
        hidden = chosen[:, None, None] & self.hidden(inputs)
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, -torch.inf)


@dataclass(frozen=True)
class LocalHeads(_Reaching):
    """The first ``count`` heads see ``reach`` neighbours on either side, the others the whole row; nothing is learned
    (as in Longformer, Beltagy et al. 2020, by head instead of by place)."""

    reach: int = 1

    def build(self, width: int, heads: int) -> Encoding:
        self._fits(heads)
        return LocalHeadsEncoding(torch.arange(heads) < self.count, self.reach)


class LocalHeadsEncoding(_Hiding):
    """See ``LocalHeads``."""

    def __init__(self, chosen: Bool[Tensor, " h"], reach: int) -> None:
        super().__init__(chosen)
        self.reach = reach

    def hidden(self, inputs: Inputs) -> Bool[Tensor, "t t"]:
        return distance(inputs.position.shape[1], self.chosen.device) > self.reach


@dataclass(frozen=True)
class CoupledHeads(_Reaching):
    """The last ``count`` heads see what stands in the same place of its number, or up to ``reach`` places off: all
    numbers of a row are laid one above the other (places as in position coupling, Cho et al. 2024, but as a window in
    which nothing is learned, so that no length is new to it)."""

    reach: int = 0

    def build(self, width: int, heads: int) -> Encoding:
        self._fits(heads)
        return CoupledHeadsEncoding(torch.arange(heads) >= heads - self.count, self.reach)


class CoupledHeadsEncoding(LocalHeadsEncoding):
    """See ``CoupledHeads``."""

    def hidden(self, inputs: Inputs) -> Bool[Tensor, "b 1 t t"]:
        return (gaps(inputs.digit_position) > self.reach)[:, None]


@dataclass(frozen=True)
class EarlierHeads(_Heads):
    """The last ``count`` heads see what comes before their own place, not that itself; and a blank, a key of zero with
    a value of zero, so that they may see nothing (a softmax with one added to its sum, Miller 2023). So a head can tell
    whether its symbol has stood before, which in plain attention it cannot: its own place looks the same. Their keys
    start with the weights of their queries, as finding one's like takes long to learn from nothing."""

    def build(self, width: int, heads: int) -> Encoding:
        self._fits(heads)
        return EarlierHeadsEncoding(torch.arange(heads) >= heads - self.count)


class EarlierHeadsEncoding(_Hiding):
    """See ``EarlierHeads``."""

    def hidden(self, inputs: Inputs) -> Bool[Tensor, "t t"]:
        position = torch.arange(inputs.position.shape[1], device=self.chosen.device)
        return position[:, None] <= position

    def alike(self) -> Bool[Tensor, " h"]:
        return self.chosen

    def blank(self) -> Float[Tensor, " h"]:
        return torch.zeros(len(self.chosen), device=self.chosen.device).masked_fill(~self.chosen, -torch.inf)
