"""Recurrent mixers: the chunked form of each recurrence equals its scan, in values and gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from lengthwise.base.rng import stream
from lengthwise.nn.mixers.delta import DeltaMixer, delta_rule, delta_rule_scan
from lengthwise.nn.mixers.recurrent import reversed_rows

ROWS, HEADS, WIDTH = 2, 3, 4


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed, "x", *shape), dtype=torch.double, requires_grad=True)


def results_and_gradients(function, parts, *further):
    """What a recurrence gives, its last state, and the gradients of a sum over both."""
    found, state = function(*parts, *further)
    (found.square().sum() + state.sin().sum()).backward()
    gradients = [part.grad for part in parts if part is not None]
    for part in parts:
        if part is not None:
            part.grad = None
    return [found, state, *gradients]


lengths = st.integers(1, 40)


@given(lengths, st.booleans(), st.booleans(), st.sampled_from([4, 16, 64]), st.integers(0, 99))
def test_the_delta_rule_in_chunks_equals_its_scan(length, decays, starts, chunk, seed):
    query, key, value = (drawn(ROWS, HEADS, length, WIDTH, seed=seed + i) for i in range(3))
    beta = drawn(ROWS, HEADS, length, seed=seed)
    log_decay = drawn(ROWS, HEADS, length, seed=seed + 1) if decays else None
    state = drawn(ROWS, HEADS, WIDTH, WIDTH, seed=seed) if starts else None

    def bounded(function):
        def call(query, key, value, beta, log_decay, state, *further):
            decay = None if log_decay is None else -20 * log_decay.square()
            return function(query, F.normalize(key, dim=-1), value, 2 * beta.sigmoid(), decay, state, *further)

        return call

    parts = [query, key, value, beta, log_decay, state]
    slow = results_and_gradients(bounded(delta_rule_scan), parts)
    for one, other in zip(results_and_gradients(bounded(delta_rule), parts, chunk), slow, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("negative", "least"), [(False, 0.0), (True, -1.0)])
def test_eigenvalues_of_the_transition_are_in_their_range(negative, least):
    """From S₀ = I with no values: the eigenvalues of I − β k kᵀ are 1 and 1 − β."""
    torch.manual_seed(0)
    mixer = DeltaMixer(8, 2, taps=4, negative=negative, biases=True)
    beta = mixer.top * mixer.rate(10 * torch.randn(100, 8)).sigmoid()
    eigenvalues = 1 - beta
    assert eigenvalues.min() >= least and eigenvalues.max() <= 1
    assert eigenvalues.min() < least + 0.1


def test_several_updates_are_a_longer_row_of_single_ones():
    """Two updates per position, of which one has β = 0, are one update."""
    torch.manual_seed(0)
    double = DeltaMixer(8, 2, taps=0, negative=True, biases=True, updates=2, gated=True).double()
    single = DeltaMixer(8, 2, taps=0, negative=True, biases=True, gated=True).double()
    state = single.state_dict()
    query, first_key, first_value, *_ = double.project.weight.split(8)
    state["project.weight"] = torch.cat([query, first_key, first_value])
    state |= {
        name: value for name, value in double.state_dict().items() if name not in ("project.weight", "rate.weight")
    }
    state["rate.weight"] = double.rate.weight[:2]
    single.load_state_dict(state)
    x = drawn(3, 7, 8)
    double.rate.register_forward_hook(lambda _, __, out: torch.cat([out[..., :2], out[..., 2:] * 0 - torch.inf], -1))
    torch.testing.assert_close(double.step(x, None)[0], single.step(x, None)[0])


def test_rows_are_reversed_within_their_lengths():
    x, mask = torch.arange(8.0).view(2, 4, 1), torch.tensor([[True, True, True, False], [True, False, False, False]])
    assert reversed_rows(x, mask)[..., 0].tolist() == [[2, 1, 0, 3], [4, 5, 6, 7]]
