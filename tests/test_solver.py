"""Answers to prompts, decoded and read off at once."""

from dataclasses import replace

import pytest
import torch

from lengthwise import catalog
from lengthwise.data import fresh_problems
from lengthwise.evaluation import answer, slots
from lengthwise.generate import decode, respond
from lengthwise.layout import until_end
from lengthwise.run import Weights
from lengthwise.solver import Solver
from lengthwise.stopping import MaxConfidence, Oracle
from lengthwise.types import UsageError

CASES = {
    "parity": ("task=Parity", "110"),
    "copy": ("task=Copy(alphabet=3)", "2101"),
    "addition": ("task=Addition(order=least)", "12+9"),
}
LAYOUTS = ["NextToken", "NextToken(pauses=2)", "FullOutput", "FullOutput(pauses=2)"]


def weights(task, layout, seed=0):
    recipe = catalog.recipe("looped-parity", [task, f"layout={layout}", "model.width=16", "loops=Constant(count=2)"])
    return Weights("untrained", recipe, recipe.change(seed=seed).build().eval())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("task", CASES)
def test_every_accepted_layout_answers(task, layout):
    change, prompt = CASES[task]
    answered = Solver(weights(change, layout)).solve(prompt)
    assert answered.text == answered.right or not answered.correct
    assert 0 < answered.confidence <= 1
    assert answered.loops == 2


def test_decoding_is_right_exactly_where_the_teacher_forced_row_is():
    """Models are untrained, so in every second row the truth is made to be what decoding says."""
    right = 0
    for seed in range(6):
        made = weights("task=Copy", "NextToken", seed)
        task, layout = made.recipe.task, made.recipe.layout
        problems = fresh_problems(task, (3,), 24, seed=seed)
        spoken = decode(made.model, made.recipe, layout.write(problems, task), Oracle()).symbols
        length = until_end(spoken, layout.end(task)).sum(1)
        ours = (torch.arange(24) % 2 == 0) & (length <= 3)  # an answer of four symbols would leave no room for its end
        problems = replace(
            problems,
            answer=torch.where(ours[:, None], spoken[:, :3], problems.answer),
            answer_length=torch.where(ours, length, problems.answer_length),
        )
        batch = layout.write(problems, task)
        wanted, asked = slots(batch.targets, batch.room), slots(batch.asked, batch.room)
        decoded, forced = (
            ((said(made.model, made.recipe, batch, Oracle()).symbols == wanted) | ~asked).all(1)
            for said in (decode, answer)
        )
        assert torch.equal(decoded, forced)
        assert bool(decoded[ours].all())
        right += int(decoded.sum())
    assert 0 < right < 6 * 24


def test_decoding_sees_nothing_of_the_answer():
    made = weights("task=Copy", "NextToken")
    problems = fresh_problems(made.recipe.task, (4,), 8, seed=0)
    batch = made.recipe.layout.write(problems, made.recipe.task)
    first = decode(made.model, made.recipe, batch, Oracle())
    after = batch.room & (batch.room.cumsum(1) > 1)
    batch.inputs.tokens[after] = 1 - batch.inputs.tokens[after].clamp(max=1)
    assert torch.equal(first.symbols, decode(made.model, made.recipe, batch, Oracle()).symbols)


def test_rules_that_look_at_the_answer_are_refused_where_it_is_fed_in():
    made = weights("task=Copy", "NextToken")
    problems = made.recipe.task.parse("01")
    with pytest.raises(UsageError, match="Oracle or After"):
        respond(made.model, made.recipe, problems, MaxConfidence())


def test_python_interface(tmp_path):
    import lengthwise as lw

    run = lw.train("looped-pairs", "steps=3", "batch=4", "watch.every=0", seed=3)
    assert run.recipe.seed == run.recipe.data_seed == 3
    scores = lw.evaluate(run, lengths=range(1, 4), samples=5)
    assert [score.sizes for score in scores] == [(1,), (2,), (3,)]
    assert lw.load(run).solve("12+9").right == "21"
    assert lw.load(run.folder).solve("12+9") == lw.load(run).solve("12+9")
    assert lw.train(run.recipe).folder == run.folder
