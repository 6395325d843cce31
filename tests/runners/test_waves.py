"""Recurrent models at fixed shapes. ``test_graphs`` checks recorded steps, which use them, against the plain runner's
values and gradients."""

from functools import partial

import pytest
import torch
from forms import close
from torch import nn

from lengthwise.runners import waves
from lengthwise.runners.compiled import compile_function
from lengthwise.runs.run import load

RECURRENT = ("retran-small", "lstm-small")


@pytest.fixture(params=RECURRENT)
def model(request):
    return load(request.param).model.double().train()


@pytest.fixture
def halving_dropout(monkeypatch):
    """Replace dropout by a factor of one half, so that the results of two models are comparable."""
    monkeypatch.setattr(nn.functional, "dropout", lambda x, p, training=True, inplace=False: 0.5 * x if training else x)


def embedded(model):
    tokens = torch.arange(12).view(3, 4) % 5
    return model.embedding(tokens).detach().requires_grad_()


@pytest.mark.usefixtures("halving_dropout")
def test_dropout_is_applied_to_the_same_values(model):
    x = embedded(model)
    close(waves.advance(model, x), model.advance(x, x))


def test_dropout_draws_new_numbers_for_each_wave_and_call(model):
    torch.manual_seed(0)
    x = embedded(model)
    first, second = waves.advance(model, x), waves.advance(model, x)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, waves.advance(model, x))


@pytest.mark.filterwarnings("ignore")  # warnings from torch's compiler
@pytest.mark.usefixtures("halving_dropout", "no_type_checks")
def test_a_step_compiles_once_for_all_waves(model):
    x, steps = embedded(model), []

    def compile_once(step):
        steps.append(compile_function(step, "eager"))
        return steps[-1]

    close(waves.advance(model, x, compile_once), model.advance(x, x))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    waves.advance(model, x, compile_once)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before and steps[0] is steps[1]


def test_only_unmodified_recurrent_models_are_supported(model):
    assert waves.can_advance(model)
    assert not waves.can_advance(load("looped-parity").model)
    part = next(part for part in model.modules() if isinstance(part, nn.Linear))
    part.forward = partial(nn.Linear.forward, part)
    assert not waves.can_advance(model)
