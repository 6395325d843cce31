"""Attention windows (heads that see only some positions, e.g. neighbours), and the blank key."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.base.ranges import Amount, Size
from lengthwise.base.types import Inputs, UsageError
from lengthwise.nn.position import Encoding, Position, compute_distances


@dataclass(frozen=True)
class Local(Position):
    """Attention to ``reach`` neighbours on either side, with a learned bias per head and relative offset
    (Shaw et al. 2018; Raffel et al. 2020, without their buckets)."""

    sees_neighbours_only: ClassVar[bool] = True
    reach: Amount = 1  # neighbours on either side that are seen

    def build(self, width: int, heads: int) -> Encoding:
        return LocalEncoding(self.reach, heads)


class LocalEncoding(Encoding):
    """The module of ``Local``."""

    def __init__(self, reach: int, heads: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(heads, 2 * reach + 1))

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "h t t"]:
        reach = self.bias.shape[1] // 2
        position = torch.arange(inputs.tokens.shape[1], device=self.bias.device)
        offset = position - position[:, None]
        return self.bias[:, offset.clamp(-reach, reach) + reach].masked_fill(offset.abs() > reach, -torch.inf)


@dataclass(frozen=True)
class _HeadWindow(Position):
    """Base class of windows for ``count`` of a model's heads. Windows have no parameters.

    ``build`` raises UsageError if ``count`` is above the model's number of heads.
    """

    count: Size  # number of heads with this window

    def _mask_last_heads(self, heads: int) -> Bool[Tensor, " h"]:
        """Return a mask of the last ``count`` heads."""
        if self.count > heads:
            name = type(self).__name__
            raise UsageError(f"{name}: count must be at most the number of heads ({heads}), not {self.count}")
        return torch.arange(heads, device="cpu") >= heads - self.count


class _KeyMask(Encoding):
    """An encoding that hides keys from the heads in ``head_mask``."""

    head_mask: Bool[Tensor, " h"]

    def __init__(self, head_mask: Bool[Tensor, " h"]) -> None:
        super().__init__()
        self.has_all_heads = bool(head_mask.all())
        self.register_buffer("head_mask", head_mask, persistent=False)

    @abstractmethod
    def compute_hidden_mask(self, inputs: Inputs) -> Bool[Tensor, "t t"] | Bool[Tensor, "b 1 t t"]:
        """Return a mask of queries and keys, True where the key is hidden from the query."""

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "... t t"]:
        head_mask = self.head_mask[:1] if self.has_all_heads else self.head_mask  # one bias if all heads see the same
        hidden = head_mask[:, None, None] & self.compute_hidden_mask(inputs)
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, -torch.inf)


@dataclass(frozen=True)
class LocalHeads(_HeadWindow):
    """The first ``count`` heads see ``reach`` neighbours on either side, and the others see all positions, as in
    Longformer (Beltagy et al. 2020) but by head instead of by position. There are no parameters."""

    reach: Amount = 1  # neighbours on either side that are seen

    def build(self, width: int, heads: int) -> Encoding:
        return LocalHeadsEncoding(self._mask_last_heads(heads).flip(0), self.reach)


class LocalHeadsEncoding(_KeyMask):
    """The module of ``LocalHeads``."""

    def __init__(self, head_mask: Bool[Tensor, " h"], reach: int) -> None:
        super().__init__(head_mask)
        self.reach = reach

    def compute_hidden_mask(self, inputs: Inputs) -> Bool[Tensor, "t t"]:
        index = torch.arange(inputs.position.shape[1], device=self.head_mask.device)
        return compute_distances(index[None])[0] > self.reach


@dataclass(frozen=True)
class CoupledHeads(_HeadWindow):
    """Windows of digit positions for the last ``count`` heads: a position sees itself, and each token of any number
    whose digit position differs from its own by at most ``reach``.

    Digit positions are those of position coupling (Cho et al. 2024), but a window has no parameters, so it applies to
    numbers of any length. In layouts that predict each symbol one position earlier, ``ahead=1`` centres the window on
    the predicted digit's position.
    """

    reach: Amount = 0  # the largest difference of digit positions that is seen
    ahead: Amount = 0  # the digit position at the centre of the window, relative to the position's own

    def build(self, width: int, heads: int) -> Encoding:
        return CoupledHeadsEncoding(self._mask_last_heads(heads), self.reach, self.ahead)


class CoupledHeadsEncoding(LocalHeadsEncoding):
    """The module of ``CoupledHeads``."""

    def __init__(self, head_mask: Bool[Tensor, " h"], reach: int, ahead: int = 0) -> None:
        super().__init__(head_mask, reach)
        self.ahead = ahead

    def compute_hidden_mask(self, inputs: Inputs) -> Bool[Tensor, "b 1 t t"]:
        digit = inputs.digit_position
        far = (digit[:, None] - digit[:, :, None] - self.ahead).abs() > self.reach
        if self.ahead:
            far &= ~torch.eye(digit.shape[1], dtype=torch.bool, device=digit.device)
        return far[:, None]


@dataclass(frozen=True)
class EarlierHeads(_HeadWindow):
    """In the last ``count`` heads, a position sees only earlier positions and a blank key, not itself.

    The blank is a key of zeros with a value of zeros, which a head can attend to instead of a position (a softmax with
    1 added to its sum, Miller 2023). Such a head can detect whether a position's symbol occurred earlier; ordinary
    causal attention cannot, because the position's own key matches equally well. The key weights of these heads start
    equal to their query weights: otherwise, heads take long to learn to match equal symbols.
    """

    def build(self, width: int, heads: int) -> Encoding:
        return EarlierHeadsEncoding(self._mask_last_heads(heads))


class EarlierHeadsEncoding(_KeyMask):
    """The module of ``EarlierHeads``."""

    def compute_hidden_mask(self, inputs: Inputs) -> Bool[Tensor, "t t"]:
        position = torch.arange(inputs.position.shape[1], device=self.head_mask.device)
        return position[:, None] <= position  # a position does not see itself; the blank prevents an empty softmax

    def tied_heads(self) -> Bool[Tensor, " h"]:
        return self.head_mask

    def blank(self) -> Float[Tensor, " h"]:
        return torch.zeros(len(self.head_mask), device=self.head_mask.device).masked_fill(~self.head_mask, -torch.inf)


@dataclass(frozen=True)
class GridHeads(Position):
    """Windows on a square grid (for the layout ``Grid``): a cell sees its line in the first head, its column in the
    second, its box in the third, and all cells in further heads. There are no parameters.

    In a grid of n × n cells, a box has h lines and n / h columns, as in Sudoku. Here h is the largest divisor of n that
    exceeds neither √n nor 10.
    """

    def build(self, width: int, heads: int) -> Encoding:
        return GridHeadsEncoding(heads)


class GridHeadsEncoding(Encoding):
    """The module of ``GridHeads``."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def attention_bias(self, inputs: Inputs) -> Float[Tensor, "b h t t"]:
        line, column = inputs.line, inputs.position
        columns = column.where(inputs.padding_mask, 0).amax(1, keepdim=True) + 1
        lines = torch.arange(1, 11, device=line.device)  # the lines that a box may have
        height = (lines * (columns % lines == 0) * (lines * lines <= columns)).amax(1, keepdim=True)
        box = line // height * columns + column // (columns // height)
        hidden = [unit[:, :, None] != unit[:, None] for unit in (line, column, box)]
        hidden += [torch.zeros_like(hidden[0])] * (self.heads - 3)
        mask = torch.stack(hidden[: self.heads], 1)
        return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, -torch.inf)


@dataclass(frozen=True)
class Blank(Position):
    """A blank key for every head: a key of zeros with a value of zeros (a softmax with 1 added to its sum, Miller
    2023). There are no parameters.

    With a blank, a head can count. Otherwise an average of equal values does not depend on their number: a head may
    return the same for two columns of a sum that contain 9 as for one such column.
    """

    def build(self, width: int, heads: int) -> Encoding:
        return BlankEncoding(heads)


class BlankEncoding(Encoding):
    """The module of ``Blank``."""

    zeros: Float[Tensor, " h"]

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("zeros", torch.zeros(heads), persistent=False)

    def blank(self) -> Float[Tensor, " h"]:
        return self.zeros


def find_neighbouring_cells(inputs: Inputs, *, causal: bool) -> Int[Tensor, "b t 4"]:
    """Return the positions of the cells above, below, left and right of each position of a grid. A cell that does not
    exist or, if ``causal``, comes later is given the position t, one past the end. A row that is not a grid is one
    line."""
    real, count = inputs.padding_mask, inputs.tokens.shape[1]
    index = torch.arange(count, device=real.device).expand_as(inputs.tokens)
    columns = (inputs.position.where(real, 0).amax(1, keepdim=True) + 1).expand_as(index)
    length = real.sum(1, keepdim=True)
    above, left = inputs.line > 0, inputs.position > 0
    below, right = index + columns < length, (inputs.position + 1 < columns) & (index + 1 < length)
    if causal:
        below, right = torch.zeros_like(below), torch.zeros_like(right)
    exists = torch.stack([above, below, left, right], 2) & real[..., None]
    place = torch.stack([index - columns, index + columns, index - 1, index + 1], 2)
    return place.where(exists, count)
