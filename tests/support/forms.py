"""What tests of models share: every form of model there is, found by looking, small and in float64; rows for them."""

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

BASE, some, logits = laws_of_models.SMALL, laws_of_models.build_rows, laws_of_models.compute_logits
READS, WRITES = laws_of_models.READS, laws_of_models.WRITES
LENGTHS, LOOPS = list(laws_of_models.LENGTHS), list(laws_of_models.LOOPS)
MADE = {tuple[int, ...]: (3,), int: 1, str: "x", Position: RoPE()}  # what a field without a default is given


def shipped(kind):
    """The package's own classes of a kind, as ``catalog.parts`` names it, each with its defaults."""
    known = [cls for cls in catalog.parts()[kind].values() if cls.__module__.startswith("lengthwise.")]
    return [default(cls) for cls in known if cls is not lw.File]  # which has tests of its own


def default(cls):
    """One of a class, whatever it has to be told."""
    hints = typing.get_type_hints(cls)
    needed = [field.name for field in dataclasses.fields(cls) if field.init and _bare(field)]
    return cls(**{name: MADE[hints[name]] for name in needed})


def _bare(field):
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def small(spec):
    """The same with small models in it, where it has some."""
    parts = [field.name for field in dataclasses.fields(spec) if isinstance(getattr(spec, field.name), lw.ModelSpec)]
    return replace(spec, **dict.fromkeys(parts, BASE))


def accepted(spec, causal, reads=None, writes=WRITES):
    """Is there such a model, in this direction and of these symbols?"""
    try:
        spec.build(reads or laws_of_models.choose_input_vocab(spec), writes, causal=causal)
    except lw.UsageError:  # from left to right only, or for another layout
        return False
    return True


# Some forms that stand for many; then whatever else there is, by itself.
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
FOUND = [spec for spec in FOUND if accepted(spec, True) or accepted(spec, False)]  # not what only a module makes
EVERY = [
    (spec, causal)
    for spec, causal in itertools.product(dict.fromkeys([*SPECS, *RECURRENT, *FOUND]), [False, True])
    if accepted(spec, causal)
]


def short(spec):
    """A spec in a test's name."""
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
    """Few of these, each given with a set of kinds, that have all of the kinds between them."""
    left, chosen = dict(kinds), []
    while any(left.values()):
        chosen.append(max(left, key=lambda one: len(left[one])))
        left = {other: known - left[chosen[-1]] for other, known in left.items()}
    return chosen


def choices(spec, causal):
    """What another form may lack: the kinds of its parts, its words and its switches, but not its numbers."""

    def leaves(tree, path):
        if isinstance(tree, dict):
            return [leaf for name, part in tree.items() for leaf in leaves(part, (path, name))]
        if isinstance(tree, list):
            return [leaf for part in tree for leaf in leaves(part, path)]
        return [(path, tree)] if isinstance(tree, (str, bool)) else []

    return {causal, *leaves(encode(spec), type(spec))}


@functools.cache
def built(spec, causal):
    """The same model for all tests that leave it as it is."""
    return build(spec, causal)


def build(spec, causal, writes=WRITES):
    """A model in float64 whose every parameter matters: initial weights are small, and initial biases nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = spec.build(laws_of_models.choose_input_vocab(spec), writes, causal=causal)
    return away(model.double())


def away(model):
    """The same model in float64, away from where all is zero."""
    return laws_of_models.add_noise(model.double())


def every_loop(runner, inputs, loops, at):
    """What is read after each loop, by loop and row; so in one order whatever a runner's is."""
    found = {}
    for k, rows, read in runner.each(inputs, torch.tensor(loops), at):
        parts = read.split(at[rows].sum(1).tolist())
        found |= {(k, int(row)): part for row, part in zip(rows, parts, strict=True)}
    assert sorted(found) == sorted((k, row) for row, count in enumerate(loops) for k in range(1, count + 1))
    return torch.cat([found[key] for key in sorted(found)])


def with_gradients(read, model):
    """What is read, and the gradient of a sum over it for each of the model's parameters."""
    weights = torch.linspace(-1, 1, read.numel(), dtype=read.dtype).view_as(read)
    value = (read * weights).sum() + read.square().sum()
    parameters = list(model.parameters())
    if not value.requires_grad:  # loops without gradients, and nothing to read them with
        return [read.detach(), *map(torch.zeros_like, parameters)]
    return [read.detach(), *torch.autograd.grad(value, parameters, materialize_grads=True)]


def close(one, two, tolerance=1e-9):
    torch.testing.assert_close(one, two, atol=tolerance, rtol=0)


def all_close(ones, twos):
    """Values and gradients: 1e-6 of the largest, and nearer where they are small."""
    assert len(ones) == len(twos)
    for one, two in zip(ones, twos, strict=True):
        assert one.shape == two.shape
        if one.numel():
            assert torch.allclose(one, two, rtol=1e-6, atol=1e-6 * max(1.0, float(two.abs().max())))
