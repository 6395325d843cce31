"""Whole mixers equal the formulas of their papers, computed position by position with the mixer's parameters."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lengthwise.base.rng import stream
from lengthwise.nn.mixer import AttentionContext
from lengthwise.nn.mixers.attention_forms import ForgettingMixer, ScalableAttention, StickBreakingMixer
from lengthwise.nn.mixers.delta import DeltaMixer
from lengthwise.nn.mixers.mamba2 import Mamba2, Mamba2Mixer
from lengthwise.nn.mixers.mamba3 import Mamba3, Mamba3Mixer
from lengthwise.nn.mixers.rwkv7 import RWKV7Mixer
from lengthwise.nn.mixers.xlstm import MLSTMMixer, SLSTMMixer

HEADS, SIZE, LENGTH = 2, 4, 37  # longer than a chunk
WIDTH = HEADS * SIZE
IDENTITY = torch.eye(SIZE).double()


def split_heads(x):
    return x.unflatten(-1, (HEADS, -1))


def outer_product(x, y):
    return x[..., :, None] * y[..., None, :]


def apply_matrix(matrix, x):
    return (matrix @ x[..., None])[..., 0]


def convolve(conv, x):
    padded = F.pad(x, (0, 0, conv.taps - 1, 0))
    return F.silu(sum(padded[i : i + len(x)] * conv.weight[:, 0, i] for i in range(conv.taps)))


def rms_norm(norm, x):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight


def compute_step_and_decay(decay, x):
    step = F.softplus(decay.step(x) + decay.step_bias)
    return step, (-decay.log_rate.exp() * step).exp()


def compute_gated_delta_product(mixer, x):
    """Compute S ← S α ∏ (I − β k kᵀ), with β v kᵀ added at each factor (Yang et al. 2025; Siems et al. 2025)."""
    query, *pairs = (split_heads(part) for part in convolve(mixer.conv, mixer.project(x)).chunk(5, -1))
    beta, (_, decay) = 2 * mixer.rate(x).sigmoid().unflatten(-1, (2, HEADS)), compute_step_and_decay(mixer.decay, x)
    state, outputs = x.new_zeros(HEADS, SIZE, SIZE), []
    for t in range(LENGTH):
        state = decay[t, :, None, None] * state
        for i, (keys, values) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
            key, factor = keys[t] / keys[t].norm(dim=-1, keepdim=True), beta[t, i, :, None, None]
            state = state @ (IDENTITY - factor * outer_product(key, key)) + factor * outer_product(values[t], key)
        outputs.append(apply_matrix(state, query[t] / query[t].norm(dim=-1, keepdim=True)))
    return rms_norm(mixer.norm, torch.stack(outputs)).flatten(1) * F.silu(mixer.gate(x))


def compute_mamba2(mixer, x):
    """Compute S ← (2 a − 1) S + Δ x Bᵀ and the outputs S C + D x (Dao and Gu 2024; Grazzi et al. 2025)."""
    value, key, query = convolve(mixer.conv, mixer.project(x)).split(mixer.sizes, -1)
    (step, decay), value = compute_step_and_decay(mixer.decay, x), split_heads(value)
    state, outputs = x.new_zeros(HEADS, 2 * SIZE, 8), []
    for t in range(LENGTH):
        entering = step[t, :, None, None] * outer_product(value[t], key[t].expand(HEADS, -1))
        state = (2 * decay[t] - 1)[:, None, None] * state + entering
        outputs.append(apply_matrix(state, query[t]) + mixer.skip[:, :, 0] * value[t])
    return rms_norm(mixer.norm, torch.stack(outputs).flatten(1) * F.silu(mixer.gate(x)))


def compute_mamba3(mixer, x):
    """Compute S ← a exp(iθ) S + inputs of two positions, in complex numbers, as pairs rotate (Lahoti et al. 2026)."""
    value, key, query, step, rate, mix, turn = mixer.project(x).split(mixer.sizes, -1)
    step, value = F.softplus(step + mixer.step_bias[:, 0]), split_heads(value)
    decay, mix = (-torch.where(rate > 0, 1 + rate, 1 / (1 - rate)) * step).exp(), mix.sigmoid()
    angle = F.pad(outer_product(step, math.pi * turn.tanh()), (0, 2))  # half of the pairs do not turn
    key, query = (
        torch.view_as_complex((rms_norm(norm, part)[:, None] + bias[:, 0]).unflatten(-1, (-1, 2)))
        for norm, part, bias in zip(mixer.norms, (key, query), mixer.biases, strict=True)
    )
    state, before, outputs = x.new_zeros(HEADS, 2 * SIZE, 4, dtype=torch.cdouble), 0, []
    for t in range(LENGTH):
        a, d, m = (part[t, :, None, None] for part in (decay, step, mix))
        entering = outer_product(value[t], key[t])
        turned = torch.exp(-1j * angle[t])[:, None]  # relative to the position's own frame
        state, before = turned * (a * state + (1 - m) * d * a * before) + m * d * entering, entering
        outputs.append(apply_matrix(state, query[t].conj()).real + mixer.skip[:, :, 0] * value[t])
    return torch.stack(outputs).flatten(1) * F.silu(mixer.gate(x))


def compute_rwkv7(mixer, x):
    """Compute S ← S (diag(w) − κ̂ (a ∘ κ̂)ᵀ) + v k̃ᵀ (Peng et al. 2025)."""
    shifted = [x + part * (F.pad(x, (0, 0, 1, -1)) - x) for part in mixer.shift]
    full = iter(mixer.full.values())
    receptance, key, value = (next(full)(shifted[i]) for i in (0, 2, 3))
    low = {name: mixer.low[name](shifted[i]) for name, i in (("decay", 1), ("rate", 4), ("gate", 5))}
    decay = (-math.exp(-0.5) * (mixer.decay_bias + mixer.high["decay"](low["decay"].tanh())).sigmoid()).exp()
    rate = (mixer.rate_bias + mixer.high["rate"](low["rate"])).sigmoid()
    removal = F.normalize(split_heads(key * mixer.removal), dim=-1)
    key = key + key * (rate - 1) * mixer.replacement
    receptance, key, value, decay, rate = (split_heads(part) for part in (receptance, key, value, decay, rate))
    state, outputs = x.new_zeros(HEADS, SIZE, SIZE), []
    for t in range(LENGTH):
        transition = torch.diag_embed(decay[t]) - outer_product(removal[t], rate[t] * removal[t])
        state = state @ transition + outer_product(value[t], key[t])
        outputs.append(apply_matrix(state, receptance[t]))
    bonus = (receptance * mixer.bonus[:, 0] * key).sum(-1, keepdim=True) * value
    normed = F.group_norm(torch.stack(outputs).flatten(1), HEADS, mixer.norm.weight, mixer.norm.bias, 64e-5)
    return (normed + bonus.flatten(1)) * mixer.high["gate"](low["gate"].sigmoid())


def compute_mlstm(mixer, x):
    """Compute C ← σ(f) C + exp(i) v kᵀ and the outputs C q / max(|n q|, 1), without rescaling (Beck et al. 2024)."""
    seen = convolve(mixer.conv, x)
    query, key = (split_heads(part) for part in mixer.look(seen).chunk(2, -1))
    value, gates = split_heads(mixer.value(x)), mixer.gates(seen) + mixer.gate_bias
    state, norm, outputs = x.new_zeros(HEADS, SIZE, SIZE), x.new_zeros(HEADS, SIZE), []
    for t in range(LENGTH):
        enter, forget = gates[t, :HEADS, None].exp(), gates[t, HEADS:, None].sigmoid()
        state = forget[..., None] * state + enter[..., None] * outer_product(value[t], key[t] / SIZE**0.5)
        norm = forget * norm + enter * key[t] / SIZE**0.5
        divisor = (norm * query[t]).sum(-1, keepdim=True).abs().clamp(min=1)
        outputs.append(apply_matrix(state, query[t]) / divisor)
    return rms_norm(mixer.norm, torch.stack(outputs)).flatten(1) * mixer.gate(x).sigmoid()


def compute_slstm(mixer, x):
    """Compute c ← σ(f) c + exp(i) tanh(z) and the outputs h = σ(o) c / n, without rescaling (Beck et al. 2024)."""
    given = torch.cat([mixer.gates(convolve(mixer.conv, x)), mixer.input(x)], -1).unflatten(-1, (4, HEADS, SIZE))
    h = c = n = x.new_zeros(HEADS, SIZE)
    outputs = []
    for t in range(LENGTH):
        recurrent = torch.einsum("he,hef->hf", h, mixer.recurrent).unflatten(-1, (4, SIZE)).transpose(0, 1)
        i, f, z, o = given[t] + recurrent + mixer.bias.transpose(0, 1)
        c, n = f.sigmoid() * c + i.exp() * z.tanh(), f.sigmoid() * n + i.exp()
        h = o.sigmoid() * c / n
        outputs.append(h)
    return rms_norm(mixer.norm, torch.stack(outputs)).flatten(1)


DELTA_OPTIONS = {"taps": 4, "biases": True}
PRODUCT_OPTIONS = {**DELTA_OPTIONS, "allow_neg_eigval": True, "updates": 2}
BUILDERS = {
    "DeltaNet": lambda width: DeltaMixer(width, HEADS, allow_neg_eigval=False, **DELTA_OPTIONS),
    "DeltaProduct": lambda width: DeltaMixer(width, HEADS, **PRODUCT_OPTIONS),
    "gated DeltaProduct": lambda width: DeltaMixer(width, HEADS, gated=True, **PRODUCT_OPTIONS),
    "Mamba2": lambda width: Mamba2Mixer(Mamba2(negative=True, state=8), width, HEADS, biases=True),
    "Mamba3": lambda width: Mamba3Mixer(Mamba3(state=8), width, HEADS, biases=True),
    "RWKV7": lambda width: RWKV7Mixer(width, HEADS, allow_neg_eigval=False, biases=True),
    "negative RWKV7": lambda width: RWKV7Mixer(width, HEADS, allow_neg_eigval=True, biases=True),
    "MLSTM": lambda width: MLSTMMixer(width, HEADS, taps=4, biases=True),
    "SLSTM": lambda width: SLSTMMixer(width, HEADS, taps=4, biases=True),
    "ForgettingAttention": lambda width: ForgettingMixer(width, HEADS, biases=True),
    "StickBreaking": lambda width: StickBreakingMixer(width, HEADS, biases=True),
    "ScalableSoftmax": lambda width: ScalableAttention(width, HEADS, dropout=0.0, biases=True),
}
FORMULAS = {
    "gated DeltaProduct": compute_gated_delta_product,
    "Mamba2": compute_mamba2,
    "Mamba3": compute_mamba3,
    "RWKV7": compute_rwkv7,
    "MLSTM": compute_mlstm,
    "SLSTM": compute_slstm,
}


def build(name, width=WIDTH, std=None):
    torch.manual_seed(0)
    mixer = BUILDERS[name](width)
    for parameter in mixer.parameters() if std else ():
        nn.init.normal_(parameter, std=std)
    return mixer


@torch.no_grad()
@pytest.mark.parametrize("name", FORMULAS)
def test_a_mixer_equals_the_formula_of_its_paper(name):
    mixer, x = build(name, std=0.5).double(), torch.randn(LENGTH, WIDTH, generator=stream(0, "x")).double()
    expected = mixer.out(FORMULAS[name](mixer, x))
    torch.testing.assert_close(mixer.step(x[None], None)[0][0], expected, atol=1e-9, rtol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "minimum"), [("DeltaNet", 0.0), ("DeltaProduct", -1.0), ("RWKV7", -0.455), ("negative RWKV7", -1.455)]
)
def test_eigenvalues_of_the_transition_are_in_their_range(name, minimum):
    """The transition is the matrix that maps a state to the next."""
    mixer, x = build(name, std=2.0).double(), 10 * torch.randn(200, 1, WIDTH, generator=stream(0, "x")).double()
    before = mixer.step(0 * x, None)[1][0]
    start = IDENTITY.expand(200, HEADS, SIZE, SIZE)
    transition = mixer.step(x, (before, start))[1][1] - mixer.step(x, (before, 0 * start))[1][1]
    eigenvalues = torch.linalg.eigvals(transition).real  # a product of two may rotate
    assert minimum - 1e-9 <= eigenvalues.min() < minimum + 0.1 and 0.9 < eigenvalues.max() <= 1 + 1e-9


@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_tiny_or_huge_input_gates_of_slstm_do_not_change_outputs(shift):
    mixer, x = build("SLSTM"), torch.randn(1, LENGTH, WIDTH, generator=stream(0, "x"))
    expected = mixer.step(x, None)[0].detach()
    mixer.bias.data[:, 0] += shift  # scales c and n alike
    found = mixer.step(x, None)[0]
    found.sum().backward()
    torch.testing.assert_close(found.detach(), expected, atol=1e-3, rtol=1e-3)
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # norms in two precisions are slower
@pytest.mark.parametrize("name", BUILDERS)
def test_products_in_16_bits_change_outputs_by_rounding_only(name):
    mixer, x = build(name, width=32), torch.randn(1, 512, 32, generator=stream(0, "x"))
    context = AttentionContext(torch.ones(1, 512, dtype=torch.bool), causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = mixer(x, context)
    expected = mixer(x, context)
    assert (found - expected).norm() < 0.02 * expected.norm()
