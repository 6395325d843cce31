"""Recurrent mixers: the chunked form of each recurrence equals its scan, in values and gradients."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from lengthwise.base.rng import stream
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.mixer import AttentionContext
from lengthwise.nn.mixers.attention_forms import ForgettingMixer, ScalableAttention, StickBreakingMixer
from lengthwise.nn.mixers.delta import DeltaMixer, delta_rule
from lengthwise.nn.mixers.mamba2 import linear_attention
from lengthwise.nn.mixers.mamba3 import rotate_first_pairs, trapezoidal_attention
from lengthwise.nn.mixers.recurrent import reverse_rows
from lengthwise.nn.mixers.rwkv7 import diagonal_plus_rank_one
from lengthwise.nn.mixers.xlstm import exponential_attention

ROWS, HEADS, WIDTH = 2, 3, 4


def draw_tensor(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed, "x", *shape), dtype=torch.double, requires_grad=True)


def scan(query, decay, a, b, key, value, state=None):
    """Compute S_t = diag(w_t) S_{t−1} + b_t (a_tᵀ S_{t−1}) + k_t v_tᵀ and outputs S_tᵀ q_t, position by position."""
    state = value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1]) if state is None else state
    outputs = []
    for t in range(value.shape[2]):
        removed = a[:, :, t, None] @ state
        state = decay[:, :, t, :, None] * state + b[:, :, t, :, None] * removed
        state = state + key[:, :, t, :, None] * value[:, :, t, None]
        outputs.append((query[:, :, t, None] @ state)[:, :, 0])
    return torch.stack(outputs, 2), state


def scan_delta_rule(query, key, value, beta, log_decay, state):
    """Compute S_t = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ."""
    beta, decay = beta[..., None], 1 if log_decay is None else log_decay.exp()[..., None]
    return scan(query, torch.ones_like(beta) * decay, key, -beta * decay * key, beta * key, value, state)


def scan_linear_attention(query, key, value, log_decay, sign, state):
    """Compute S_t = a_t S_{t−1} + k_t v_tᵀ, with a factor a_t that may be negative."""
    decay = log_decay.exp()[..., None] * (1 if sign is None else sign[..., None])
    return scan(query, decay, torch.zeros_like(key), torch.zeros_like(key), key, value, state)


def scan_exponential_attention(query, key, value, log_input_gate, log_forget):
    """Compute C_tᵀ q_t / max(|n_tᵀ q_t|, 1) without rescaling and with n as a further column of C."""
    value, key = F.pad(value, (0, 1), value=1.0), log_input_gate.exp()[..., None] * key
    mixed, _ = scan_linear_attention(query, key, value, log_forget, None, None)
    return mixed[..., :-1] / mixed[..., -1:].abs().clamp(min=1)


def assert_equal_results(function, scan, arguments):
    """Assert that outputs, last states, and gradients of a sum over both agree, up to 1e-10 of the largest value."""
    found, given = [], [part for part in arguments if part is not None]
    for compute in (function, scan):
        outputs, state = compute(*arguments)
        value = outputs.square().sum() + state.sin().sum()
        found.append([outputs, state, *torch.autograd.grad(value, given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10 * max(1.0, float(other.detach().abs().max())), rtol=1e-10)


lengths = st.integers(1, 40)


@given(lengths, st.booleans(), st.booleans(), st.sampled_from([4, 16, 64]), st.integers(0, 99))
def test_the_delta_rule_in_chunks_equals_its_scan(length, has_decay, has_state, chunk, seed):
    query, key, value = (draw_tensor(ROWS, HEADS, length, WIDTH, seed=seed + i) for i in range(3))
    beta = draw_tensor(ROWS, HEADS, length, seed=seed)
    log_decay = draw_tensor(ROWS, HEADS, length, seed=seed + 1) if has_decay else None
    state = draw_tensor(ROWS, HEADS, WIDTH, WIDTH, seed=seed) if has_state else None

    def constrain(function, *further):
        def compute(query, key, value, beta, log_decay, state):
            decay = None if log_decay is None else -20 * log_decay.square()
            return function(query, F.normalize(key, dim=-1), value, 2 * beta.sigmoid(), decay, state, *further)

        return compute

    parts = [query, key, value, beta, log_decay, state]
    assert_equal_results(constrain(delta_rule, chunk), constrain(scan_delta_rule), parts)


@given(lengths, st.booleans(), st.booleans(), st.sampled_from([4, 32]), st.integers(0, 99))
def test_linear_attention_in_chunks_equals_its_scan(length, has_sign, has_state, chunk, seed):
    query, key = (draw_tensor(ROWS, 1, length, WIDTH, seed=seed + i) for i in range(2))
    value, log_decay = draw_tensor(ROWS, HEADS, length, 5, seed=seed), draw_tensor(ROWS, HEADS, length, seed=seed)
    state = draw_tensor(ROWS, HEADS, WIDTH, 5, seed=seed) if has_state else None
    sign = draw_tensor(ROWS, HEADS, length, seed=seed + 1).detach().sign() if has_sign else None

    def constrain(function, *further):
        return lambda query, key, value, log_decay, state: function(
            query, key, value, -20 * log_decay.square(), sign, state, *further
        )

    parts = [query, key, value, log_decay, state]
    assert_equal_results(constrain(linear_attention, chunk), constrain(scan_linear_attention), parts)


def scan_trapezoidal_attention(query, key, value, log_decay, step, mix):
    """Compute S_t = a_t S_{t−1} + (1 − λ_t) Δ_t a_t k_{t−1} v_{t−1}ᵀ + λ_t Δ_t k_t v_tᵀ, position by position."""
    state = value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1])
    before, outputs = torch.zeros_like(state), []
    for t in range(value.shape[2]):
        a, d, w = (part[:, :, t, None, None] for part in (log_decay.exp(), step, mix))
        entering = key[:, :, t, :, None] * value[:, :, t, None]
        state, before = a * state + (1 - w) * d * a * before + w * d * entering, entering
        outputs.append((query[:, :, t, None] @ state)[:, :, 0])
    return torch.stack(outputs, 2), state


@given(lengths, st.integers(0, 40), st.sampled_from([4, 32]), st.integers(0, 99))
def test_trapezoidal_attention_in_chunks_equals_its_scan(length, first_length, chunk, seed):
    query, key, value = (draw_tensor(ROWS, HEADS, length, WIDTH, seed=seed + i) for i in range(3))
    gates = [draw_tensor(ROWS, HEADS, length, seed=seed + i) for i in range(3)]

    def constrain(function):
        return lambda query, key, value, log_decay, step, mix: function(
            query, key, value, -20 * log_decay.square(), F.softplus(step), mix.sigmoid()
        )

    def compute_in_pieces(*parts):
        outputs, state = [], None
        for piece in filter(len, (range(length)[:first_length], range(length)[first_length:])):  # a row in two pieces
            output, state = trapezoidal_attention(*(part[:, :, piece] for part in parts), state, chunk)
            outputs.append(output)
        memory, last_key, last_value, weight = state
        return torch.cat(outputs, 2), memory + weight[..., None] * last_key.mT * last_value

    parts = [query, key, value, *gates]
    assert_equal_results(constrain(compute_in_pieces), constrain(scan_trapezoidal_attention), parts)


def test_mamba_3_can_track_parity_by_rotation():
    """A state that turns by π for each 1 is negative after an odd number of ones; positive decays cannot change its
    sign."""
    bits = torch.randint(2, (4, 30), generator=stream(0, "bits")).double()
    angle = (math.pi * bits).cumsum(1)[:, None, :, None]
    one = torch.zeros(4, 1, 30, 4).double().index_fill(3, torch.tensor([0]), 1)
    value = torch.zeros(4, 1, 30, 1).double().index_fill(2, torch.tensor([0]), 1)
    ones = torch.ones(4, 1, 30).double()
    key, query = rotate_first_pairs(one, angle * 0), rotate_first_pairs(one, angle)
    outputs, _ = trapezoidal_attention(query, key, value, 0 * ones, ones, ones, None)
    assert torch.equal(outputs[:, 0, :, 0] < 0, bits.cumsum(1) % 2 == 1)


@given(lengths, st.booleans(), st.sampled_from([4, 16]), st.integers(0, 99))
def test_diagonal_plus_rank_one_in_chunks_equals_its_scan(length, has_state, chunk, seed):
    query, decay, a, b, key, value = (draw_tensor(ROWS, HEADS, length, WIDTH, seed=seed + i) for i in range(6))
    state = draw_tensor(ROWS, HEADS, WIDTH, WIDTH, seed=seed) if has_state else None

    def constrain(function, *further):
        def compute(query, decay, a, b, key, value, state):
            a, log_decay = F.normalize(a, dim=-1), -0.6 * decay.sigmoid()
            decay = log_decay.exp() if function is scan else log_decay
            return function(query, decay, a, -2 * b.sigmoid() * a, key, value, state, *further)

        return compute

    parts = [query, decay, a, b, key, value, state]
    assert_equal_results(constrain(diagonal_plus_rank_one, chunk), constrain(scan), parts)


@given(lengths, st.sampled_from([4, 32]), st.integers(0, 99))
def test_exponential_gates_in_chunks_equal_their_scan(length, chunk, seed):
    """A row computed in two pieces equals the whole row. Outputs are finite even if exponents are large."""
    query, key, value = (draw_tensor(ROWS, HEADS, length, WIDTH, seed=seed + i) for i in range(3))
    input_gate, forget_gate = (draw_tensor(ROWS, HEADS, length, seed=seed + i) for i in range(2))
    parts = [query, key, value, input_gate, forget_gate]

    def compute_by_position(query, key, value, input_gate, forget_gate):
        found = scan_exponential_attention(query, key, value, 3 * input_gate, F.logsigmoid(forget_gate))
        return found, found.new_zeros(1)

    def compute_in_pieces(query, key, value, input_gate, forget_gate):
        cut, found, state = length // 2, [], (None, None)
        for piece in filter(len, (range(cut), range(cut, length))):
            here = (part[:, :, piece] for part in (query, key, value, 3 * input_gate, F.logsigmoid(forget_gate)))
            one, *state = exponential_attention(*here, *state, chunk)
            found.append(one)
        return torch.cat(found, 2), found[0].new_zeros(1)

    assert_equal_results(compute_in_pieces, compute_by_position, parts)
    far = exponential_attention(query, key, value, 400 * input_gate, F.logsigmoid(forget_gate), None, None)[0]
    assert far.isfinite().all()


def build_mixer(kind, **options):
    torch.manual_seed(0)
    mixer = kind(8, 2, biases=True, **options).double()
    x = draw_tensor(2, 6, 8).detach()
    return mixer, x, AttentionContext(torch.ones(2, 6, dtype=torch.bool), causal=True)


def project_heads(mixer, x):
    return (part.transpose(1, 2) for part in mixer.project(x).unflatten(-1, (3, 2, -1)).unbind(2))


def test_forgetting_attention_adds_the_log_forget_gates_between_positions():
    mixer, x, context = build_mixer(ForgettingMixer)
    query, key, value = project_heads(mixer, x)
    log_forget = F.logsigmoid(mixer.forget(x) + mixer.forget_bias)
    score = query @ key.mT / 2
    for i in range(6):
        for j in range(6):
            score[..., i, j] += -torch.inf if j > i else log_forget[:, j + 1 : i + 1].sum(1)
    torch.testing.assert_close(mixer(x, context), mixer.out((score.softmax(-1) @ value).transpose(1, 2).flatten(2)))


def test_stick_breaking_assigns_weight_from_the_latest_key_backwards():
    mixer, x, context = build_mixer(StickBreakingMixer)
    query, key, value = project_heads(mixer, x)
    share, weight = (query @ key.mT / 2).sigmoid(), torch.zeros(2, 2, 6, 6, dtype=torch.double)
    for i in range(6):
        left = torch.ones(2, 2, dtype=torch.double)
        for j in range(i, -1, -1):
            weight[..., i, j] = share[..., i, j] * left
            left = left * (1 - share[..., i, j])
    torch.testing.assert_close(mixer(x, context), mixer.out((weight @ value).transpose(1, 2).flatten(2)))


def test_scalable_softmax_multiplies_scores_by_the_log_of_the_number_of_keys():
    mixer, x, context = build_mixer(ScalableAttention, dropout=0.0)
    query, key, value = project_heads(mixer, x)
    logs = torch.arange(2, 8, dtype=torch.double).log()[:, None]
    score = (0.43 * logs * (query @ key.mT) / 2).masked_fill(torch.ones(6, 6).triu(1) > 0, -torch.inf)
    torch.testing.assert_close(mixer(x, context), mixer.out((score.softmax(-1) @ value).transpose(1, 2).flatten(2)))
    assert isinstance(mixer, SoftmaxAttention)


def test_two_updates_with_one_beta_of_zero_equal_a_single_update():
    torch.manual_seed(0)
    double = DeltaMixer(8, 2, taps=0, allow_neg_eigval=True, biases=True, updates=2, gated=True).double()
    single = DeltaMixer(8, 2, taps=0, allow_neg_eigval=True, biases=True, gated=True).double()
    state = single.state_dict()
    query, first_key, first_value, *_ = double.project.weight.split(8)
    state["project.weight"] = torch.cat([query, first_key, first_value])
    state |= {
        name: value for name, value in double.state_dict().items() if name not in ("project.weight", "rate.weight")
    }
    state["rate.weight"] = double.rate.weight[:2]
    single.load_state_dict(state)
    x = draw_tensor(3, 7, 8)
    double.rate.register_forward_hook(lambda _, __, out: torch.cat([out[..., :2], out[..., 2:] * 0 - torch.inf], -1))
    torch.testing.assert_close(double.step(x, None)[0], single.step(x, None)[0])


def test_rows_are_reversed_within_their_lengths():
    x, mask = torch.arange(8.0).view(2, 4, 1), torch.tensor([[True, True, True, False], [True, False, False, False]])
    assert reverse_rows(x, mask)[..., 0].tolist() == [[2, 1, 0, 3], [4, 5, 6, 7]]
