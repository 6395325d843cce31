"""Mixers in a transformer: plain modules as mixers, several mixers in one model, and blocks without an MLP."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import lengthwise as lw
from lengthwise.evaluation import causality
from lengthwise.nn.attention import Attention, SoftmaxAttention
from lengthwise.nn.mixer import Mixer, MixerSpec, PlainMixer
from lengthwise.runners import cpu
from lengthwise.runners.cpu import choose_decoder
from lengthwise.testing.laws import check_laws, list_laws
from lengthwise.testing.laws_of_models import READS, WRITES, build_rows
from lengthwise.testing.laws_of_parts import part_equals_its_json_copy

SMALL_SPEC = lw.Transformer(width=8, heads=2, layers=1)


class RunningMean(nn.Module):
    """A module that returns, for each position, the mean of the states up to it."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Linear(width, width)
        nn.init.eye_(self.scale.weight)
        self.scale.bias.no_weight_decay = True

    def forward(self, x):
        return self.scale(x).cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


class LookAhead(RunningMean):
    def forward(self, x):
        return self.scale(x).flip(1)


class PairModule(RunningMean):
    def forward(self, x):
        return x, x


class MaskedMean(RunningMean):
    def forward(self, x, padding_mask):
        real = padding_mask[..., None]
        return (self.scale(x) * real).sum(1, keepdim=True) / real.sum(1, keepdim=True) + 0 * x


MODULES_BY_NAME = {one.__name__: one for one in (RunningMean, LookAhead, PairModule, MaskedMean)}


@dataclass(frozen=True)
class _ModuleSpec(MixerSpec):
    module_name: str = "RunningMean"

    def build(self, width, heads):
        return MODULES_BY_NAME[self.module_name](width)


@dataclass(frozen=True)
class _LayerNumberSpec(MixerSpec):
    def build(self, width, heads, *, layer, **_):
        module = RunningMean(width)
        module.layer = layer
        return module


def list_broken_laws(spec):
    """Return the findings of laws that a model breaks, except the law of JSON copies: this file's parts are not
    registered by name."""
    return check_laws(spec, "", [law for law in list_laws(type(spec)) if law is not part_equals_its_json_copy]).broken


def build_model(causal=True, **changes):
    return replace(SMALL_SPEC, **changes).build(READS, WRITES, causal=causal)


def test_a_plain_module_is_a_mixer_and_keeps_the_laws():
    assert isinstance(build_model(mixer=_ModuleSpec()).blocks[0].mixer, PlainMixer)
    assert not list_broken_laws(replace(SMALL_SPEC, mixer=_ModuleSpec()))
    assert list_broken_laws(replace(SMALL_SPEC, mixer=_ModuleSpec("MaskedMean")))  # it sees later positions


def test_a_plain_module_without_a_padding_mask_needs_a_causal_layout():
    with pytest.raises(lw.UsageError, match="takes no padding_mask: it fits only causal layouts"):
        build_model(causal=False, mixer=_ModuleSpec())
    build_model(causal=False, mixer=_ModuleSpec("MaskedMean"))


def test_modules_that_cannot_be_mixers_are_refused_in_one_line():
    changes = "layout=NextToken", "model.positions=NoPE", "loops=Constant(count=1)", "objective=Final"
    recipe = lw.find("looped-parity", *changes)

    for name, message in (("LookAhead", "^LookAhead in TransformerModel looks ahead: in a causal layout"),
                          ("PairModule", "but PairModule returned a value of type tuple")):  # fmt: skip
        own = recipe.change(model=replace(recipe.model, mixer=_ModuleSpec(name)))
        with pytest.raises(lw.UsageError, match=message):
            causality.check_model(own.build(), own)


def test_a_mixer_keeps_its_own_initial_weights():
    (block,) = build_model(mixer=_ModuleSpec(), init_std=0.5).blocks
    assert torch.equal(block.mixer.module.scale.weight, torch.eye(8))
    assert block.mlp.widen.weight.std().item() == pytest.approx(0.5, rel=0.2)


def test_mixers_alternate_over_the_layers():
    model = build_model(layers=5, mixers=(Attention(), _LayerNumberSpec()))
    kinds = [type(block.mixer) for block in model.blocks]
    assert kinds == [SoftmaxAttention, PlainMixer] * 2 + [SoftmaxAttention]
    assert [block.mixer.module.layer for block in model.blocks if type(block.mixer) is PlainMixer] == [1, 3]
    assert not list_broken_laws(replace(SMALL_SPEC, layers=2, mixers=(Attention(), _ModuleSpec())))


NEEDS_ATTENTION = "Local needs a mixer with attention, not _ModuleSpec, _LayerNumberSpec: use model.positions=NoPE$"


def test_an_attention_encoding_needs_at_least_one_attention_layer():
    build_model(layers=2, mixers=(_ModuleSpec(), Attention()), positions=(lw.Local(1),))
    with pytest.raises(lw.UsageError, match=NEEDS_ATTENTION):
        build_model(layers=2, mixers=(_ModuleSpec(), _LayerNumberSpec()), positions=(lw.Local(1),))


def test_a_block_may_have_no_mlp():
    spec = replace(SMALL_SPEC, mlp=0, layers=2)
    assert not list_broken_laws(spec) and not list_broken_laws(replace(spec, norm="post"))
    model = spec.build(READS, WRITES, causal=True)
    assert not [name for name in model.state_dict() if "mlp" in name]
    assert cpu.describe_choice(model) == "Plain: blocks.0 has no module as its mlp"
    with pytest.raises(lw.UsageError, match="readout=mlp uses an MLP"):
        replace(spec, readout="mlp")


@pytest.mark.parametrize(
    "optimizer", [lw.AdamW(weight_decay=0.5), lw.LAMB(weight_decay=0.5)], ids=lambda one: type(one).__name__
)
def test_parameters_may_be_exempt_from_weight_decay(optimizer):
    model = build_model(mixer=_ModuleSpec())
    decayed, exempt = optimizer.build(model.parameters()).param_groups
    assert decayed["weight_decay"] == 0.5 and exempt["weight_decay"] == 0
    assert [id(one) for one in exempt["params"]] == [id(model.blocks[0].mixer.module.scale.bias)]
    assert len(decayed["params"]) == len([*model.parameters()]) - 1
    assert len(optimizer.build(build_model().parameters()).param_groups) == 1


class RunningSum(Mixer):
    def __init__(self, state_error=0.0):
        super().__init__()
        self.scale, self.state_error = nn.Parameter(torch.ones(8)), state_error

    def forward(self, x, context, cache=None):
        return (x * self.scale).cumsum(1)

    def step(self, x, state):
        found = (x * self.scale).cumsum(1) + (0 if state is None else state * (1 + self.state_error))
        return found, found[:, -1:]


@dataclass(frozen=True)
class _RunningSumSpec(MixerSpec):
    state_error: float = 0.0

    def build(self, width, heads, *, causal):
        if not causal:
            raise lw.UsageError("needs a causal layout")
        return RunningSum(self.state_error)


def test_the_laws_check_stepwise_decoding_against_the_whole_row():
    assert not list_broken_laws(replace(SMALL_SPEC, mixer=_RunningSumSpec()))
    (found,) = list_broken_laws(replace(SMALL_SPEC, mixer=_RunningSumSpec(state_error=0.1)))
    assert "decoded separately" in found.failing_case
    hybrid = replace(SMALL_SPEC, layers=3, mixers=(_RunningSumSpec(), Attention()), positions=(lw.Local(2),), mlp=0)
    assert not list_broken_laws(hybrid)
    assert list_broken_laws(replace(hybrid, mixers=(_RunningSumSpec(0.1), Attention())))


def test_only_mixers_with_a_step_method_are_decoded_stepwise():
    inputs = build_rows([5])
    assert choose_decoder(build_model(mixer=_RunningSumSpec()), inputs) is not None
    assert choose_decoder(build_model(mixer=_ModuleSpec()), inputs) is None
    hooked = build_model(mixer=_RunningSumSpec())
    hooked.blocks[0].register_forward_hook(lambda *_: None)
    assert choose_decoder(hooked, inputs) is None
