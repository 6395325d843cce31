"""Laws of every layout: what a row shows, hides, asks for and leaves room for. Each is tried on several tasks, those
of them that the layout accepts; or, for a layout that accepts none of them, on tasks of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from lengthwise.base.fields import kinds
from lengthwise.base.origin import foreign
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Problems, UsageError
from lengthwise.experiment.layout import Layout
from lengthwise.tasks import Task
from lengthwise.tasks.addition import Addition
from lengthwise.tasks.flipped_copy import FlippedCopy
from lengthwise.tasks.multiplication import Multiplication
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.unique_set import UniqueSet
from lengthwise.testing.laws_of_parts import Broken
from lengthwise.testing.laws_of_tasks import texts

# Answers as long as there is room for and shorter ones, of one symbol, and of one for each of the prompt's; prompts
# with signs and without; stacked digits.
TASKS: tuple[Task, ...] = (
    UniqueSet(5), Addition(3), Addition(10, "least", True, True), Multiplication(), Parity(), FlippedCopy()
)  # fmt: skip
ROWS = 40


def there_is_a_task_to_try(layout: Layout) -> None:
    """It accepts a task that the laws are tried on: one of ours, or one of your own that is imported."""
    if not _accepted_tasks(layout):
        names = ", ".join(dict.fromkeys(task.name for task in TASKS))
        raise Broken(
            f"it accepts none of {names}, and no imported task of your own: its other laws were tried on nothing"
        )


def what_is_asked_for_is_the_answer(layout: Layout) -> None:
    """The targets of a row's answer slots read as its answer, whatever stands where no symbol is asked for."""
    for task, problems, batch in _write_batches(layout):
        symbols = len(layout.vocabs(task)[1])
        rubbish = torch.randint(symbols, batch.targets.shape, generator=stream(0, "rubbish"))
        said = batch.targets.where(batch.loss_mask, rubbish)  # what a model may say where nobody asks
        for i, (row, slots) in enumerate(zip(said, batch.answer_slots, strict=True)):
            answer = problems.answer[i, : int(problems.answer_length[i])]
            if int(slots.sum()) < len(answer) + layout.ends:
                continue  # as in sums modulo baseⁿ
            read, right = (task.format(part) for part in (layout.answer(row[slots], task), answer))
            if read != right:
                raise Broken(f"{_describe_row(task, problems, i)}: {right!r} is read as {read!r}")


def what_is_asked_for_has_room(layout: Layout) -> None:
    """Each row asks for one symbol or more, all of them in its answer slots, and those in the row."""
    for task, problems, batch in _write_batches(layout):
        for inner, mask, outer, whole in (
            ("loss_mask", batch.loss_mask, "answer_slots", batch.answer_slots),
            ("answer_slots", batch.answer_slots, "the row", batch.inputs.padding_mask),
        ):
            if (outside := (mask & ~whole).any(1)).any():
                row = int(outside.long().argmax())
                raise Broken(f"{_describe_row(task, problems, row)}: {inner} reaches out of {outer}")
        if not batch.loss_mask.any(1).all():
            raise Broken(f"{task.name}: a row asks for nothing")


def all_symbols_are_known(layout: Layout) -> None:
    """Tokens and targets are ids of the vocabularies of inputs and outputs."""
    for task, _, batch in _write_batches(layout):
        reads, writes = map(len, layout.vocabs(task))
        for name, ids, count in (("tokens", batch.inputs.tokens, reads), ("targets", batch.targets, writes)):
            if int(ids.min()) < 0 or int(ids.max()) >= count:
                raise Broken(f"{task.name}: {name} from {ids.min()} to {ids.max()}, of {count} symbols")


def the_answer_is_not_shown(layout: Layout) -> None:
    """Inputs do not depend on the answer or, where answer symbols are read, on none that is still to be predicted."""
    for task, problems, batch in _write_batches(layout):
        for other in _other_answers(layout, task, problems):
            again = layout.write(other, task)
            changed = (batch.targets != again.targets).long()
            if not changed.any():
                raise Broken(f"{task.name}: another answer changes no target")
            # Where answers are read, all may change after the position that predicts the symbol; else nothing may.
            hidden = (changed.cumsum(1) - changed == 0) | (not layout.decodes)
            for name, one in vars(batch.inputs).items():
                differs = (one != getattr(again.inputs, name)) & hidden
                if differs.any():
                    row, position = divmod(int(differs.flatten().long().argmax()), differs.shape[1])
                    told = f"another answer changes {name} at position {position}"
                    raise Broken(f"{_describe_row(task, problems, row)}: {told}")


def there_is_room_whatever_the_answer(layout: Layout) -> None:
    """Rows of one size and prompt length have the same answer slots, however long their answers are."""
    for task in _accepted_tasks(layout):
        problems = task.sample(torch.full((100, len(task.axes)), task.smallest + 2), stream(0, "room"))
        batch = layout.write(problems, task)
        for length in problems.prompt_length.unique():
            for name, mask in (("answer_slots", batch.answer_slots), ("padding_mask", batch.inputs.padding_mask)):
                alike = mask[problems.prompt_length == length]
                if (alike != alike[0]).any():
                    raise Broken(f"{task.name}: {name} of prompts of {length} symbols differ with their answers")


def a_problem_is_written_as_it_is_alone(layout: Layout) -> None:
    """A row does not depend on the rows beside it: longer ones add padding, in which nothing is asked for."""
    for task in _accepted_tasks(layout):
        problems = _draw_problems(task, top=4)
        longer = task.sample(torch.full((1, len(task.axes)), task.smallest + 8), stream(1, "longer"))
        order = torch.randperm(ROWS, generator=stream(0, "order"))
        together = layout.write(Problems.join([problems.take(order), longer]), task)
        for place, i in enumerate(order.tolist()):
            alone = layout.write(problems.take(slice(i, i + 1)), task)
            for name, one, beside in _by_position(alone, together):
                here, beyond = beside[place].split([one.shape[1], beside.shape[1] - one.shape[1]])
                if not torch.equal(one[0], here):
                    told = f"{name} is {one[0].tolist()} alone, {here.tolist()} beside others"
                    raise Broken(f"{_describe_row(task, problems, i)}: {told}")
                if one.dtype == torch.bool and beyond.any():
                    raise Broken(
                        f"{_describe_row(task, problems, i)}: {name} reaches into the padding beside a longer row"
                    )


def rounds_and_sizes_are_kept(layout: Layout) -> None:
    """A batch has the sizes and the rounds T(n) of its problems, in their order."""
    for task, problems, batch in _write_batches(layout):
        if not torch.equal(batch.rounds, problems.rounds) or not torch.equal(batch.sizes, problems.sizes):
            raise Broken(f"{task.name}: rounds {problems.rounds.tolist()} become {batch.rounds.tolist()}")


def _accepted_tasks(layout: Layout) -> list[Task]:
    """The tasks that a layout's laws are tried on: of ours, else of a user's own, those that it accepts."""
    return [task for task in TASKS if layout.accepts(task)] or [task for task in _own_tasks() if layout.accepts(task)]


def _own_tasks() -> Iterator[Task]:
    """Every imported task that is not the package's, if it can be made without arguments."""
    for kind in kinds(Task).values():
        if foreign(kind):
            with suppress(TypeError, UsageError):
                yield kind()


def _write_batches(layout: Layout) -> Iterator[tuple[Task, Problems, Batch]]:
    """Problems of each task that it accepts, and their batch."""
    for task in _accepted_tasks(layout):
        problems = _draw_problems(task)
        yield task, problems, layout.write(problems, task)


def _draw_problems(task: Task, top: int = 6) -> Problems:
    """Problems of the smallest size, and of further ones, ``top`` in all."""
    draw = stream(0, "laws", task.name, top)
    return task.sample(torch.randint(top, (ROWS, len(task.axes)), generator=draw) + task.smallest, draw)


def _describe_row(task: Task, problems: Problems, row: int) -> str:
    ((prompt, _),) = texts(task, problems.take(slice(row, row + 1)))
    return f"{task.name} {prompt}"


def _other_answers(layout: Layout, task: Task, problems: Problems) -> Iterator[Problems]:
    """The same prompts, with one symbol of each answer changed or, where none is read, all of them and, where an end
    shows it, the length."""
    answer = torch.nn.functional.pad(problems.answer, (0, 1))
    symbol = torch.arange(answer.shape[1])
    if not layout.decodes:
        length = problems.answer_length
        if layout.ends:
            length = length % task.answer_slots(problems.sizes) + 1
        yield replace(problems, answer=(answer + 1) % 2 * (symbol < length[:, None]), answer_length=length)
        return
    for column in range(problems.answer.shape[1]):
        at = (symbol == column) & (symbol < problems.answer_length[:, None])
        yield replace(problems, answer=torch.where(at, (answer + 1) % 2, answer))


def _by_position(alone: Batch, together: Batch) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What two batches hold position by position, under its name."""
    for name in ("targets", "loss_mask", "answer_slots"):
        yield name, getattr(alone, name), getattr(together, name)
    for name in vars(alone.inputs):
        yield name, getattr(alone.inputs, name), getattr(together.inputs, name)
