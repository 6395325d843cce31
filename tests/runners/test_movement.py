"""The relative movement of a state in each loop follows its formula row by row, in every runner."""

import pytest
import torch
from conftest import LONG
from forms import EVERY, VARIED, built, close, names, some

from lengthwise.evaluation.answers import predict_by_rules
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.data import evaluation_problems
from lengthwise.experiment.stopping import After, Settled
from lengthwise.runners.cpu import choose_runner
from lengthwise.runners.plain import Plain, relative_movement
from lengthwise.runs.run import load

LOOPS = torch.tensor([3, 1, 4])


def moves_and_logits(runner, inputs, at):
    """Return movement and logits by loop and row, independent of the runner's order of rows."""
    found = {}
    for step in runner.steps(inputs, LOOPS, at, movement=True):
        for row, far, logits in zip(
            step.rows.tolist(), step.movement, step.logits.split(at[step.rows].sum(1).tolist()), strict=True
        ):
            found[step.loop, row] = far, logits
    assert sorted(found) == sorted((k, row) for row, count in enumerate(LOOPS.tolist()) for k in range(1, count + 1))
    return found


MODELS = EVERY if LONG else VARIED


@pytest.mark.parametrize(("spec", "causal"), MODELS, ids=names(MODELS))
@torch.no_grad()
def test_movement_follows_the_formula_in_every_runner(spec, causal):
    model, inputs = built(spec, causal).eval(), some(width=10)
    at = inputs.padding_mask
    plainly, chosen = moves_and_logits(Plain(model), inputs, at), moves_and_logits(choose_runner(model), inputs, at)
    for row, count in enumerate(LOOPS.tolist()):
        length, context = int(at[row].sum()), model.embed(inputs.take(slice(row, row + 1)).cut_padding())
        state, states = model.start(context), []
        for loop in range(1, count + 1):
            far, logits = plainly[loop, row]
            close(far, chosen[loop, row][0])
            close(logits, chosen[loop, row][1])
            assert (far[length:] == 0).all() and (far[:, 1].isinf() == (at[row] & (loop < 3))).all()
            state = model.advance(state, context)
            states.append(model.answer_state(state))
            for period in range(1, min(3, loop)):
                now, before = states[-1], states[-1 - period]
                close(far[:length, period - 1], (now - before).norm(dim=-1)[0] / now.norm(dim=-1)[0])


def test_parts_of_a_state_are_concatenated_and_those_without_positions_count_at_each():
    real = torch.tensor([[True, True, False], [True, False, False]])
    now = (torch.full((2, 3, 2), 2.0), (torch.tensor([[6.0], [0.0]]), torch.tensor([1, 2])))
    before = (torch.full((2, 3, 2), 2.0), (torch.tensor([[0.0], [0.0]]), torch.tensor([1, 1])))
    over_one, over_two = relative_movement(now, [before], real).unbind(-1)
    close(over_one, torch.tensor([[6 / 44**0.5] * 2 + [0.0], [0.0] * 3]), 1e-6)
    assert over_two.isinf().tolist() == real.tolist()


@pytest.mark.parametrize(
    ("name", "size", "period", "settles"),
    [
        ("looped-pairs", 8, 1, True),
        ("halting-parity", 20, 1, True),
        ("looped-parity", 20, 1, False),
        ("looped-parity", 20, 2, True),
    ],
)
def test_settled_stops_once_the_answering_state_is_stationary(name, size, period, settles):
    """``looped-parity`` alternates between two states; the changing clock of ``halting-parity`` is ignored."""
    weights = load(name)
    recipe = weights.recipe
    batch = recipe.layout.write(evaluation_problems(recipe, recipe.sizes(size), 8, seed=0), recipe.task)
    (found,) = predict_by_rules(weights.model, recipe, batch, [Settled(0.01, period=period, most=80)])
    assert bool(found.stopped.all()) == settles and (found.loops <= 80).all()
    (score,) = evaluate(weights, [size], samples=8, stopping=Settled(0.01, period=period, most=80))
    assert (score.at_limit == 0) == settles and score.row()["at_limit"] == score.at_limit
    (score,) = evaluate(weights, [size], samples=8, stopping=After(3))
    assert score.at_limit is None
