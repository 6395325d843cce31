"""Positional encodings, added to the embedded input, to queries and keys, or to attention scores."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from lengthwise.base.fields import Config
from lengthwise.base.ranges import NotNegative, Positive, Size
from lengthwise.base.rng import stream
from lengthwise.base.types import Inputs, UsageError


class Encoding(nn.Module):
    """Base class of the modules of positional encodings. A method returns None unless a subclass overrides it."""

    reads_padding: ClassVar[bool] = False  # True if results for real tokens depend on which tokens are padding

    def check(self, inputs: Inputs) -> None:
        """Raise UsageError if a row does not fit the encoding; called before large tensors are computed."""

    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"] | None:
        """Return vectors to add to the embedded input."""
        return None

    def angles(self, inputs: Inputs) -> Float[Tensor, "b t half"] | None:
        """Return, in radians, the angles by which pairs of coordinates of queries and keys are rotated."""
        return None

    def keys(self, inputs: Inputs) -> Float[Tensor, "b t d"] | None:
        """Return vectors to add to the queries and keys of every layer, with all heads side by side."""
        return None

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"] | Float[Tensor, "b h t t"] | None:
        """Return the attention bias of every head, query and key; −inf hides a key. The bias has a batch axis only if
        it differs between rows."""
        return None

    def blank(self) -> Float[Tensor, " h"] | None:
        """Return, per head, the attention bias of a blank: a key and a value of zeros, which a head can attend to
        instead of a position."""
        return None

    def tied_heads(self) -> Bool[Tensor, " h"] | None:
        """Return a mask of the heads whose key weights start equal to their query weights, so that equal inputs attend
        to each other from the first step."""
        return None

    @property
    def attends(self) -> bool:
        """True if the encoding acts within attention; False if it only adds to the embedded input."""
        inside = ("angles", "keys", "attention_bias", "blank")
        return any(getattr(type(self), name) is not getattr(Encoding, name) for name in inside)


class Position(Config):
    """Base class of configurations of positional encodings. Subclasses are frozen dataclasses."""

    indexed: ClassVar[bool] = False  # True if the encoding depends on ``Inputs.position``, the position in the row
    sees_neighbours_only: ClassVar[bool] = False  # True if it restricts attention to a position's neighbours

    @abstractmethod
    def build(self, width: int, heads: int) -> Encoding:
        """Build the encoding for a model of this width and number of heads."""

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        """Change a training batch's positions, so that positions of longer rows are trained; not used at test time."""
        return inputs


@dataclass(frozen=True)
class NoPE(Position):
    """No positional encoding: only the causal mask gives order (Kazemnejad et al. 2023)."""

    def build(self, width: int, heads: int) -> Encoding:
        return Encoding()


@dataclass(frozen=True)
class Learned(Position):
    """A learned vector for each of ``size`` absolute positions, added to the input (Radford et al. 2018). The model
    raises UsageError for a longer row."""

    indexed = True

    size: Size = 512  # positions in the table: the longest row

    def build(self, width: int, heads: int) -> Encoding:
        return LearnedEncoding(self.size, width)


class LearnedEncoding(Encoding):
    """The module of ``Learned``."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def check(self, inputs: Inputs) -> None:
        width, size = inputs.position.shape[1], self.table.num_embeddings
        if width > size:
            advice = "use shorter problems, or train with a larger Learned(size=…)"
            raise UsageError(f"a row of {width} positions does not fit the learned table of {size} positions: {advice}")

    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"]:
        self.check(inputs)
        return self.table(inputs.position)


@dataclass(frozen=True)
class Mark(Position):
    """A learned vector added to the first position of a row. Without it, in a run of equal symbols, a head that
    averages neighbours gives the first and the second position the same state, for any weights."""

    std: NotNegative = 0.3  # standard deviation of the initial vector

    def build(self, width: int, heads: int) -> Encoding:
        return _MarkEncoding(self.std, width)


class _MarkEncoding(Encoding):
    def __init__(self, std: float, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(width) * std)

    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"]:
        rows, positions = inputs.tokens.shape
        first = torch.arange(positions, device=inputs.tokens.device) == 0
        return (first[:, None] * self.vector).expand(rows, -1, -1)


@dataclass(frozen=True)
class Sinusoidal(Position):
    """Sines and cosines of the absolute position, at wavelengths from 2π to 2π · ``base``, added to the input
    (Vaswani et al. 2017). The first half of the coordinates are the sines."""

    indexed = True

    base: Positive = 10_000.0  # the longest wavelength is 2π times this

    def build(self, width: int, heads: int) -> Encoding:
        if width % 2:
            raise UsageError(f"Sinusoidal needs an even width, not {width}")
        return _SinusoidalEncoding(width, self.base)


class _SinusoidalEncoding(Encoding):
    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        half = width // 2
        self.register_buffer("rates", base ** (-torch.arange(half) / half), persistent=False)

    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"]:
        angles = inputs.position[..., None] * self.rates
        return torch.cat([angles.sin(), angles.cos()], -1)


@dataclass(frozen=True)
class Randomized(Position, former_names={"of": "encoding", "most": "size"}):
    """Randomized positions for another encoding (Ruoss et al. 2023): the positions of a row are random numbers below
    ``size`` in increasing order, so that short rows train the positions of long ones. Training draws new positions for
    each batch; at test time, rows of equal length get equal positions. Raises UsageError for a row longer than
    ``size``."""

    indexed = True

    encoding: Position  # the encoding that gets these positions
    size: Size = 1024  # positions are below this

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.encoding, Learned) and self.encoding.size < self.size:
            size = self.size
            raise UsageError(f"Randomized(size={size}) needs Learned(size={size}) or more, not {self.encoding.size}")

    def build(self, width: int, heads: int) -> Encoding:
        return _RandomizedEncoding(self.encoding.build(width, heads), self.size)

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        drawn = torch.randperm(self.size, generator=generator)
        return self.encoding.vary(replace(inputs, position=_sort_drawn_positions(inputs, drawn)), generator)


class _RandomizedEncoding(Encoding):
    reads_padding = True

    def __init__(self, inner_encoding: Encoding, position_count: int) -> None:
        super().__init__()
        self.inner = inner_encoding
        self.drawn = torch.randperm(position_count, generator=stream(0, "randomized positions"))  # on the CPU

    @property
    def attends(self) -> bool:
        return self.inner.attends

    def blank(self) -> Float[Tensor, " h"] | None:
        return self.inner.blank()

    def tied_heads(self) -> Bool[Tensor, " h"] | None:
        return self.inner.tied_heads()

    def _renumber(self, inputs: Inputs) -> Inputs:
        if self.training:
            return inputs
        host = inputs.host
        return replace(host, position=_sort_drawn_positions(host, self.drawn)).to(inputs.tokens.device)

    def check(self, inputs: Inputs) -> None:
        self.inner.check(self._renumber(inputs))

    def vectors(self, inputs: Inputs) -> Float[Tensor, "b t d"] | None:
        return self.inner.vectors(self._renumber(inputs))

    def angles(self, inputs: Inputs) -> Float[Tensor, "b t half"] | None:
        return self.inner.angles(self._renumber(inputs))

    def keys(self, inputs: Inputs) -> Float[Tensor, "b t d"] | None:
        return self.inner.keys(self._renumber(inputs))

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"] | Float[Tensor, "b h t t"] | None:
        return self.inner.attention_bias(self._renumber(inputs))


def _sort_drawn_positions(inputs: Inputs, candidates: Int[Tensor, " m"]) -> Int[Tensor, "b t"]:
    """Return, for each row of n tokens, the first n numbers of ``candidates`` in increasing order."""
    longest, most = int(inputs.padding_mask.sum(1).max()), len(candidates)
    if longest > most:
        raise UsageError(f"a row of {longest} positions needs Randomized(size={longest}) or more, not {most}")
    width = inputs.position.shape[1]
    candidates = torch.nn.functional.pad(candidates[:width], (0, max(0, width - most)), value=most)
    # Sorting puts padding last; clamping gives it a valid position.
    return candidates.where(inputs.padding_mask, most).sort(1).values.clamp(max=most - 1)


@dataclass(frozen=True)
class RoPE(Position):
    """Rotary encoding of queries and keys (Su et al. 2021). Coordinates i and i + e / 2 of a head of width e form a
    pair. ``build`` raises UsageError if e is odd."""

    indexed = True

    base: Positive = 10_000.0  # the longest wavelength is about 2π times this

    def build(self, width: int, heads: int) -> Encoding:
        if width // heads % 2:
            raise UsageError(f"RoPE needs an even width per head, not {width} / {heads} = {width // heads}")
        return _RotaryEncoding(width // heads, self.base)


class _RotaryEncoding(Encoding):
    def __init__(self, head_width: int, base: float) -> None:
        super().__init__()
        half = head_width // 2
        self.register_buffer("rates", base ** (-torch.arange(half) / half), persistent=False)

    def angles(self, inputs: Inputs) -> Float[Tensor, "b t half"]:
        return inputs.position[..., None] * self.rates


def rotate(x: Float[Tensor, "b t h e"], angles: Float[Tensor, "b t half"]) -> Float[Tensor, "b t h e"]:
    """Rotate queries or keys by the angles of their positions."""
    return rotate_pairs(x, angles.cos()[:, :, None], angles.sin()[:, :, None], axis=-1)


def rotate_pairs(x: Float[Tensor, "*s"], cos: Tensor, sin: Tensor, *, axis: int) -> Float[Tensor, "*s"]:
    """Rotate each pair of coordinates i and i + n / 2 along ``axis``, which has n coordinates."""
    first, second = x.chunk(2, axis)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], axis)


@dataclass(frozen=True)
class FIRE(Position):
    """FIRE (Li et al. 2024, equation 9): the attention bias is f(log(|c (i − j)| + 1) / log(|c max(i, L)| + 1)), with a
    small network f, query position i, key position j, and learned scale c and threshold L."""

    indexed = True

    hidden: Size = 32  # width of the network's hidden layer
    threshold: Positive = 512.0  # L at initialization

    def build(self, width: int, heads: int) -> Encoding:
        return _FIREEncoding(self, heads)


class _FIREEncoding(Encoding):
    def __init__(self, spec: FIRE, heads: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(1, spec.hidden), nn.ReLU(), nn.Linear(spec.hidden, heads))
        self.scale = nn.Parameter(torch.tensor(0.1))
        self.threshold = spec.threshold
        # L = times · threshold; ``times`` is about as large as other weights.
        self.times = nn.Parameter(torch.tensor(1.0))

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"] | Float[Tensor, "b h t t"]:
        index = _get_distinct_row_positions(inputs)
        far = compute_distances(index).to(self.scale.dtype)
        most = torch.maximum(index.to(far.dtype), (self.times * self.threshold).abs())[..., None]
        near = ((self.scale * far).abs() + 1).log() / (((self.scale * most).abs() + 1).log() + 1e-6)
        bias = self.network(near[..., None]).permute(0, 3, 1, 2)
        return bias[0] if index.shape[0] == 1 else bias


@dataclass(frozen=True)
class ALiBi(Position):
    """ALiBi (Press et al. 2022): the attention bias is −slope · |i − j|. Head n = 0, 1, … has the fixed slope
    ``steepest`` · rⁿ, with r = 2^(−8/heads). By default ``steepest`` is r, as published: 1/2 for eight heads. With
    steeper slopes a head can attend to a single neighbour. If the number of heads is not a power of 2, the authors'
    code uses other slopes."""

    indexed = True

    steepest: Positive | None = None  # slope of the first head; None: the published one

    def build(self, width: int, heads: int) -> Encoding:
        ratio = 2.0 ** (-8 / heads)
        return _ALiBiEncoding((self.steepest or ratio) * ratio ** torch.arange(heads))


class _ALiBiEncoding(Encoding):
    def __init__(self, slopes: Float[Tensor, " h"]) -> None:
        super().__init__()
        self.register_buffer("slopes", slopes, persistent=False)

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"] | Float[Tensor, "b h t t"]:
        bias = -self.slopes[:, None, None] * compute_distances(_get_distinct_row_positions(inputs))[:, None]
        return bias[0] if bias.shape[0] == 1 else bias


def _get_distinct_row_positions(inputs: Inputs) -> Int[Tensor, "#b t"]:
    """Return the positions "b t" of all rows, or "1 t" if all rows have the same positions."""
    index = inputs.host.position
    return inputs.position[:1] if bool((index == index[:1]).all()) else inputs.position


def compute_distances(index: Int[Tensor, "b t"]) -> Int[Tensor, "b t t"]:
    """Return the distances |i − j| between all pairs of positions in each row."""
    return (index[:, :, None] - index[:, None]).abs()
