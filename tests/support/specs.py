"""Specifications of small models of every kind in the registry, and helpers that build and run them in float64."""

import dataclasses
import functools
import itertools
import typing
from dataclasses import replace

import torch

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.fields import encode, format_part
from lengthwise.nn.digit_position import Abacus, Coupling
from lengthwise.nn.position import FIRE, ALiBi, Learned, Position, Randomized, RoPE, Sinusoidal
from lengthwise.nn.window import CoupledHeads, EarlierHeads, Local, LocalHeads
from lengthwise.testing import laws_of_models

BASE, build_rows, compute_logits = laws_of_models.SMALL_MODEL, laws_of_models.build_rows, laws_of_models.compute_logits
READS, WRITES = laws_of_models.READS, laws_of_models.WRITES
LENGTHS, LOOPS = list(laws_of_models.LENGTHS), list(laws_of_models.LOOPS)
FIELD_VALUES = {tuple[int, ...]: (3,), int: 1, str: "x", Position: RoPE()}  # for fields without a default


def list_parts(kind):
    """Return a default instance of each of the package's classes of a kind (a key of ``catalog.list_parts()``)."""
    known = [cls for cls in catalog.list_parts()[kind].values() if cls.__module__.startswith("lengthwise.")]
    return [build_default(cls) for cls in known if cls is not lw.File]  # File has its own tests


def build_default(cls):
    """Build an instance of a class, with a value for each field that has no default."""
    hints = typing.get_type_hints(cls)
    needed = [field.name for field in dataclasses.fields(cls) if field.init and _has_no_default(field)]
    return cls(**{name: FIELD_VALUES[hints[name]] for name in needed})


def _has_no_default(field):
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def shrink(spec):
    """Replace each model inside a model specification by ``BASE``."""
    parts = [field.name for field in dataclasses.fields(spec) if isinstance(getattr(spec, field.name), lw.ModelSpec)]
    return replace(spec, **dict.fromkeys(parts, BASE))


def can_build(spec, causal, input_vocab=None, output_vocab=WRITES):
    """Return whether the specification can build a model, causal or not, for these vocabularies."""
    try:
        spec.build(input_vocab or laws_of_models.choose_input_vocab(spec), output_vocab, causal=causal)
    except lw.UsageError:  # a causal-only model, or one for another layout
        return False
    return True


# Some combinations of options; below, every other part by itself.
SPECS = [
    lw.Transformer(width=8, heads=2, layers=2),
    lw.Transformer(width=8, heads=2, layers=2, injection="once", activation="relu"),
    replace(BASE, positions=(Learned(20),)),
    replace(BASE, positions=(RoPE(),)),
    replace(BASE, positions=(RoPE(),), injection="once"),
    replace(BASE, positions=(Local(0),)),
    replace(BASE, positions=(Local(2),), injection="once"),
    replace(BASE, injection="concat"),
    replace(BASE, injection="gate"),
    replace(BASE, positions=(Sinusoidal(), Abacus(9))),
    replace(BASE, positions=(Abacus(9), FIRE(), RoPE())),
    replace(BASE, positions=(Abacus(9, added_to="attention"), RoPE())),
    replace(BASE, positions=(Coupling(9),)),
    replace(BASE, positions=(Randomized(RoPE(), 20),)),
    replace(BASE, positions=(Randomized(FIRE(), 20), Abacus(9))),
    replace(BASE, positions=(Randomized(ALiBi(), 20),)),
    replace(BASE, positions=(Randomized(Learned(20), 20),)),
    replace(BASE, norm="post", gated=True, biases=False, final_norm="readout", readout="mlp", embedding_norm=True),
    replace(BASE, layers=2, injection="layers", final_norm="none"),
    replace(BASE, layers=2, injection="reads", final_norm="readout"),
    replace(BASE, norm="post", injection="reads"),
    replace(BASE, positions=(LocalHeads(1), CoupledHeads(1))),
    replace(BASE, positions=(LocalHeads(1), CoupledHeads(1, ahead=1))),
    replace(BASE, positions=(LocalHeads(1), EarlierHeads(1))),
    replace(BASE, positions=(LocalHeads(1), ALiBi(2.0)), injection="once"),
    lw.Transformer(width=8, heads=2, layers=2, positions=(Learned(20), RoPE(), Local(2))),
    replace(BASE, positions=(RoPE(),), norm="post", final_norm="none", readout="scaled", init="attention"),
]
RECURRENT_SPECS = [lw.ReTran(4, 6, 1, 2), lw.ReTran(8, 5, 2, 2), lw.LSTM(8, 6, 1), lw.LSTM(8, 5, 2)]
PART_SPECS = [
    *(replace(BASE, positions=(position,)) for position in list_parts("positions")),
    *(replace(BASE, positions=(), mixer=mixer) for mixer in list_parts("mixers")),
    *(shrink(spec) for spec in list_parts("models") if not isinstance(spec, (lw.Transformer, lw.LSTM, lw.ReTran))),
]
PART_SPECS = [spec for spec in PART_SPECS if can_build(spec, True) or can_build(spec, False)]  # without user modules
MODELS = [
    (spec, causal)
    for spec, causal in itertools.product(dict.fromkeys([*SPECS, *RECURRENT_SPECS, *PART_SPECS]), [False, True])
    if can_build(spec, causal)
]


def name_spec(spec):
    """Return a model specification as a short text, for test ids."""
    if not isinstance(spec, lw.ModelSpec):
        return format_part(spec)
    return f"{type(spec).__name__}-" + "-".join(
        repr(getattr(spec, field.name))
        for field in dataclasses.fields(spec)
        if _has_no_default(field) or getattr(spec, field.name) != field.default
    )


def list_ids(pairs):
    return [f"{name_spec(spec)}-{'causal' if causal else 'full'}" for spec, causal in pairs]


def choose_covering(features):
    """Return a small list of keys that together have all features; ``features`` maps each key to the set of its
    features."""
    left, chosen = dict(features), []
    while any(left.values()):
        chosen.append(max(left, key=lambda one: len(left[one])))
        left = {other: known - left[chosen[-1]] for other, known in left.items()}
    return chosen


def list_features(spec, causal):
    """Return a specification's features: its kinds of parts, its strings and flags (not its numbers), and
    ``causal``."""

    def list_leaves(tree, path):
        if isinstance(tree, dict):
            return [leaf for name, part in tree.items() for leaf in list_leaves(part, (path, name))]
        if isinstance(tree, list):
            return [leaf for part in tree for leaf in list_leaves(part, path)]
        return [(path, tree)] if isinstance(tree, (str, bool)) else []

    return {causal, *list_leaves(encode(spec), type(spec))}


FEW_MODELS = choose_covering({pair: list_features(*pair) for pair in MODELS})


@functools.cache
def cached_model(spec, causal):
    """Return a model that is shared by all tests that do not change it."""
    return build(spec, causal)


def build(spec, causal, output_vocab=WRITES):
    """Build a model in float64, with noise on its weights, so that every parameter has an effect."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = spec.build(laws_of_models.choose_input_vocab(spec), output_vocab, causal=causal)
    return add_noise(model.double())


def add_noise(model):
    """Return the model in float64, with noise added to its weights, some of which may be zero."""
    return laws_of_models.add_noise(model.double())


def run_each_loop(runner, inputs, loops, positions):
    """Return the logits after each loop, sorted by loop and row; the runner may yield them in any order."""
    found = {}
    for k, rows, read in runner.each(inputs, torch.tensor(loops), positions):
        parts = read.split(positions[rows].sum(1).tolist())
        found |= {(k, int(row)): part for row, part in zip(rows, parts, strict=True)}
    assert sorted(found) == sorted((k, row) for row, count in enumerate(loops) for k in range(1, count + 1))
    return torch.cat([found[key] for key in sorted(found)])


def compute_gradients(outputs, model):
    """Return the values, and the gradient of a weighted sum of them with respect to each of the model's parameters."""
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    value = (outputs * weights).sum() + outputs.square().sum()
    parameters = list(model.parameters())
    if not value.requires_grad:  # all loops ran without gradients, and the readout has no parameters
        return [outputs.detach(), *map(torch.zeros_like, parameters)]
    return [outputs.detach(), *torch.autograd.grad(value, parameters, materialize_grads=True)]


def assert_close(first, second, tolerance=1e-9):
    torch.testing.assert_close(first, second, atol=tolerance, rtol=0)


def assert_all_close(first_tensors, second_tensors):
    """Assert that tensors are equal up to 1e-6 of their largest value, pair by pair."""
    assert len(first_tensors) == len(second_tensors)
    for first, second in zip(first_tensors, second_tensors, strict=True):
        assert first.shape == second.shape
        if first.numel():
            assert torch.allclose(first, second, rtol=1e-6, atol=1e-6 * max(1.0, float(second.abs().max())))
