"""The delta rule: DeltaNet, Gated DeltaNet and DeltaProduct."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.ranges import Amount, Size
from lengthwise.nn.mixer import Hidden, Mixer, MixerSpec
from lengthwise.nn.mixers.recurrent import (
    RecurrentMixer,
    ShortConvolution,
    exempt_from_decay,
    join_heads,
    solve_unit_lower,
    split_chunks,
    split_heads,
    unbind_chunks,
)

CHUNK_LENGTH = 16  # positions computed at once; the fastest number on a CPU, see bench/mixers.py


class _DeltaSpec(MixerSpec):
    """Base class of configurations whose fields are arguments of ``DeltaMixer``; ``negative`` sets its
    ``allow_neg_eigval``."""

    fixed_arguments: ClassVar[dict[str, Any]] = {}  # further arguments of ``DeltaMixer``

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        arguments = asdict(self) | self.fixed_arguments  # type: ignore[arg-type]
        return DeltaMixer(width, heads, biases=biases, allow_neg_eigval=arguments.pop("negative"), **arguments)


@dataclass(frozen=True)
class DeltaNet(_DeltaSpec):
    """DeltaNet (Schlag et al. 2021; Yang et al. 2024): for each head S ← S (I − β k kᵀ) + β v kᵀ, output S q.

    Keys and queries have norm 1, and β = σ(w x). With ``negative``, β = 2 σ(w x), so that eigenvalues of the state's
    transition are in [−1, 1] instead of [0, 1], and the state can track parity (Grazzi et al. 2025). Unlike in the
    authors' code, queries are not divided by √e, the root of a head's width, as a norm per head follows.
    """

    negative: bool = False  # eigenvalues in [−1, 1] instead of [0, 1]
    taps: Amount = 4  # kernel size of the short convolution; 0: none


@dataclass(frozen=True)
class GatedDeltaNet(_DeltaSpec):
    """Gated DeltaNet (Yang et al. 2025): S ← α S (I − β k kᵀ) + β v kᵀ, with a decay α per head and position, and an
    output gate. ``negative`` has the same effect as in DeltaNet. Unlike in the authors' code, values are as wide as
    keys, not twice as wide, and initial rates of decay are in 1 … 16 (see ``Decay``), not in 0 … 16."""

    negative: bool = False  # eigenvalues in [−1, 1] instead of [0, 1]
    taps: Amount = 4  # kernel size of the short convolution; 0: none

    fixed_arguments: ClassVar[dict[str, Any]] = {"gated": True}


@dataclass(frozen=True)
class DeltaProduct(_DeltaSpec):
    """DeltaProduct (Siems et al. 2025): ``updates`` delta-rule updates per position, each with its own key, value and
    β, so that the state's transition is a product of that many reflections, e.g. a rotation."""

    updates: Size = 2  # delta-rule updates per position
    negative: bool = True  # eigenvalues of one update in [−1, 1] instead of [0, 1]
    gated: bool = False  # a decay and an output gate, as in Gated DeltaNet
    taps: Amount = 4  # kernel size of the short convolution; 0: none


class DeltaMixer(RecurrentMixer):
    """The module of ``DeltaNet``, ``GatedDeltaNet`` and ``DeltaProduct``. Its state holds the convolution's state, and
    S "b h k v" (transposed)."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        taps: int,
        allow_neg_eigval: bool,
        biases: bool,
        gated: bool = False,
        updates: int = 1,
    ) -> None:
        super().__init__()
        self.heads, self.updates, self.max_beta = heads, updates, 2.0 if allow_neg_eigval else 1.0
        self.project = nn.Linear(width, (1 + 2 * updates) * width, bias=False)  # query, keys, values
        self.conv = ShortConvolution((1 + 2 * updates) * width, taps)
        self.rate = nn.Linear(width, updates * heads, bias=False)
        self.decay = Decay(width, heads) if gated else None
        self.norm = nn.RMSNorm(width // heads, eps=1e-5)
        self.gate = nn.Linear(width, width, bias=False) if gated else None
        self.out = nn.Linear(width, width, bias=biases)

    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        before, memory = state or (None, None)
        projected, before = self.conv(self.project(x), before)
        query, *keys_and_values = (split_heads(part, self.heads) for part in projected.chunk(1 + 2 * self.updates, -1))
        # With several updates, each position becomes ``updates`` positions of a longer row; its query is at the last.
        key, value = (torch.stack(keys_and_values[i::2], 3).flatten(2, 3) for i in (0, 1))
        beta = self.max_beta * self.rate(x).sigmoid().unflatten(-1, (self.updates, self.heads)).flatten(1, 2)
        decay = None if self.decay is None else self.decay(x)[0]
        if self.updates > 1:
            query = F.pad(query[:, :, :, None], (0, 0, self.updates - 1, 0)).flatten(2, 3)
            decay = None if decay is None else F.pad(decay[..., None], (0, self.updates - 1)).flatten(2)
        query, key = (F.normalize(part, dim=-1) for part in (query, key))
        outputs, memory = delta_rule(query, key, value, beta.transpose(1, 2), decay, memory)
        last = outputs[:, :, self.updates - 1 :: self.updates].to(self.norm.weight.dtype)  # norms are in 32 bits
        mixed = join_heads(self.norm(last))
        return self.out(mixed if self.gate is None else mixed * F.silu(self.gate(x))), (before, memory)


class Decay(nn.Module):
    """Computes the log decay −exp(a) Δ of each head, and the step Δ = softplus(w x + b), as in Mamba-2 (Dao and Gu
    2024). Initially the rate exp(a) is in 1 … 16 and softplus(b) in .001 … .1."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.step = nn.Linear(width, heads, bias=False)
        step = torch.empty(heads).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.step_bias = exempt_from_decay(nn.Parameter(step.expm1().log()))  # the inverse of softplus
        self.log_rate = exempt_from_decay(nn.Parameter(torch.empty(heads).uniform_(1, 16).log()))

    def forward(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "b h t"], Float[Tensor, "b h t"]]:
        step = F.softplus(self.step(x) + self.step_bias)
        return -(self.log_rate.exp() * step).transpose(1, 2), step.transpose(1, 2)


def delta_rule(
    query: Float[Tensor, "b h t k"],
    key: Float[Tensor, "b h t k"],
    value: Float[Tensor, "b h t v"],
    beta: Float[Tensor, "b h t"],
    log_decay: Float[Tensor, "b h t"] | None,
    state: Float[Tensor, "b h k v"] | None,
    chunk: int = CHUNK_LENGTH,
) -> tuple[Float[Tensor, "b h t v"], Float[Tensor, "b h k v"]]:
    """Compute S_t = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ chunk by chunk; return the outputs S_tᵀ q_t and the
    last state.

    Within a chunk, with γ the product of its decays so far, S_t = γ_t S_0 + Σ_{j ≤ t} (γ_t / γ_j) k_j u_jᵀ, and the
    u_t = β_t (v_t − α_t S_{t−1}ᵀ k_t) solve one triangular system (Yang et al. 2024, section 3; 2025, section 3.3).
    """
    rows, heads, length, width = key.shape
    chunk = min(chunk, length)
    query, key, value, beta = (split_chunks(part, chunk) for part in (query, key, value, beta[..., None]))
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=key.device).tril()
    query_key, key_key = query @ key.mT, key @ key.mT
    if log_decay is None:
        total = None
        query_key = query_key.masked_fill(~lower, 0.0)
    else:
        total = split_chunks(log_decay[..., None], chunk).cumsum(3)
        ratio = (total - total.mT).masked_fill(~lower, -torch.inf).exp()  # γ_t / γ_j
        query_key, key_key = query_key * ratio, key_key * ratio
    known = beta * torch.cat([value, key if total is None else total.exp() * key], -1)
    solved = solve_unit_lower(beta * key_key, known)
    fresh, removed = solved.split([value.shape[-1], width], -1)  # u_t if S_0 were 0; − its factor of S_0
    if total is not None:  # decay queries from the chunk's start, and keys to its end
        query, key = query * total.exp(), key * (total[..., -1:, :] - total).exp()
    state = key.new_zeros(rows, heads, width, value.shape[-1]) if state is None else state
    decay = key.new_ones(1, 1, key.shape[2], 1, 1) if total is None else total[..., -1:, :].exp()
    outputs = []
    for new, old, q, scores, k, kept in unbind_chunks(fresh, removed, query, query_key, key, decay):
        update = new - old @ state
        outputs.append(q @ state + scores @ update)
        state = kept * state + k.mT @ update
    return torch.cat(outputs, 2)[:, :, :length], state
