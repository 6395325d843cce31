"""Every kind of model, found in the registry, small and in float64; and rows for them."""

import dataclasses
import functools
import itertools
import typing
from dataclasses import replace

import torch

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.fields import encode, part_text
from lengthwise.nn.digit_position import Abacus, Coupling
from lengthwise.nn.position import FIRE, ALiBi, Learned, Position, Randomized, RoPE, Sinusoidal
from lengthwise.nn.window import CoupledHeads, EarlierHeads, Local, LocalHeads
from lengthwise.testing import laws_of_models

BASE, build_rows, logits = laws_of_models.SMALL, laws_of_models.build_rows, laws_of_models.compute_logits
READS, WRITES = laws_of_models.READS, laws_of_models.WRITES
LENGTHS, LOOPS = list(laws_of_models.LENGTHS), list(laws_of_models.LOOPS)
MADE = {tuple[int, ...]: (3,), int: 1, str: "x", Position: RoPE()}  # for fields without a default


def shipped(kind):
    """Return the package's own classes of a kind, as ``catalog.parts`` names it, each with its defaults."""
    known = [cls for cls in catalog.parts()[kind].values() if cls.__module__.startswith("lengthwise.")]
    return [build_default(cls) for cls in known if cls is not lw.File]  # File has its own tests


def build_default(cls):
    """Build an instance of a class, with a value for each field that has no default."""
    hints = typing.get_type_hints(cls)
    needed = [field.name for field in dataclasses.fields(cls) if field.init and _bare(field)]
    return cls(**{name: MADE[hints[name]] for name in needed})


def _bare(field):
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def small(spec):
    """Replace each model within a spec by a small one."""
    parts = [field.name for field in dataclasses.fields(spec) if isinstance(getattr(spec, field.name), lw.ModelSpec)]
    return replace(spec, **dict.fromkeys(parts, BASE))


def accepted(spec, causal, reads=None, writes=WRITES):
    """Return whether this spec can be built in this direction and for these symbols."""
    try:
        spec.build(reads or laws_of_models.choose_input_vocab(spec), writes, causal=causal)
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
    replace(BASE, positions=(Abacus(9, at="attention"), RoPE())),
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
RECURRENT = [lw.ReTran(4, 6, 1, 2), lw.ReTran(8, 5, 2, 2), lw.LSTM(8, 6, 1), lw.LSTM(8, 5, 2)]
FOUND = [
    *(replace(BASE, positions=(position,)) for position in shipped("positions")),
    *(replace(BASE, positions=(), mixer=mixer) for mixer in shipped("mixers")),
    *(small(spec) for spec in shipped("models") if not isinstance(spec, (lw.Transformer, lw.LSTM, lw.ReTran))),
]
FOUND = [spec for spec in FOUND if accepted(spec, True) or accepted(spec, False)]  # without user modules
EVERY = [
    (spec, causal)
    for spec, causal in itertools.product(dict.fromkeys([*SPECS, *RECURRENT, *FOUND]), [False, True])
    if accepted(spec, causal)
]


def short(spec):
    """Return a spec as a short text, for test ids."""
    if not isinstance(spec, lw.ModelSpec):
        return part_text(spec)
    return f"{type(spec).__name__}-" + "-".join(
        repr(getattr(spec, field.name))
        for field in dataclasses.fields(spec)
        if _bare(field) or getattr(spec, field.name) != field.default
    )


def names(pairs):
    return [f"{short(spec)}-{'causal' if causal else 'full'}" for spec, causal in pairs]


def covering(kinds):
    """Choose a few of these items, each given with a set of kinds, that together have all of the kinds."""
    left, chosen = dict(kinds), []
    while any(left.values()):
        chosen.append(max(left, key=lambda one: len(left[one])))
        left = {other: known - left[chosen[-1]] for other, known in left.items()}
    return chosen


def choices(spec, causal):
    """Return the choices that another configuration may lack: kinds of parts, strings and flags, but not numbers."""

    def leaves(tree, path):
        if isinstance(tree, dict):
            return [leaf for name, part in tree.items() for leaf in leaves(part, (path, name))]
        if isinstance(tree, list):
            return [leaf for part in tree for leaf in leaves(part, path)]
        return [(path, tree)] if isinstance(tree, (str, bool)) else []

    return {causal, *leaves(encode(spec), type(spec))}


VARIED = covering({pair: choices(*pair) for pair in EVERY})  # few models that together have all of these


@functools.cache
def cached_model(spec, causal):
    """Return one model, shared by all tests that do not change it."""
    return build(spec, causal)


def build(spec, causal, writes=WRITES):
    """Build a model in float64 whose every parameter has an effect: initial weights are small, and initial biases
    zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = spec.build(laws_of_models.choose_input_vocab(spec), writes, causal=causal)
    return noisy(model.double())


def noisy(model):
    """Return the model in float64, with noise on parameters that may be zero."""
    return laws_of_models.add_noise(model.double())


def every_loop(runner, inputs, loops, positions):
    """Return the logits after each loop, sorted by loop and row whatever the runner's order is."""
    found = {}
    for k, rows, read in runner.each(inputs, torch.tensor(loops), positions):
        parts = read.split(positions[rows].sum(1).tolist())
        found |= {(k, int(row)): part for row, part in zip(rows, parts, strict=True)}
    assert sorted(found) == sorted((k, row) for row, count in enumerate(loops) for k in range(1, count + 1))
    return torch.cat([found[key] for key in sorted(found)])


def with_gradients(read, model):
    """Return the values, and the gradient of a sum over them for each of the model's parameters."""
    weights = torch.linspace(-1, 1, read.numel(), dtype=read.dtype).view_as(read)
    value = (read * weights).sum() + read.square().sum()
    parameters = list(model.parameters())
    if not value.requires_grad:  # all loops ran without gradients, and the readout has no parameters
        return [read.detach(), *map(torch.zeros_like, parameters)]
    return [read.detach(), *torch.autograd.grad(value, parameters, materialize_grads=True)]


def close(one, two, tolerance=1e-9):
    torch.testing.assert_close(one, two, atol=tolerance, rtol=0)


def all_close(ones, twos):
    """Assert that values and gradients are within 1e-6 of the largest, and closer where they are small."""
    assert len(ones) == len(twos)
    for one, two in zip(ones, twos, strict=True):
        assert one.shape == two.shape
        if one.numel():
            assert torch.allclose(one, two, rtol=1e-6, atol=1e-6 * max(1.0, float(two.abs().max())))
