"""Form the weight gradient of a linear layer once, from all its calls.

A recurrent model calls its linear layers once per position. Torch then forms a weight gradient for each call and adds
them up: on a GPU most operations of a step. Here each call only notes its input and the gradient of its output, and one
product forms the sum: with inputs x_1 … x_T and gradients g_1 … g_T of outputs, [g_1; …; g_T]ᵀ [x_1; …; x_T].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Calls = list[tuple[Tensor, Tensor]]  # inputs, and gradients of outputs


class _Gather(torch.autograd.Function):
    """A layer's weight and bias, unchanged. Its backward pass, after those of all calls, forms their gradients."""

    @staticmethod
    def forward(ctx: Any, calls: Calls, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        ctx.calls, ctx.biased = calls, bias is not None
        return weight.view_as(weight), None if bias is None else bias.view_as(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor | None) -> tuple[None, Tensor | None, Tensor | None]:
        if not ctx.calls:
            return None, None, None
        x, gradient = (torch.cat([part.flatten(0, -2) for part in parts]) for parts in zip(*ctx.calls, strict=True))
        return None, gradient.mT @ x.to(gradient.dtype), gradient.sum(0) if ctx.biased else None


class _Call(torch.autograd.Function):
    """F.linear, with the gradient of its input only."""

    @staticmethod
    def forward(ctx: Any, calls: Calls, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.calls = calls
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        ctx.calls.append((x, gradient))
        return None, gradient @ weight.to(gradient.dtype), None, None


@contextmanager
def gather_weight_gradients(model: nn.Module, *, enabled: bool = True) -> Iterator[None]:
    """A context in which each of the model's ``nn.Linear`` forms one gradient for all calls of a forward pass."""
    layers = [part for part in model.modules() if type(part) is nn.Linear] if enabled else []
    try:
        for layer in layers:
            calls: Calls = []
            weight, bias = _Gather.apply(calls, layer.weight, layer.bias)  # type: ignore[misc]

            def forward(
                input: Float[Tensor, "*b i"], calls: Calls = calls, weight: Tensor = weight, bias: Tensor | None = bias
            ) -> Float[Tensor, "*b o"]:
                return _Call.apply(calls, input, weight, bias)  # type: ignore[no-any-return]

            layer.forward = forward
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)
