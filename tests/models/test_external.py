"""Tests of torch modules passed in from Python: equality, training, and modules that are refused."""

import contextlib
import copy
import functools
import io
import logging
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import LONG
from shipped_specs import shrink_spec
from torch import nn

import lengthwise as lw
from lengthwise.evaluation.attack import attack
from lengthwise.runs.run import Run, load
from lengthwise.training.loop import train
from lengthwise.training.trainer import Trainer

TRAINING_OPTIONS = {"task": "parity", "steps": 3, "batch": 4, "lengths": 4, "quiet": True}
VOCAB_SIZE = 4  # of parity in rows


class SmallAttention(nn.Module):
    """Causal attention with dropout, whose weights have the same shapes for any number of heads."""

    def __init__(self, heads=1, *, dropout=0.0, logit_count=VOCAB_SIZE, extra_state=None):
        super().__init__()
        self.heads, self.extra_state = heads, extra_state
        self.embedding, self.mix, self.head = nn.Embedding(VOCAB_SIZE, 8), nn.Linear(8, 8), nn.Linear(8, logit_count)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens):
        x = self.embedding(tokens)
        q = k = v = self.mix(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.dropout(x + seen.transpose(1, 2).flatten(2)))


def build_attention(*args, **kwargs):
    torch.manual_seed(0)
    return SmallAttention(*args, **kwargs)


def build_torch_attention(heads):
    torch.manual_seed(0)
    return nn.MultiheadAttention(8, heads)


def list_weights(run):
    return {name: value.tolist() for name, value in run.model.state_dict().items()}


@dataclass
class GainConfig:
    gain: object


class WithSlots:
    __slots__ = ("_cache", "gain")

    def __init__(self, gain):
        self.gain, self._cache = gain, [gain]


class WithCache:
    def __init__(self, gain):
        self.gain, self._seen = gain, []

    @functools.cached_property
    def double_gain(self):
        return [2 * self.gain]


@pytest.mark.parametrize(
    "gains",
    [
        (1.0, 0.0),
        (torch.tensor(1.0), torch.tensor(0.0)),
        (torch.zeros(2), torch.zeros(2, 1)),
        (GainConfig(1.0), GainConfig(0.0)),
        (GainConfig({"of": [SimpleNamespace(this=1)]}), GainConfig({"of": [SimpleNamespace(this=2)]})),
        ({"a", "b"}, {"a", "c"}),
        (np.ones(2), np.zeros(2)),
        (np.array([1, "a"], dtype=object), np.array([1, "b"], dtype=object)),
        (torch.eye(3).to_sparse(), 2 * torch.eye(3).to_sparse()),
        (torch.ones(2, device="meta"), torch.ones(3, device="meta")),
        (torch.tensor([1 + 1j]).conj(), torch.tensor([1 + 2j]).conj()),
        (WithSlots(1), WithSlots(2)),
        (functools.partial(torch.softmax, dim=0), functools.partial(torch.softmax, dim=1)),
        ([nn.Linear(2, 2)], [nn.Linear(2, 2)]),
        (Path("one"), Path("two")),
        (torch.relu, torch.tanh),
        (build_torch_attention(2), build_torch_attention(4)),
    ],
)
@pytest.mark.parametrize("name", ["gain", "config"])
def test_attributes_other_than_weights_are_part_of_a_modules_identity(gains, name):
    one, two = build_attention(), build_attention()
    for module, gain in ((one, gains[0]), (two, gains[1])):
        setattr(module, name, gain)
    of = lw.models.external.ExternalModule.from_module
    assert of(one) == of(copy.deepcopy(one)) != of(two)


def test_private_numbers_affect_identity_but_caches_and_shared_objects_do_not():
    of, module = lw.models.external.ExternalModule.from_module, build_attention()
    module.kept, module.listed = kept, (listed,) = WithCache(1), [nn.Dropout()]
    module.log, module.library = logging.getLogger("mine"), nn.functional
    before = of(module)
    module._cache = {"seen": torch.ones(3)}
    assert kept.double_gain and not listed.eval().training
    kept._seen.append(1)
    logging.getLogger("another").info("x")
    assert of(module) == before
    module._gain = 2.0
    assert of(module) != before


def test_modules_with_reference_cycles_have_an_identity():
    module = build_attention()
    module.around = around = SimpleNamespace()
    around.around = around
    module.embedding.whole = [module]  # in a list, so that it is not registered as a submodule
    nodes = [SimpleNamespace(number=number) for number in range(20)]
    for node in nodes:
        node.others = nodes
    module.nodes = nodes
    before = lw.models.external.ExternalModule.from_module(module)
    assert lw.models.external.ExternalModule.from_module(module) == before
    nodes[7].number = -1
    assert lw.models.external.ExternalModule.from_module(module) != before


class UnusedWeights(SmallAttention):
    """A module with weights that no step uses, such as an expert that receives no token."""

    def __init__(self):
        super().__init__()
        self.seldom = nn.Linear(VOCAB_SIZE, VOCAB_SIZE)
        self.steps = nn.Parameter(torch.zeros(1, dtype=torch.long), requires_grad=False)


def test_training_resumes_if_no_step_uses_some_weights():
    torch.manual_seed(0)
    module = UnusedWeights()
    recipe = lw.train(module, **TRAINING_OPTIONS).recipe.change(steps=5)
    trainee, run = Trainer(recipe, torch.device("cpu")), Run.of(recipe)
    trainee.advance()
    run.save_state(trainee.state())
    assert train(recipe).done


def test_a_recipe_builds_the_module_with_its_original_weights():
    module = build_attention()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = lw.train(module, **TRAINING_OPTIONS)
    lw.evaluate(module, 2, task="parity", samples=2, quiet=True)
    built = run.recipe.build().module.state_dict()
    assert all(torch.equal(built[name], value) for name, value in before.items())
    assert any(not torch.equal(module.state_dict()[name], value) for name, value in before.items())


def test_training_does_not_depend_on_the_initial_mode_of_a_module():
    trained = []
    for name, mode in (("in", True), ("out", False)):
        run = lw.train(build_attention(dropout=0.5).train(mode), f"name={name}", "watch.every=0", **TRAINING_OPTIONS)
        trained.append(list_weights(run))
    assert trained[0] == trained[1]
    plain = list_weights(lw.train(build_attention(dropout=0.0), "name=plain", "watch.every=0", **TRAINING_OPTIONS))
    assert plain != trained[0]


@pytest.mark.parametrize("mode", [True, False])
def test_evaluation_restores_the_training_mode_of_each_submodule(mode):
    module = build_attention(dropout=0.5).train(mode)
    module.mix.train(not mode)
    lw.evaluate(module, 2, task="parity", samples=2, quiet=True)
    assert (module.training, module.dropout.training, module.mix.training) == (mode, mode, not mode)


def test_logits_beyond_the_symbols_are_shown_as_replacement_characters():
    module = build_attention(logit_count=16)
    with torch.no_grad():
        module.head.bias[9] = 100.0
    run = lw.train(module, "optimizer.rate=1e-9", **TRAINING_OPTIONS)
    assert {*lw.load(run.folder).solve("101").text} == {"�"}
    found = attack(run.weights(), [3], tries=10)
    assert found["failed"] == found["tries"] > 0


def test_a_module_is_measured_on_a_task_whose_sizes_start_above_one():
    (score,) = lw.evaluate(nn.Embedding(17, 17), 3, task="expression", samples=2, families=False)
    assert score.count == 2


NOTEBOOK_CODE = """
class Chosen:
    def of(self, kind):
        return kind in {"add", "gate", "none", "once"}

from lengthwise.experiment.own_code import _hash_class
print(_hash_class(Chosen))
"""


def test_a_notebook_class_has_the_same_hash_in_every_process():
    """The class is hashed in this process, and in a process whose sets iterate in another order."""
    seed = str(int(os.environ.get("PYTHONHASHSEED", "random") == "1") + 1)
    code, env = [sys.executable, "-"], {"PYTHONHASHSEED": seed}
    there = subprocess.run(code, input=NOTEBOOK_CODE, env=env, capture_output=True, text=True).stdout
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(compile(NOTEBOOK_CODE, "<stdin>", "exec"), {"__name__": "__main__"})
    assert there == here.getvalue() != ""


class ExtraArgument(SmallAttention):
    def forward(self, tokens, style):
        return super().forward(tokens)


class WithoutWeights(nn.Module):
    def forward(self, tokens):
        return nn.functional.one_hot(tokens, VOCAB_SIZE).float()


class WithoutForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, VOCAB_SIZE)


class DetachedLogits(SmallAttention):
    def forward(self, tokens):
        return super().forward(tokens).detach()


class ExtraState(SmallAttention):
    """A module that stores a value other than a tensor, or a tensor of a type that files do not support."""

    def get_extra_state(self):
        return self.extra_state

    def set_extra_state(self, state):
        self.extra_state = state


class IntegerLogits(SmallAttention):
    """A module whose logits are whole numbers."""

    def forward(self, tokens):
        return super().forward(tokens).long()


class LazyLayer(SmallAttention):
    """A module that builds a layer in its first call, after the optimizer has listed the weights."""

    def __init__(self):
        super().__init__()
        self.later = None

    def forward(self, tokens):
        self.later = self.later or nn.Linear(VOCAB_SIZE, VOCAB_SIZE)
        return self.later(super().forward(tokens))


def build_scripted_module():
    return torch.jit.script(nn.Sequential(nn.Embedding(VOCAB_SIZE, VOCAB_SIZE)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")  # is deprecated
@pytest.mark.parametrize(
    ("build_module", "message"),
    [
        (ExtraArgument, "ExtraArgument.forward is missing a required argument: .style"),
        (WithoutForward, "WithoutForward has no forward: define forward"),
        (WithoutWeights, "no trainable weights"),
        (lambda: build_attention().requires_grad_(False), "no trainable weights"),
        (DetachedLogits, "the loss depends on no trainable weight: .*detach"),
        (lambda: nn.Sequential(nn.Embedding(VOCAB_SIZE, 8), nn.LazyLinear(VOCAB_SIZE)), "lazy layers without weights"),
        (IntegerLogits, r"but IntegerLogits returned \(\d, \d, 4\) of torch.int64"),
        (LazyLayer, "LazyLayer builds weights in its first call"),
        (build_scripted_module, "pass the module before"),
        (lambda: ExtraState(extra_state=threading.Lock()), "ExtraState cannot be copied by copy.deepcopy: .*lock"),
        (lambda: ExtraState(extra_state={"version": 1}), r"module\._extra_state: weights must be tensors, not dict"),
        (lambda: ExtraState(extra_state=torch.zeros(1, dtype=torch.cdouble)), "hold numbers of torch.complex128"),
    ],
)
def test_untrainable_modules_are_refused_in_one_line_before_training(build_module, message, runs):
    with pytest.raises(lw.UsageError, match=message) as error:
        lw.train(build_module(), **TRAINING_OPTIONS)
    assert len(str(error.value).splitlines()) == 1 and not runs.exists()


def test_a_module_that_has_built_its_weights_is_trained():
    module = LazyLayer()
    module(torch.zeros(1, 2, dtype=torch.long))
    assert lw.train(module, **TRAINING_OPTIONS).done


@dataclass(frozen=True)
class GradientPenalty(lw.Objective):
    """An objective that adds the squared gradient of the loss to the loss."""

    def __call__(self, runner, batch, loops, generator):
        loss = lw.Final()(runner, batch, loops, generator)
        gradients = torch.autograd.grad(loss.value, [*runner.model.parameters()], create_graph=True)
        return lw.Loss(loss.value + sum(part.square().sum() for part in gradients), loss.logs)


@pytest.mark.parametrize("name", ["looped-parity", "lstm-small", "retran-small"])
def test_an_objective_with_second_derivatives_trains_only_with_plain_runners(name):
    few = ["steps=1", "batch=2", "watch.every=0", "keep=last", "loops=PerRound", "source=Fresh"]
    recipe = lw.find(name).change(few)
    recipe = recipe.change(
        model=shrink_spec(recipe.model), objective=GradientPenalty(), stopping=lw.Oracle(), name="smooth"
    )
    with pytest.raises(lw.UsageError, match=r"second derivatives.* lw\.plain\(\)"):
        train(recipe)
    if name == "looped-parity" or LONG:
        with lw.plain():
            assert train(recipe).done


class ComplexWeights(nn.Module):
    """A module with complex weights that sums rotated states up to each position or, to look ahead, from each
    position on."""

    def __init__(self, *, looks_ahead=False):
        super().__init__()
        self.looks_ahead = looks_ahead
        self.embedding, self.head = nn.Embedding(VOCAB_SIZE, 8), nn.Linear(8, VOCAB_SIZE)
        self.rotation = nn.Parameter(torch.full((8,), 1j))

    def forward(self, tokens):
        x = self.embedding(tokens)
        rotated = (x * self.rotation * self.rotation).real
        if self.looks_ahead:
            return self.head(x + rotated.flip(1).cumsum(1).flip(1))
        return self.head(x + rotated.cumsum(1))


@pytest.mark.filterwarnings("error")
def test_complex_weights_are_checked_trained_and_loaded(runs):
    with pytest.raises(lw.UsageError, match="ComplexWeights looks ahead"):
        lw.evaluate(ComplexWeights(looks_ahead=True), 3, task="parity", samples=2, quiet=True)
    module = ComplexWeights()
    run = lw.train(module, **TRAINING_OPTIONS)
    rotation = load(run.folder).model.module.rotation
    assert rotation.is_complex() and not torch.equal(rotation, ComplexWeights().rotation)
