"""Many tiny heads as lanes of one vector: attention as the library's, and nothing is seen too early."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from lengthwise.nn import lanes
from lengthwise.nn.attention import Attention
from lengthwise.nn.pattern import Pattern

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 9), st.just(3), st.integers(1, 4), st.integers(1, 4))


def library(projected):
    query, key, value = (part.transpose(1, 2) for part in projected.unbind(2))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


@given(SHAPES, st.floats(0.1, 40), st.integers(0, 9))
def test_lanes_equal_the_librarys_attention(shape, scale, seed):
    torch.manual_seed(seed)
    projected, weights = (
        torch.randn(shape, dtype=torch.float64) * scale,
        torch.randn(shape, dtype=torch.float64)[:, :, 0],
    )
    found = []
    for attend in (lanes.attend, library):
        given = projected.clone().requires_grad_()
        result = attend(given)
        found.append([result.detach(), *torch.autograd.grad((result * weights).sum(), given)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-9)


def test_no_gradient_comes_from_the_future():
    projected = torch.randn(2, 6, 3, 3, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(lanes.attend(projected)[:, 2].sum(), projected)
    of_keys_and_values = gradient[:, :, 1:]
    assert of_keys_and_values[:, :3].abs().sum((0, 3, 4)).gt(0).all() and not of_keys_and_values[:, 3:].any()


@pytest.mark.parametrize(("causal", "heads", "places", "used"), [
    (True, 256, 20, True), (False, 256, 20, False), (True, 8, 20, False), (True, 256, lanes.LONGEST + 1, False),
])  # fmt: skip
def test_they_are_used_where_they_pay(causal, heads, places, used, monkeypatch):
    """And then attention is the same."""
    attention, x = Attention(4 * heads, heads, causal=causal), torch.randn(4, places, 4 * heads)
    seen = []
    attend = lanes.attend
    monkeypatch.setattr(lanes, "attend", lambda *parts: seen.append(1) or attend(*parts))
    found = attention(x, Pattern(None, None, None))
    assert bool(seen) == used
    monkeypatch.setattr(lanes, "pays", lambda query: False)
    torch.testing.assert_close(attention(x, Pattern(None, None, None)), found)
