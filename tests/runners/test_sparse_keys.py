"""Attention that gathers only the visible keys equals masked attention, in values and gradients."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from lengthwise.api import catalog
from lengthwise.base.rng import stream
from lengthwise.experiment import data
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.runners.cpu.packing import Ragged
from lengthwise.runners.cpu.pattern import MAX_KEYS, SparseKeys, mix_values
from lengthwise.runners.cpu.transformer import _PreparedBatch


def ragged_of(lengths):
    padding_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Ragged.from_mask(padding_mask), padding_mask


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 3), st.floats(0, 0.8), st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_sparse_keys_equal_masked_attention(lengths, heads, share, shared, seed):
    """The pattern is random, shared by all rows or one per row; each position sees at least itself."""
    ragged, padding_mask = ragged_of(lengths)
    rows, width = padding_mask.shape
    drawn = stream(seed, "few")
    shape = (1 if shared else rows, heads, width, width)
    hidden = (torch.rand(shape, generator=drawn) > share) & ~torch.eye(width, dtype=torch.bool)
    bias = torch.randn(shape, generator=drawn, dtype=torch.float64).masked_fill(hidden, -torch.inf).requires_grad_()
    packed = torch.randn(
        len(ragged.padded_index), 3, heads, 4, generator=drawn, dtype=torch.float64, requires_grad=True
    )
    weights = torch.randn(len(ragged.padded_index), heads, 4, generator=drawn, dtype=torch.float64)
    lists = SparseKeys.from_bias(bias, ragged)
    assert lists is not None
    query, key, value = ragged.unpack(packed).permute(2, 0, 3, 1, 4)
    mask = bias.masked_fill(~padding_mask[:, None, None], -torch.inf)
    dense = ragged.pack(F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2))
    found = mix_values(SoftmaxAttention(4 * heads, heads), packed, lists)
    both = [[x, *torch.autograd.grad((x * weights).sum(), (packed, bias))] for x in (found, dense)]
    for one, two in zip(*both, strict=True):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-9)


def test_lists_longer_than_max_keys_are_not_built():
    seen, near = MAX_KEYS, torch.arange(12)
    far = (near - near[:, None]).abs() > 1
    for hidden, kept in ((far, True), (far & (near > 0), False), (far & (near[:, None] > 0), False)):
        bias = torch.zeros(1, 1, 12, 12).masked_fill(hidden, -torch.inf)
        assert (SparseKeys.from_bias(bias, ragged_of([12, 12])[0]) is not None) == kept
    assert SparseKeys.from_bias(torch.zeros(1, 1, seen, seen), ragged_of([seen])[0]) is not None
    assert SparseKeys.from_bias(torch.zeros(1, 1, seen + 1, seen + 1), ragged_of([seen + 1])[0]) is None


def test_looped_addition_uses_sparse_keys():
    recipe = catalog.recipe("looped-addition")
    batch, loops = data.draw_batch(recipe, recipe.steps // 2)
    assert isinstance(_PreparedBatch.build(recipe.build(), batch.inputs, loops).pattern, SparseKeys)
    dropping = replace(recipe, model=replace(recipe.model, dropout=0.1))  # dropout draws over all keys
    assert not isinstance(_PreparedBatch.build(dropping.build(), batch.inputs, loops).pattern, SparseKeys)
