"""The positions that each position may see: positional encodings, causality and padding, combined for mixers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Inputs, UsageError
from lengthwise.nn.position import Encoding

Hidden = Float[Tensor, "b t d"]  # a vector per position, from layer to layer


class AttentionContext(NamedTuple):
    """The attention bias and positional terms of a batch: computed once per batch and used in every loop."""

    padding_mask: Bool[Tensor, "b t"]  # True for a real token
    causal: bool  # no position sees a later one
    # Added to attention scores; −inf hides a key. None: only causality hides keys. If there is a blank (a key and a
    # value of zeros), the last column is its bias.
    bias: Float[Tensor, "#b #h t k"] | None = None
    angles: Float[Tensor, "b t half"] | None = None  # rotation of queries and keys, in radians
    keys: Float[Tensor, "b t d"] | None = None  # added to queries and keys, the heads' coordinates concatenated
    # The positions of the cells above, below, left and right of each position; t if there is none. For mixers that set
    # ``sees_cells``.
    cells: Int[Tensor, "b t 4"] | None = None

    @staticmethod
    def of(encodings: Iterable[Encoding], inputs: Inputs, *, causal: bool) -> AttentionContext:
        """Combine encodings, causality and padding for a batch. Raises UsageError if a row does not fit an encoding, or
        two encodings are incompatible."""
        for encoding in encodings:  # checked before a bias is computed: its size is the square of a row's length
            encoding.check(inputs)
        angles = _drop_none(encoding.angles(inputs) for encoding in encodings)
        keys = _drop_none(encoding.keys(inputs) for encoding in encodings)
        blanks = _drop_none(encoding.blank() for encoding in encodings)
        if len(angles) > 1 or len(blanks) > 1:
            raise UsageError("a model takes at most one rotary encoding, and at most one with a blank")
        biases = _drop_none(encoding.attention_bias(inputs) for encoding in encodings)
        # A blank is a column of the bias, so it needs a bias, even if that only hides later positions.
        bias = None if causal and not biases and not blanks else _mask_keys(biases, inputs.padding_mask, causal)
        if blanks and bias is not None:
            column = blanks[0][:, None, None].expand(*bias.shape[:1], -1, *bias.shape[2:3], 1)
            bias = torch.cat([bias.expand(-1, column.shape[1], -1, -1), column], -1)
        summed_keys = sum(keys[1:], keys[0]) if keys else None
        return AttentionContext(inputs.padding_mask, causal, bias, angles[0] if angles else None, summed_keys)


def _drop_none(terms: Iterable[Any]) -> list[Any]:
    return [term for term in terms if term is not None]


def _mask_keys(biases: list[Tensor], padding_mask: Bool[Tensor, "b t"], causal: bool) -> Float[Tensor, "#b #h t t"]:
    """Return the sum of attention biases, with −inf where causality or padding hides a key."""
    itself = torch.eye(padding_mask.shape[1], dtype=torch.bool, device=padding_mask.device)
    # Causality already hides padding, which is at the end of a row. Without it, padding sees itself: a softmax over no
    # keys would be NaN.
    hidden = torch.ones_like(itself).triu(1) if causal else ~(padding_mask[:, None, None] | itself)
    return sum(biases, torch.zeros(1, 1, 1, 1, device=hidden.device)).masked_fill(hidden, -torch.inf)
