"""Positional encodings, each added where it belongs: to the input, to queries and keys, or to attention scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from lengthwise.base.rng import stream
from lengthwise.base.types import Inputs, UsageError


class Encoding(nn.Module):
    """What an encoding adds; by default nothing, anywhere."""

    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"] | None:
        """What is added to the embedded input."""
        return None

    def angles(self, inputs: Inputs) -> Float[Tensor, "b t half"] | None:
        """By how much to rotate each pair of coordinates of queries and keys, in radians."""
        return None

    def keys(self, inputs: Inputs) -> Float[Tensor, "b t d"] | None:
        """What is added to the queries and keys of every layer, all heads side by side."""
        return None

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"] | Float[Tensor, "b h t t"] | None:
        """What is added to attention scores, per head, for each query and key of a row; −inf where a key is not seen.
        It has rows where it differs between them."""
        return None

    def blank(self) -> Float[Tensor, " h"] | None:
        """Scores' bias per head of a key that is nowhere and says nothing, to look at when there is nothing to see."""
        return None

    def alike(self) -> Bool[Tensor, " h"] | None:
        """Heads whose keys start with the weights of their queries: like finds like from the first step on."""
        return None

    @property
    def attends(self) -> bool:
        """Does it act within attention, and not on the embedded input alone?"""
        inside = ("angles", "keys", "attention_bias", "blank")
        return any(getattr(type(self), name) is not getattr(Encoding, name) for name in inside)


class Position(ABC):
    """The configuration of an encoding. Subclasses are frozen dataclasses."""

    indexed: ClassVar[bool] = False  # it encodes where in the row a symbol stands

    @abstractmethod
    def build(self, width: int, heads: int) -> Encoding:
        """The encoding for a model of this width."""

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        """What the model is told in training instead, so that positions of longer rows are trained too. Not at test."""
        return inputs


@dataclass(frozen=True)
class NoPE(Position):
    """No positional encoding: order is known only through the causal mask (Kazemnejad et al. 2023)."""

    def build(self, width: int, heads: int) -> Encoding:
        return Encoding()


@dataclass(frozen=True)
class Learned(Position):
    """A learned vector per absolute position, added to the input (Radford et al. 2018). It holds ``size`` positions."""

    indexed = True

    size: int = 512

    def build(self, width: int, heads: int) -> Encoding:
        return _Learned(self.size, width)


class _Learned(Encoding):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"]:
        width, size = inputs.position.shape[1], self.table.num_embeddings
        if width > size:
            raise UsageError(
                f"a row of {width} positions does not fit the learned table of {size}: "
                "ask for a shorter length, or train with Learned(size=…) larger"
            )
        return self.table(inputs.position)


@dataclass(frozen=True)
class Sinusoidal(Position):
    """Sines and cosines of each absolute position, at wavelengths from 2π to 2π · ``base``, added to the input
    (Vaswani et al. 2017); the first half of the coordinates are the sines."""

    indexed = True

    base: float = 10_000.0

    def build(self, width: int, heads: int) -> Encoding:
        if width % 2:
            raise UsageError(f"Sinusoidal needs an even width, not {width}")
        return _Sinusoidal(width, self.base)


class _Sinusoidal(Encoding):
    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        half = width // 2
        self.register_buffer("rates", base ** (-torch.arange(half) / half), persistent=False)

    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"]:
        angles = inputs.position[..., None] * self.rates
        return torch.cat([angles.sin(), angles.cos()], -1)


@dataclass(frozen=True)
class _ByPlace(Position):
    """A learned vector for each place of a digit within its own number. In training a number below ``offset`` is added
    to the places of a whole batch, or with ``each_row`` of each row, uniform from 0, so that places which short numbers
    do not have are trained too; at test it is 0. So places up to the longest trained on + ``offset`` − 1 are known;
    ``size`` has to hold them. The vectors are added to the input; or, with ``at="attention"``, to the queries and keys
    of every layer. They start at random, of standard deviation ``std``; or as ``sines`` of the place, of the same size:
    then one linear map leads from every place to its neighbour, instead of one to be learned for each."""

    size: int = 128
    offset: int = 100
    each_row: bool = False
    at: Literal["input", "attention"] = "input"
    std: float = 0.02  # of the vectors at the start
    start: Literal["random", "sines"] = "random"

    def __post_init__(self) -> None:
        if self.size < 1 or self.offset < 1:
            raise UsageError(f"size and offset must be 1 or more, not {self.size} and {self.offset}")
        if self.std < 0:
            raise UsageError(f"std must be 0 or more, not {self.std}")

    def build(self, width: int, heads: int) -> Encoding:
        return (_Placed if self.at == "input" else _PlacedKeys)(self, width)

    def _more(self, inputs: Inputs, generator: Generator) -> Int[Tensor, "#b 1"]:
        return torch.randint(self.offset, (len(inputs) if self.each_row else 1, 1), generator=generator)


@dataclass(frozen=True)
class Abacus(_ByPlace):
    """Equal places of the operands and of the answer share a learned vector; all signs share another, with no offset
    (McLeish et al. 2024, section 3). The paper adds them to the input, its reproduction to queries and keys."""

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        more = self._more(inputs, generator)
        return replace(inputs, digit_position=torch.where(inputs.digit_position > 0, inputs.digit_position + more, 0))


@dataclass(frozen=True)
class Coupling(_ByPlace):
    """Position coupling (Cho et al. 2024, section 3): digits of equal place share a learned vector. The signs have that
    of the place before the first digit: they are moved by the offset too."""

    each_row: bool = True

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        return replace(inputs, digit_position=inputs.digit_position + self._more(inputs, generator))


class _Table(Encoding):
    def __init__(self, spec: _ByPlace, width: int) -> None:
        super().__init__()
        self.kind = type(spec).__name__
        self.table = nn.Embedding(spec.size + 1, width)
        if spec.start == "random":
            nn.init.normal_(self.table.weight, std=spec.std)
        else:
            with torch.no_grad():
                self.table.weight.copy_(_sines(spec.size + 1, width) * (spec.std * math.sqrt(2)))

    def look_up(self, inputs: Inputs) -> Float[Tensor, "b t d"]:
        # What stands beyond a row's end is counted on, but not looked at.
        position = inputs.digit_position.where(inputs.padding_mask, 0)
        most, size = int(position.amax()), self.table.num_embeddings - 1
        if most > size:
            raise UsageError(
                f"a digit's place {most} does not fit the table of {size}: ask for shorter numbers, or train with "
                f"{self.kind}(size=…) larger, and offset with it"
            )
        return self.table(position)


def _sines(positions: int, width: int) -> Float[Tensor, "n d"]:
    """Sines and cosines of places, at wavelengths from 4 to 4 · places."""
    half = (width + 1) // 2
    rates = 2 * math.pi / 4 * positions ** (-torch.arange(half) / max(1, half - 1))
    angles = torch.arange(positions)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :width]


class _Placed(_Table):
    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"]:
        return self.look_up(inputs)


class _PlacedKeys(_Table):
    def keys(self, inputs: Inputs) -> Float[Tensor, "b t d"]:
        return self.look_up(inputs)


@dataclass(frozen=True)
class Randomized(Position):
    """Another encoding, told a random choice of ``most`` positions in increasing order instead of 0, 1, 2, …: so those
    of long rows are trained on short ones (Ruoss et al. 2023). In training a batch draws its own; at test a row of
    given length is always told the same, drawn once and for all."""

    indexed = True

    of: Position
    most: int = 1024

    def __post_init__(self) -> None:
        if self.most < 1:
            raise UsageError(f"most must be 1 or more, not {self.most}")

    def build(self, width: int, heads: int) -> Encoding:
        return _Randomized(self.of.build(width, heads), self.most)

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        drawn = torch.randperm(self.most, generator=generator)
        return self.of.vary(replace(inputs, position=_chosen(inputs, drawn)), generator)


class _Randomized(Encoding):
    def __init__(self, inner: Encoding, most: int) -> None:
        super().__init__()
        self.inner = inner
        drawn = torch.randperm(most, generator=stream(0, "randomized positions"))
        self.register_buffer("drawn", drawn, persistent=False)

    @property
    def attends(self) -> bool:
        return self.inner.attends

    def _told(self, inputs: Inputs) -> Inputs:
        return inputs if self.training else replace(inputs, position=_chosen(inputs, self.drawn))

    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"] | None:
        return self.inner.vectors(self._told(inputs))

    def angles(self, inputs: Inputs) -> Float[Tensor, "b t half"] | None:
        return self.inner.angles(self._told(inputs))

    def keys(self, inputs: Inputs) -> Float[Tensor, "b t d"] | None:
        return self.inner.keys(self._told(inputs))

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"] | Float[Tensor, "b h t t"] | None:
        return self.inner.attention_bias(self._told(inputs))


def _chosen(inputs: Inputs, drawn: Int[Tensor, " m"]) -> Int[Tensor, "b t"]:
    """For each row as many of the drawn numbers as it is long, the first ones, in increasing order."""
    longest, most = int(inputs.padding_mask.sum(1).max()), len(drawn)
    if longest > most:
        raise UsageError(f"a row of {longest} positions takes Randomized(most={longest}) or more, not {most}")
    width = inputs.position.shape[1]
    drawn = torch.nn.functional.pad(drawn[:width], (0, max(0, width - most)), value=most)
    # What is absent comes last, and is told a position that there is.
    return drawn.where(inputs.padding_mask, most).sort(1).values.clamp(max=most - 1)


@dataclass(frozen=True)
class RoPE(Position):
    """Rotary encoding of queries and keys (Su et al. 2021); rotates coordinate i together with i + half."""

    indexed = True

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

    def angles(self, inputs: Inputs) -> Float[Tensor, "b t half"]:
        return inputs.position[..., None] * self.rates


def rotate(x: Float[Tensor, "b t h e"], angles: Float[Tensor, "b t half"]) -> Float[Tensor, "b t h e"]:
    """Queries or keys, turned by their positions' angles."""
    return turned(x, angles.cos()[:, :, None], angles.sin()[:, :, None], axis=-1)


def turned(x: Float[Tensor, "*s"], cos: Tensor, sin: Tensor, *, axis: int) -> Float[Tensor, "*s"]:
    """Along this axis, the first half of the numbers turned together with the second."""
    first, second = x.chunk(2, axis)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], axis)


@dataclass(frozen=True)
class FIRE(Position):
    """Attention scores are a small network's function of the distance i − j, on a logarithmic scale and relative to the
    query's position i, or to a learned threshold where i is less (Li et al. 2024, equation 9)."""

    indexed = True

    hidden: int = 32  # of the network
    threshold: float = 512.0  # at the start

    def __post_init__(self) -> None:
        if self.hidden < 1 or self.threshold <= 0:
            raise UsageError(f"hidden must be 1 or more and threshold above 0, not {self.hidden} and {self.threshold}")

    def build(self, width: int, heads: int) -> Encoding:
        return _FIRE(self, heads)


class _FIRE(Encoding):
    def __init__(self, spec: FIRE, heads: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(1, spec.hidden), nn.ReLU(), nn.Linear(spec.hidden, heads))
        self.scale = nn.Parameter(torch.tensor(0.1))
        self.threshold = spec.threshold
        self.times = nn.Parameter(torch.tensor(1.0))  # of the threshold: so that both parameters are of one size

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"] | Float[Tensor, "b h t t"]:
        index = _index(inputs)
        far = gaps(index).to(self.scale.dtype)
        most = torch.maximum(index.to(far.dtype), (self.times * self.threshold).abs())[..., None]
        near = ((self.scale * far).abs() + 1).log() / (((self.scale * most).abs() + 1).log() + 1e-6)
        bias = self.network(near[..., None]).permute(0, 3, 1, 2)
        return bias[0] if len(index) == 1 else bias


@dataclass(frozen=True)
class ALiBi(Position):
    """Attention scores fall with distance, linearly, with a slope of each head's own; nothing is learned (Press et al.
    2022). The slopes are a geometric sequence, over a factor of 2⁸ for all heads together; as published its
    ``steepest`` is 2^(−8/heads), a half for eight heads. Steeper ones let a head see a single neighbour."""

    indexed = True

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

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"] | Float[Tensor, "b h t t"]:
        bias = -self.slopes[:, None, None] * gaps(_index(inputs))[:, None]
        return bias[0] if len(bias) == 1 else bias


def _index(inputs: Inputs) -> Int[Tensor, "#b t"]:
    """What positions a row is told: one row for all where they do not differ."""
    index = inputs.position
    return index[:1] if bool((index == index[:1]).all()) else index


def gaps(index: Int[Tensor, "b t"]) -> Int[Tensor, "b t t"]:
    """Between each two positions of a row."""
    return (index[:, :, None] - index[:, None]).abs()


def distance(length: int, device: torch.device) -> Int[Tensor, "t t"]:
    """Between each two places of a row, as they stand."""
    return gaps(torch.arange(length, device=device)[None])[0]
