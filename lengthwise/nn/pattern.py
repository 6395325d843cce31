"""Who may look at whom, and how positions enter: a pattern made once per batch, not once per loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lengthwise.base.types import Inputs, UsageError
from lengthwise.nn.few import Few
from lengthwise.nn.packed import Packed, Ragged
from lengthwise.nn.position import Encoding

# Rows without padding are attended to in up to so many groups, of so many rows and so many heads in all at least.
GROUPS, ROWS, HEADS = 4, 8, 512


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
    if isinstance(tree, (Packed, Ragged, Parts, Few)):
        return tree.take(rows)
    return _rebuilt(tree, [take(part, rows) for part in tree])


def keep(tree: Any, at: Int[Tensor, " n"]) -> Any:
    """Some places of a tree of packed tensors, in their order; all else stays as it is."""
    if isinstance(tree, Packed):
        return tree.keep(at)
    if not isinstance(tree, tuple) or isinstance(tree, Shared):
        return tree
    return _rebuilt(tree, [keep(part, at) for part in tree])


def _rebuilt(tree: tuple[Any, ...], parts: list[Any]) -> Any:
    """A tuple, named or not, of other parts."""
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
    parts: Parts | None = None  # of rows without padding: each group of them has its own pattern
    few: Few | None = None  # of rows without padding, where nobody sees many

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


@dataclass(frozen=True, slots=True)
class Parts:
    """Packed rows in groups of about equal length, with the pattern of each: what is not done place by place needs
    padding, but less of it."""

    each: list[tuple[Ragged, Pattern]]

    def take(self, rows: slice) -> Parts:
        """The first rows."""
        left, parts = rows.stop, []
        for ragged, pattern in self.each:
            count = min(left, len(ragged.ends))
            if count:
                parts.append(take((ragged, pattern), slice(count)))
            left -= count
        return Parts(parts)


def packed_pattern(
    encodings: Iterable[Encoding], inputs: Inputs, causal: bool, heads: int, looks_up: bool
) -> tuple[Ragged, Pattern]:
    """For rows without their padding, the longest first: where they stand, and their pattern. Where all heads see few
    places, they look them up, if the model ``looks_up``."""
    ragged = Ragged.of(inputs.padding_mask)
    if any(encoding.window() is not None for encoding in encodings):
        whole = pattern(encodings, inputs, causal)
        if whole.angles is None and whole.keys is None:  # then neighbours are found among all places as they stand
            band = whole.band.value.expand(len(inputs), -1, -1, -1) if isinstance(whole.band, Shared) else whole.band
            return ragged, Pattern(Packed(ragged.pack(band), ragged), None, None)
    hidden = [which for encoding in encodings if (which := encoding.hides()) is not None]
    if looks_up and hidden and bool(torch.stack(hidden).any(0).all()):
        few = _few(pattern(encodings, inputs, causal), ragged, heads)
        if few is not None:
            return ragged, Pattern(None, None, None, few=few)
    parts = []
    for rows in _groups(ragged, heads):
        own = inputs.take(rows).columns(0, ragged.longest(rows))
        parts.append((Ragged.of(own.padding_mask), pattern(encodings, own, causal)))
    return ragged, Pattern(None, None, None, parts=Parts(parts))


def _few(whole: Pattern, ragged: Ragged, heads: int) -> Few | None:
    """The same pattern as lists of who is seen; None where these would be long, or do not say all."""
    bias = whole.bias.value if isinstance(whole.bias, Shared) else whole.bias
    if bias is None or whole.angles is not None or whole.keys is not None or bias.shape[-1] > bias.shape[-2]:
        return None
    return Few.of(bias.expand(*bias.shape[:-3], heads, -1, -1), ragged)


def _groups(ragged: Ragged, heads: int) -> list[slice]:
    """Rows in up to ``GROUPS`` groups of equally many rows each."""
    rows = len(ragged.ends)
    most = max(ROWS, HEADS // heads, -(-rows // GROUPS))
    return [slice(start, min(start + most, rows)) for start in range(0, rows, most)]


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
    padded = not causal and not bool(inputs.padding_mask.all())
    mask = inputs.padding_mask[:, None, None, :] if padded else None
    band = None
    if windows:
        bias = windows[0]
        seen = _neighbours(inputs.padding_mask, bias.shape[1] // 2, causal)
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
        bias = bias.masked_fill(future(bias), -torch.inf)
    return Shared(bias) if bias.dim() == 3 else bias


def future(scores: Float[Tensor, "*b t t"]) -> Bool[Tensor, "t t"]:
    """True where the second place comes after the first."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)


def _with_blank(bias: Shared | Tensor | None, blank: Float[Tensor, " h"]) -> Shared | Tensor:
    """Scores' bias with one key more, at the end of a row."""
    assert bias is not None  # what has a blank has scores
    value = bias.value if isinstance(bias, Shared) else bias
    value = value.expand(*value.shape[:-3], len(blank), -1, -1)
    column = blank[:, None, None].expand(*value.shape[:-1], 1)
    value = torch.cat([value, column], -1)
    return Shared(value) if isinstance(bias, Shared) else value


def _neighbours(padding_mask: Bool[Tensor, "b t"], reach: int, causal: bool) -> Bool[Tensor, "#b t w"]:
    """Which neighbours can be seen; one row for all where no present position could see an absent one. A position
    always sees itself, so that absent ones have something to look at."""
    if causal or bool(padding_mask.all()):
        padding_mask = torch.ones_like(padding_mask[:1])
    seen = F.pad(padding_mask, (reach, reach)).unfold(1, 2 * reach + 1, 1).clone()
    seen[..., reach] = True
    if causal:
        seen[..., reach + 1 :] = False
    return seen
