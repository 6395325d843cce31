"""``Timed``: a separate clock decides whether there is an answer yet; only the clock learns when to stop."""

from dataclasses import replace

import pytest
import torch
from specs import BASE, add_noise, build_rows

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.types import END, EQUALS, Vocab
from lengthwise.models.timed import DONE, WAITS, Timed
from lengthwise.objectives import Halting
from lengthwise.runners.cpu import choose_runner
from lengthwise.runners.plain import Plain
from lengthwise.tasks.bits import BinarySum
from lengthwise.testing.laws_of_models import READS, WRITES, compute_logits

SPEC = Timed(answers=replace(BASE, layers=2), clock=BASE)


def build_timed(spec=SPEC, reads=READS, writes=WRITES):
    torch.manual_seed(0)
    return add_noise(spec.build(reads, writes, causal=True))


def test_at_the_equals_sign_the_clock_gives_the_end_symbols_probability():
    model, inputs = build_timed(), build_rows([9, 7])
    first = inputs.tokens == READS.id(EQUALS)
    assert first.any() and not first.all()
    loops = [3, 2]
    found, answers, clock = (compute_logits(Plain(one), inputs, loops) for one in (model, model.answers, model.clock))
    probability, end = clock.softmax(-1), torch.arange(len(WRITES)) == WRITES.id(END)
    assert torch.equal(found[~first], answers[~first])
    torch.testing.assert_close(found[first].exp()[:, end], probability[first][:, WAITS, None])
    others = answers[first][:, ~end].softmax(-1) * probability[first][:, DONE, None]
    torch.testing.assert_close(found[first].exp()[:, ~end], others)


@pytest.mark.parametrize("stops_early", [True, False])
def test_a_row_that_stops_early_trains_only_the_clock(stops_early):
    task, layout = BinarySum(), lw.FullOutput()
    batch = layout.write(task.sample(torch.full((4, 1), 6), lw.stream(0, "rows")), task)
    model = build_timed(SPEC, *layout.vocabs(task))
    loops = batch.rounds - 1 if stops_early else batch.rounds
    Halting()(choose_runner(model), batch, loops, lw.stream(0, "loss")).value.backward()
    steepest = {
        name: max(float(one.grad.abs().max()) for one in part.parameters()) for name, part in model.named_children()
    }
    assert steepest["clock"] > 1e-3
    assert (steepest["answers"] < 1e-6) if stops_early else (steepest["answers"] > 1e-3)  # up to rounding


@pytest.mark.parametrize("name", ["halting-binary-sum", "looped-multiplication", "looped-flipped-copy"])
def test_a_clock_with_merged_symbols_sees_only_signs_and_lengths(name):
    recipe = catalog.find_recipe(name, ["model.merge_symbols=true"])
    torch.manual_seed(0)
    model = add_noise(recipe.build())
    sizes = torch.tensor([recipe.sizes(5)]).repeat(6, 1)
    inputs = recipe.layout.write(recipe.task.sample(sizes, lw.stream(0, "rows")), recipe.task).inputs
    assert len({*map(str, inputs.tokens.tolist())}) > 1
    read = model.build_clock_inputs(inputs)
    logits = Plain(model.clock).last(read, torch.full((6,), 4), inputs.padding_mask)
    alike = logits.view(6, -1, logits.shape[-1])
    torch.testing.assert_close(alike, alike[:1].expand_as(alike))
    signs = ~torch.tensor([symbol.isalnum() for symbol in recipe.layout.vocabs(recipe.task)[0].symbols])
    signs = signs[inputs.tokens]
    assert torch.equal(read.tokens[signs], inputs.tokens[signs])


@pytest.mark.parametrize("merge_symbols", [False, True])
def test_timed_transformers_have_a_fast_runner_that_equals_the_plain_one(merge_symbols):
    model, inputs = build_timed(replace(SPEC, merge_symbols=merge_symbols)), build_rows([9, 7])
    fast, plain = (compute_logits(one, inputs, [3, 2]) for one in (choose_runner(model), Plain(model)))
    assert type(choose_runner(model)).__name__ == "Twice"
    torch.testing.assert_close(fast, plain)
    nested = replace(SPEC, answers=Timed(answers=lw.Transformer(width=8, heads=2), clock=BASE))
    assert type(choose_runner(build_timed(nested))).__name__ == "Plain"


@pytest.mark.parametrize(
    ("reads", "writes"),
    [(Vocab(tuple("01")), WRITES), (READS, Vocab(tuple("xy"))), (Vocab(tuple("01=#")), WRITES)],
    ids=["no equals sign", "no end", "pauses"],
)
def test_layouts_without_equals_sign_or_end_or_with_pauses_are_refused(reads, writes):
    with pytest.raises(lw.UsageError, match="Timed needs a layout with = and an end symbol, but no pauses"):
        SPEC.build(reads, writes, causal=True)
