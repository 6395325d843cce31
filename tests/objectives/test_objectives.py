"""Laws of every objective with every model: its loss is the combination of the losses of rows run one at a time."""

import re
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import takewhile

import pytest
import torch
from conftest import LONG
from specs import PART_SPECS, add_noise, can_build, list_parts
from torch.nn import functional as F

import lengthwise as lw
from lengthwise.base.fields import format_part
from lengthwise.objectives import Halting, compute_loss_and_accuracy
from lengthwise.runners.plain import Plain

BASE_SPEC = lw.Transformer(width=8, heads=2)
SPECS = [
    *(replace(BASE_SPEC, positions=(position,)) for position in (lw.RoPE(), lw.Learned(20), lw.Local(1))),
    lw.LSTM(8, 6, 2, dropout=0.0),
    lw.ReTran(8, 4, 2 if LONG else 1, heads=2, dropout=0.0),
    *[spec for spec in PART_SPECS if not isinstance(spec, lw.Transformer)],
]
SPECS[1] = replace(SPECS[1], injection="once")
OBJECTIVES = [lw.Final(), lw.Every(), lw.Progressive(), lw.Progressive(weight=0.8, truncated=True)]
OBJECTIVES += [part for part in list_parts("objectives") if not isinstance(part, (lw.Final, lw.Every, lw.Progressive))]
TASK_LAYOUTS = [(lw.Addition(3), layout) for layout in (lw.FullOutput(), lw.NextToken(1), lw.Pairs())]
TASK_LAYOUTS += [(lw.Copy(), lw.FullOutput())]
ROW_LOOPS = torch.tensor([3, 1, 4, 2, 3, 1])


def format_id(part):
    """Return a part's name for a test id."""
    return "+".join(map(repr, part.positions)) if isinstance(part, lw.Transformer) else format_part(part)


def list_accepted_settings(spec):
    return [(task, layout) for task, layout in TASK_LAYOUTS if can_build(spec, layout.causal, *layout.vocabs(task))]


def select_settings(settings, number):
    """Return all settings or, in short test runs, the one at index ``number`` modulo their count."""
    return settings if LONG else [settings[number % len(settings)]]


every_setting = pytest.mark.parametrize(
    ("spec", "task", "layout"),
    [(spec, *setting) for i, spec in enumerate(SPECS) for setting in select_settings(list_accepted_settings(spec), i)],
    ids=format_id,
)


@cache
def build_model_and_batch(spec, task, layout):
    """Return a float64 model whose logits depend on every parameter, and a batch of answers of several lengths."""
    torch.manual_seed(0)
    model = add_noise(spec.build(*layout.vocabs(task), causal=layout.causal))
    draw = lw.stream(0, "setting")
    sizes = torch.randint(1, 4, (len(ROW_LOOPS), len(task.axes)), generator=draw)
    return model, layout.write(task.sample(sizes, draw), task)


def compute_loss_and_gradients(objective, runner, batch, seed=0):
    """Return the loss and every parameter's gradient."""
    model = runner.model
    model.zero_grad()
    loss = objective(runner, batch, ROW_LOOPS, lw.stream(seed, "objective"))
    loss.value.backward()
    return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


def run_single_row(model, batch, i, depth, grad_loops=None, smoothing=0.0):
    """Return the summed loss and the numbers of right and of supervised tokens of row i alone after ``depth`` loops."""
    row = batch.take(slice(i, i + 1))
    width = int(row.inputs.padding_mask.sum())
    context = model.embed(lw.Inputs(**{name: value[:, :width] for name, value in vars(row.inputs).items()}))
    state = model.start(context)
    for loop in range(depth):
        with torch.set_grad_enabled(grad_loops is None or loop >= depth - grad_loops):
            state = model.advance(state, context)
    logits, targets = model.read(state)[row.loss_mask[:, :width]], row.targets[row.loss_mask]
    loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return loss, int((logits.argmax(-1) == targets).sum()), len(targets)


def average_rows(parts):
    losses, right, loss_mask = zip(*parts, strict=True)
    return sum(losses) / sum(loss_mask), sum(right) / sum(loss_mask)


def compute_final_loss(model, batch, max_loops=99, grad_loops=None, smoothing=0.0):
    """Return mean loss and accuracy over all supervised tokens, each row after its own loops or at most ``max_loops``.
    Gradients go through the last ``grad_loops`` loops of the row with most loops."""
    max_loops = min(max_loops, int(ROW_LOOPS.max()))
    loops = ROW_LOOPS.clamp(max=max_loops).tolist()
    return average_rows(
        [
            run_single_row(model, batch, i, n, grad_loops and max(0, n - (max_loops - grad_loops)), smoothing)
            for i, n in enumerate(loops)
        ]
    )


def compute_every_loss(model, batch):
    """Return mean loss and accuracy over loops, where a loop's mean over tokens is weighted by its number of rows."""
    total = right = rows = 0
    for k in range(1, int(ROW_LOOPS.max()) + 1):
        running = [i for i, loops in enumerate(ROW_LOOPS) if loops >= k]
        loss, hits = average_rows([run_single_row(model, batch, i, k) for i in running])
        total, right, rows = total + len(running) * loss, right + len(running) * hits, rows + len(running)
    return total / rows, right / rows


@cache
def compute_reference(reference, spec, task, layout, *more):
    """Return loss, fraction of right tokens and gradients, computed once for all tests and runners."""
    model, batch = build_model_and_batch(spec, task, layout)
    value, right = reference(model, batch, *more)
    return value.detach(), right, compute_gradients(value, model)


def combine_losses(weight, all_loops, fewer_loops):
    """Return (1 − weight) · all_loops + weight · fewer_loops, for losses and for gradients."""
    gradients = {name: (1 - weight) * found + weight * fewer_loops[2][name] for name, found in all_loops[2].items()}
    return (1 - weight) * all_loops[0] + weight * fewer_loops[0], gradients


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-9)


def compute_gradients(value, model):
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(value, list(parameters.values()), materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


def are_equal_gradients(gradients, expected):
    zero = torch.zeros((), dtype=torch.float64)
    pairs = [[zero if found is None else found for found in (gradients[name], expected[name])] for name in gradients]
    return all(torch.allclose(*torch.broadcast_tensors(*pair), atol=1e-9, rtol=1e-9) for pair in pairs)


# Comparison with rows run one at a time


smoothed_loss = partial(compute_final_loss, smoothing=0.3)


@every_setting
@pytest.mark.parametrize(
    ("objective", "reference"),
    [(lw.Final(), compute_final_loss), (lw.Final(0.3), smoothed_loss), (lw.Every(), compute_every_loss)],
    ids=["final", "smoothed", "every"],
)
def test_final_and_every_equal_losses_computed_row_by_row(spec, task, layout, objective, reference, build_runner):
    model, batch = build_model_and_batch(spec, task, layout)
    loss, found = compute_loss_and_gradients(objective, build_runner(model), batch)
    value, right, wanted = compute_reference(reference, spec, task, layout)
    assert_close(loss.value, value)
    assert float(loss.logs["token_accuracy"]) == pytest.approx(float(right))
    assert are_equal_gradients(found, wanted)
    if "last_loss" in loss.logs:
        last, _ = average_rows([run_single_row(model, batch, int(ROW_LOOPS.argmax()), int(ROW_LOOPS.max()))])
        assert_close(loss.logs["last_loss"], last.detach())
    assert ("last_loss" in loss.logs) == isinstance(objective, lw.Every)


@pytest.mark.parametrize("spec", SPECS if LONG else SPECS[1:4:2], ids=format_id)
def test_progressive_equals_losses_computed_row_by_row(spec, build_runner):
    """The loss is (1 − weight) · L(all loops) + weight · L(r loops), and every r in 1 … R is drawn."""
    setting = list_accepted_settings(spec)[0]
    model, batch = build_model_and_batch(spec, *setting)
    by_depth = {depth: compute_reference(compute_final_loss, spec, *setting, depth) for depth in range(1, 5)}
    wanted = {depth: combine_losses(0.7, by_depth[4], fewer) for depth, fewer in by_depth.items()}
    drawn = set()
    for seed in takewhile(lambda _: len(drawn) < 4, range(12)):
        loss, found = compute_loss_and_gradients(lw.Progressive(0.7), build_runner(model), batch, seed)
        # Several depths are equal if further loops change nothing.
        depths = [depth for depth, (value, _) in wanted.items() if abs(value - loss.value) < 1e-9]
        assert_close(loss.logs["full_loss"], by_depth[4][0])
        assert are_equal_gradients(found, wanted[depths[0]][1])
        drawn.update(depths)
    assert drawn == {1, 2, 3, 4}


@pytest.mark.parametrize("spec", SPECS[:2] if LONG else SPECS[:1], ids=format_id)
def test_truncated_progressive_equals_full_runs_with_gradients_of_the_last_loops(spec, build_runner):
    """With R = 4, n in 0 … 3 loops run without gradients and k in 1 … min(4 − n, 2) with them; the full run has
    gradients in its last 2. Losses do not depend on which loops have gradients."""
    model, batch = build_model_and_batch(spec, *TASK_LAYOUTS[1])
    pairs = [(n, k) for n in range(4) for k in range(1, min(4 - n, 2) + 1)]
    full = compute_reference(compute_final_loss, spec, *TASK_LAYOUTS[1], 4, 2)
    fewer_loops = {(n, k): compute_reference(compute_final_loss, spec, *TASK_LAYOUTS[1], n + k, k) for n, k in pairs}
    wanted = {pair: combine_losses(0.7, full, reference) for pair, reference in fewer_loops.items()}
    drawn = set()
    for seed in takewhile(lambda _: len(drawn) < len(pairs), range(40)):
        loss, found = compute_loss_and_gradients(lw.Progressive(0.7, truncated=True), build_runner(model), batch, seed)
        close_values = [(pair, slow) for pair, (value, slow) in wanted.items() if abs(value - loss.value) < 1e-9]
        (pair,) = [pair for pair, slow in close_values if are_equal_gradients(found, slow)]
        drawn.add(pair)
    assert drawn == set(pairs)


def test_all_objectives_are_equal_for_a_single_loop(build_runner):
    """For a model that is advanced once, all objectives give the loss of ``Final``."""
    model, batch = build_model_and_batch(BASE_SPEC, lw.Addition(3), lw.FullOutput())
    ones = torch.ones_like(ROW_LOOPS)
    batch = replace(batch, rounds=ones)  # no row stops early
    once = [objective for objective in OBJECTIVES if not objective.takes_several_steps]
    first, *others = (objective(build_runner(model), batch, ones, lw.stream(0, "x")).value for objective in once)
    for value in others:
        assert_close(value, first)


def test_rows_that_stop_early_are_trained_to_give_no_answer(build_runner):
    """Only the first answer slot of rows that stop early is supervised; other rows are supervised as by ``Final``."""
    model, batch = build_model_and_batch(BASE_SPEC, lw.Addition(3), lw.FullOutput())
    batch = replace(batch, rounds=torch.tensor([3, 2, 4, 2, 4, 1]))  # the second row and the fifth stop one loop early

    def compute_halting_loss(batch, additional_loops=0):
        return Halting(additional_loops)(build_runner(model), batch, ROW_LOOPS, lw.stream(0, "x")).value

    logs = build_runner(model).last(batch.inputs, ROW_LOOPS, batch.answer_slots).log_softmax(-1)
    rows, end = batch.answer_slots.nonzero()[:, 0], lw.FullOutput().end_id(lw.Addition(3))
    empty = torch.stack([-logs[rows == row][0, end] for row in (1, 4)])
    answers = []
    for row in (0, 2, 3, 5):
        slots = batch.answer_slots[row]
        losses = -logs[rows == row].gather(1, batch.targets[row][slots][:, None])[:, 0]
        answers.append(losses[batch.loss_mask[row][slots]])
    found = compute_halting_loss(batch)
    assert_close(found, 4 / 6 * torch.cat(answers).mean() + 2 / 6 * empty.mean())
    assert_close(compute_halting_loss(replace(batch, rounds=batch.rounds - 1), additional_loops=1), found)
    other = batch.targets.clone()
    other[1, batch.loss_mask[1].long().argmax()] = 2
    assert_close(compute_halting_loss(replace(batch, targets=other)), found)


def test_a_segment_continues_from_the_state_of_the_previous_one():
    """A segment's loss is the loss after all loops so far; its gradient comes from its own loops alone."""
    model, batch = build_model_and_batch(SPECS[0], lw.Copy(), lw.FullOutput())
    loops, runner = torch.full_like(ROW_LOOPS, 2), Plain(model)
    for number, loss in enumerate(lw.Segments(count=3).steps(runner, batch, loops, lw.stream(0, "objective")), 1):
        model.zero_grad()
        loss.value.backward()
        gradients = [weight.grad.clone() for weight in model.parameters()]
        model.zero_grad()
        earlier = 2 * (number - 1)
        logits = runner.last(batch.inputs, number * loops, batch.loss_mask, no_grad_loops=earlier)
        value, _ = compute_loss_and_accuracy(logits, batch.targets[batch.loss_mask])
        value.backward()
        torch.testing.assert_close(loss.value, value)
        torch.testing.assert_close(gradients, [weight.grad for weight in model.parameters()])


WRONG_RETURNS = [
    lambda value: value.item(), lambda value: value, lambda value: None, lambda value: (value, {}),
    lambda value: lw.Loss(value, {"loss": value.item()}), lambda value: lw.Loss(value, None),
    lambda value: lw.Loss(value.expand(2), {}),
]  # fmt: skip


@dataclass(frozen=True)
class WrongReturn(lw.Final):
    """An objective that returns a value of the wrong type."""

    form: int = 0

    def __call__(self, runner, batch, loops, generator):
        return WRONG_RETURNS[self.form](super().__call__(runner, batch, loops, generator).value)


@pytest.mark.parametrize("form", range(len(WRONG_RETURNS)))
def test_an_objective_that_returns_no_loss_is_refused_in_training_and_by_check(form):
    told = r"^WrongReturn must return lw\.Loss\(value, logs\), with a tensor of one number as value, .*, not "
    with pytest.raises(lw.UsageError, match=told):
        lw.train("looped-parity", objective=WrongReturn(form=form), steps=2, quiet=True)
    assert all(re.match(told, finding.failing_case) for finding in lw.check(WrongReturn(form=form)).broken)
