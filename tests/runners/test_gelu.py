"""GELU by the logistic function equals the library's, in values and gradients."""

import pytest
import torch
from torch.nn import functional as F

from lengthwise.runners.cpu import elementwise as gelu


@pytest.mark.parametrize("count", [1, gelu.MIN_NUMBERS - 1, gelu.MIN_NUMBERS, gelu.MAX_NUMBERS, gelu.MAX_NUMBERS + 1])
def test_gelu_equals_the_librarys(count):
    torch.manual_seed(0)
    x, weights = (torch.randn(count, dtype=torch.float64) * 4 for _ in range(2))
    x[:1] = 60.0  # where the logistic function saturates
    x[1:2] = -60.0
    found = []
    for activate in (gelu.gelu, lambda x: F.gelu(x, approximate="tanh")):
        given = x.clone().requires_grad_()
        result = activate(given)
        found.append([result.detach(), *torch.autograd.grad((result * weights).sum(), given)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def test_own_gelu_is_used_only_where_it_is_faster():
    """Few numbers, and very many, are left to the library."""
    graphs = [
        gelu.gelu(torch.randn(count, requires_grad=True)).grad_fn
        for count in (9, gelu.MIN_NUMBERS, gelu.MAX_NUMBERS + 1)
    ]
    assert [type(graph).__name__ for graph in graphs] == ["GeluBackward0", "_GELUBackward", "GeluBackward0"]
