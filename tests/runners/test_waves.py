"""Recurrent models at fixed shapes. That values and gradients equal the plain runner's is tested with recorded steps
(``test_graphs``), of which this is a part."""

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
def halving(monkeypatch):
    """Dropout that halves all values, so that models which drop the same values give the same results."""
    monkeypatch.setattr(nn.functional, "dropout", lambda x, p, training=True, inplace=False: 0.5 * x if training else x)


def embedded(model):
    tokens = torch.arange(12).view(3, 4) % 5
    return model.embedding(tokens).detach().requires_grad_()


@pytest.mark.usefixtures("halving")
def test_the_same_values_are_dropped(model):
    x = embedded(model)
    close(waves.advance(model, x), model.advance(x, x))


def test_dropout_draws_new_numbers_for_each_wave_and_call(model):
    torch.manual_seed(0)
    x = embedded(model)
    first, second = waves.advance(model, x), waves.advance(model, x)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, waves.advance(model, x))


@pytest.mark.filterwarnings("ignore")  # torch's compiler meets warnings of its own
@pytest.mark.usefixtures("halving", "no_type_checks")
def test_a_step_compiles_once_for_all_waves(model):
    x, steps = embedded(model), []

    def compiled(step):
        steps.append(compile_function(step, "eager"))
        return steps[-1]

    close(waves.advance(model, x, compiled), model.advance(x, x))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    waves.advance(model, x, compiled)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before and steps[0] is steps[1]


def test_only_known_models_are_claimed(model):
    assert waves.can_advance(model)
    assert not waves.can_advance(load("looped-parity").model)
    part = next(part for part in model.modules() if isinstance(part, nn.Linear))
    part.forward = partial(nn.Linear.forward, part)
    assert not waves.can_advance(model)
