"""Rows without their padding: packing loses nothing, and a model computes the same."""

from dataclasses import replace

import plain
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lengthwise.nn.packed import Packed, Ragged
from lengthwise.nn.packing import Packing

from lengthwise import catalog, models
from lengthwise.base.rng import stream
from lengthwise.base.types import Inputs
from lengthwise.base.vocab import Vocab
from lengthwise.models import settle, unroll
from lengthwise.models.transformer import Transformer
from lengthwise.nn.position import FIRE, Abacus, RoPE
from lengthwise.nn.window import CoupledHeads, EarlierHeads, Local, LocalHeads
from lengthwise.recipe import data
from lengthwise.recipe.lengths import Uniform

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=7)


def padding_mask(lengths):
    return torch.arange(max(lengths) + 1) < torch.tensor(lengths)[:, None]


def rows(lengths):
    """Numbers that tell each place, absent ones 0."""
    mask = padding_mask(lengths)
    return (torch.arange(1, mask.numel() + 1).view(mask.shape) * mask)[..., None].float()


@given(LENGTHS)
def test_unpacking_undoes_packing(lengths):
    ragged, x = Ragged.of(padding_mask(lengths)), rows(lengths)
    flat = ragged.pack(x)
    assert len(flat) == sum(lengths) == ragged.ends[-1]
    assert torch.equal(ragged.unpack(flat), x)


@given(LENGTHS, st.data())
def test_some_rows_are_those_of_the_padded_tensor(lengths, data):
    start = data.draw(st.integers(0, len(lengths) - 1))
    chosen = slice(start, data.draw(st.integers(start + 1, len(lengths))))
    ragged, x = Ragged.of(padding_mask(lengths)), rows(lengths)
    taken = Packed(ragged.pack(x), ragged).take(chosen)
    assert torch.equal(taken.padded(), x[chosen])
    assert torch.equal(taken.take(slice(1)).padded(), x[chosen][:1])


@given(LENGTHS, st.data())
def test_joined_parts_are_rows_after_rows(lengths, data):
    cut = data.draw(st.integers(1, len(lengths)))
    ragged, x = Ragged.of(padding_mask(lengths)), rows(lengths)
    whole = Packed(ragged.pack(x), ragged)
    parts = [whole.take(slice(cut)), *([whole.take(slice(cut, None))] if cut < len(lengths) else [])]
    joined = Packed.join(parts[::-1])
    assert torch.equal(joined.padded(), torch.cat([x[cut:], x[:cut]]))


@given(LENGTHS, st.integers(0, 99))
def test_picked_places_come_in_the_padded_order(lengths, seed):
    ragged, x, mask = Ragged.of(padding_mask(lengths)), rows(lengths), padding_mask(lengths)
    at = mask & (torch.rand(mask.shape, generator=stream(seed, "at")) < 0.5)
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


@pytest.mark.parametrize("lengths", [[2, 7, 5, 4], [8, 8, 8, 7], MANY], ids=["few", "dense", "many"])
@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("same", [False, True], ids=["own-loops", "same-loops"])
def test_packed_states_equal_padded_ones(lengths, positions, causal, same, monkeypatch):
    """Where padding is worth leaving out the state is packed; its values and gradients are those of padded rows."""
    mask = padding_mask(lengths)[:, : max(lengths)]
    tokens = torch.randint(3, mask.shape, generator=stream(0, "tokens"))
    index = torch.arange(mask.shape[1]).expand(mask.shape)
    inputs = Inputs(tokens, index, index % 4, mask)
    loops = torch.full((len(lengths),), 2) if same else torch.randint(1, 5, (len(lengths),), generator=stream(0, "k"))
    symbols = Vocab(("a", "b", "c"))
    torch.manual_seed(0)
    spec = Transformer(width=8, heads=2, **({"positions": positions} if positions else {}))
    model = spec.build(symbols, symbols, causal=causal).double()
    found = []
    for dense in (models.DENSE, 0.0):
        monkeypatch.setattr(models, "DENSE", dense)
        model.zero_grad()
        states = [(rows, state) for _, rows, state in unroll(model, inputs, loops)]
        assert isinstance(states[0][1], Packed) == (dense > 0 and lengths[0] < 8)
        read = []
        for rows, state in states:
            order = rows.argsort()
            parts = model.read(state, mask[rows]).split(mask[rows].sum(1).tolist())
            read.append(torch.cat([parts[i] for i in order]))
        torch.cat(read).square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([*(part.detach() for part in read), *gradients])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=1e-11, rtol=1e-9)


@given(LENGTHS, st.integers(0, 99))
def test_places_are_found_among_those_packed_place_after_place(lengths, seed):
    mask, x = padding_mask(lengths), rows(lengths)
    at = mask & (torch.rand(mask.shape, generator=stream(seed, "at")) < 0.5)
    packing = Packing.of(mask)
    assert torch.equal(packing.pack(x)[packing.find(at)], x[at])


@given(LENGTHS, st.integers(0, 99))
def test_kept_places_keep_their_order_and_their_rows(lengths, seed):
    ragged, x = Ragged.of(padding_mask(lengths)), rows(lengths)
    at = (torch.rand(int(padding_mask(lengths).sum()), generator=stream(seed, "kept")) < 0.5).nonzero()[:, 0]
    kept = Packed(ragged.pack(x), ragged).keep(at)
    whole = torch.zeros(padding_mask(lengths).sum(), dtype=torch.bool).index_fill(0, at, True)
    assert torch.equal(kept.padded(), x * ragged.unpack(whole.float())[..., None])
    assert torch.equal(kept.take(slice(1)).padded(), kept.padded()[:1])


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 7)), min_size=2, max_size=6),
    st.sampled_from([(0, 1), (1, 1), (1, 2), (2, 1), (3, 2), (None, 1), (None, 2)]),
    st.booleans(),
    st.integers(0, 99),
)
def test_places_leave_that_can_no_longer_matter(rows, form, causal, seed):
    """What is read at the asked places, and its gradients, are as if all had stayed; and with few asked, they go."""
    lengths, loops = zip(*rows, strict=True)
    mask = padding_mask(lengths)[:, : max(lengths)]
    tokens = torch.randint(3, mask.shape, generator=stream(seed, "tokens"))
    index = torch.arange(mask.shape[1]).expand(mask.shape)
    loss_mask = mask & (torch.rand(mask.shape, generator=stream(seed, "asked")) < 0.2)
    symbols, (reach, layers) = Vocab(("a", "b", "c")), form
    torch.manual_seed(0)
    spec = Transformer(width=8, heads=2, layers=layers, positions=() if reach is None else (Local(reach),))
    model = spec.build(symbols, symbols, causal=causal).double()
    found = []
    for wanted in (None, loss_mask):
        ids, state = settle(model, Inputs(tokens, index, index, mask), torch.tensor(loops), loss_mask=wanted)
        order = ids.argsort()
        read = model.read(state, loss_mask[ids]).split(loss_mask[ids].sum(1).tolist())
        read = torch.cat([read[i] for i in order])
        found.append([read.detach(), *torch.autograd.grad(read.square().sum(), list(model.parameters()))])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=1e-11, rtol=1e-9)


def test_places_leave_one_by_one(monkeypatch):
    monkeypatch.setattr(models, "DENSE", 1.0)  # however few they are
    lengths, loops = torch.tensor([9, 4]), torch.tensor([6, 6])
    mask = torch.arange(9) < lengths[:, None]
    index = torch.arange(9).expand(mask.shape)
    loss_mask = index == lengths[:, None] - 1
    symbols = Vocab(("a", "b", "c"))
    model = Transformer(width=8, heads=2, positions=(Local(1),)).build(symbols, symbols, causal=False)
    states = unroll(model, Inputs(index % 3, index, index, mask), loops, loss_mask=loss_mask)
    # Before the last loop the asked places and their neighbours are left, before the one before it their neighbours…
    assert [state.ragged.ends for _, _, state in states] == [[7, 11], [6, 10], [5, 9], [4, 8], [3, 6], [2, 4]]


@pytest.mark.parametrize(
    "name",
    [
        "fop-loop-adaptive-parity", "looped-parity", "looped-addition", "looped-binary-sum", "fop-loop-adaptive-copy",
        "paper-fop-loop-adaptive-parity",
    ],
)  # fmt: skip
def test_a_training_step_equals_the_plain_loop(name):
    """In loss and gradients: against a loop of its own that shares weights and masks alone."""
    recipe = replace(catalog.recipe(name), lengths=Uniform(6), batch=12)
    model = recipe.build().double()
    batch, loops = data.batch(recipe, 3)
    generator = stream(0, "objective")
    found = []
    for loss in (plain.final_loss(model, batch, loops), recipe.objective(model, batch, loops, generator).value):
        parameters = dict(model.named_parameters())
        found.append([loss.detach(), *torch.autograd.grad(loss, parameters.values())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
