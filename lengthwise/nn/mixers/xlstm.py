"""The two layers of xLSTM (Beck et al. 2024): mLSTM with a matrix as memory, and sLSTM with memory mixing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.ranges import Amount
from lengthwise.nn.mixer import Hidden, Mixer, MixerSpec
from lengthwise.nn.mixers.recurrent import RecurrentMixer, ShortConvolution, exempt_from_decay, join_heads, split_heads

CHUNK_LENGTH = 32  # positions computed at once


@dataclass(frozen=True)
class MLSTM(MixerSpec):
    """mLSTM (Beck et al. 2024): for each head C ← f C + i k vᵀ, n ← f n + i k, output Cᵀ q / max(|nᵀ q|, 1), with an
    exponential input gate i and a sigmoid forget gate f. A norm per head and an output gate follow. Keys are divided by
    √e, the root of a head's width.

    Unlike in the authors' block, gates see the convolution's output instead of queries, keys and values, and the gates'
    weights do not start at 0. Also, the norm is an RMS norm, the output gate is σ instead of SiLU, and there is no
    learned skip.
    """

    taps: Amount = 4  # kernel size of the short convolution before queries, keys and gates; 0: none

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        return MLSTMMixer(width, heads, taps=self.taps, biases=biases)


class MLSTMMixer(RecurrentMixer):
    """The module of ``MLSTM``. Its state holds the convolution's state, C and n side by side "b h k v+1", and the
    logarithm m "b h" of their scale."""

    def __init__(self, width: int, heads: int, *, taps: int, biases: bool) -> None:
        super().__init__()
        self.heads = heads
        self.conv = ShortConvolution(width, taps)
        self.look = nn.Linear(width, 2 * width, bias=False)  # query, key
        self.value = nn.Linear(width, width, bias=False)
        self.gates = nn.Linear(width, 2 * heads, bias=False)
        self.gate_bias = exempt_from_decay(nn.Parameter(torch.cat([torch.zeros(heads), torch.linspace(3, 6, heads)])))
        self.norm = nn.RMSNorm(width // heads, eps=1e-5)
        self.gate = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=biases)

    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        before, *memory = state or (None, None, None)
        seen, before = self.conv(x, before)
        query, key = (split_heads(part, self.heads) for part in self.look(seen).chunk(2, -1))
        value = split_heads(self.value(x), self.heads)
        log_input_gate, forget = (self.gates(seen) + self.gate_bias).transpose(1, 2).chunk(2, 1)
        key = key / key.shape[-1] ** 0.5
        forget = F.logsigmoid(forget)
        outputs, *memory = exponential_attention(query, key, value, log_input_gate, forget, memory[0], memory[1])
        mixed = join_heads(self.norm(outputs)) * self.gate(x).sigmoid()
        return self.out(mixed), (before, *memory)


def exponential_attention(
    query: Float[Tensor, "b h t k"],
    key: Float[Tensor, "b h t k"],
    value: Float[Tensor, "b h t v"],
    log_input_gate: Float[Tensor, "b h t"],
    log_forget_gate: Float[Tensor, "b h t"],
    state: Float[Tensor, "b h k w"] | None,
    scale: Float[Tensor, "b h"] | None,
    chunk: int = CHUNK_LENGTH,
) -> tuple[Float[Tensor, "b h t v"], Float[Tensor, "b h k w"], Float[Tensor, "b h"]]:
    """Compute C_t = f_t C_{t−1} + exp(i_t) k_t v_tᵀ, and n_t in the same way with 1 for v, chunk by chunk. Return the
    outputs C_tᵀ q_t / max(|n_tᵀ q_t|, 1), the last C with n as its last column, both divided by exp(m), and m."""
    rows, heads, _, width = key.shape
    value = F.pad(value, (0, 1), value=1.0)  # the column of n
    state = key.new_zeros(rows, heads, width, value.shape[-1]) if state is None else state
    scale = key.new_full((rows, heads), -torch.inf) if scale is None else scale
    outputs = []
    parts = (part.split(chunk, 2) for part in (query, key, value, log_input_gate, log_forget_gate))
    for q, k, v, i, f in zip(*parts, strict=True):
        total = f.cumsum(-1)
        weight = total[..., :, None] - total[..., None, :] + i[:, :, None]
        lower = torch.ones(weight.shape[-2:], dtype=torch.bool, device=key.device).tril()
        weight = weight.masked_fill(~lower, -torch.inf)
        carried = total + scale[..., None]
        # The largest exponent so far. The result does not depend on it, so it has no gradient.
        largest = torch.maximum(carried, weight.amax(-1)).detach()
        weight, carried = (weight - largest[..., None]).exp(), (carried - largest).exp()[..., None]
        mixed = (q @ k.mT * weight) @ v + carried * (q @ state)
        outputs.append(mixed[..., :-1] / torch.maximum(mixed[..., -1:].abs(), (-largest).exp()[..., None]))
        state = carried[:, :, -1:] * state + (k * weight[:, :, -1, :, None]).mT @ v
        scale = largest[..., -1]
    return torch.cat(outputs, 2), state, scale


@dataclass(frozen=True)
class SLSTM(MixerSpec):
    """sLSTM (Beck et al. 2024): c ← f c + i z, n ← f n + i, h = o c / n with an exponential input gate i and sigmoid
    gates f and o. Here z and the gates see the head's own last h (memory mixing). Positions are computed one by one.

    Unlike in the authors' block, each gate sees all channels of the input instead of its head's, and the norm per head
    is an RMS norm. Also, recurrent weights do not start at 0, and biases of f start in 3 … 6 instead of −7 … 5.
    """

    taps: Amount = 4  # kernel size of the short convolution before the gates i and f; 0: none

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        return SLSTMMixer(width, heads, taps=self.taps, biases=biases)


class SLSTMMixer(RecurrentMixer):
    """The module of ``SLSTM``. Its state holds the convolution's state, and h, c, n and the gates' scale m, "h b e"
    each."""

    def __init__(self, width: int, heads: int, *, taps: int, biases: bool) -> None:
        super().__init__()
        self.heads, size = heads, width // heads
        self.conv = ShortConvolution(width, taps)
        self.gates = nn.Linear(width, 2 * width, bias=False)  # i, f
        self.input = nn.Linear(width, 2 * width, bias=False)  # z, o
        self.recurrent = nn.Parameter(torch.empty(heads, size, 4 * size).uniform_(-1, 1) / size**0.5)
        bias = torch.zeros(heads, 4, size)
        bias[:, 1] = torch.linspace(3, 6, size)  # forget gates, open at the start
        self.bias = exempt_from_decay(nn.Parameter(bias))
        self.norm = nn.RMSNorm(size, eps=1e-5)
        self.out = nn.Linear(width, width, bias=biases)

    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        zeros = x.new_zeros(self.heads, len(x), x.shape[-1] // self.heads)
        # Before the first position n is 0, so its scale m is −∞: from m = 0, a nearly closed gate i would give 0 / 0.
        before, h, c, n, m = state or (None, zeros, zeros, zeros, zeros - torch.inf)
        seen, before = self.conv(x, before)
        inputs = torch.cat([self.gates(seen), self.input(x)], -1).unflatten(-1, (4, self.heads, -1))
        inputs = (inputs.transpose(2, 3) + self.bias).flatten(3).permute(1, 2, 0, 3)  # t h b 4e
        outputs = []
        for current in inputs.unbind(0):
            i, f, z, o = torch.baddbmm(current, h, self.recurrent).chunk(4, -1)
            forgets = F.logsigmoid(f) + m
            m = torch.maximum(forgets, i).detach()  # the result does not depend on it
            i, f = (i - m).exp(), (forgets - m).exp()
            c, n = f * c + i * z.tanh(), f * n + i
            h = o.sigmoid() * c / n
            outputs.append(h)
        mixed = self.norm(torch.stack(outputs).permute(2, 0, 1, 3)).flatten(2)
        return self.out(mixed), (before, h, c, n, m)
