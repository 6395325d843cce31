"""Packing rows without their padding loses nothing, and a model computes the same on packed rows."""

from dataclasses import replace

import pytest
import torch
from forms import all_close, close, every_loop, with_gradients
from hypothesis import given
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.experiment import data
from lengthwise.nn.digit_position import Abacus
from lengthwise.nn.position import FIRE, RoPE
from lengthwise.nn.window import CoupledHeads, EarlierHeads, Local, LocalHeads
from lengthwise.runners import cpu
from lengthwise.runners.cpu import pattern, transformer
from lengthwise.runners.cpu.packing import Packed, Packing, Ragged
from lengthwise.runners.cpu.transformer import PackedTransformer
from lengthwise.runners.plain import Plain

SYMBOLS = lw.Vocab(("a", "b", "c"))
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=7)


def padding_mask(lengths):
    return torch.arange(max(lengths) + 1) < torch.tensor(lengths)[:, None]


def rows(lengths):
    """Return a different number for each position, and 0 for padding."""
    mask = padding_mask(lengths)
    return (torch.arange(1, mask.numel() + 1).view(mask.shape) * mask)[..., None].float()


def unpacked(packed):
    return packed.ragged.unpack(packed.value)


@given(LENGTHS)
def test_unpacking_undoes_packing(lengths):
    ragged, x = Ragged.from_mask(padding_mask(lengths)), rows(lengths)
    flat = ragged.pack(x)
    assert len(flat) == sum(lengths) == ragged.ends[-1]
    assert torch.equal(ragged.unpack(flat), x)


@given(LENGTHS, st.data())
def test_taken_rows_equal_those_of_the_padded_tensor(lengths, data):
    start = data.draw(st.integers(0, len(lengths) - 1))
    chosen = slice(start, data.draw(st.integers(start + 1, len(lengths))))
    ragged, x = Ragged.from_mask(padding_mask(lengths)), rows(lengths)
    taken = Packed(ragged.pack(x), ragged).take(chosen)
    assert torch.equal(unpacked(taken), x[chosen])
    assert torch.equal(unpacked(taken.take(slice(1))), x[chosen][:1])


@given(LENGTHS, st.integers(0, 99))
def test_indexed_positions_keep_the_padded_order(lengths, seed):
    ragged, x, mask = Ragged.from_mask(padding_mask(lengths)), rows(lengths), padding_mask(lengths)
    at = mask & (torch.rand(mask.shape, generator=lw.stream(seed, "at")) < 0.5)
    assert torch.equal(Packed(ragged.pack(x), ragged)[at], x[at])


MANY = [3, 9, 1, 7, 7, 2, 5, 9, 4, 6, 8, 1, 2, 3, 9, 5, 4, 6, 2, 1]  # three groups
POSITIONS = {
    "all": (),
    "local": (Local(1),),
    "local-rotated": (Local(1), RoPE()),
    "near": (LocalHeads(1), CoupledHeads(1)),
    "coupled": (CoupledHeads(2),),
    "coupled-turned": (CoupledHeads(2), RoPE()),
    "near-biased": (LocalHeads(2), FIRE()),
    "earlier": (EarlierHeads(1),),
    "keys": (Abacus(9, at="attention"),),
    "biased": (FIRE(),),
}


def some(lengths, seed=0):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    index = torch.arange(mask.shape[1]).expand(mask.shape)
    return lw.Inputs(torch.randint(3, mask.shape, generator=lw.stream(seed, "tokens")), index, index % 4, mask)


def build(causal=True, **changes):
    torch.manual_seed(0)
    return lw.Transformer(**{"width": 8, "heads": 2, **changes}).build(SYMBOLS, SYMBOLS, causal=causal).double()


@pytest.mark.parametrize("lengths", [[8, 8, 8, 7], MANY], ids=["dense", "many"])
@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_packed_rows_equal_padded_ones(lengths, positions, causal, monkeypatch):
    """Logits after each loop, those after the last of rows that all end together, and their gradients equal those of
    padded rows."""
    monkeypatch.setattr(pattern, "MIN_HEADS", 16)  # so that many rows are three groups
    model, inputs = build(causal, positions=positions), some(lengths)
    loops = torch.randint(1, 5, (len(lengths),), generator=lw.stream(0, "k"))
    read = [
        torch.cat(
            [
                every_loop(runner, inputs, loops.tolist(), inputs.padding_mask),
                runner.last(inputs, torch.full_like(loops, 2), inputs.padding_mask),
            ]
        )
        for runner in (PackedTransformer(model), Plain(model))
    ]
    all_close(*(with_gradients(part, model) for part in read))
    close(*read, 1e-11)


@given(LENGTHS, st.integers(0, 99))
def test_positions_are_found_in_position_major_packing(lengths, seed):
    mask, x = padding_mask(lengths), rows(lengths)
    at = mask & (torch.rand(mask.shape, generator=lw.stream(seed, "at")) < 0.5)
    packing = Packing.from_mask(mask)
    assert torch.equal(packing.pack(x)[packing.find_positions(at)], x[at])


@given(LENGTHS, st.integers(0, 99))
def test_selected_positions_keep_their_order_and_rows(lengths, seed):
    ragged, x = Ragged.from_mask(padding_mask(lengths)), rows(lengths)
    at = (torch.rand(int(padding_mask(lengths).sum()), generator=lw.stream(seed, "kept")) < 0.5).nonzero()[:, 0]
    kept = Packed(ragged.pack(x), ragged).select(at)
    whole = torch.zeros(padding_mask(lengths).sum(), dtype=torch.bool).index_fill(0, at, True)
    assert torch.equal(unpacked(kept), x * ragged.unpack(whole.float())[..., None])
    assert torch.equal(unpacked(kept.take(slice(1))), unpacked(kept)[:1])


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 7)), min_size=2, max_size=6),
    st.sampled_from([(0, 1), (1, 1), (1, 2), (2, 1), (3, 2), (None, 1), (None, 2)]),
    st.booleans(),
    st.integers(0, 99),
)
def test_dropping_unneeded_positions_changes_nothing(rows, form, causal, seed):
    """Logits at the asked positions and their gradients equal those of the plain runner, which drops none."""
    lengths, loops = zip(*rows, strict=True)
    inputs, (reach, layers) = some(lengths, seed), form
    asked = inputs.padding_mask & (torch.rand(inputs.tokens.shape, generator=lw.stream(seed, "asked")) < 0.2)
    model = build(causal, layers=layers, positions=() if reach is None else (Local(reach),))
    read = [runner.last(inputs, torch.tensor(loops), asked) for runner in (PackedTransformer(model), Plain(model))]
    all_close(*(with_gradients(part, model) for part in read))
    close(*read, 1e-11)


@pytest.mark.parametrize(
    ("positions", "wanted"),
    [
        # The last loop needs the asked positions and their neighbours, the one before also the neighbours of these…
        ((Local(1),), [[7, 11], [6, 10], [5, 9], [4, 8], [3, 6], [2, 4]]),
        # Global attention needs the whole row up to the last loop, after which only the asked ones are computed.
        ((), [[9, 13]] * 5 + [[1, 2]]),
    ],
    ids=["window", "all"],
)
def test_positions_are_dropped_once_they_are_no_longer_needed(positions, wanted, monkeypatch):
    monkeypatch.setattr(transformer, "MAX_NEEDED_FRACTION", 1.0)  # however few they are
    inputs, model = some([9, 4]), build(False, positions=positions)
    asked = torch.arange(9) == inputs.padding_mask.sum(1)[:, None] - 1
    course = transformer._PreparedBatch.build(model, inputs, torch.tensor([6, 6]))
    assert course.rows.tolist() == [0, 1]
    states = transformer._run_loops(model, course, 0, asked)
    assert [state.ragged.ends for _, _, state in states] == wanted


@pytest.mark.usefixtures("fast_runners")
@pytest.mark.parametrize(
    "name", ["fop-loop-adaptive-parity", "looped-addition", "looped-binary-sum", "paper-fop-loop-adaptive-parity"]
)
def test_a_training_step_equals_the_plain_one(name):
    """Loss and gradients are equal at the recipe's full width."""
    recipe = replace(catalog.recipe(name), lengths=lw.Uniform(6), batch=12)
    model = recipe.build().double()
    batch, loops = data.draw_batch(recipe, 3)
    assert isinstance(cpu.choose_runner(model), PackedTransformer)
    found = []
    for runner in (cpu.choose_runner(model), Plain(model)):
        loss = recipe.objective(runner, batch, loops, lw.stream(0, "objective")).value
        found.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    for ours, plain in zip(*found, strict=True):
        close(ours, plain, 1e-11)
