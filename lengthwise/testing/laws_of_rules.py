"""Laws of stopping rules, loops, lengths, objectives, sources of problems, optimizers and schedules."""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lengthwise.base.rng import preserve_generators, seed_torch, stream
from lengthwise.base.types import Batch, Loss, Trace, validate_loss
from lengthwise.experiment.layout import FullOutput
from lengthwise.experiment.lengths import Lengths
from lengthwise.experiment.loops import Loops
from lengthwise.experiment.optim import Optimizer, Schedule
from lengthwise.experiment.source import Purpose, Source
from lengthwise.experiment.stopping import Stopping, choose_loops, compute_loop_limits
from lengthwise.models import Model
from lengthwise.objectives import Objective
from lengthwise.runners.plain import Plain
from lengthwise.tasks.arithmetic import Addition
from lengthwise.testing.laws_of_models import SMALL_MODEL, add_noise
from lengthwise.testing.laws_of_parts import Broken

TRACE_COUNT = 100  # number of random traces per law
GARBAGE_VALUE = 7  # value that replaces predictions and confidences of loops that were not run
ROW_ROUNDS = torch.arange(1, 31).repeat(4)
CHECKED_STEPS = (0, 1, 10, 1000, 100_000)
TASK, LAYOUT = Addition(3), FullOutput()

PlannedTrace = tuple[Trace, Int[Tensor, " b"]]  # a trace and the planned loops of its rows

# Stopping rules


def every_row_has_a_limit(rule: Stopping) -> None:
    """``limit`` returns a whole number of loops, 1 or more, for each row."""
    compute_loop_limits(rule, ROW_ROUNDS)


def chosen_loop_was_run(rule: Stopping) -> None:
    """The chosen loop was run: it is between 1 and ``trace.loops`` (or the rule's limit, if the rule reads no
    outputs)."""
    for trace, planned in draw_traces():
        given = trace if rule.needs_movement else replace(trace, movement=None)  # as in an evaluation
        choose_loops(rule, given, planned, given.loops if rule.reads_output else compute_loop_limits(rule, planned))


def loops_not_run_are_ignored(rule: Stopping) -> None:
    """Values after a row's last loop, or after an answer's end, do not affect the rule's choice."""
    for trace, planned in draw_traces():
        longest, _, width = trace.predictions.shape
        ran = torch.arange(longest)[:, None] < trace.loops
        answered = ran[..., None] & (torch.arange(width) < trace.ends[..., None])
        ends, confidence = trace.ends.where(ran, GARBAGE_VALUE), trace.confidence.where(ran, float(GARBAGE_VALUE))
        movement = None if trace.movement is None else trace.movement.where(ran[..., None], -1.0)
        corrupted = Trace(trace.predictions.where(answered, GARBAGE_VALUE), ends, confidence, trace.loops, movement)
        chosen, changed = rule.choose(trace, planned), rule.choose(corrupted, planned)
        if not torch.equal(chosen, changed):
            given = f"rows ran {trace.loops.tolist()} loops: changing values after these, or after an answer's end"
            raise Broken(f"{given}, changes the choices from {chosen.tolist()} to {changed.tolist()}")


def choices_do_not_depend_on_other_rows(rule: Stopping) -> None:
    """A row's choice does not depend on other rows, unless the rule sets ``together``."""
    for trace, planned in draw_traces() if rule.together == 1 else ():
        together = rule.choose(trace, planned).tolist()
        alone = [int(rule.choose(take_row(trace, i), planned[i : i + 1])) for i in range(len(planned))]
        if together != alone:
            raise Broken(f"rows stop after {alone} loops when alone, but after {together} loops in one batch")


def draw_traces() -> Iterator[PlannedTrace]:
    """Yield random traces of 1 to 4 rows of 1 to 6 loops, and random planned loops. A trace also holds random values
    for loops that were not run."""
    draw = stream(0, "traces")

    def draw_integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=draw)

    for _ in range(TRACE_COUNT):
        rows, width = int(draw_integers(1, 4)), int(draw_integers(1, 3))
        loops = draw_integers(1, 6, rows)
        shape = int(loops.max()), rows
        # Confidences are multiples of 1/4, so that some are equal.
        moved = draw_integers(0, 8, *shape, 2) / 20
        predictions, ends = draw_integers(0, 1, *shape, width), draw_integers(1, width, *shape)
        yield Trace(predictions, ends, draw_integers(-6, 0, *shape) / 4, loops, moved), draw_integers(1, 6, rows)


def take_row(trace: Trace, index: int) -> Trace:
    """Return a trace of a single row of ``trace``."""
    row = slice(index, index + 1)
    movement = None if trace.movement is None else trace.movement[:, row]
    return Trace(trace.predictions[:, row], trace.ends[:, row], trace.confidence[:, row], trace.loops[row], movement)


# Loops and lengths


def every_row_has_a_loop(loops: Loops) -> None:
    """Planned and drawn numbers of loops are whole numbers, 1 or more, one per row."""
    for name, counts in (("planned", loops.planned(ROW_ROUNDS)), ("draw", loops.draw(ROW_ROUNDS, stream(0, "loops")))):
        if counts.dtype != torch.long or counts.shape != ROW_ROUNDS.shape or int(counts.min()) < 1:
            raise Broken(f"{name} returns {counts.dtype} of shape {tuple(counts.shape)}, minimum {counts.min()}")


def drawn_loops_come_from_the_generator(loops: Loops) -> None:
    """The same generator gives the same numbers of loops."""
    first, again = (loops.draw(ROW_ROUNDS, stream(0, "loops")) for _ in range(2))
    if not torch.equal(first, again):
        raise Broken(f"draws of loops with the same seed differ: {first[:5].tolist()}, then {again[:5].tolist()}")


def sizes_stay_in_the_range(lengths: Lengths) -> None:
    """Every step draws the requested number of problems, with sizes from ``bottom`` to ``top`` on each axis."""
    axes = len(TASK.axes)
    for step in CHECKED_STEPS:
        sizes = lengths.problems(TASK, step, 50, stream(0, "lengths")).sizes
        tops = torch.tensor(lengths.tops(axes))
        if sizes.shape != (50, axes) or (sizes < lengths.bottom).any() or (sizes > tops).any():
            raise Broken(f"step {step} draws {len(sizes)} problems of sizes {sizes.min()} to {sizes.max()}")


def drawn_problems_come_from_the_generator(lengths: Lengths) -> None:
    """The same generator gives the same problems."""
    first, again = (lengths.problems(TASK, 9, 50, stream(0, "lengths")).sizes for _ in range(2))
    if not torch.equal(first, again):
        raise Broken(f"draws of sizes with the same seed differ: {first[:3].tolist()}, then {again[:3].tolist()}")


# Objectives


def the_loss_is_a_number(objective: Objective) -> None:
    """The loss is one finite number above 0, is logged as ``loss``, and no logged value has a gradient."""
    model, batch = build_model_and_batch()
    loss = _compute_loss(objective, model, batch)
    if loss.value.shape != () or not loss.value.isfinite() or not loss.value > 0:
        raise Broken(f"the loss must be one finite number above 0, not {loss.value.tolist()}")
    if "loss" not in loss.logs or any(value.requires_grad for value in loss.logs.values()):
        raise Broken(f"the logs are {', '.join(loss.logs)}: `loss` must be one of them, and all must be detached")


def the_loss_comes_from_the_generator(objective: Objective) -> None:
    """The same generator gives the same loss for the same batch."""
    model, batch = build_model_and_batch()
    first, again = (_compute_loss(objective, model, batch).value for _ in range(2))
    if not torch.equal(first, again) and not first.isnan():
        raise Broken("the loss differs between two calls on one batch: draw random numbers from `generator` only")


def loss_depends_only_on_masked_targets(objective: Objective) -> None:
    """The loss depends on targets inside the loss mask, and not on targets outside it."""
    the_loss_comes_from_the_generator(objective)  # a random loss changes with any targets
    model, batch = build_model_and_batch()
    loss = _compute_loss(objective, model, batch).value
    random_ids = torch.randint(3, batch.targets.shape, generator=stream(0, "rubbish"))
    outside = replace(batch, targets=batch.targets.where(batch.loss_mask, random_ids))
    if not torch.equal(loss, _compute_loss(objective, model, outside).value):
        raise Broken("changing targets outside the loss mask changes the loss")
    inside = replace(batch, targets=(batch.targets + 1) % 3)
    if torch.equal(loss, _compute_loss(objective, model, inside).value):
        raise Broken("changing targets inside the loss mask does not change the loss")


def gradients_are_finite_and_not_all_zero(objective: Objective) -> None:
    """Some parameter has a gradient, and all gradients are finite."""
    model, batch = build_model_and_batch()
    _compute_loss(objective, model, batch).value.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not any(gradient.any() for gradient in gradients):
        raise Broken("no parameter has a gradient other than 0")
    if not all(gradient.isfinite().all() for gradient in gradients):
        raise Broken("a gradient is not finite")


def build_model_and_batch() -> tuple[Model, Batch]:
    """Return a small transformer and a batch of sums."""
    with preserve_generators():
        seed_torch(0)
        model = SMALL_MODEL.build(*LAYOUT.vocabs(TASK), causal=LAYOUT.causal)
    draw = stream(0, "setting")
    sizes = torch.randint(1, 5, (6, len(TASK.axes)), generator=draw)
    return add_noise(model), LAYOUT.write(TASK.sample(sizes, draw), TASK)


def _compute_loss(objective: Objective, model: Model, batch: Batch) -> Loss:
    """Return the mean of the losses that the objective yields for a batch, one per optimizer step, as in training."""
    steps = objective.steps(Plain(model), batch, batch.rounds, stream(0, "objective"))
    losses = [validate_loss(objective, loss) for loss in steps]
    if not losses:
        raise Broken("`steps` yields no loss")
    return losses[0] if len(losses) == 1 else Loss.mean(losses)


# Sources, optimizers, schedules


def purposes_do_not_depend_on_other_problems(source: Source) -> None:
    """A problem's purpose (training, validation or test) depends on no other problem, and each purpose has problems."""
    problems = TASK.sample(torch.full((200, len(TASK.axes)), 4), stream(0, "source"))
    order = torch.randperm(len(problems), generator=stream(0, "order"))
    for purpose in typing.get_args(Purpose):
        chosen = source.mask_part(purpose, problems)
        alone = torch.cat([source.mask_part(purpose, problems.take(slice(i, i + 1))) for i in range(len(problems))])
        if chosen.dtype != torch.bool or not chosen.any():
            raise Broken(f"mask_part must return booleans for {purpose}, some True, not {chosen[:5].tolist()} …")
        reordered = source.mask_part(purpose, problems.take(order))
        if not torch.equal(chosen, alone) or not torch.equal(chosen[order], reordered):
            raise Broken(f"the choice of problems for {purpose} depends on the other problems of the batch")


def optimizer_uses_its_rate(optimizer: Optimizer) -> None:
    """The optimizer starts at its ``rate``. A step at rate 0 changes no weight, and a step at ``rate`` changes some
    weight."""
    weights = _build_weights()
    built = optimizer.build(weights)
    rates = [group["lr"] for group in built.param_groups]
    if any(rate != optimizer.rate for rate in rates):
        raise Broken(f"the optimizer is built with the rates {rates}, but must start at its `rate`, {optimizer.rate}")
    for rate, moves in ((0.0, False), (optimizer.rate or 1e-3, True)):
        for group in built.param_groups:
            group["lr"] = rate
        before = [weight.detach().clone() for weight in weights]
        _take_step(built, weights, 0)
        if moves == all(map(torch.equal, before, weights)):
            raise Broken(f"a step at a rate of {rate} changes {'no' if moves else 'a'} weight")


def optimizer_state_is_complete(optimizer: Optimizer) -> None:
    """A new optimizer that loads the state of an old one takes exactly the same steps as the old one."""
    weights, resumed = _build_weights(), _build_weights()
    first, second = optimizer.build(weights), optimizer.build(resumed)
    for number in range(3):
        _take_step(first, weights, number)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for source, target in zip(weights, resumed, strict=True):
        target.data.copy_(source.data)
    for number in range(3, 6):
        _take_step(first, weights, number)
        _take_step(second, resumed, number)
    if not all(map(torch.equal, weights, resumed)):
        raise Broken("weights differ after resuming: the optimizer's state_dict is incomplete")


def the_rate_factor_is_a_fraction(schedule: Schedule) -> None:
    """At each step of a run of any length, the factor of the learning rate is between 0 and 1."""
    for steps in (1, 2, 3, 10, 1000):
        factors = [schedule.factor(step, steps) for step in range(steps)]
        if not all(0 <= factor <= 1 for factor in factors):
            raise Broken(f"in a run of {steps} steps, factors are {min(factors)} to {max(factors)}, not within 0 to 1")


def _build_weights() -> list[nn.Parameter]:
    draw = stream(0, "weights")
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((4, 3), (5,))]


def _take_step(optimizer: torch.optim.Optimizer, weights: Sequence[nn.Parameter], number: int) -> None:
    draw = stream(number, "gradients")
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=draw)
    optimizer.step()
