"""Fast attention (of small heads, or of few visible keys) and fast GELU equal torch's in values and gradients."""

from dataclasses import replace

import pytest
import torch
from conftest import LONG
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from lengthwise.api import catalog
from lengthwise.base.rng import stream
from lengthwise.experiment import data
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.mixer import AttentionContext
from lengthwise.nn.position import rotate
from lengthwise.runners.cpu import elementwise, small_heads
from lengthwise.runners.cpu.packing import Ragged
from lengthwise.runners.cpu.pattern import MAX_KEYS, PaddedGroups, SparseKeys, mix_values
from lengthwise.runners.cpu.transformer import _PreparedBatch

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 19), st.just(3), st.integers(1, 3), st.sampled_from([2, 4, 6]))
MASK_KINDS = ("none", "causal", "present", "scores", "scores of each row", "blank")


def attend_by_torch(qkv, mask, angles, *, causal):
    query, key, value = qkv.unbind(2)
    if angles is not None:
        query, key = rotate(query, angles), rotate(key, angles)
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    if mask is not None and mask.shape[-1] > key.shape[2]:
        key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal).transpose(1, 2)


def attend_small_heads(qkv, bias, angles, *, causal, probability=0.0):
    rows = Ragged.from_mask(torch.ones(qkv.shape[:2], dtype=torch.bool))
    context = AttentionContext(torch.empty(0), causal, bias, angles)
    plan = small_heads.AttentionPlan.build(qkv, qkv.shape[-2], rows, context)
    return rows.unpack(small_heads.attend(rows.pack(qkv), plan, probability))


def build_mask(kind, shape):
    """Return a mask of the given kind, in which every position sees at least one key."""
    rows, positions, _, heads, _ = shape
    if kind == "present":
        lengths = torch.randint(1, positions + 1, (rows, 1))
        hidden = (torch.arange(positions) >= lengths)[:, None, None]
        return torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    if kind in ("none", "causal"):
        return None
    keys = positions + (kind == "blank")
    scores = torch.randn(*([rows] if kind == "scores of each row" else []), heads, positions, keys, dtype=torch.float64)
    return scores.masked_fill(torch.ones(positions, keys).triu(1).bool() & (torch.arange(keys) < positions), -torch.inf)


@given(SHAPES, st.sampled_from(MASK_KINDS), st.booleans(), st.floats(0.1, 40), st.integers(0, 9))
def test_small_head_attention_equals_torchs_attention(shape, kind, has_angles, scale, seed):
    torch.manual_seed(seed)
    rows, positions, _, _, size = shape
    projected = torch.randn(shape, dtype=torch.float64) * scale
    weights = torch.randn(shape, dtype=torch.float64)[:, :, 0]
    angles = torch.randn(rows, positions, size // 2, dtype=torch.float64) if has_angles else None
    mask = build_mask(kind, shape)
    found = []
    for attend in (attend_small_heads, attend_by_torch):
        parts = [projected.clone().requires_grad_()]
        if mask is not None and kind != "present":
            parts.append(mask.clone().requires_grad_())
        result = attend(parts[0], parts[1] if len(parts) > 1 else mask, angles, causal=kind == "causal")
        found.append([result.detach(), *torch.autograd.grad((result * weights).sum(), parts)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-9)


def test_a_position_that_sees_no_key_gives_finite_values_and_gradients():
    projected = torch.randn(2, 5, 3, 2, 4, requires_grad=True)
    scores = torch.zeros(1, 5, 5).index_fill(1, torch.tensor([3]), -torch.inf)
    found = attend_small_heads(projected, scores, None, causal=False)
    (gradient,) = torch.autograd.grad(found[:, :3].sum(), projected)
    assert found.isfinite().all() and gradient.isfinite().all()


def test_gradients_with_dropout_pass_gradcheck():
    """Every call drops the same weights, so gradients can be compared with finite differences."""
    projected = torch.randn(2, 5, 3, 2, 4, dtype=torch.float64, requires_grad=True)

    def attend(inputs):
        torch.manual_seed(0)
        return attend_small_heads(inputs, None, None, causal=True, probability=0.4)

    assert torch.autograd.gradcheck(attend, projected, fast_mode=not LONG)
    assert not torch.equal(attend(projected), attend_small_heads(projected, None, None, causal=True))


@pytest.mark.parametrize(("heads", "size", "positions", "is_used"), [
    (64, 8, 20, True), (64, 8, small_heads.MIN_POSITIONS - 1, False), (1, 8, 20, False),
    (64, 2 * small_heads.MAX_HEAD_WIDTH, 20, False),
])  # fmt: skip
def test_small_head_attention_is_used_only_where_it_is_faster(heads, size, positions, is_used, monkeypatch):
    """Attention computed by the module ``small_heads`` equals attention without it."""
    attention, x = SoftmaxAttention(size * heads, heads), torch.randn(4, positions, size * heads)
    mask = torch.ones(4, positions, dtype=torch.bool)
    seen = []
    attend = small_heads.attend
    monkeypatch.setattr(small_heads, "attend", lambda *parts, **how: seen.append(1) or attend(*parts, **how))
    projected = attention.project(x).unflatten(-1, (3, heads, -1)).flatten(0, 1)
    context = AttentionContext(mask, False)
    groups = PaddedGroups([(Ragged.from_mask(mask), context)])
    found = attention.out(mix_values(attention, projected, groups).flatten(1))
    assert bool(seen) == is_used
    torch.testing.assert_close(attention(x, context).flatten(0, 1), found)


@pytest.mark.parametrize(("count", "uses_fast_gelu"), [
    (1, False), (elementwise.MIN_NUMBERS, True), (elementwise.MAX_NUMBERS, True), (elementwise.MAX_NUMBERS + 1, False),
])  # fmt: skip
def test_fast_gelu_equals_torchs_gelu_and_is_used_only_where_it_is_faster(count, uses_fast_gelu):
    torch.manual_seed(0)
    x = (torch.randn(count, dtype=torch.float64) * 4).requires_grad_()
    found = []
    for activate in (elementwise.gelu, lambda x: F.gelu(x, approximate="tanh")):
        result = activate(x)
        found.append([type(result.grad_fn).__name__, result, *torch.autograd.grad(result.square().sum(), x)])
    (kind, *ours), (_, *theirs) = found
    assert kind == ("_GELUBackward" if uses_fast_gelu else "GeluBackward0")
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, atol=1e-12, rtol=1e-12)


def build_ragged(lengths):
    padding_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Ragged.from_mask(padding_mask), padding_mask


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 3), st.floats(0, 0.8), st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_sparse_keys_equal_masked_attention(lengths, heads, visible_fraction, is_shared, seed):
    """The random pattern is shared by all rows or differs by row; each position sees at least itself."""
    ragged, padding_mask = build_ragged(lengths)
    rows, width = padding_mask.shape
    drawn = stream(seed, "few")
    shape = (1 if is_shared else rows, heads, width, width)
    hidden = (torch.rand(shape, generator=drawn) > visible_fraction) & ~torch.eye(width, dtype=torch.bool)
    bias = torch.randn(shape, generator=drawn, dtype=torch.float64).masked_fill(hidden, -torch.inf).requires_grad_()
    count = len(ragged.padded_index)
    packed = torch.randn(count, 3, heads, 4, generator=drawn, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(count, heads, 4, generator=drawn, dtype=torch.float64)
    lists = SparseKeys.from_bias(bias, ragged)
    assert lists is not None
    query, key, value = ragged.unpack(packed).permute(2, 0, 3, 1, 4)
    mask = bias.masked_fill(~padding_mask[:, None, None], -torch.inf)
    dense = ragged.pack(F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2))
    found = mix_values(SoftmaxAttention(4 * heads, heads), packed, lists)
    both = [[x, *torch.autograd.grad((x * weights).sum(), (packed, bias))] for x in (found, dense)]
    for one, two in zip(*both, strict=True):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-9)


def test_key_lists_longer_than_the_limit_are_not_built():
    seen, near = MAX_KEYS, torch.arange(12)
    far = (near - near[:, None]).abs() > 1
    for hidden, kept in ((far, True), (far & (near > 0), False), (far & (near[:, None] > 0), False)):
        bias = torch.zeros(1, 1, 12, 12).masked_fill(hidden, -torch.inf)
        assert (SparseKeys.from_bias(bias, build_ragged([12, 12])[0]) is not None) == kept
    assert SparseKeys.from_bias(torch.zeros(1, 1, seen, seen), build_ragged([seen])[0]) is not None
    assert SparseKeys.from_bias(torch.zeros(1, 1, seen + 1, seen + 1), build_ragged([seen + 1])[0]) is None


def test_looped_addition_uses_sparse_keys():
    recipe = catalog.find_recipe("looped-addition")
    batch, loops = data.draw_batch(recipe, recipe.steps // 2)
    assert isinstance(_PreparedBatch.build(recipe.build(), batch.inputs, loops).pattern, SparseKeys)
    dropping = replace(recipe, model=replace(recipe.model, dropout=0.1))  # dropout draws over all keys
    assert not isinstance(_PreparedBatch.build(dropping.build(), batch.inputs, loops).pattern, SparseKeys)
