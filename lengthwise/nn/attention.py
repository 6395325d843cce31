"""Multi-head attention, and who may look at whom: a pattern made once per batch, not once per loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.nn.dropout import dropout
from lengthwise.nn.packed import Packed, Ragged
from lengthwise.nn.position import Encoding, rotate
from lengthwise.types import Inputs, UsageError


class Shared(NamedTuple):
    """A tensor that all rows share: it has no row axis of its own."""

    value: Tensor


class Memory:
    """Keys and values of the places read so far. Each call of attention has its own pair, known by its turn: so every
    loop of every layer remembers what it has seen itself."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.turn = 0

    def rewind(self) -> None:
        """Before each further piece of a row: the first call is next."""
        self.turn = 0

    def extend(self, key: Float[Tensor, "b h t e"], value: Float[Tensor, "b h t e"]) -> tuple[Tensor, Tensor]:
        """All keys and values up to here, with the new ones."""
        if self.turn == len(self.pairs):
            self.pairs.append((key, value))
        else:
            before = self.pairs[self.turn]
            self.pairs[self.turn] = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
        self.turn += 1
        return self.pairs[self.turn - 1]


def take(tree: Any, rows: Any) -> Any:
    """Some rows of a tree of tensors, packed or not, and tuples of them, rows first; ``Shared`` and None stay as they
    are."""
    if tree is None or isinstance(tree, (Shared, Memory)):
        return tree
    if isinstance(tree, Tensor):
        return tree[rows]
    if isinstance(tree, (Packed, Ragged)):
        return tree.take(rows)
    parts = [take(part, rows) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


class Pattern(NamedTuple):
    """Who may look at whom, and how positions enter. None: not needed."""

    # "1 t h w" or "b t h w", or packed: bias per neighbour, −inf where there is none
    band: Any
    mask: Tensor | None  # "b 1 1 t": which keys are present
    angles: Tensor | None  # "b t half"
    # "h t k" or "b h t k": added to scores, −inf where causality forbids; k is t, or t + 1 where there is a blank
    bias: Shared | Tensor | None = None
    keys: Tensor | None = None  # "b t d": added to queries and keys
    memory: Memory | None = None  # of a causal row that is read piece by piece
    ragged: Ragged | None = None  # where what comes in stands, if it comes without padding

    def packed(self, ragged: Ragged) -> Pattern:
        """For what comes in without padding. Neighbours are found in it as it is, all else is unpacked first."""
        if self.band is None or self.angles is not None or self.keys is not None:
            return self._replace(ragged=ragged)
        band = self.band.value.expand(len(ragged.ends), -1, -1, -1) if isinstance(self.band, Shared) else self.band
        return self._replace(band=Packed(ragged.pack(band), ragged), ragged=ragged)

    def piece(self, start: int, stop: int, memory: Memory, device: torch.device) -> Pattern:
        """Of a causal row, the places from ``start`` up to ``stop``, to look at all up to there."""
        angles, keys = (part if part is None else part[:, start:stop] for part in (self.angles, self.keys))
        seen = torch.arange(stop, device=device)
        if self.bias is None:
            future = seen > seen[start:, None]
            bias: Shared | Tensor = Shared(torch.zeros(1, *future.shape, device=device).masked_fill(future, -torch.inf))
        else:
            value = self.bias.value if isinstance(self.bias, Shared) else self.bias
            if value.shape[-1] > value.shape[-2]:  # there is a blank, at the end
                seen = torch.cat([seen, seen.new_tensor([value.shape[-1] - 1])])
            value = value[..., start:stop, :][..., seen]
            bias = Shared(value) if isinstance(self.bias, Shared) else value
        return self._replace(angles=angles, keys=keys, bias=bias, memory=memory)


def pattern(encodings: Iterable[Encoding], inputs: Inputs, causal: bool) -> Pattern:
    """The pattern of a batch.

    Absent positions stand at a row's end, so a causal row never sees them and needs no mask.
    """
    windows = [window for encoding in encodings if (window := encoding.window()) is not None]
    turns = [angles for encoding in encodings if (angles := encoding.angles(inputs)) is not None]
    biases = [bias for encoding in encodings if (bias := encoding.scores(inputs)) is not None]
    if len(windows) > 1 or len(turns) > 1 or (windows and biases):
        raise UsageError("a model takes one local window, or a bias on its scores, and one rotary encoding, at most")
    blanks = [blank for encoding in encodings if (blank := encoding.blank()) is not None]
    if len(blanks) > 1:
        raise UsageError("a model takes one encoding with a blank, at most")
    padded = not causal and not bool(inputs.present.all())
    mask = inputs.present[:, None, None, :] if padded else None
    band = None
    if windows:
        bias = windows[0]
        seen = _neighbours(inputs.present, bias.shape[1] // 2, causal)
        masked = bias.masked_fill(~seen[:, :, None], -torch.inf)
        band, mask = masked if padded else Shared(masked), None
    bias = _bias(biases, causal)
    added = [keys for encoding in encodings if (keys := encoding.keys(inputs)) is not None]
    if blanks:
        bias, mask = _with_blank(bias, blanks[0]), None if mask is None else F.pad(mask, (0, 1), value=True)
    return Pattern(band, mask, turns[0] if turns else None, bias, sum(added[1:], added[0]) if added else None)


def _bias(biases: list[Tensor], causal: bool) -> Shared | Tensor | None:
    if not biases:
        return None
    bias = sum(biases[1:], biases[0])
    if causal:
        bias = bias.masked_fill(_future(bias), -torch.inf)
    return Shared(bias) if bias.dim() == 3 else bias


def _future(scores: Float[Tensor, "*b t t"]) -> Bool[Tensor, "t t"]:
    """True where the second place comes after the first."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)


def _with_blank(bias: Shared | Tensor | None, blank: Float[Tensor, " h"]) -> Shared | Tensor:
    """Scores' bias with one key more, at the end of a row."""
    assert bias is not None  # what has a blank has scores
    value = bias.value if isinstance(bias, Shared) else bias
    column = blank[:, None, None].expand(*value.shape[:-1], 1)
    value = torch.cat([value, column], -1)
    return Shared(value) if isinstance(bias, Shared) else value


def _neighbours(present: Bool[Tensor, "b t"], reach: int, causal: bool) -> Bool[Tensor, "#b t w"]:
    """Which neighbours can be seen; one row for all where no present position could see an absent one. A position
    always sees itself, so that absent ones have something to look at."""
    if causal or bool(present.all()):
        present = torch.ones_like(present[:1])
    seen = F.pad(present, (reach, reach)).unfold(1, 2 * reach + 1, 1).clone()
    seen[..., reach] = True
    if causal:
        seen[..., reach + 1 :] = False
    return seen


def _mask(pattern: Pattern, dtype: torch.dtype) -> Tensor | None:
    """What is added to scores, in their type: the kernels do not check it; or which keys are present."""
    bias = pattern.bias.value if isinstance(pattern.bias, Shared) else pattern.bias
    if bias is None or pattern.mask is None:
        return pattern.mask if bias is None else bias.to(dtype)
    return bias.masked_fill(~pattern.mask, -torch.inf).to(dtype)


def _mixed(
    query: Float[Tensor, "b h t e"], key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, share: float
) -> Float[Tensor, "b h t e"]:
    """Attention with dropout, for a CPU, where the library's own is slow: it has no fused kernel for it."""
    scores = query @ (key * query.shape[-1] ** -0.5).mT
    if causal:
        scores = scores.masked_fill_(_future(scores), -torch.inf)
    elif mask is not None:
        # Absent places may see nothing at all: they get something finite, which nobody looks at.
        least = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, least) if mask.dtype == torch.bool else scores + mask.clamp(min=least)
    return dropout(scores.softmax(-1), share) @ value


class Attention(nn.Module):
    """Multi-head self-attention with fused projections (Vaswani et al. 2017)."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float = 0.0, biases: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"width must be a multiple of heads, not {width} / {heads}")
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.project = nn.Linear(width, 3 * width, bias=biases)
        self.out = nn.Linear(width, width, bias=biases)

    @torch.no_grad()
    def start_alike(self, heads: Bool[Tensor, " h"]) -> None:
        """Give the keys of these heads the weights of their queries."""
        query, key, _ = self.project.weight.view(3, self.heads, -1, self.project.in_features)
        key[heads] = query[heads]

    def forward(self, x: Float[Tensor, "*b d"], pattern: Pattern) -> Float[Tensor, "*b d"]:
        projected = self.project(x)
        if pattern.ragged is None or isinstance(pattern.band, Packed):
            return self.out(self._mixed(projected, pattern))
        return self.out(pattern.ragged.pack(self._mixed(pattern.ragged.unpack(projected), pattern)))

    def _mixed(self, projected: Float[Tensor, "*b c"], pattern: Pattern) -> Float[Tensor, "*b d"]:
        """What each place finds, of c = 3·d coordinates of queries, keys and values."""
        query, key, value = projected.unflatten(-1, (3, self.heads, -1)).unbind(-3)
        if pattern.keys is not None:
            places = pattern.keys.view_as(query)
            query, key = query + places, key + places
        if pattern.band is not None:
            mixed = self._local(query, key, value, pattern)
        else:
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))
            if pattern.angles is not None:
                query, key = rotate(query, pattern.angles), rotate(key, pattern.angles)
            if pattern.memory is not None:
                key, value = pattern.memory.extend(key, value)
            mask = _mask(pattern, query.dtype)
            if mask is not None and mask.shape[-1] > key.shape[2]:
                key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
            causal = self.causal and pattern.bias is None
            share = self.dropout if self.training else 0.0
            if share and projected.device.type == "cpu":
                mixed = _mixed(query, key, value, mask, causal, share).transpose(1, 2)
            else:
                mixed = F.scaled_dot_product_attention(
                    query, key, value, attn_mask=mask, is_causal=causal, dropout_p=share
                ).transpose(1, 2)
        return mixed.flatten(-2)

    def _local(
        self, query: Float[Tensor, "*b t h e"], key: Tensor, value: Tensor, pattern: Pattern
    ) -> Float[Tensor, "*b t h e"]:
        """Attention to a few neighbours, computed for them alone: linear in the row's length. Of packed rows, those of
        the next row are neighbours too, which the band hides."""
        band = pattern.band if isinstance(pattern.band, Tensor) else pattern.band.value
        if pattern.angles is not None:
            query, key = (rotate(part.transpose(1, 2), pattern.angles).transpose(1, 2) for part in (query, key))
        t, offsets = query.shape[-3], band.shape[-1]
        reach = offsets // 2
        query = query * query.shape[-1] ** -0.5
        key, value = (F.pad(part, (0, 0, 0, 0, reach, reach)) for part in (key, value))
        scores = torch.stack([(query * key.narrow(-3, i, t)).sum(-1) for i in range(offsets)], -1)
        weights = (scores + band).softmax(-1)
        if self.dropout and self.training:
            weights = dropout(weights, self.dropout)
        return sum(  # type: ignore[return-value]
            (weights[..., i, None] * value.narrow(-3, i, t) for i in range(1, offsets)),
            weights[..., 0, None] * value.narrow(-3, 0, t),
        )
