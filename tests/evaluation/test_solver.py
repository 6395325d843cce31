"""Decoding: answers to prompts, their perplexity, and the cache of earlier positions."""

from dataclasses import replace

import pytest
import torch
from specs import list_parts

from lengthwise.api import catalog
from lengthwise.base.fields import format_part
from lengthwise.base.rng import stream
from lengthwise.base.types import Problems, UsageError
from lengthwise.evaluation.answers import decode, decode_without_cache
from lengthwise.evaluation.scores import perplexity
from lengthwise.evaluation.solver import Solver
from lengthwise.experiment.data import draw_fresh_problems
from lengthwise.experiment.stopping import Oracle
from lengthwise.nn.window import LocalHeadsEncoding
from lengthwise.runners.cpu import choose_decoder, plain
from lengthwise.runners.plain import Plain
from lengthwise.runs.run import Weights

TASKS_AND_PROMPTS = {
    "parity": ("task=Parity", "110"),
    "copy": ("task=Copy(alphabet=3)", "2101"),
    "addition": ("task=Addition(order=least)", "12+9"),
}
LAYOUTS = ["NextToken", "NextToken(pauses=2)", "FullOutput", "FullOutput(pauses=2)"]


def build_weights(task, layout, seed=0, changes=()):
    base = [task, f"layout={layout}", "model.width=16", "loops=Constant(count=2)"]
    recipe = catalog.find_recipe("looped-parity", [*base, *changes])
    return Weights("untrained", recipe, recipe.change(seed=seed).build().eval())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("task", TASKS_AND_PROMPTS)
def test_every_accepted_layout_answers(task, layout):
    change, prompt = TASKS_AND_PROMPTS[task]
    answered = Solver(build_weights(change, layout)).solve(prompt)
    assert answered.text == answered.right or not answered.correct
    assert 0 < answered.confidence <= 1
    assert answered.loops == 2
    assert answered.perplexity >= 1


def test_perplexity_is_that_of_the_right_answer_not_of_the_decoded_one():
    """Perplexity is exp(−mean log p) over the right symbols and the end symbol, each given the right ones before it."""
    made = build_weights("task=Addition(order=least)", "NextToken")
    recipe = made.recipe
    problems = Problems.join([recipe.task.parse(text) for text in ("12+9", "7+1", "99+99")])
    batch, end_id = recipe.layout.write(problems, recipe.task), recipe.layout.end_id(recipe.task)
    found = perplexity(made.model, batch, torch.tensor([2, 2, 2]), end_id)
    for row, right in enumerate(("12", "8", "891")):
        batch = recipe.layout.write(problems.take(slice(row, row + 1)), recipe.task)
        with torch.no_grad():
            logs = Plain(made.model).last(batch.inputs, torch.tensor([2]), batch.loss_mask).log_softmax(-1)
        vocab = recipe.layout.vocabs(recipe.task)[1]
        ids = [*vocab.encode(right).tolist(), vocab.id("$")]
        by_hand = torch.stack([log[id] for log, id in zip(logs, ids, strict=True)]).mean().neg().exp()
        torch.testing.assert_close(found[row], by_hand)
        assert abs(Solver(made).solve(("12+9", "7+1", "99+99")[row]).perplexity - float(by_hand)) < 1e-5


def test_perplexity_ignores_the_tail_after_the_answer():
    perplexities = [
        Solver(build_weights("task=UniqueSet", f"FullOutput(whole_tail={tail})")).solve("aab").perplexity
        for tail in ("false", "true")
    ]
    assert perplexities[0] == pytest.approx(perplexities[1])


CACHED_POSITIONS = {
    "looped, rows of different loops": ["loops=PerRound(times=2)"],
    "two layers, three loops": ["model.layers=2", "loops=Constant(count=3)"],
    "every kind of position": ["model.positions=(Learned(size=40), RoPE, ALiBi, Abacus(added_to=attention))"],
    "randomized": ["model.positions=(Randomized(encoding=FIRE, size=50),)", "model.embedding_norm=true"],
    "places": ["model.positions=(Coupling, CoupledHeads(count=1))"],
    "with a blank": ["model.positions=(EarlierHeads(count=1),)", "loops=Constant(count=2)"],
    "as published": ["model.norm=post", "model.injection=layers", "model.readout=mlp", "loops=PerRound"],
    "recurrent": ["model=LSTM(width=8, hidden=6, layers=2, dropout=0.0)"],
    "recurrent and looped": ["model=LSTM(width=8, hidden=6, layers=2)", "loops=PerRound"],
    "recurrent attention": ["model=ReTran(width=8, hidden=6, layers=3, heads=2)"],
    "recurrent attention, looped": ["model=ReTran(width=8, hidden=6, heads=2)", "loops=Constant(count=2)"],
    "two windows": ["model.positions=(Local(reach=2), LocalHeads(count=1))"],
}
ALL_POSITIONS = {format_part(position): position for position in list_parts("positions")}


@pytest.mark.usefixtures("fast_runners")
@pytest.mark.parametrize("name", [*CACHED_POSITIONS, *ALL_POSITIONS])
def test_decoding_with_a_cache_equals_decoding_without(name):
    """Decoding with and without a cache gives equal answers on causal rows, for every positional encoding."""
    predicted = set()
    for seed in range(3 if name in CACHED_POSITIONS else 1):
        changes = ["model.positions=(NoPE,)", *CACHED_POSITIONS.get(name, [])]
        made = build_weights("task=Addition(order=least)", "NextToken", seed, changes)
        recipe, model = made.recipe, made.model.double()
        if name in ALL_POSITIONS:
            recipe = replace(recipe, model=replace(recipe.model, positions=(ALL_POSITIONS[name],)))
            model = recipe.build().double()
        for parameter in model.parameters():
            parameter.data += 0.4 * torch.randn(parameter.shape, generator=stream(seed, *parameter.shape))
        sizes = torch.tensor([[1, 1], [5, 2], [3, 6], [2, 2], [4, 4]])
        batch = recipe.layout.write(recipe.task.sample(sizes, stream(0, "sums")), recipe.task)
        assert choose_decoder(model, batch.inputs) is not None
        fast, slow = (how(model, recipe, batch, Oracle()) for how in (decode, decode_without_cache))
        assert torch.equal(fast.symbols, slow.symbols)
        assert torch.equal(fast.loops, slow.loops)
        torch.testing.assert_close(fast.confidence, slow.confidence, atol=1e-5, rtol=0)
        predicted |= set(slow.symbols.flatten().tolist())
        if len(predicted) > 3:
            break
    assert len(predicted) > 3 or name in ALL_POSITIONS


def test_a_model_without_a_cached_runner_rereads_the_row_for_every_symbol(fast_runners):
    made = build_weights("task=Copy", "NextToken")
    problems = draw_fresh_problems(made.recipe.task, (3,), 8, seed=0)
    batch = made.recipe.layout.write(problems, made.recipe.task)
    before = decode(made.model, made.recipe, batch, Oracle()).symbols
    assert choose_decoder(made.model, batch.inputs) is not None
    with plain():
        assert choose_decoder(made.model, batch.inputs) is None
    seen = []
    made.model.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    assert choose_decoder(made.model, batch.inputs) is None
    assert torch.equal(decode(made.model, made.recipe, batch, Oracle()).symbols, before)
    assert len(seen) == 2 * int(batch.answer_slots.sum(1).max())  # two loops for each symbol


def test_decoding_does_not_depend_on_the_answer():
    made = build_weights("task=Copy", "NextToken")
    problems = draw_fresh_problems(made.recipe.task, (4,), 8, seed=0)
    batch = made.recipe.layout.write(problems, made.recipe.task)
    first = decode(made.model, made.recipe, batch, Oracle())
    after = batch.answer_slots & (batch.answer_slots.cumsum(1) > 1)
    batch.inputs.tokens[after] = 1 - batch.inputs.tokens[after].clamp(max=1)
    assert torch.equal(first.symbols, decode(made.model, made.recipe, batch, Oracle()).symbols)


@pytest.mark.parametrize(
    "positions", ["Learned(size=8)", "Coupling(size=8,offset=1,added_to=attention)", "Abacus(size=8,offset=1)"]
)
def test_a_prompt_that_is_too_long_is_refused_before_any_attention_bias_is_computed(positions, monkeypatch):
    monkeypatch.setattr(LocalHeadsEncoding, "attention_bias", lambda *_: pytest.fail("a bias was computed"))
    change = f"model.positions=(LocalHeads(count=1),{positions})"
    solver = Solver(build_weights("task=Addition(order=least)", "NextToken", changes=[change]))
    with pytest.raises(UsageError, match="does not fit the"):
        solver.solve("123456789+123456789")
