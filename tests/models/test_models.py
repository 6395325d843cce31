"""Models with the plain and the fast runner: windows and other encodings, initial weights, dropout, formulas of whole
models, and rows that finish early."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from conftest import LONG
from hypothesis import given
from hypothesis import strategies as st
from specs import (
    BASE,
    FEW_MODELS,
    LENGTHS,
    LOOPS,
    MODELS,
    PART_SPECS,
    READS,
    RECURRENT_SPECS,
    SPECS,
    WRITES,
    assert_all_close,
    assert_close,
    build,
    build_rows,
    cached_model,
    choose_covering,
    compute_gradients,
    compute_logits,
    list_features,
    list_ids,
    name_spec,
    run_each_loop,
)
from torch import nn

import lengthwise as lw
from lengthwise.experiment import data
from lengthwise.models.single_pass import SinglePass
from lengthwise.nn.digit_position import Abacus, Coupling
from lengthwise.nn.position import FIRE, ALiBi, Learned, NoPE, Randomized, RoPE, Sinusoidal
from lengthwise.nn.window import Blank, CoupledHeads, EarlierHeads, Local, LocalHeads
from lengthwise.objectives import Final
from lengthwise.runners.cpu.elementwise import dropout
from lengthwise.runners.plain import Plain, unroll
from lengthwise.testing.laws import check_part
from lengthwise.testing.laws_of_models import (
    find_influences,
)

causal_and_full = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
CHECKED_MODELS = MODELS if LONG else FEW_MODELS
every_model = pytest.mark.parametrize(("spec", "causal"), CHECKED_MODELS, ids=list_ids(CHECKED_MODELS))


# test_laws.py tests these laws for each part of the package by itself. Under Local(0) a head sees one key, so a bias
# has no effect.
PART_FEATURES = set().union(*(list_features(spec, True) for spec in PART_SPECS))
MIXED_SPECS = choose_covering({spec: list_features(spec, True) - PART_FEATURES for spec in [*SPECS, *RECURRENT_SPECS]})
MIXED_SPECS = [spec for spec in (SPECS if LONG else MIXED_SPECS) if Local(0) not in getattr(spec, "positions", ())]


@pytest.mark.parametrize("spec", MIXED_SPECS, ids=name_spec)
def test_combined_parts_satisfy_all_laws(spec):
    assert not check_part(spec).broken


@pytest.mark.parametrize("reach", [0, 1, 2])
@pytest.mark.parametrize("loops", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
@causal_and_full
def test_information_travels_the_windows_reach_per_loop_and_layer(reach, loops, layers, causal, build_runner):
    spec = replace(BASE, layers=layers, positions=(Local(reach),))
    distance = torch.arange(11)[:, None] - torch.arange(11)
    wanted = distance.abs() <= reach * loops * layers
    if causal:
        wanted &= distance >= 0
    assert torch.equal(find_influences(build_runner(build(spec, causal)), build_rows([11]), loops), wanted)


@pytest.mark.parametrize("other_encoding", [Local(2), ALiBi(), RoPE(), LocalHeads(2, reach=2)], ids=repr)
@causal_and_full
def test_several_windows_are_intersected(other_encoding, causal, build_runner):
    distance = torch.arange(9)[:, None] - torch.arange(9)
    wanted = (distance.abs() <= 1) & ((distance >= 0) | (not causal))
    spec = replace(BASE, positions=(Local(1), other_encoding))
    assert torch.equal(find_influences(build_runner(build(spec, causal)), build_rows([9]), 1), wanted)


@causal_and_full
def test_heads_that_are_not_local_see_all_positions(causal, build_runner):
    distance = torch.arange(9)[:, None] - torch.arange(9)
    allowed = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    for count, wanted in ((2, distance.abs() <= 1), (1, distance.abs() <= 9)):
        spec = replace(BASE, positions=(LocalHeads(count),))
        assert torch.equal(find_influences(build_runner(build(spec, causal)), build_rows([9]), 1), wanted & allowed)


@pytest.mark.parametrize(("reach", "ahead"), [(0, 0), (1, 0), (0, 1), (1, 2), (0, 9)])
@causal_and_full
def test_coupled_heads_see_equal_digit_positions_and_themselves(reach, ahead, causal, build_runner):
    position = torch.tensor([1, 2, 3, 0, 1, 2, 3, 0, 1, 2])
    wanted = (position - position[:, None] - ahead).abs() <= reach
    wanted |= torch.eye(10, dtype=torch.bool)
    wanted &= torch.ones_like(wanted).tril() if causal else True
    spec = replace(BASE, positions=(CoupledHeads(2, reach, ahead),))
    inputs = replace(build_rows([10]), digit_position=position[None])
    assert torch.equal(find_influences(build_runner(build(spec, causal)), inputs, 1), wanted)


@causal_and_full
def test_coupled_and_local_heads_can_be_combined(causal):
    """Head 1 attends to neighbours, head 2 to all positions, and head 3 to positions with the same digit position."""
    inputs = build_rows([9])
    encodings = [LocalHeads(1).build(12, 3), CoupledHeads(1).build(12, 3)]
    bias = lw.AttentionContext.build(encodings, inputs, causal=causal).bias
    index, position = torch.arange(9), inputs.digit_position[0]
    wanted = torch.stack([(index[:, None] - index).abs() <= 1, torch.ones(9, 9) > 0, position[:, None] == position])
    assert torch.equal(bias[0] == 0, wanted.tril() if causal else wanted)


def test_earlier_heads_initially_attend_to_equal_symbols():
    """Before training, a repeated symbol attends most to its earlier position; a new symbol attends little to any
    position."""
    torch.manual_seed(0)
    spec = lw.Transformer(width=64, heads=4, init_std=0.1, positions=(LocalHeads(2), EarlierHeads(2)))
    model = spec.build(READS, WRITES, causal=True)
    (block,) = model.blocks
    query, key, _ = block.mixer.project.weight.view(3, 4, 16, 64)
    assert torch.equal(query[2:], key[2:])
    assert not torch.isclose(query[:2], key[:2]).any()
    symbols = block.norm_mixer(model.embedding.weight)
    scores = torch.einsum("ad,hed,hef,bf->hab", symbols, query, key, symbols)[2:]
    like = scores.diagonal(dim1=1, dim2=2)
    assert (like[..., None] > scores + 1e-4).sum() == 2 * 6 * 5


def test_a_window_has_a_learned_bias_per_head_and_offset():
    encoding = Local(2).build(8, 2)
    torch.nn.init.normal_(encoding.bias)
    bias = encoding.attention_bias(build_rows([7]))
    for i in range(7):
        for j in range(7):
            assert (
                torch.equal(bias[:, i, j], encoding.bias[:, j - i + 2])
                if abs(j - i) <= 2
                else bias[:, i, j].isinf().all()
            )


@causal_and_full
def test_earlier_heads_see_earlier_positions_and_a_blank(causal):
    """The last column of the bias is for the blank, which only the second head sees; with ``Blank``, both heads see
    it."""
    inputs, index = build_rows([7, 4]), torch.arange(7)
    seen = inputs.padding_mask[:, None].expand(-1, 7, -1) | torch.eye(7, dtype=torch.bool)
    seen = torch.ones(1, 7, 7, dtype=torch.bool).tril() if causal else seen  # later padding is hidden by causality
    bias = lw.AttentionContext.build([EarlierHeads(1).build(8, 2)], inputs, causal=causal).bias
    wanted = torch.stack([seen, seen & (index < index[:, None])], 1)
    assert torch.equal(bias[..., :-1] == 0, wanted)
    assert torch.equal(bias[..., -1], torch.tensor([-torch.inf, 0.0])[:, None].expand(len(bias), 2, 7))
    bias = lw.AttentionContext.build([Blank().build(8, 2)], inputs, causal=causal).bias
    assert torch.equal(bias[..., :-1] == 0, seen[:, None].expand(-1, 2, -1, -1)) and not bias[..., -1].any()


def test_alibi_has_the_published_slopes():
    slopes = -ALiBi().build(64, 8).attention_bias(build_rows([2]))[:, 1, 0]
    assert slopes.tolist() == [2.0**-k for k in range(1, 9)]


# Positions


def shift_positions(inputs, offset):
    return replace(inputs, position=inputs.position + offset)


@pytest.mark.parametrize(
    "positions", [(RoPE(),), (RoPE(100.0), Local(2)), (Local(1),), (ALiBi(),), (NoPE(),), ()], ids=repr
)
@causal_and_full
def test_relative_positions_do_not_depend_on_the_start_of_a_row(positions, causal, build_runner):
    runner, inputs = build_runner(build(replace(BASE, positions=positions), causal)), build_rows()
    assert_close(compute_logits(runner, inputs), compute_logits(runner, shift_positions(inputs, 7)), 1e-6)


@pytest.mark.parametrize("positions", [(RoPE(),), (Learned(40),)], ids=repr)
def test_logits_depend_on_position_indices(positions, build_runner):
    runner, inputs = build_runner(build(replace(BASE, positions=positions), False)), build_rows([6])
    turned = replace(inputs, position=inputs.position.flip(1))
    stretched = replace(inputs, position=inputs.position * 2)
    one = compute_logits(runner, inputs, [1])
    assert (one - compute_logits(runner, turned, [1])).abs().max() > 1e-3
    assert (one - compute_logits(runner, stretched, [1])).abs().max() > 1e-3


def test_sinusoidal_positions_equal_the_published_formula():
    inputs = build_rows([5])
    added = Sinusoidal().build(8, 2).vectors(inputs)
    wanted = [
        [math.sin(i / 10_000 ** (k / 4)) for k in range(4)] + [math.cos(i / 10_000 ** (k / 4)) for k in range(4)]
        for i in range(5)
    ]
    assert_close(added[0], torch.tensor(wanted), 1e-6)


@pytest.mark.parametrize("length", [4, 9])
def test_fire_equals_the_published_formula(length):
    """The bias is f(log(c(i − j) + 1) / log(c · max(i, L) + 1)), with L = 6 and a network f of one hidden layer."""
    torch.manual_seed(0)
    encoding = FIRE(threshold=6.0).build(8, 2)
    bias = encoding.attention_bias(build_rows([length]))
    first, _, second = encoding.network
    c = encoding.scale.item()
    for i in range(length):
        for j in range(i + 1):
            x = math.log(c * (i - j) + 1) / (math.log(c * max(i, 6) + 1) + 1e-6)
            hidden = torch.relu(first.weight[:, 0] * x + first.bias)
            assert_close(bias[:, i, j], second.weight @ hidden + second.bias, 1e-5)


def test_fire_supports_different_positions_per_row():
    torch.manual_seed(0)
    encoding, inputs = FIRE().build(8, 2), build_rows([6, 6])
    inputs = replace(inputs, position=torch.stack([torch.arange(6), 3 * torch.arange(6)]))
    bias = encoding.attention_bias(inputs)
    assert bias.shape == (2, 2, 6, 6)
    for row in (0, 1):
        assert_close(bias[row], encoding.attention_bias(inputs.take(slice(row, row + 1))), 1e-6)
    assert (bias[0] - bias[1]).abs().max() > 1e-3


def test_equal_digit_positions_share_an_abacus_vector_and_signs_share_another():
    encoding, inputs = Abacus(9).build(8, 2), build_rows([9])
    added = encoding.vectors(inputs)[0]
    same = inputs.digit_position[0][:, None] == inputs.digit_position[0]
    assert torch.equal((added[:, None] == added).all(-1), same)
    assert added.abs().min() > 0


def test_one_linear_map_maps_each_sine_vector_to_the_next():
    table = Abacus(60, start="sines", std=0.3).build(16, 2).table
    vectors = table.weight.detach().double()
    assert vectors.shape == (61, 16) and float(vectors.std()) == pytest.approx(0.3, rel=0.1)
    step = torch.linalg.lstsq(vectors[:-1], vectors[1:]).solution
    torch.testing.assert_close(vectors[:-1] @ step, vectors[1:], atol=1e-4, rtol=0)
    apart = torch.cdist(vectors, vectors) + torch.eye(61)
    assert apart.min() > 0.1
    assert table.weight.requires_grad


@pytest.mark.parametrize("each_row", [False, True])
def test_abacus_offsets_are_drawn_only_in_training(each_row):
    """Offsets are uniform, and equal in a batch or drawn per row; signs and problems in evaluation have no offset."""
    model = replace(BASE, positions=(Abacus(30, 4, each_row),))
    recipe = replace(RECIPE, task=lw.Addition(), lengths=lw.Uniform(6), model=model)
    plain = replace(recipe, model=BASE)
    seen = set()
    for step in range(20):
        own, bare = (data.draw_batch(each, step)[0].inputs for each in (recipe, plain))
        more = own.digit_position - bare.digit_position
        assert (more[bare.digit_position == 0] == 0).all()
        offsets = more.amax(1, keepdim=True)
        assert ((more == offsets) | (bare.digit_position == 0)).all()
        assert each_row or len(offsets.unique()) == 1
        seen |= set(offsets.flatten().tolist())
        assert torch.equal(own.tokens, bare.tokens)
    assert seen == set(range(4))
    assert data.draw_batch(recipe, 3)[0].inputs.digit_position.equal(
        data.draw_batch(recipe, 3)[0].inputs.digit_position
    )
    problems = data.draw_fresh_problems(recipe.task, (5, 5), 4, seed=0)
    written = recipe.layout.write(problems, recipe.task).inputs.digit_position
    assert written.max() == 6  # problems in evaluation have no offset


def test_coupled_signs_share_a_vector_and_are_offset_with_the_digits():
    """Unlike in Abacus, signs have digit position 0 plus the offset."""
    encoding, inputs = Coupling(30, 8).build(8, 2), build_rows([9, 9])
    plain = encoding.vectors(inputs)
    same = inputs.digit_position[0][:, None] == inputs.digit_position[0]
    assert torch.equal((plain[0][:, None] == plain[0]).all(-1), same)
    varied = Coupling(30, 8).vary(inputs, lw.stream(0, "offset"))
    more = varied.digit_position - inputs.digit_position
    assert (more == more[:, :1]).all() and more[0, 0] != more[1, 0]
    assert torch.equal((encoding.vectors(varied) == plain).all(-1), more == 0)


def test_abacus_vectors_at_attention_are_added_only_to_queries_and_keys():
    model, inputs = build(replace(BASE, positions=(Abacus(9, added_to="attention"),)), False), build_rows([6])
    context = model.embed(inputs)
    assert_close(context.embedded_input, model.embedding(inputs.tokens))
    assert_close(context.attention.keys, model.encodings[0].table.weight[inputs.digit_position])


def test_randomized_positions_increase_and_cover_the_range():
    """Training draws new positions for each batch; in evaluation, rows of equal length always get equal positions."""
    position, inputs = Randomized(RoPE(), 20), build_rows()
    varied = torch.stack([position.vary(inputs, lw.stream(0, "random", i)).position for i in range(200)])
    for i, length in enumerate(LENGTHS):
        rows = varied[:, i, :length]
        assert (rows.diff(dim=1) > 0).all()
        assert set(rows.flatten().tolist()) == set(range(20))
    encoding = position.build(8, 2)
    assert torch.equal(encoding.train().angles(inputs), RoPE().build(8, 2).angles(inputs))  # drawn with the batch
    test = encoding.eval().angles(inputs)
    assert torch.equal(test[1, :9], encoding.angles(build_rows([9, 9]))[1])
    assert not torch.equal(test, RoPE().build(8, 2).angles(inputs))
    with pytest.raises(lw.UsageError, match=r"a row of 9 positions needs Randomized\(size=9\) or more, not 8"):
        Randomized(RoPE(), 8).vary(inputs, lw.stream(0, "random"))
    with pytest.raises(lw.UsageError, match="use no other encoding of positions with it"):
        replace(BASE, positions=(position, ALiBi()))


@pytest.mark.parametrize("inner_position", [Blank(), EarlierHeads(1), LocalHeads(1)], ids=repr)
def test_randomized_keeps_the_other_properties_of_its_encoding(inner_position):
    own, randomized = inner_position.build(8, 2), Randomized(inner_position, 20).build(8, 2)
    assert randomized.attends == own.attends
    for name in ("blank", "tied_heads"):
        one, two = getattr(own, name)(), getattr(randomized, name)()
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two)


def test_a_digit_position_beyond_the_table_is_refused():
    encoding = Abacus(2).build(8, 2)
    assert encoding.vectors(build_rows([9])).shape == (1, 9, 8)
    with pytest.raises(lw.UsageError, match="digit position 5 does not fit the table of 2"):
        encoding.vectors(replace(build_rows([9]), digit_position=torch.full((1, 9), 5)))


def test_a_learned_table_supports_rows_up_to_exactly_its_size(build_runner):
    runner = build_runner(build(replace(BASE, positions=(Learned(9),)), True))
    compute_logits(runner, build_rows([9]), [1])
    with pytest.raises(
        lw.UsageError, match="a row of 10 positions does not fit the learned table of 9 positions: use shorter problems"
    ):
        compute_logits(runner, build_rows([10]), [1])


@pytest.mark.parametrize("positions", [(RoPE(), RoPE()), (EarlierHeads(1), Blank())], ids=repr)
def test_two_rotary_or_two_blank_encodings_are_refused(positions, build_runner):
    with pytest.raises(lw.UsageError, match="at most one rotary encoding, and at most one encoding with a blank key"):
        compute_logits(build_runner(build(replace(BASE, positions=positions), True)), build_rows())


@pytest.mark.parametrize(
    "build_invalid_part",
    [
        lambda: LocalHeads(3).build(8, 2),
        lambda: EarlierHeads(3).build(8, 2),
        lambda: CoupledHeads(3).build(8, 2),
        lambda: Sinusoidal().build(7, 1),
        lambda: lw.Transformer(width=8, heads=3),
        lambda: RoPE().build(6, 2),
    ],
)
def test_invalid_heads_and_widths_are_refused(build_invalid_part):
    with pytest.raises(lw.UsageError):
        build_invalid_part()


# The block and its loop


def compute_mlp(mlp, x):
    x = x @ mlp.widen.weight.T + (0 if mlp.widen.bias is None else mlp.widen.bias)
    x, gate = x.chunk(2, -1) if mlp.gated else (1, x)
    gelu = gate * (1 + (math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)).tanh()) / 2
    x = x * (gate.relu() if isinstance(mlp.act, nn.ReLU) else gelu)
    return x @ mlp.narrow.weight.T + (0 if mlp.narrow.bias is None else mlp.narrow.bias)


def compute_attention(attention, x, context):
    """Compute attention from all scores, with the bias, blank and rotations of the batch's context."""
    b, t, d = x.shape
    query, key, value = attention.project(x).view(b, t, 3, attention.heads, -1).permute(2, 0, 3, 1, 4)
    if context.keys is not None:
        added = context.keys.view(b, t, attention.heads, -1).transpose(1, 2)
        query, key = query + added, key + added
    if context.angles is not None:
        turn = torch.polar(torch.ones_like(context.angles), context.angles)[:, None]
        query, key = (
            torch.view_as_real(torch.complex(*part.chunk(2, -1)) * turn).mT.flatten(-2) for part in (query, key)
        )
    scores = query @ key.mT / math.sqrt(d // attention.heads)
    if context.bias is None:
        scores = scores.masked_fill(torch.ones(t, t).triu(1) > 0, -torch.inf)
    else:
        blanks = context.bias.shape[-1] - t
        scores = nn.functional.pad(scores, (0, blanks)) + context.bias
        value = nn.functional.pad(value, (0, 0, 0, blanks))
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return attention.out((weights @ value).transpose(1, 2).reshape(b, t, d))


def compute_block(spec, block, h, x, context):
    read = x if spec.injection == "reads" else 0
    if spec.injection == "layers":
        h = h + x
    if spec.norm == "post":
        h = block.norm_mixer(h + compute_attention(block.mixer, h + read, context))
        return block.norm_mlp(h + compute_mlp(block.mlp, h + read))
    h = h + compute_attention(block.mixer, block.norm_mixer(h) + read, context)
    return h + compute_mlp(block.mlp, block.norm_mlp(h) + read)


INJECTION_FORMULAS = {
    "once": lambda model, h, x: h,
    "layers": lambda model, h, x: h,
    "reads": lambda model, h, x: h,
    "add": lambda model, h, x: h + x,
    "concat": lambda model, h, x: torch.cat([h, x], -1) @ model.inject.join.weight.T + model.inject.join.bias,
    "gate": lambda model, h, x: (
        h + x / (1 + (-(torch.cat([h, x], -1) @ model.inject.gate.weight.T) - model.inject.gate.bias).exp())
    ),
}


@pytest.mark.parametrize("spec", SPECS, ids=name_spec)
@causal_and_full
def test_looping_follows_its_formula(spec, causal):
    """With injection, h_0 = 0 and h ← norm(blocks(inject(h, x))); without it, h_0 = x and h ← norm(blocks(h))."""
    model, inputs = cached_model(spec, causal), build_rows()
    x, context, _ = model.embed(inputs)
    state = x if spec.injection in ("once", "reads") else torch.zeros_like(x)
    for k, rows, found in unroll(model, inputs, torch.full((len(LENGTHS),), 3)):
        state = INJECTION_FORMULAS[spec.injection](model, state, x)
        for block in model.blocks:
            state = compute_block(spec, block, state, x, context)
        if spec.final_norm == "loop":
            state = model.norm(state)
        assert_close(found[inputs.padding_mask], state[inputs.padding_mask])
        assert k <= 3 and rows.tolist() == [0, 1, 2]


def test_the_readout_follows_its_formula():
    """The MLP readout of McLeish et al. (2024) applies an MLP, the final norm and two linear layers."""
    spec = replace(BASE, final_norm="readout", readout="mlp", gated=True)
    model, state = build(spec, True), torch.randn(1, 5, 8, dtype=torch.double)
    mlp, norm, extra, linear = model.readout
    assert_close(model.read(state), linear(extra(norm(compute_mlp(mlp, state)))))
    plain = build(replace(BASE, final_norm="readout"), True)
    assert_close(plain.read(state), plain.readout[1](plain.readout[0](state)))


def test_embeddings_can_be_normalized():
    model = build(replace(BASE, embedding_norm=True, positions=(Learned(9),)), True)
    bare = model.embedding(build_rows([9]).tokens) + model.encodings[0].table.weight[:9]
    weight, bias = model.norm_embedding.weight, model.norm_embedding.bias
    assert_close(model.embed(build_rows([9])).embedded_input, nn.functional.layer_norm(bare, (8,), weight, bias))


def test_loops_start_from_noise_in_training_and_from_zero_in_evaluation():
    model, inputs = build(replace(BASE, noise=0.02, width=64), True), build_rows([40])
    context = model.embed(inputs)
    assert not model.start(context).any()
    model.train()
    one, two = model.start(context), model.start(context)
    assert not torch.equal(one, two)
    assert abs(one.std() - 0.02) < 0.002
    torch.manual_seed(3)
    one = model.start(context)
    torch.manual_seed(3)
    assert torch.equal(one, model.start(context))  # training sets the seed in every step


@pytest.mark.parametrize(("injection", "factor"), [("concat", 1.0), ("gate", 0.9)])
def test_concat_and_gate_injection_start_near_addition(injection, factor):
    torch.manual_seed(0)
    model = replace(BASE, injection=injection).build(READS, WRITES, causal=True)
    state, x = torch.randn(2, 1, 3, 8)
    assert_close(model.inject(state, x), state + factor * x, 1e-6)


@pytest.mark.parametrize("positions", [(NoPE(),), (Local(1),)], ids=repr)
def test_dropout_acts_only_in_training_and_follows_the_seed(positions, build_runner):
    plain, model = (build(replace(BASE, positions=positions, dropout=share), False) for share in (0.0, 0.5))
    inputs = build_rows()
    assert torch.equal(compute_logits(build_runner(model), inputs), compute_logits(build_runner(plain), inputs))
    model.train()

    def compute_with_seed(seed):
        torch.manual_seed(seed)
        return compute_logits(build_runner(model), inputs)

    assert torch.equal(compute_with_seed(1), compute_with_seed(1))
    assert not torch.equal(compute_with_seed(1), compute_with_seed(2))


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dropout_drops_the_given_fraction_and_keeps_the_mean(fraction, dtype):
    torch.manual_seed(0)
    x = torch.full((999, 1001), 3.0, dtype=dtype, requires_grad=True)
    out = dropout(x, fraction)
    zero = out == 0
    assert out.dtype == dtype and abs(float(zero.double().mean()) - fraction) < 3e-3
    assert_close(out[~zero].double(), torch.full_like(out[~zero], 3 / (1 - fraction), dtype=torch.double), 0.01)
    # Four values are taken from one draw; they must be uncorrelated.
    four = zero.flatten()[:999_000].view(-1, 4).double()
    assert (four.mean(0) - fraction).abs().max() < 5e-3
    assert fraction == 0 or (torch.corrcoef(four.T) - torch.eye(4)).abs().max() < 0.01
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient * 3, out)


@causal_and_full
@pytest.mark.parametrize(
    "positions", [(NoPE(),), (RoPE(),), (ALiBi(),), (Local(1),), (LocalHeads(1),), (EarlierHeads(1),)], ids=repr
)
def test_attention_with_negligible_dropout_equals_attention_without(positions, causal, build_runner):
    """The code for training with dropout is compared with the code without dropout."""
    spec = replace(BASE, positions=positions)
    plain, model = build(spec, causal), build(replace(spec, dropout=1e-12), causal)
    assert_close(compute_logits(build_runner(model.train()), build_rows()), compute_logits(Plain(plain), build_rows()))


# Rows stop after their own loops


class LoopCounter(lw.Model):
    """A model whose state holds each row's number and count of loops. It records how many rows each ``advance``
    gets."""

    def __init__(self):
        super().__init__()
        self.took = []

    def embed(self, inputs):
        return inputs.tokens, (torch.ones(1), None), inputs.position

    def start(self, context):
        return context[0], (torch.zeros_like(context[0]), torch.zeros(len(context[0])))

    def advance(self, state, context):
        name, (count, all_alike) = state
        assert torch.equal(name, context[0]) and torch.equal(name, context[2])
        self.took.append(len(name))
        return name, (count + 1, all_alike + context[1][0])

    def read(self, state):
        name, (count, _) = state
        return torch.stack([name, count], -1).float()


LOOP_LISTS = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def build_numbered_rows(loops):
    name = torch.arange(len(loops))[:, None]
    return lw.Inputs(name, name, name, torch.ones_like(name, dtype=torch.bool))


@given(LOOP_LISTS)
def test_rows_run_exactly_their_own_loops(loops):
    model, inputs, counts = LoopCounter(), build_numbered_rows(loops), torch.tensor(loops)
    yielded = 0
    for k, rows, (name, (count, all_alike)) in unroll(model, inputs, counts):
        yielded += 1
        assert k == yielded
        assert sorted(rows.tolist()) == [i for i, n in enumerate(loops) if n >= k]
        assert torch.equal(name[:, 0], rows)
        assert (count == k).all() and (all_alike == k).all()
    assert yielded == max(loops) and sum(model.took) == sum(loops)
    assert Plain(model).last(inputs, counts, inputs.padding_mask).tolist() == [[i, n] for i, n in enumerate(loops)]
    assert sum(model.took) == 2 * sum(loops)
    for k, rows, found in Plain(model).each(inputs, counts, inputs.padding_mask):
        assert found.tolist() == [[row, k] for row in rows.tolist()]


@every_model
def test_rows_that_finish_early_equal_those_of_a_full_batch(spec, causal):
    """Logits and gradients are compared in every loop, and in the last loop with and without gradients of the first
    loops."""
    model, inputs, loops = cached_model(spec, causal), build_rows(width=10), torch.tensor(LOOPS)
    at = inputs.padding_mask & (torch.arange(10) % 3 != 1)

    def run_full_batch(no_grad_loops):
        """Advance every row by the largest number of loops; return the logits after each loop."""
        context, read = model.embed(inputs), []
        state = model.start(context)
        for k in range(max(LOOPS)):
            with torch.set_grad_enabled(k >= no_grad_loops):
                state = model.advance(state, context)
            read.append(model.read(state))
        return torch.stack(read)

    wanted = [torch.cat([read[row][at[row]] for k, read in enumerate(run_full_batch(0), 1)
                         for row in (loops >= k).nonzero()[:, 0]])]  # fmt: skip
    wanted += [run_full_batch(first)[loops - 1, torch.arange(len(loops))][at] for first in (0, 2)]
    found = [run_each_loop(Plain(model), inputs, LOOPS, at)]
    found += [Plain(model).last(inputs, loops, at, no_grad_loops=first) for first in (0, 2)]
    for ours, theirs in zip(found, wanted, strict=True):
        assert_all_close(compute_gradients(ours, model), compute_gradients(theirs, model))


# A user's own module


@dataclass(frozen=True)
class _ModuleSpec(lw.ModelSpec):
    returns_text: bool = False

    def build(self, reads, writes, *, causal):
        if self.returns_text:
            return "a model"
        return nn.Sequential(nn.Embedding(len(reads), 8), nn.GELU(), nn.Linear(8, len(writes)))


RECIPE = lw.Recipe(
    "own", lw.Parity(), lw.FullOutput(), lw.Uniform(4), lw.Constant(), _ModuleSpec(), Final(), steps=3, batch=8
)


def test_a_module_with_a_padding_mask_parameter_receives_it():
    class MaskedModule(nn.Module):
        def forward(self, tokens, padding_mask):
            return nn.functional.one_hot(tokens * padding_mask, 6).double()

    inputs = build_rows(width=10)
    read = SinglePass(MaskedModule()).advance(None, (inputs.tokens, inputs.padding_mask)).argmax(-1)
    assert torch.equal(read, inputs.tokens * inputs.padding_mask)


def test_a_module_whose_output_has_another_shape_is_refused_in_one_line(build_runner):
    model = SinglePass(nn.Sequential(nn.Embedding(6, 4), nn.Flatten()))
    with pytest.raises(lw.UsageError, match=r"map tokens \(3, 9\) to logits .*, but Sequential returned \(3, 36\)"):
        compute_logits(build_runner(model), build_rows(), [1] * 3)
    with pytest.raises(lw.UsageError, match="must return a torch module, not 'a model'"):
        replace(RECIPE, model=_ModuleSpec(returns_text=True)).build()


def test_number_embeddings_are_a_linear_map_of_a_symbols_digits():
    columns = lw.Vocab(("00", "07", "70", "77"))
    spec = lw.Transformer(read_in="numbers")
    none, low, high, both = spec.build(columns, columns, causal=False).embedding(torch.arange(4))
    torch.testing.assert_close(both - high, low - none)
    for symbols in ("a b", "1 10"):
        with pytest.raises(lw.UsageError, match=f"equally many digits, such as those of Pairs, not {symbols}"):
            spec.build(lw.Vocab(tuple(symbols.split())), columns, causal=False)


def test_building_a_recipes_model_does_not_change_the_global_generator():
    before = torch.get_rng_state()
    RECIPE.build()
    assert torch.equal(before, torch.get_rng_state())
