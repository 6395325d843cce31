"""GELU and dropout that are faster than torch's on a CPU.

Since ½ (1 + tanh(y)) = σ(2 y), GELU in its tanh form is x σ(1.6 x + 0.07 x³): a few simple passes, cheaper than torch's
tanh, for tensors of 2¹⁴ to 2¹⁹ numbers. Results equal torch's up to rounding.

Drawing torch's random numbers takes a fifth of a small model's time. Here 64 random bits serve four values, 16 bits
each. The distribution is torch's, with the probability rounded to 1/65536; the random numbers differ.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# With fewer numbers, calls cost more than arithmetic; more numbers do not fit into the cache.
MIN_NUMBERS, MAX_NUMBERS = 1 << 14, 1 << 19
# GELU is x σ(LINEAR_COEFFICIENT x + CUBIC_COEFFICIENT x³).
LINEAR_COEFFICIENT = 2 * math.sqrt(2 / math.pi)
CUBIC_COEFFICIENT = 0.044715 * LINEAR_COEFFICIENT
PROBABILITY_LEVELS = 1 << 16  # probabilities are rounded to multiples of 1 / PROBABILITY_LEVELS


def gelu(x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    """Return ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))) (Hendrycks and Gimpel 2016), which is x σ(1.6 x + 0.07 x³)."""
    return _GELU.apply(x) if _is_faster(x) else F.gelu(x, approximate="tanh")


class _GELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result, gate = gelu_forward(x)
        ctx.save_for_backward(x, gate)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gelu_backward(gradient, *ctx.saved_tensors)


def gelu_forward(x: Float[Tensor, "*b d"]) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b d"] | None]:
    """Return GELU(x), and σ(1.6 x + 0.07 x³) for the backward pass (None if torch computed GELU(x))."""
    if not _is_faster(x):
        return F.gelu(x, approximate="tanh"), None
    gate = torch.addcmul(_get_linear_coefficient(x.dtype), x, x, value=CUBIC_COEFFICIENT).mul_(x).sigmoid_()
    return x * gate, gate


def gelu_backward(
    gradient: Float[Tensor, "*b d"], x: Float[Tensor, "*b d"], gate: Float[Tensor, "*b d"] | None
) -> Float[Tensor, "*b d"]:
    """Return the gradient of x, given the ``gradient`` of GELU(x) and the ``gate`` from ``gelu_forward``."""
    if gate is None:
        return torch.ops.aten.gelu_backward(gradient, x, approximate="tanh")
    # x · d(1.6 x + 0.07 x³)/dx
    slope = torch.addcmul(_get_linear_coefficient(x.dtype), x, x, value=3 * CUBIC_COEFFICIENT).mul_(x)
    torch.ops.aten.sigmoid_backward.grad_input(slope, gate, grad_input=slope)
    return slope.add_(gate).mul_(gradient)


def _is_faster(x: Float[Tensor, "*b d"]) -> bool:
    """Return whether this module's formula is faster than torch's function."""
    return MIN_NUMBERS <= x.numel() <= MAX_NUMBERS


@lru_cache
def _get_linear_coefficient(dtype: torch.dtype) -> Float[Tensor, ""]:
    return torch.tensor(LINEAR_COEFFICIENT, dtype=dtype)


def dropout(x: Float[Tensor, "*s"], probability: float) -> Float[Tensor, "*s"]:
    """Set each value to 0 with ``probability``, else divide it by 1 − probability (Srivastava et al. 2014)."""
    return x * draw_dropout_factors(x, probability) if probability else x


def draw_dropout_factors(like: Float[Tensor, "*s"], probability: float) -> Float[Tensor, "*s"]:
    """Return the factors of ``dropout``: 0 with ``probability``, else 1 / (1 − probability)."""
    drawn = torch.empty(math.ceil(like.numel() / 4), dtype=torch.int64).random_(-(1 << 63), None)
    cut = min(round(probability * PROBABILITY_LEVELS), PROBABILITY_LEVELS - 1)
    alive = drawn.view(torch.int16)[: like.numel()] >= cut - PROBABILITY_LEVELS // 2
    return alive.view(like.shape).to(like.dtype).mul_(PROBABILITY_LEVELS / (PROBABILITY_LEVELS - cut))
