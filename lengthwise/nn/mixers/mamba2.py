"""Mamba-2: a state-space layer with a scalar decay per head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.ranges import Amount, Size
from lengthwise.nn.mixer import Hidden, Mixer, MixerSpec
from lengthwise.nn.mixers.delta import Decay
from lengthwise.nn.mixers.recurrent import (
    RecurrentMixer,
    ShortConvolution,
    join_heads,
    split_chunks,
    split_heads,
    unbind_chunks,
)

CHUNK_LENGTH = 32  # positions computed at once; the fastest number on a CPU
MIN_DECAY = 1e-6  # smallest magnitude of a decay, so that its logarithm is finite


@dataclass(frozen=True)
class Mamba2(MixerSpec):
    """Mamba-2 (Dao and Gu 2024): for each head S ← a S + Δ B xᵀ, output Sᵀ C + D x, then a gated norm. B and C are
    shared by the heads. With ``negative``, a is in (−1, 1) instead of (0, 1) (Grazzi et al. 2025). Unlike in the
    authors' code, the short convolution has no bias, and weight decay applies to D."""

    negative: bool = False  # decays in (−1, 1) instead of (0, 1)
    state: Size = 16  # length of the vectors B and C
    expand: Size = 2  # the inner width, in multiples of width
    taps: Amount = 4  # kernel size of the short convolution; 0: none

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        return Mamba2Mixer(self, width, heads, biases=biases)


class Mamba2Mixer(RecurrentMixer):
    """The module of ``Mamba2``. Its state holds the convolution's state, and S "b h n e"."""

    def __init__(self, spec: Mamba2, width: int, heads: int, *, biases: bool) -> None:
        super().__init__()
        inner = spec.expand * width
        self.heads, self.allow_neg_eigval = heads, spec.negative
        self.sizes = [inner, spec.state, spec.state]
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.conv = ShortConvolution(sum(self.sizes), spec.taps)
        self.decay = Decay(width, heads)
        self.skip = nn.Parameter(torch.ones(heads, 1, 1))
        self.gate = nn.Linear(width, inner, bias=False)
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.out = nn.Linear(inner, width, bias=biases)

    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        before, memory = state or (None, None)
        projected, before = self.conv(self.project(x), before)
        value, key, query = projected.split(self.sizes, -1)
        value, key, query = split_heads(value, self.heads), key[:, None], query[:, None]
        log_decay, step = self.decay(x)
        sign = None
        if self.allow_neg_eigval:
            factor = 2 * log_decay.exp() - 1
            log_decay, sign = factor.abs().clamp(min=MIN_DECAY).log(), torch.where(factor < 0, -1.0, 1.0).to(x.dtype)
        outputs, memory = linear_attention(query, key, step[..., None] * value, log_decay, sign, memory)
        mixed = join_heads(outputs + self.skip * value)
        return self.out(self.norm(mixed * F.silu(self.gate(x)))), (before, memory)


def linear_attention(
    query: Float[Tensor, "b g t k"],
    key: Float[Tensor, "b g t k"],
    value: Float[Tensor, "b h t v"],
    log_decay: Float[Tensor, "b h t"],
    sign: Float[Tensor, "b h t"] | None,
    state: Float[Tensor, "b h k v"] | None,
    chunk: int = CHUNK_LENGTH,
) -> tuple[Float[Tensor, "b h t v"], Float[Tensor, "b h k v"]]:
    """Compute S_t = a_t S_{t−1} + k_t v_tᵀ chunk by chunk; return the outputs S_tᵀ q_t and the last state.

    ``log_decay`` is log |a_t|, and ``sign`` is the sign of a_t, 1 or −1 (None: all are positive). Heads may share
    queries and keys (g = 1).
    """
    length = value.shape[2]
    chunk = min(chunk, length)
    query, key, value = (split_chunks(part, chunk) for part in (query, key, value))
    total = split_chunks(log_decay[..., None], chunk).cumsum(3)  # sums of log decays since the chunk's start
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=value.device).tril()
    ratio = (total - total.mT).masked_fill(~lower, -torch.inf).exp()
    from_start, to_end = total.exp(), (total[..., -1:, :] - total).exp()
    if sign is not None:
        total_sign = split_chunks(sign[..., None], chunk, 1.0).cumprod(3)
        ratio, from_start = ratio * total_sign * total_sign.mT, from_start * total_sign
        to_end = to_end * total_sign * total_sign[..., -1:, :]
    inside = (query @ key.mT * ratio) @ value
    query, key = query * from_start, key * to_end
    state = value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1]) if state is None else state
    outputs = []
    for added, q, decay, k, v in unbind_chunks(inside, query, from_start[..., -1:, :], key, value):
        outputs.append(added + q @ state)
        state = decay * state + k.mT @ v
    return torch.cat(outputs, 2)[:, :, :length], state
