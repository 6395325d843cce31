"""Mamba-3: a state-space layer whose state rotates, with a trapezoidal rule for its inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.ranges import Size
from lengthwise.base.types import UsageError
from lengthwise.nn.mixer import Hidden, Mixer, MixerSpec
from lengthwise.nn.mixers.mamba2 import CHUNK_LENGTH, linear_attention
from lengthwise.nn.mixers.recurrent import RecurrentMixer, exempt_from_decay, join_heads, split_heads
from lengthwise.nn.position import rotate_pairs

MIN_RATE = 1e-4  # smallest rate of decay, as in the authors' code


@dataclass(frozen=True)
class Mamba3(MixerSpec):
    """Mamba-3 with one input and output (Lahoti et al. 2026): for each head S ← a S + (1 − λ) Δ a B' x'ᵀ + λ Δ B xᵀ,
    where B' and x' are those of the previous position. The output Sᵀ C + D x is gated.

    B and C are shared by the heads, normalized, and get a bias for each head. Half of their pairs of coordinates rotate
    by at most π Δ per position, so that the state's transition has complex eigenvalues (section 3.2).
    There is no convolution. Initial weights are those of the authors' code.
    """

    state: Size = 16  # length of the vectors B and C, a multiple of 4
    expand: Size = 2  # the inner width, in multiples of width

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state % 4:
            raise UsageError(f"Mamba3: state must be a multiple of 4, not {self.state}")

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        return Mamba3Mixer(self, width, heads, biases=biases)


class Mamba3Mixer(RecurrentMixer):
    """The module of ``Mamba3``. Its state holds the angles "b h 1 a", S "b h n e" without the last position's input,
    and the last B, x and λ Δ."""

    def __init__(self, spec: Mamba3, width: int, heads: int, *, biases: bool) -> None:
        super().__init__()
        inner = spec.expand * width
        self.heads, self.sizes = heads, [inner, spec.state, spec.state, heads, heads, heads, spec.state // 4]
        self.project = nn.Linear(width, sum(self.sizes), bias=False)  # x, B, C, Δ, rate, λ, angles
        step = torch.empty(heads, 1).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.step_bias = exempt_from_decay(nn.Parameter(step.expm1().log()))  # the inverse of softplus
        self.norms = nn.ModuleList([nn.RMSNorm(spec.state, eps=1e-5) for _ in range(2)])  # of B and C
        self.biases = nn.Parameter(torch.ones(2, heads, 1, spec.state))
        self.skip = exempt_from_decay(nn.Parameter(torch.ones(heads, 1, 1)))
        self.gate = nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(inner, width, bias=biases)

    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        angle, *memory = state or (0.0,)
        value, *keys, step, rate, mix, turn = self.project(x).split(self.sizes, -1)
        step, rate, mix = (part.transpose(1, 2) for part in (step, rate, mix))
        step = F.softplus(step + self.step_bias)
        log_decay = -(rate.clamp(min=0) + 1 / (1 - rate.clamp(max=0))).clamp(min=MIN_RATE) * step
        angle = angle + (step[..., None] * math.pi * turn.tanh()[:, None]).cumsum(2)
        keys = [key.to(self.skip.dtype) for key in keys]  # norms are in 32 bits
        parts = zip(self.norms, keys, self.biases, strict=True)
        key, query = (rotate_first_pairs(norm(part)[:, None] + bias, angle) for norm, part, bias in parts)
        value = split_heads(value, self.heads)
        outputs, memory = trapezoidal_attention(query, key, value, log_decay, step, mix.sigmoid(), memory or None)
        mixed = join_heads(outputs + self.skip * value) * F.silu(self.gate(x))
        return self.out(mixed), (angle[:, :, -1:].remainder(2 * math.pi), *memory)


def rotate_first_pairs(x: Float[Tensor, "b h t n"], angle: Float[Tensor, "b h t a"]) -> Float[Tensor, "b h t n"]:
    """Rotate the first ``angle.shape[-1]`` pairs of neighbouring coordinates; further pairs stay unchanged."""
    pairs = x.unflatten(-1, (-1, 2))
    angle = F.pad(angle, (0, pairs.shape[-2] - angle.shape[-1]))[..., None]
    return rotate_pairs(pairs, angle.cos(), angle.sin(), axis=-1).flatten(-2)


def trapezoidal_attention(
    query: Float[Tensor, "b h t k"],
    key: Float[Tensor, "b h t k"],
    value: Float[Tensor, "b h t v"],
    log_decay: Float[Tensor, "b h t"],
    step: Float[Tensor, "b h t"],
    mix: Float[Tensor, "b h t"],
    state: Sequence[Tensor] | None,
    chunk: int = CHUNK_LENGTH,
) -> tuple[Float[Tensor, "b h t v"], tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Compute S_t = a_t S_{t−1} + (1 − λ_t) Δ_t a_t k_{t−1} v_{t−1}ᵀ + λ_t Δ_t k_t v_tᵀ chunk by chunk, where
    ``log_decay`` is log a, ``step`` is Δ and ``mix`` is λ. Return the outputs S_tᵀ q_t, and the state: the last P, k, v
    and λ Δ.

    P_t is S_t without its own input λ_t Δ_t k_t v_tᵀ: P_t = a_t P_{t−1} + (λ_{t−1} Δ_{t−1} + (1 − λ_t) Δ_t) a_t k_{t−1}
    v_{t−1}ᵀ, which is linear attention to earlier positions.
    """
    weight = mix * step
    parts = key, value, weight
    memory, *last = state or (None, *(torch.zeros_like(part[:, :, :1]) for part in parts))
    before = [torch.cat([own, part[:, :, :-1]], 2) for own, part in zip(last, parts, strict=True)]
    inputs = ((before[2] + (1 - mix) * step) * log_decay.exp())[..., None] * before[1]
    outputs, memory = linear_attention(query, before[0], inputs, log_decay, None, memory, chunk)
    outputs = outputs + (weight * (query * key).sum(-1))[..., None] * value
    return outputs, (memory, key[:, :, -1:], value[:, :, -1:], weight[:, :, -1:])
