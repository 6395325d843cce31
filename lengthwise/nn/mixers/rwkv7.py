"""RWKV-7's time mixing: a state with a decay per channel and a separate removal key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.nn.mixer import Hidden, Mixer, MixerSpec
from lengthwise.nn.mixers.recurrent import (
    RecurrentMixer,
    exempt_from_decay,
    join_heads,
    solve_unit_lower,
    split_chunks,
    split_heads,
    unbind_chunks,
)

CHUNK_LENGTH = 16  # positions computed at once; the product of their decays stays far above rounding errors in 32 bits
MIN_LOG_DECAY = -math.exp(-0.5)  # decays are in (.545, 1)
PARTS = ("receptance", "decay", "key", "value", "rate", "gate")


@dataclass(frozen=True)
class RWKV7(MixerSpec):
    """RWKV-7 (Peng et al. 2025): for each head S ← S (diag(w) − κ̂ (a ∘ κ̂)ᵀ) + v k̃ᵀ, output S r, with vectors w and a
    that depend on the input. There is no value residual between layers, and initial weights are not the authors'.

    As w is in (.545, 1), eigenvalues of the state's transition are in (−.455, 1) for a in (0, 1). With ``negative``,
    which is not in the authors' code, a is in (0, 2) and eigenvalues are in (−1.455, 1). The state can then track
    parity, but it grows where an eigenvalue is below −1.
    """

    negative: bool = False  # a in (0, 2) instead of (0, 1): eigenvalues down to −1.455 instead of −.455

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        return RWKV7Mixer(width, heads, allow_neg_eigval=self.negative, biases=biases)


class RWKV7Mixer(RecurrentMixer):
    """The module of ``RWKV7``. Its state holds the last input, and S "b h k v" (transposed)."""

    def __init__(self, width: int, heads: int, *, allow_neg_eigval: bool, biases: bool) -> None:
        super().__init__()
        self.heads, self.max_rate = heads, 2.0 if allow_neg_eigval else 1.0
        self.shift = nn.Parameter(torch.rand(len(PARTS), width))  # fraction of each part from the previous position
        low_rank, rank = ("decay", "rate", "gate"), max(4, width // 4)
        self.full = nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in PARTS if name not in low_rank})
        self.low = nn.ModuleDict({name: nn.Linear(width, rank, bias=False) for name in low_rank})
        self.high = nn.ModuleDict({name: nn.Linear(rank, width, bias=False) for name in low_rank})
        self.decay_bias = exempt_from_decay(nn.Parameter(torch.linspace(-6, 1, width // heads).repeat(heads)))
        self.rate_bias = exempt_from_decay(nn.Parameter(torch.zeros(width)))
        self.removal = nn.Parameter(torch.full((width,), 0.85))  # scale of the removal key before it is normalized
        self.replacement = nn.Parameter(torch.ones(width))  # the effect of the rate a on the key k̃
        self.bonus = nn.Parameter(torch.zeros(heads, 1, width // heads))  # weight of the current position
        self.norm = nn.GroupNorm(heads, width, eps=64e-5)
        self.out = nn.Linear(width, width, bias=biases)

    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        last, memory = state or (x.new_zeros(len(x), 1, x.shape[-1]), None)
        before = torch.cat([last, x[:, :-1]], 1)
        mixed = {name: x + part * (before - x) for name, part in zip(PARTS, self.shift, strict=True)}
        receptance, key, value = (full(mixed[name]) for name, full in self.full.items())
        decay = self.high["decay"](self.low["decay"](mixed["decay"]).tanh())
        log_decay = MIN_LOG_DECAY * (self.decay_bias + decay).sigmoid()
        rate = self.max_rate * (self.rate_bias + self.high["rate"](self.low["rate"](mixed["rate"]))).sigmoid()
        gate = self.high["gate"](self.low["gate"](mixed["gate"]).sigmoid())
        removal = F.normalize(split_heads(key * self.removal, self.heads), dim=-1)
        key = key * (1 + (rate / self.max_rate - 1) * self.replacement)
        parts = receptance, log_decay, key, value, rate
        receptance, log_decay, key, value, rate = (split_heads(part, self.heads) for part in parts)
        outputs, memory = diagonal_plus_rank_one(receptance, log_decay, -removal, rate * removal, key, value, memory)
        rows = join_heads(outputs)
        normed = self.norm(rows.flatten(0, 1)).view_as(rows)
        current = (receptance * self.bonus * key).sum(-1, keepdim=True) * value
        return self.out((normed + join_heads(current)) * gate), (x[:, -1:], memory)


def diagonal_plus_rank_one(
    query: Float[Tensor, "b h t k"],
    log_decay: Float[Tensor, "b h t k"],
    a: Float[Tensor, "b h t k"],
    b: Float[Tensor, "b h t k"],
    key: Float[Tensor, "b h t k"],
    value: Float[Tensor, "b h t v"],
    state: Float[Tensor, "b h k v"] | None,
    chunk: int = CHUNK_LENGTH,
) -> tuple[Float[Tensor, "b h t v"], Float[Tensor, "b h k v"]]:
    """Compute S_t = diag(w_t) S_{t−1} + b_t (a_tᵀ S_{t−1}) + k_t v_tᵀ chunk by chunk; return the outputs S_tᵀ q_t and
    the last state.

    With γ the product of decays since the chunk's start, z_t = a_tᵀ S_{t−1} solves z_t = (γ_{t−1} a_t)ᵀ S_0 + Σ_{j < t}
    (γ_{t−1} a_t)ᵀ ((b_j / γ_j) z_j + (k_j / γ_j) v_j). The product of a chunk's decays must not underflow.
    """
    length = value.shape[2]
    chunk = min(chunk, length)
    parts = (query, log_decay, a, b, key, value)
    query, log_decay, a, b, key, value = (split_chunks(part, chunk) for part in parts)
    total = log_decay.cumsum(3)
    query, a = query * total.exp(), a * (total - log_decay).exp()
    b, key, last = b * (-total).exp(), key * (-total).exp(), total[..., -1:, :].exp()
    known = torch.cat([(a @ key.mT).tril(-1) @ value, a], -1)
    solved = solve_unit_lower(-(a @ b.mT), known)
    fresh, seen = solved.split([value.shape[-1], a.shape[-1]], -1)  # z_t if S_0 were 0, and its factor of S_0
    query_b, from_keys = (query @ b.mT).tril(), (query @ key.mT).tril() @ value
    state = value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1]) if state is None else state
    outputs = []
    chunks = unbind_chunks(fresh, seen, query, query_b, from_keys, b, key, value, last)
    for new, old, q, scores, added, b_i, k, v, decay in chunks:
        z = new + old @ state
        outputs.append(q @ state + scores @ z + added)
        state = decay.mT * (state + b_i.mT @ z + k.mT @ v)
    return torch.cat(outputs, 2)[:, :, :length], state
