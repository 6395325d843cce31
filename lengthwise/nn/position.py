"""Positional encodings, each added where it belongs: to the input, to queries and keys, or to attention scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.types import Inputs, UsageError


class Encoding(nn.Module):
    """What an encoding adds; by default nothing, anywhere."""

    def embed(self, x: Float[Tensor, "b t d"], index: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """The embedded input, with positions."""
        return x

    def angles(self, index: Int[Tensor, "b t"]) -> Float[Tensor, "b t half"] | None:
        """By how much to rotate each pair of coordinates of queries and keys, in radians."""
        return None

    def scores(self, inputs: Inputs) -> Float[Tensor, "h t t"] | Float[Tensor, "b h t t"] | None:
        """What is added to attention scores, per head, for each pair of positions in a row; −inf where one is not seen.
        It has rows where it differs between them."""
        return None

    def blank(self) -> Float[Tensor, " h"] | None:
        """Scores' bias per head of a key that is nowhere and says nothing, to look at when there is nothing to see."""
        return None

    def alike(self) -> Bool[Tensor, " h"] | None:
        """Heads whose keys start with the weights of their queries: like finds like from the first step on."""
        return None

    def window(self) -> Float[Tensor, "h w"] | None:
        """Scores' bias per head and offset −reach … +reach; what lies outside is not seen."""
        return None


class Position(ABC):
    """The configuration of an encoding. Subclasses are frozen dataclasses."""

    @abstractmethod
    def build(self, width: int, heads: int) -> Encoding:
        """The encoding for a model of this width."""


@dataclass(frozen=True)
class NoPE(Position):
    """No positional encoding: order is known only through the causal mask (Kazemnejad et al. 2023)."""

    def build(self, width: int, heads: int) -> Encoding:
        return Encoding()


@dataclass(frozen=True)
class Learned(Position):
    """A learned vector per absolute position, added to the input (Radford et al. 2018). It holds ``size`` positions."""

    size: int = 512

    def build(self, width: int, heads: int) -> Encoding:
        return _Learned(self.size, width)


class _Learned(Encoding):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def embed(self, x: Float[Tensor, "b t d"], index: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        if index.shape[1] > self.table.num_embeddings:
            raise UsageError(
                f"a row of {index.shape[1]} positions does not fit the learned table of {self.table.num_embeddings}: "
                "ask for a shorter length, or train with Learned(size=…) larger"
            )
        return x + self.table(index)


@dataclass(frozen=True)
class RoPE(Position):
    """Rotary encoding of queries and keys (Su et al. 2021); rotates coordinate i together with i + half."""

    base: float = 10_000.0

    def build(self, width: int, heads: int) -> Encoding:
        if width // heads % 2:
            raise UsageError(f"RoPE needs an even width per head, not {width} / {heads} = {width // heads}")
        return _RoPE(width // heads, self.base)


class _RoPE(Encoding):
    def __init__(self, head_width: int, base: float) -> None:
        super().__init__()
        half = head_width // 2
        self.register_buffer("rates", base ** (-torch.arange(half) / half), persistent=False)

    def angles(self, index: Int[Tensor, "b t"]) -> Float[Tensor, "b t half"]:
        return index[..., None] * self.rates


def rotate(x: Float[Tensor, "b h t e"], angles: Float[Tensor, "b t half"]) -> Float[Tensor, "b h t e"]:
    """Queries or keys, turned by their positions' angles."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


@dataclass(frozen=True)
class ALiBi(Position):
    """Attention scores fall with distance, linearly, with a slope of each head's own; nothing is learned (Press et al.
    2022). The slopes are a geometric sequence, over a factor of 2⁸ for all heads together; as published its
    ``steepest`` is 2^(−8/heads), a half for eight heads. Steeper ones let a head see a single neighbour."""

    steepest: float | None = None

    def __post_init__(self) -> None:
        if self.steepest is not None and self.steepest <= 0:
            raise UsageError(f"steepest must be above 0, not {self.steepest}")

    def build(self, width: int, heads: int) -> Encoding:
        ratio = 2.0 ** (-8 / heads)
        return _ALiBi((self.steepest or ratio) * ratio ** torch.arange(heads))


class _ALiBi(Encoding):
    def __init__(self, slopes: Float[Tensor, " h"]) -> None:
        super().__init__()
        self.register_buffer("slopes", slopes, persistent=False)

    def scores(self, inputs: Inputs) -> Float[Tensor, "h t t"]:
        return -self.slopes[:, None, None] * distance(inputs.index.shape[1], self.slopes.device)


def distance(length: int, device: torch.device) -> Int[Tensor, "t t"]:
    """Between each two places of a row."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs()
