"""Laws of every transformer, and of the loop over depth: padding, neighbours and order change nothing, causal means
causal, a window is a window, and rows that leave early end as if they had stayed."""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lengthwise.nn.dropout import dropout
from lengthwise.nn.packed import Packed
from lengthwise.nn.pattern import Shared, pattern, take
from torch import nn

from lengthwise import catalog
from lengthwise.base.fields import text
from lengthwise.base.rng import stream
from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.models import Model, ModelSpec, Once, settle, unroll
from lengthwise.models.lstm import LSTM
from lengthwise.models.retran import ReTran
from lengthwise.models.transformer import Transformer
from lengthwise.nn.attention import Attention
from lengthwise.nn.position import FIRE, Abacus, ALiBi, Coupling, Learned, NoPE, Randomized, RoPE, Sinusoidal, rotate
from lengthwise.nn.window import CoupledHeads, EarlierHeads, Local, LocalHeads
from lengthwise.objectives import every, final, progressive
from lengthwise.recipe import data
from lengthwise.recipe.layout import FullOutput, Pairs
from lengthwise.recipe.lengths import Uniform
from lengthwise.recipe.loops import Constant
from lengthwise.recipe.recipe import Recipe
from lengthwise.tasks.addition import Addition
from lengthwise.tasks.parity import Parity

READS, WRITES = Vocab(tuple("abcdef")), Vocab(tuple("xyz"))
LENGTHS, LOOPS = [5, 9, 2, 7], [2, 1, 4, 3]
BASE = Transformer(width=8, heads=2, layers=1)
SPECS = [
    Transformer(width=8, heads=2, layers=2),
    Transformer(width=8, heads=2, layers=2, injection="once", activation="relu"),
    replace(BASE, positions=(Learned(20),)),
    replace(BASE, positions=(RoPE(),)),
    replace(BASE, positions=(RoPE(),), injection="once"),
    replace(BASE, positions=(Local(0),)),
    replace(BASE, positions=(Local(1),)),
    replace(BASE, positions=(Local(2),), injection="once"),
    replace(BASE, injection="concat"),
    replace(BASE, injection="gate"),
    replace(BASE, positions=(ALiBi(),)),
    replace(BASE, positions=(FIRE(),)),
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
    replace(BASE, positions=(LocalHeads(1), EarlierHeads(1))),
    replace(BASE, positions=(LocalHeads(1), ALiBi(2.0)), injection="once"),
    Transformer(width=8, heads=2, layers=2, positions=(Learned(20), RoPE(), Local(2))),
    replace(BASE, positions=(RoPE(),), norm="post", final_norm="none", readout="scaled", init="attention"),
]
RECURRENT = [ReTran(8, 6, 1, 2), ReTran(16, 5, 3, 4), LSTM(8, 6, 1), LSTM(8, 5, 3)]


def short(spec):
    """A spec in a test's name."""
    if not isinstance(spec, Transformer):
        return f"{spec.layers}-{type(spec).__name__}"
    positions = "+".join(map(repr, spec.positions))
    return f"{spec.layers}-{positions}-{spec.injection}-{spec.norm}"


def named(pairs):
    ids = [f"{short(spec)}-{'causal' if causal else 'full'}" for spec, causal in pairs]
    return pytest.mark.parametrize(("spec", "causal"), pairs, ids=ids)


both = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
EVERY = [*itertools.product(SPECS, [False, True]), *((spec, True) for spec in RECURRENT)]
every_model = named(EVERY)


def positions(spec):
    return getattr(spec, "positions", ())


def build(spec, causal, reads=READS, writes=WRITES):
    """A model in float64 whose every parameter matters: initial weights are small, and initial biases nothing."""
    torch.manual_seed(0)
    model = spec.build(reads, writes, causal=causal).double().eval()
    draw = stream(0, "more")
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=draw, dtype=torch.double)
    return model


def build_plain(spec):
    return spec.build(READS, WRITES, causal=True)


def some(lengths=LENGTHS, width=None, seed=0):
    """Rows of these lengths; where a row has ended stands rubbish."""
    width = width or max(lengths)
    tokens = torch.randint(6, (len(lengths), 40), generator=stream(seed, "tokens"))[:, :width]
    position = torch.arange(width).expand(len(lengths), -1)
    # A sign, two digits, and so on.
    return Inputs(tokens, position, position % 3, position < torch.tensor(lengths)[:, None])


def finish(model, inputs, loops=LOOPS):
    """Each row's state after its own loops, in the rows' order."""
    rows, state = settle(model, inputs, torch.tensor(loops))
    return padded(state)[rows.argsort()]


def padded(state):
    """What is absent as zeros, however the model keeps it."""
    return state.padded() if isinstance(state, Packed) else state


def close(one, two, tolerance=1e-9):
    torch.testing.assert_close(one, two, atol=tolerance, rtol=0)


# Padding, neighbours, order


@every_model
def test_a_row_is_what_it_is_alone(spec, causal):
    """Neither neighbours nor padding nor other rows' loops reach it."""
    model, inputs = build(spec, causal), some(width=12)
    together = finish(model, inputs)
    for i, length in enumerate(LENGTHS):
        row = inputs.take(slice(i, i + 1))
        alone = Inputs(**{name: value[:, :length] for name, value in vars(row).items()})
        close(together[i, :length], finish(model, alone, [LOOPS[i]])[0])


@every_model
def test_what_stands_in_the_padding_does_not_matter(spec, causal):
    model, inputs, rubbish = build(spec, causal), some(width=12), some(width=12, seed=1)
    changed = replace(inputs, tokens=inputs.tokens.where(inputs.padding_mask, rubbish.tokens))
    assert not torch.equal(changed.tokens, inputs.tokens)
    one, two = finish(model, inputs), finish(model, changed)
    assert torch.equal(one[inputs.padding_mask], two[inputs.padding_mask])


@every_model
def test_the_order_of_rows_does_not_matter(spec, causal):
    model, inputs, order = build(spec, causal), some(), torch.tensor([2, 0, 3, 1])
    turned = finish(model, inputs.take(order), [LOOPS[i] for i in order])
    close(finish(model, inputs)[order][inputs.padding_mask[order]], turned[inputs.padding_mask[order]])


# Who can be reached: gradients of a place's state with respect to the embedded input, exactly zero or not


def influence(model, inputs, loops):
    """reached[t, s]: does row 0's state at t after so many loops depend on its embedded input at s?"""
    context = model.embed(inputs)
    embedded = context.embedded.detach().requires_grad_()
    context = context._replace(embedded=embedded)
    state = model.start(context)
    for _ in range(loops):
        state = model.advance(state, context)
    probe = torch.randn(state.shape, generator=stream(0, "probe"), dtype=state.dtype)
    reached = []
    for t in range(state.shape[1]):
        (gradient,) = torch.autograd.grad((state[:, t] * probe[:, t]).sum(), embedded, retain_graph=True)
        reached.append((gradient[0] != 0).any(-1))
    return torch.stack(reached)


@named([pair for pair in EVERY if not any(isinstance(p, Local) for p in positions(pair[0]))])
@pytest.mark.parametrize("loops", [1, 3])
def test_causal_means_causal(spec, loops, causal):
    """A place depends on itself and all before it, and exactly not on what comes after, however often it is looped."""
    reached = influence(build(spec, causal), some([9]), loops)
    assert not causal or torch.equal(reached, reached.tril())
    if not any(isinstance(position, (CoupledHeads, EarlierHeads)) for position in positions(spec)):  # do not see all
        full = torch.ones(9, 9, dtype=torch.bool)
        assert torch.equal(reached, full.tril() if causal else full)


@pytest.mark.parametrize("reach", [0, 1, 2])
@pytest.mark.parametrize("loops", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
@both
def test_a_window_reaches_exactly_so_far(reach, loops, layers, causal):
    spec = replace(BASE, layers=layers, positions=(Local(reach),))
    distance = torch.arange(11)[:, None] - torch.arange(11)
    wanted = distance.abs() <= reach * loops * layers
    if causal:
        wanted &= distance >= 0
    assert torch.equal(influence(build(spec, causal), some([11]), loops), wanted)


@both
def test_of_local_heads_the_others_see_all(causal):
    """With all heads local, the reach is theirs; with one less, nothing is out of reach."""
    distance = torch.arange(9)[:, None] - torch.arange(9)
    allowed = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    for count, wanted in ((2, distance.abs() <= 1), (1, distance.abs() <= 9)):
        spec = replace(BASE, positions=(LocalHeads(count),))
        assert torch.equal(influence(build(spec, causal), some([9]), 1), wanted & allowed)


@pytest.mark.parametrize("reach", [0, 1])
@both
def test_coupled_heads_see_their_own_place_of_every_number(reach, causal):
    position = torch.tensor([1, 2, 3, 0, 1, 2, 3, 0, 1, 2])
    wanted = (position[:, None] - position).abs() <= reach
    wanted &= torch.ones_like(wanted).tril() if causal else True
    spec = replace(BASE, positions=(CoupledHeads(2, reach),))
    assert torch.equal(influence(build(spec, causal), replace(some([10]), digit_position=position[None]), 1), wanted)


@both
def test_coupled_and_local_heads_stand_side_by_side(causal):
    """The first head sees neighbours, the last its own place; of three, the one between sees all."""
    inputs = some([9])
    encodings = [LocalHeads(1).build(12, 3), CoupledHeads(1).build(12, 3)]
    bias = pattern(encodings, inputs, causal).bias
    index, position = torch.arange(9), inputs.digit_position[0]
    wanted = torch.stack([(index[:, None] - index).abs() <= 1, torch.ones(9, 9) > 0, position[:, None] == position])
    assert torch.equal(bias[0] == 0, wanted.tril() if causal else wanted)


@pytest.mark.parametrize("lengths", [LENGTHS, [6, 6]], ids=str)
@both
def test_earlier_heads_equal_dense_attention_with_a_blank(lengths, causal):
    """The second of two heads sees strictly what came before, and a key of score 0 whose value is 0."""
    inputs = some(lengths)
    attention = Attention(8, 2, causal=causal).double()
    x = torch.randn(*inputs.tokens.shape, 8, generator=stream(0, "x"), dtype=torch.double)
    fast = attention(x, pattern([EarlierHeads(1).build(8, 2)], inputs, causal))
    query, key, value = attention.project(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
    scores = query @ key.mT / 2
    index = torch.arange(x.shape[1])
    seen = inputs.padding_mask[:, None, :] & (
        index <= index[:, None] if causal else torch.ones(len(index), len(index)) > 0
    )
    first = scores[:, 0].masked_fill(~seen, -torch.inf).softmax(-1)
    weights = (scores[:, 1].exp() * (seen & (index < index[:, None]))).double()
    second = weights / (1 + weights.sum(-1, keepdim=True))
    mixed = torch.cat([first @ value[:, 0], second @ value[:, 1]], -1)
    close(fast[inputs.padding_mask], attention.out(mixed)[inputs.padding_mask])


def test_earlier_heads_start_by_finding_their_like():
    """At the start a symbol that has stood before looks at that place most, and one that has not at nothing much."""
    torch.manual_seed(0)
    spec = Transformer(width=64, heads=4, init_std=0.1, positions=(LocalHeads(2), EarlierHeads(2)))
    model = spec.build(READS, WRITES, causal=True)
    (block,) = model.blocks
    query, key, _ = block.attention.project.weight.view(3, 4, 16, 64)
    assert torch.equal(query[2:], key[2:])
    assert not torch.isclose(query[:2], key[:2]).any()
    symbols = block.norm_attention(model.embedding.weight)
    scores = torch.einsum("ad,hed,hef,bf->hab", symbols, query, key, symbols)[2:]
    like = scores.diagonal(dim1=1, dim2=2)
    assert (like[..., None] > scores + 1e-4).sum() == 2 * 6 * 5


@every_model
def test_padding_is_exactly_out_of_reach(spec, causal):
    reached = influence(build(spec, causal), some([6], width=10), 3)
    assert not reached[:6, 6:].any()
    assert reached[5, 5]


# Attention, the fast way and the plain way


def dense(attention, x, bias, angles, padding_mask, causal):
    """Every score, then −inf where nothing may be seen."""
    b, t, d = x.shape
    heads, reach = attention.heads, bias.shape[1] // 2
    query, key, value = attention.project(x).view(b, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
    if angles is not None:
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]

        def rotated(part):
            first, second = part.chunk(2, -1)
            turned = torch.complex(first, second) * turn
            return torch.cat([turned.real, turned.imag], -1)

        query, key = rotated(query), rotated(key)
    scores = query @ key.mT / (d // heads) ** 0.5
    offset = torch.arange(t) - torch.arange(t)[:, None]  # how far to the right the key stands
    scores = scores + bias[:, (offset + reach).clamp(0, 2 * reach)]
    seen = (offset.abs() <= reach) & padding_mask[:, None, :]
    if causal:
        seen = seen & (offset <= 0)
    scores = scores.masked_fill(~(seen | (offset == 0))[:, None], -torch.inf)
    return attention.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(b, t, d))


@pytest.mark.parametrize("reach", [0, 1, 3, 12])
@pytest.mark.parametrize("rope", [False, True], ids=["", "rope"])
@pytest.mark.parametrize("lengths", [LENGTHS, [6, 6]], ids=str)
@both
def test_local_attention_equals_dense_attention(reach, rope, lengths, causal):
    inputs, draw = some(lengths), stream(0, "x")
    attention = Attention(8, 2, causal=causal).double()
    encodings = [position.build(8, 2).double() for position in (Local(reach), *[RoPE()] * rope)]
    bias = encodings[0].bias
    bias.data.copy_(torch.randn(bias.shape, generator=draw))
    x = torch.randn(*inputs.tokens.shape, 8, generator=draw, dtype=torch.double, requires_grad=True)
    probe = torch.randn(x.shape, generator=draw, dtype=torch.double) * inputs.padding_mask[..., None]
    angles = encodings[1].angles(inputs) if rope else None
    values, gradients = [], []
    for out in (
        attention(x, pattern(encodings, inputs, causal)),
        dense(attention, x, bias, angles, inputs.padding_mask, causal),
    ):
        values.append(out[inputs.padding_mask])
        gradients.append(torch.autograd.grad((out * probe).sum(), [x, bias, *attention.parameters()]))
    close(*values)
    for fast, slow in zip(*gradients, strict=True):
        close(fast, slow)
        assert fast.abs().max() > 0 or reach == 0  # alone in its window, a place needs no scores


@pytest.mark.parametrize("lengths", [LENGTHS, [6, 6]], ids=str)
@both
def test_full_attention_equals_dense_attention(lengths, causal):
    inputs = some(lengths)
    attention = Attention(8, 2, causal=causal).double()
    rope = RoPE().build(8, 2).double()
    x = torch.randn(*inputs.tokens.shape, 8, generator=stream(0, "x"), dtype=torch.double)
    no_bias = torch.zeros(2, 2 * 40 + 1, dtype=torch.double)
    fast = attention(x, pattern([rope], inputs, causal))
    slow = dense(attention, x, no_bias, rope.angles(inputs), inputs.padding_mask, causal)
    close(fast[inputs.padding_mask], slow[inputs.padding_mask])


@pytest.mark.parametrize("lengths", [LENGTHS, [6, 6]], ids=str)
@both
def test_alibi_and_local_heads_equal_dense_attention(lengths, causal):
    inputs = some(lengths)
    attention = Attention(8, 2, causal=causal).double()
    encodings = [ALiBi(3.0).build(8, 2).double(), LocalHeads(1).build(8, 2)]
    x = torch.randn(*inputs.tokens.shape, 8, generator=stream(0, "x"), dtype=torch.double)
    # Of two heads, the second's slope is a sixteenth of the first's (2⁻⁸ over both); the first sees neighbours alone.
    offset = torch.arange(-40, 41).abs()
    bias = torch.stack([(-3.0 * offset).masked_fill(offset > 1, -torch.inf), -3.0 / 16 * offset]).double()
    fast = attention(x, pattern(encodings, inputs, causal))
    slow = dense(attention, x, bias, None, inputs.padding_mask, causal)
    close(fast[inputs.padding_mask], slow[inputs.padding_mask])


def test_alibi_s_slopes_as_published():
    slopes = -ALiBi().build(64, 8).scores(some([2]))[:, 1, 0]
    assert slopes.tolist() == [2.0**-k for k in range(1, 9)]


# Positions


def shifted(inputs, by):
    return replace(inputs, position=inputs.position + by)


@pytest.mark.parametrize(
    "positions", [(RoPE(),), (RoPE(100.0), Local(2)), (Local(1),), (ALiBi(),), (NoPE(),), ()], ids=repr
)
@both
def test_relative_positions_do_not_know_where_a_row_starts(positions, causal):
    model, inputs = build(replace(BASE, positions=positions), causal), some()
    one, two = finish(model, inputs), finish(model, shifted(inputs, 7))
    close(one[inputs.padding_mask], two[inputs.padding_mask], 1e-6)


@both
def test_learned_positions_do(causal):
    model, inputs = build(replace(BASE, positions=(Learned(40),)), causal), some()
    assert (finish(model, inputs) - finish(model, shifted(inputs, 7))).abs().max() > 0.1


@pytest.mark.parametrize("positions", [(RoPE(),), (Learned(40),)], ids=repr)
def test_order_is_known_from_the_index(positions):
    model, inputs = build(replace(BASE, positions=positions), False), some([6])
    turned = replace(inputs, position=inputs.position.flip(1))
    stretched = replace(inputs, position=inputs.position * 2)
    one = finish(model, inputs, [1])
    assert (one - finish(model, turned, [1])).abs().max() > 1e-3
    assert (one - finish(model, stretched, [1])).abs().max() > 1e-3


def test_sinusoidal_positions_as_published():
    inputs = some([5])
    added = Sinusoidal().build(8, 2).vectors(inputs)
    wanted = [
        [math.sin(i / 10_000 ** (k / 4)) for k in range(4)] + [math.cos(i / 10_000 ** (k / 4)) for k in range(4)]
        for i in range(5)
    ]
    close(added[0], torch.tensor(wanted), 1e-6)


@pytest.mark.parametrize("length", [4, 9])
def test_fire_as_published(length):
    """f(log(c(i − j) + 1) / log(c · max(i, L) + 1)), with a network f of one hidden layer; L is 6 here."""
    torch.manual_seed(0)
    encoding = FIRE(threshold=6.0).build(8, 2)
    bias = encoding.scores(some([length]))
    first, _, second = encoding.network
    c = encoding.scale.item()
    for i in range(length):
        for j in range(i + 1):
            x = math.log(c * (i - j) + 1) / (math.log(c * max(i, 6) + 1) + 1e-6)
            hidden = torch.relu(first.weight[:, 0] * x + first.bias)
            close(bias[:, i, j], second.weight @ hidden + second.bias, 1e-5)


def test_fire_of_rows_with_positions_of_their_own():
    """Each row's bias is what it would be alone."""
    torch.manual_seed(0)
    encoding, inputs = FIRE().build(8, 2), some([6, 6])
    inputs = replace(inputs, position=torch.stack([torch.arange(6), 3 * torch.arange(6)]))
    bias = encoding.scores(inputs)
    assert bias.shape == (2, 2, 6, 6)
    for row in (0, 1):
        close(bias[row], encoding.scores(inputs.take(slice(row, row + 1))), 1e-6)
    assert (bias[0] - bias[1]).abs().max() > 1e-3


def test_equal_places_share_an_abacus_vector_and_signs_another():
    encoding, inputs = Abacus(9).build(8, 2), some([9])
    added = encoding.vectors(inputs)[0]
    same = inputs.digit_position[0][:, None] == inputs.digit_position[0]
    assert torch.equal((added[:, None] == added).all(-1), same)
    assert added.abs().min() > 0


def test_one_linear_map_leads_from_each_sine_to_its_neighbour():
    table = build_plain(replace(BASE, width=16, positions=(Abacus(60, start="sines", std=0.3),))).encodings[0].table
    vectors = table.weight.detach().double()
    assert vectors.shape == (61, 16) and float(vectors.std()) == pytest.approx(0.3, rel=0.1)
    step = torch.linalg.lstsq(vectors[:-1], vectors[1:]).solution
    torch.testing.assert_close(vectors[:-1] @ step, vectors[1:], atol=1e-4, rtol=0)
    apart = torch.cdist(vectors, vectors) + torch.eye(61)
    assert apart.min() > 0.1
    assert table.weight.requires_grad


@pytest.mark.parametrize("each_row", [False, True])
def test_abacus_offsets_are_for_training(each_row):
    """Uniform over so many, alike in a batch or drawn for each row; signs keep their place; test has none."""
    recipe = catalog.recipe("looped-addition", ["batch=64"])
    position = Abacus(30, 8, each_row)
    recipe = replace(recipe, model=replace(recipe.model, positions=(position,)))
    plain = replace(recipe, model=replace(recipe.model, positions=(NoPE(),)))
    seen = set()
    for step in range(60):
        own, bare = (data.batch(each, step)[0].inputs for each in (recipe, plain))
        more = own.digit_position - bare.digit_position
        assert (more[bare.digit_position == 0] == 0).all()
        offsets = more.amax(1, keepdim=True)
        assert ((more == offsets) | (bare.digit_position == 0)).all()
        assert each_row or len(offsets.unique()) == 1
        seen |= set(offsets.flatten().tolist())
        assert torch.equal(own.tokens, bare.tokens)
    assert seen == set(range(8))
    assert data.batch(recipe, 3)[0].inputs.digit_position.equal(data.batch(recipe, 3)[0].inputs.digit_position)
    problems = data.fresh_problems(recipe.task, (5,), 4, seed=0)
    written = recipe.layout.write(problems, recipe.task).inputs.digit_position
    assert written.max() == 6  # what is solved and scored is written without an offset


def test_coupled_signs_share_a_vector_and_are_moved_with_the_digits():
    """Unlike Abacus: signs stand in the place before the first, whatever the offset."""
    encoding, inputs = Coupling(30, 8).build(8, 2), some([9, 9])
    plain = encoding.vectors(inputs)
    same = inputs.digit_position[0][:, None] == inputs.digit_position[0]
    assert torch.equal((plain[0][:, None] == plain[0]).all(-1), same)
    told = Coupling(30, 8).vary(inputs, stream(0, "offset"))
    more = told.digit_position - inputs.digit_position
    assert (more == more[:, :1]).all() and more[0, 0] != more[1, 0]
    assert torch.equal((encoding.vectors(told) == plain).all(-1), more == 0)


def test_abacus_at_attention_is_added_to_queries_and_keys_alone():
    """The formula, by hand: softmax((q + p)(k + p)ᵀ/√e) v, with the same p in every layer."""
    model, inputs = build(replace(BASE, positions=(Abacus(9, at="attention"),)), False), some([6])
    context = model.embed(inputs)
    close(context.embedded, model.embedding(inputs.tokens))
    attention, x = model.blocks[0].attention, torch.randn(1, 6, 8, dtype=torch.double)
    query, key, value = (attention.project(x)[0].view(6, 3, 2, 4)[:, part] for part in range(3))
    p = model.encodings[0].table.weight[inputs.digit_position[0]].view(6, 2, 4)
    scores = torch.einsum("ihe,jhe->hij", query + p, key + p) / 2
    mixed = torch.einsum("hij,jhe->ihe", scores.softmax(-1), value).reshape(6, 8)
    close(attention(x, context.pattern)[0], attention.out(mixed))


def relative(index):
    """What each relative encoding makes of positions: scores of queries and keys that are the same everywhere."""
    inputs = replace(some([6]), position=index)
    for position in (RoPE(), ALiBi(), FIRE(threshold=1e6)):
        encoding = position.build(8, 2)
        if (bias := encoding.scores(inputs)) is not None:
            yield bias
        else:
            draw = torch.randn(2, 1, 1, 1, 4, generator=stream(0, "query and key"))
            query, key = (rotate(part.expand(1, 6, 1, 4), encoding.angles(inputs)) for part in draw)
            yield query[:, :, 0] @ key[:, :, 0].mT


def test_relative_encodings_do_not_change_when_all_positions_are_shifted():
    """FIRE as long as its threshold is far: it is relative to a query's position only beyond."""
    torch.manual_seed(0)
    plain = list(relative(torch.arange(6)[None]))
    torch.manual_seed(0)
    for one, two in zip(plain, relative(torch.arange(6)[None] + 37), strict=True):
        close(one, two, 1e-5)


def test_randomized_positions_grow_and_are_any_of_so_many():
    """In training a batch draws its own, at test a row of given length is told the same at all times."""
    position, inputs = Randomized(RoPE(), 20), some()
    told = torch.stack([position.vary(inputs, stream(0, "random", i)).position for i in range(200)])
    for i, length in enumerate(LENGTHS):
        rows = told[:, i, :length]
        assert (rows.diff(dim=1) > 0).all()
        assert set(rows.flatten().tolist()) == set(range(20))
    encoding = position.build(8, 2)
    assert torch.equal(encoding.train().angles(inputs), RoPE().build(8, 2).angles(inputs))  # told by the batch
    test = encoding.eval().angles(inputs)
    assert torch.equal(test[1, :9], encoding.angles(some([9, 9]))[1])
    assert not torch.equal(test, RoPE().build(8, 2).angles(inputs))
    with pytest.raises(UsageError, match=r"a row of 9 positions takes Randomized\(most=9\) or more, not 8"):
        Randomized(RoPE(), 8).vary(inputs, stream(0, "random"))
    with pytest.raises(UsageError, match="no other encoding of them beside it"):
        replace(BASE, positions=(position, ALiBi()))


def test_a_place_that_does_not_fit_is_said():
    encoding = Abacus(2).build(8, 2)
    assert encoding.vectors(some([9])).shape == (1, 9, 8)
    with pytest.raises(UsageError, match="a digit's place 5 does not fit the table of 2"):
        encoding.vectors(replace(some([9]), digit_position=torch.full((1, 9), 5)))


def test_without_positions_a_row_seen_at_once_is_a_set():
    model, inputs = build(BASE, False), some([6])
    turned = replace(inputs, tokens=inputs.tokens.flip(1))
    close(finish(model, inputs, [2]).flip(1), finish(model, turned, [2]))


def test_a_learned_table_holds_exactly_its_size():
    model = build(replace(BASE, positions=(Learned(9),)), True)
    finish(model, some([9]), [1])
    with pytest.raises(
        UsageError, match="a row of 10 positions does not fit the learned table of 9: ask for a shorter"
    ):
        finish(model, some([10]), [1])


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ((Local(1), Local(2)), "one local window"),
        ((Local(1), ALiBi()), "one local window"),
        ((RoPE(), RoPE()), "one rotary encoding"),
    ],
)
def test_two_of_a_kind_are_refused(positions, message):
    with pytest.raises(UsageError, match=message):
        build(replace(BASE, positions=positions), True).embed(some())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Local(-1),
        lambda: LocalHeads(0),
        lambda: LocalHeads(3).build(8, 2),
        lambda: CoupledHeads(0),
        lambda: EarlierHeads(0),
        lambda: EarlierHeads(3).build(8, 2),
        lambda: CoupledHeads(1, reach=-1),
        lambda: CoupledHeads(3).build(8, 2),
        lambda: ALiBi(0.0),
        lambda: FIRE(hidden=0),
        lambda: FIRE(threshold=0.0),
        lambda: Abacus(0),
        lambda: Abacus(offset=0),
        lambda: Coupling(0),
        lambda: Abacus(std=-1.0),
        lambda: Randomized(RoPE(), 0),
        lambda: Transformer(noise=-1.0),
        lambda: Transformer(eps=0.0),
        lambda: Sinusoidal().build(7, 1),
        lambda: Transformer(width=0),
        lambda: Transformer(width=8, heads=3),
        lambda: Transformer(dropout=1.0),
        lambda: Transformer(layers=0),
        lambda: RoPE().build(6, 2),
    ],
)
def test_what_cannot_be_built_is_refused(make):
    with pytest.raises(UsageError):
        make()


# The block and its loop


def plain_mlp(mlp, x):
    x = x @ mlp.widen.weight.T + (0 if mlp.widen.bias is None else mlp.widen.bias)
    half = x.shape[-1] // 2
    x = x[..., :half] * mlp.act(x[..., half:]) if mlp.gated else mlp.act(x)
    return x @ mlp.narrow.weight.T + (0 if mlp.narrow.bias is None else mlp.narrow.bias)


def plain_block(spec, block, h, x, context):
    read = x if spec.injection == "reads" else 0
    if spec.injection == "layers":
        h = h + x
    if spec.norm == "post":
        h = block.norm_attention(h + block.attention(h + read, context.pattern))
        return block.norm_mlp(h + plain_mlp(block.mlp, h + read))
    h = h + block.attention(block.norm_attention(h) + read, context.pattern)
    return h + plain_mlp(block.mlp, block.norm_mlp(h) + read)


INJECTED = {
    "once": lambda model, h, x: h,
    "layers": lambda model, h, x: h,
    "reads": lambda model, h, x: h,
    "add": lambda model, h, x: h + x,
    "concat": lambda model, h, x: torch.cat([h, x], -1) @ model.inject.join.weight.T + model.inject.join.bias,
    "gate": lambda model, h, x: (
        h + x / (1 + (-(torch.cat([h, x], -1) @ model.inject.gate.weight.T) - model.inject.gate.bias).exp())
    ),
}


@pytest.mark.parametrize("spec", SPECS, ids=short)
def test_looping_is_the_formula(spec):
    """With injection h_0 = 0 and h ← norm(blocks(inject(h, x))); without, h_0 = x and h ← norm(blocks(h))."""
    model, inputs = build(spec, True), some([6, 6])
    context = model.embed(inputs)
    x = context.embedded
    state = x if spec.injection in ("once", "reads") else torch.zeros_like(x)
    for loops in (1, 2, 3):
        state = INJECTED[spec.injection](model, state, x)
        for block in model.blocks:
            state = plain_block(spec, block, state, x, context)
        if spec.final_norm == "loop":
            state = model.norm(state)
        close(finish(model, inputs, [loops] * 2), state)


def test_the_readout_is_the_formula():
    """Published (McLeish et al. 2024): an MLP, the final norm, a matrix, a matrix."""
    spec = replace(BASE, final_norm="readout", readout="mlp", gated=True)
    model, state = build(spec, True), torch.randn(1, 5, 8, dtype=torch.double)
    mlp, norm, extra, linear = model.readout
    at = torch.ones(1, 5, dtype=torch.bool)
    close(model.read(state, at), linear(extra(norm(plain_mlp(mlp, state[0])))))
    plain = build(replace(BASE, final_norm="readout"), True)
    close(plain.read(state, at), plain.readout[1](plain.readout[0](state[0])))


def test_what_is_embedded_can_be_normalised():
    embedded = build(replace(BASE, embedding_norm=True, positions=(Learned(9),)), True).embed(some([9])).embedded
    model = build(replace(BASE, embedding_norm=True, positions=(Learned(9),)), True)
    bare = model.embedding(some([9]).tokens) + model.encodings[0].table.weight[:9]
    close(embedded, model.norm_embedding(bare))
    model = replace(BASE, embedding_norm=True).build(READS, WRITES, causal=True)
    close(model.embed(some([9])).embedded.mean(-1), torch.zeros(1, 9), 1e-6)


def test_loops_start_from_noise_in_training_and_from_its_mean_at_test():
    model, inputs = build(replace(BASE, noise=0.02, width=64), True), some([40])
    context = model.embed(inputs)
    assert not model.start(context).any()
    model.train()
    one, two = model.start(context), model.start(context)
    assert not torch.equal(one, two)
    assert abs(one.std() - 0.02) < 0.002
    torch.manual_seed(3)
    one = model.start(context)
    torch.manual_seed(3)
    assert torch.equal(one, model.start(context))  # training seeds it at every step


@pytest.mark.parametrize(("injection", "share"), [("concat", 1.0), ("gate", 0.9)])
def test_other_ways_to_inject_start_near_addition(injection, share):
    torch.manual_seed(0)
    model = replace(BASE, injection=injection).build(READS, WRITES, causal=True)
    state, x = torch.randn(2, 1, 3, 8)
    close(model.inject(state, x), state + share * x, 1e-6)


@both
def test_advanced_once_injection_makes_no_difference(causal):
    one, two = (build(replace(BASE, injection=injection), causal) for injection in ("add", "once"))
    close(finish(one, some(), [1] * 4), finish(two, some(), [1] * 4))


@pytest.mark.parametrize("positions", [(NoPE(),), (Local(1),)], ids=repr)
def test_dropout_is_for_training_only_and_decided_by_the_seed(positions):
    plain, model = (build(replace(BASE, positions=positions, dropout=share), False) for share in (0.0, 0.5))
    inputs = some()
    assert torch.equal(finish(model, inputs), finish(plain, inputs))
    model.train()

    def at(seed):
        torch.manual_seed(seed)
        return finish(model, inputs)

    assert torch.equal(at(1), at(1))
    assert not torch.equal(at(1), at(2))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dropout_drops_its_share_and_keeps_the_mean(share, dtype):
    torch.manual_seed(0)
    x = torch.full((999, 1001), 3.0, dtype=dtype, requires_grad=True)
    out = dropout(x, share)
    zero = out == 0
    assert out.dtype == dtype and abs(float(zero.double().mean()) - share) < 3e-3
    close(out[~zero].double(), torch.full_like(out[~zero], 3 / (1 - share), dtype=torch.double), 0.01)
    # Four values come of one draw: they know nothing of one another.
    four = zero.flatten()[:999_000].view(-1, 4).double()
    assert (four.mean(0) - share).abs().max() < 5e-3
    assert share == 0 or (torch.corrcoef(four.T) - torch.eye(4)).abs().max() < 0.01
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient * 3, out)


@both
@pytest.mark.parametrize(
    "positions", [(NoPE(),), (RoPE(),), (ALiBi(),), (LocalHeads(1),), (EarlierHeads(1),)], ids=repr
)
def test_attention_with_dropout_is_attention_with_little_of_it(positions, causal):
    """The path that training with dropout takes, against the library's kernel."""
    spec = replace(BASE, positions=positions)
    plain, model = build(spec, causal), build(replace(spec, dropout=1e-12), causal)
    inputs = some()
    model.train()
    close(finish(model, inputs)[inputs.padding_mask], finish(plain, inputs)[inputs.padding_mask])


def test_read_gives_logits_where_asked_row_by_row():
    model, inputs = build(BASE, True), some()
    state = finish(model, inputs)
    logits = model.read(state, inputs.padding_mask)
    assert logits.shape == (sum(LENGTHS), len(WRITES))
    close(logits, torch.cat([model.readout(state[i, :n]) for i, n in enumerate(LENGTHS)]))


# Rows leave the loop when they are done


class Counter(Model):
    """Its state says which row it is and how often it was advanced; it notes how many rows each advance took."""

    def __init__(self):
        super().__init__()
        self.took = []

    def embed(self, inputs):
        return inputs.tokens, (Shared(torch.ones(1)), None), inputs.position

    def start(self, context):
        return context[0], (torch.zeros_like(context[0]), torch.zeros(len(context[0])))

    def advance(self, state, context):
        name, (count, both) = state
        assert torch.equal(name, context[0])
        self.took.append(len(name))
        return name, (count + 1, both + context[1][0].value)

    def read(self, state, at):
        return state[0][at][:, None].float()


LOOP_LISTS = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def named(loops):
    """Rows whose one token is their own number."""
    name = torch.arange(len(loops))[:, None]
    return Inputs(name, name, name, torch.ones_like(name, dtype=torch.bool))


@given(LOOP_LISTS)
def test_unroll_yields_who_is_running_by_their_own_numbers(loops):
    model = Counter()
    yielded = 0
    for k, rows, (name, (count, both)) in unroll(model, named(loops), torch.tensor(loops)):
        yielded += 1
        assert k == yielded
        assert sorted(rows.tolist()) == [i for i, n in enumerate(loops) if n >= k]
        assert torch.equal(name[:, 0], rows)
        assert (count == k).all() and (both == k).all()
    assert yielded == max(loops)


@given(LOOP_LISTS)
def test_settle_gives_every_row_once_after_its_own_loops(loops):
    rows, (name, (count, _)) = settle(Counter(), named(loops), torch.tensor(loops))
    assert sorted(rows.tolist()) == list(range(len(loops)))
    assert torch.equal(name[:, 0], rows)
    assert count[:, 0].tolist() == [loops[i] for i in rows]


@given(LOOP_LISTS)
def test_a_batch_costs_its_rows_own_loops(loops):
    model = Counter()
    settle(model, named(loops), torch.tensor(loops))
    assert sum(model.took) == sum(loops)


def test_take_leaves_what_all_rows_share():
    shared = Shared(torch.arange(3))
    tensor, (kept, nothing) = take((torch.arange(4), (shared, None)), slice(2))
    assert tensor.tolist() == [0, 1]
    assert kept is shared and nothing is None


def plain_unroll(model, inputs, loops, *, untracked=0):
    """Every row is advanced as often as the longest; those that should have left are passed over."""
    context = model.embed(inputs)
    state = model.start(context)
    for k in range(1, int(loops.max()) + 1):
        with torch.set_grad_enabled(k > untracked):
            state = model.advance(state, context)
        rows = (loops >= k).nonzero().flatten()
        yield k, rows, state[rows]


def plain_settle(model, inputs, loops, *, untracked=0, loss_mask=None):
    """Each row's own loop, picked out of all."""
    states = {}
    for k, rows, state in plain_unroll(model, inputs, loops, untracked=untracked):
        states |= {int(row): state[i] for i, row in enumerate(rows) if loops[row] == k}
    return torch.arange(len(loops)), torch.stack([states[i] for i in range(len(loops))])


@every_model
def test_unroll_equals_a_plain_loop(spec, causal):
    model, inputs, loops = build(spec, causal), some(width=12), torch.tensor(LOOPS)
    plain = plain_unroll(model, inputs, loops)
    for (k, rows, state), (wanted_k, wanted_rows, wanted) in zip(unroll(model, inputs, loops), plain, strict=True):
        back = rows.argsort()
        padding_mask = inputs.padding_mask[wanted_rows]
        assert k == wanted_k and torch.equal(rows[back], wanted_rows)
        close(padded(state)[back][padding_mask], wanted[padding_mask])


@every_model
def test_after_the_last_loop_only_what_is_read_is_computed(spec, causal):
    model, inputs = build(spec, causal), some(width=12)
    loops = torch.full((len(inputs.tokens),), 2)
    loss_mask = inputs.padding_mask & (torch.arange(12) % 3 == 1)
    found = []
    for wanted in (None, loss_mask):
        rows, state = settle(model, inputs, loops, loss_mask=wanted)
        read = model.read(state, loss_mask[rows]).split(loss_mask[rows].sum(1).tolist())
        read = torch.cat([read[i] for i in rows.argsort()])
        gradients = torch.autograd.grad(read.square().sum(), list(model.parameters()), materialize_grads=True)
        found.append([read.detach(), *gradients])
    # With windows, places leave before a loop instead, but for their neighbours.
    local = isinstance(spec, Transformer) and any(isinstance(position, Local) for position in spec.positions)
    assert isinstance(state, Packed) and (local or len(state.value) == loss_mask.sum())
    for one, two in zip(*found, strict=True):
        close(one, two)


OBJECTIVES = [
    final.Final(),
    every.Every(),
    progressive.Progressive(),
    progressive.Progressive(weight=0.8, truncated=True),
]
TASKS = [(Addition(3), FullOutput()), (Addition(3), Pairs())]


@pytest.mark.parametrize("spec", SPECS, ids=short)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=text)
@pytest.mark.parametrize(("task", "layout"), TASKS, ids=text)
def test_losses_and_gradients_equal_those_of_a_plain_loop(spec, objective, task, layout, monkeypatch):
    draw = stream(0, "rows")
    batch = layout.write(task.sample(torch.randint(1, 5, (6, len(task.axes)), generator=draw), draw), task)
    loops = torch.tensor([1, 3, 2, 5, 3, 1])
    model = build(spec, layout.causal, *layout.vocabs(task))
    results = []
    for slow in (False, True):
        if slow:
            monkeypatch.setattr(final, "settle", plain_settle)
            monkeypatch.setattr(progressive, "settle", plain_settle)
            monkeypatch.setattr(every, "unroll", plain_unroll)
        model.zero_grad()
        loss = objective(model, batch, loops, stream(3, "objective"))
        loss.value.backward()
        results.append([loss.value.detach(), *loss.logs.values(), *(p.grad for p in model.parameters())])
    for fast, plain in zip(*results, strict=True):
        close(fast, plain)


@pytest.mark.parametrize("untracked", [0, 1, 2, 3])
def test_untracked_loops_carry_no_gradient(untracked):
    """The gradient reaches the last loops alone: as if the state before them had been given."""
    model, inputs, loops = build(BASE, True), some([5, 5]), torch.tensor([4, 2])
    rows, state = settle(model, inputs, loops, untracked=untracked)
    for row, length in enumerate(loops.tolist()):
        own = inputs.take(slice(row, row + 1))
        context = model.embed(own)
        h = model.start(context)
        for k in range(length):
            h = model.advance(h, context)
            if k < untracked:
                h = h.detach()
        got = state[rows == row]
        close(got.detach(), h.detach())
        assert got.requires_grad
        weight = model.blocks[0].mlp.widen.weight
        (gradient,) = torch.autograd.grad((got**3).sum(), weight, retain_graph=True, allow_unused=True)
        if length > untracked:
            close(gradient, torch.autograd.grad((h**3).sum(), weight)[0])
        else:
            assert gradient is None or not gradient.any()


# A module of a user's own


@dataclass(frozen=True)
class _Own(ModelSpec):
    bad: bool = False

    def build(self, reads, writes, *, causal):
        if self.bad:
            return "a model"
        return nn.Sequential(nn.Embedding(len(reads), 8), nn.GELU(), nn.Linear(8, len(writes)))


RECIPE = Recipe("own", Parity(), FullOutput(), Uniform(4), Constant(), _Own(), final.Final(), steps=3, batch=8)


def test_a_module_of_ones_own_is_a_model_advanced_once():
    model = RECIPE.build()
    assert isinstance(model, Once)
    batch = FullOutput().write(Parity().parse("1011"), Parity())
    _, state = settle(model, batch.inputs, torch.tensor([1]))
    close(model.read(state, batch.answer_slots), model.module(batch.inputs.tokens)[batch.answer_slots])
    loss = final.Final()(model, batch, torch.tensor([1]), stream(0, "x")).value
    logits = model.module(batch.inputs.tokens)[batch.loss_mask]
    close(loss, nn.functional.cross_entropy(logits, batch.targets[batch.loss_mask]))


def test_a_module_of_another_shape_is_answered_in_one_line():
    model = Once(nn.Sequential(nn.Embedding(6, 4), nn.Flatten()))
    with pytest.raises(UsageError, match=r"takes tokens \(4, 9\) to logits .*, but Sequential gave \(4, 36\)"):
        finish(model, some(), [1] * 4)
    with pytest.raises(UsageError, match="must return a torch module, not 'a model'"):
        replace(RECIPE, model=_Own(bad=True)).build()


@pytest.mark.parametrize("spec", [_Own(), BASE], ids=["own", "transformer"])
def test_initial_weights_are_named_by_the_seed_and_leave_the_global_generator_alone(spec):
    recipe = replace(RECIPE, model=spec)
    before = torch.get_rng_state()
    first, again, other = (
        torch.cat([p.flatten() for p in replace(recipe, seed=seed).build().parameters()]) for seed in (0, 0, 1)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
