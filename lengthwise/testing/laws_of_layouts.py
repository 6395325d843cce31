"""Laws of layouts, about inputs, targets and answer slots. Each law is checked on the ``TASKS`` that a layout accepts
or, if there are none, on the user's own tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from lengthwise.base.fields import find_part_classes
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Inputs, Problems, UsageError
from lengthwise.experiment.layout import Layout
from lengthwise.experiment.own_code import is_foreign
from lengthwise.tasks import Task
from lengthwise.tasks.arithmetic import Addition, Multiplication
from lengthwise.tasks.bits import FlippedCopy
from lengthwise.tasks.maze import Maze
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.strings import UniqueSet
from lengthwise.testing.laws_of_parts import Broken
from lengthwise.testing.laws_of_tasks import decode_problems

# Some of these tasks have answers that fill their slots, others shorter answers, answers of one symbol or of one per
# prompt symbol, prompts with or without signs, operands of equal length, or grids.
TASKS: tuple[Task, ...] = (
    UniqueSet(5), Addition(3), Addition(10, "least", True, True), Multiplication(), Parity(), FlippedCopy(), Maze()
)  # fmt: skip
ROW_COUNT = 40


def accepts_some_task(layout: Layout) -> None:
    """The layout accepts a task on which laws can be checked: a task of the package, or one that you imported."""
    if not _list_accepted_tasks(layout):
        names = ", ".join(dict.fromkeys(task.name for task in TASKS))
        raise Broken(f"it accepts none of {names}, and no task that you imported: other laws were not checked")


def targets_are_the_answer(layout: Layout) -> None:
    """The targets in a row's answer slots decode to the row's answer, with any symbols outside the loss mask."""
    for task, problems, batch in _write_batches(layout):
        symbols = len(layout.vocabs(task)[1])
        random_ids = torch.randint(symbols, batch.targets.shape, generator=stream(0, "rubbish"))
        predicted = batch.targets.where(batch.loss_mask, random_ids)  # a model may predict anything outside the mask
        for i, (row, slots) in enumerate(zip(predicted, batch.answer_slots, strict=True)):
            answer = problems.answer[i, : int(problems.answer_length[i])]
            if int(slots.sum()) < len(answer) + layout.ends:
                continue  # fewer slots than symbols, e.g. sums modulo baseⁿ
            read, right = (task.format(part) for part in (layout.answer(row[slots], task), answer))
            if read != right:
                raise Broken(f"{_describe_row(task, problems, i)}: the answer {right!r} is decoded as {read!r}")


def masks_lie_inside_rows(layout: Layout) -> None:
    """Each row has a supervised position; all supervised positions are answer slots, which lie before the row's end."""
    for task, problems, batch in _write_batches(layout):
        for inner, mask, outer, outer_mask in (
            ("loss_mask", batch.loss_mask, "answer_slots", batch.answer_slots),
            ("answer_slots", batch.answer_slots, "the row", batch.inputs.padding_mask),
        ):
            if (outside := (mask & ~outer_mask).any(1)).any():
                row = int(outside.long().argmax())
                raise Broken(f"{_describe_row(task, problems, row)}: {inner} extends beyond {outer}")
        if not batch.loss_mask.any(1).all():
            raise Broken(f"{task.name}: a row has no supervised position")


def ids_are_in_the_vocabulary(layout: Layout) -> None:
    """Tokens are ids of the input vocabulary, and targets are ids of the output vocabulary."""
    for task, _, batch in _write_batches(layout):
        reads, writes = map(len, layout.vocabs(task))
        for name, ids, count in (("tokens", batch.inputs.tokens, reads), ("targets", batch.targets, writes)):
            if int(ids.min()) < 0 or int(ids.max()) >= count:
                raise Broken(f"{task.name}: {name} are {ids.min()} to {ids.max()}, but must be within 0 to {count - 1}")


def inputs_hide_the_answer(layout: Layout) -> None:
    """Inputs do not depend on the answer or, in layouts that read answer symbols, on symbols not yet predicted."""
    for task, problems, batch in _write_batches(layout):
        for changed_problems in _change_answers(layout, task, problems):
            changed_batch = layout.write(changed_problems, task)
            changed = (batch.targets != changed_batch.targets).long()
            if not changed.any():
                raise Broken(f"{task.name}: a different answer changes no target, but targets must hold the answer")
            # If answers are read, inputs may change after the position that predicts the symbol; else nowhere.
            must_be_equal = (changed.cumsum(1) - changed == 0) | (not layout.decodes)
            if difference := _find_first_difference(batch.inputs, changed_batch.inputs, must_be_equal):
                name, row, position = difference
                change = f"a different answer changes {name} at position {position}"
                raise Broken(f"{_describe_row(task, problems, row)}: {change}")


def _find_first_difference(
    inputs: Inputs, other_inputs: Inputs, mask: Bool[Tensor, "b t"]
) -> tuple[str, int, int] | None:
    """Return the first difference of two inputs inside ``mask`` as field, row and position; None if they are equal."""
    for name, value in vars(inputs).items():
        differs = (value != getattr(other_inputs, name)) & mask
        if differs.any():
            return name, *divmod(int(differs.flatten().long().argmax()), differs.shape[1])
    return None


def slots_do_not_depend_on_the_answer(layout: Layout) -> None:
    """Rows of one size and prompt length have the same answer slots, for answers of any length."""
    for task in _list_accepted_tasks(layout):
        problems = task.sample(torch.full((100, len(task.axes)), task.list_smallest_sizes(3)[-1]), stream(0, "room"))
        batch = layout.write(problems, task)
        masks = {"answer_slots": batch.answer_slots, "padding_mask": batch.inputs.padding_mask}
        for length, (name, mask) in itertools.product(problems.prompt_length.unique(), masks.items()):
            same_length = mask[problems.prompt_length == length]
            if (same_length != same_length[0]).any():
                raise Broken(f"{task.name}: {name} of prompts of {length} symbols depends on the answers, but must not")


def rows_do_not_depend_on_the_batch(layout: Layout) -> None:
    """A row does not depend on the other rows of a batch, except that longer rows add unsupervised padding."""
    for task in _list_accepted_tasks(layout):
        problems = _draw_problems(task, size_count=4)
        longer = task.sample(torch.full((1, len(task.axes)), task.list_smallest_sizes(9)[-1]), stream(1, "longer"))
        order = torch.randperm(ROW_COUNT, generator=stream(0, "order"))
        batch = layout.write(Problems.join([problems.take(order), longer]), task)
        for row, i in enumerate(order.tolist()):
            single = layout.write(problems.take(slice(i, i + 1)), task)
            if change := _describe_batch_effect(single, batch, row):
                raise Broken(f"{_describe_row(task, problems, i)}: {change}")


def _describe_batch_effect(single: Batch, batch: Batch, row: int) -> str:
    """Describe how a row of ``batch`` differs from the same problem in ``single``, a batch of its own. Return "" if the
    only difference is padding without supervision."""
    alone, in_batch = vars(single) | vars(single.inputs), vars(batch) | vars(batch.inputs)
    for name in ("targets", "loss_mask", "answer_slots", *vars(single.inputs)):
        value, row_in_batch = alone[name][0], in_batch[name][row]
        head, tail = row_in_batch[: len(value)], row_in_batch[len(value) :]
        if not torch.equal(value, head):
            return f"{name} is {value.tolist()} alone, but {head.tolist()} beside other rows"
        if value.dtype == torch.bool and tail.any():
            return f"{name} extends into the padding beside a longer row"
    return ""


def rounds_and_sizes_do_not_change(layout: Layout) -> None:
    """A batch has the sizes and rounds T(n) of its problems, in the same order."""
    for task, problems, batch in _write_batches(layout):
        for name in ("rounds", "sizes"):
            before, after = getattr(problems, name), getattr(batch, name)
            if not torch.equal(before, after):
                raise Broken(f"{task.name}: the layout changes {name} from {before.tolist()} to {after.tolist()}")


def _list_accepted_tasks(layout: Layout) -> list[Task]:
    """Return the ``TASKS`` that a layout accepts or, if there are none, the user's own tasks that it accepts."""
    if shipped := [task for task in TASKS if layout.accepts(task)]:
        return shipped
    own: list[Task] = []
    for kind in filter(is_foreign, find_part_classes(Task).values()):
        with suppress(TypeError, UsageError):  # it cannot be created without arguments
            own.append(kind())
    return [task for task in own if layout.accepts(task)]


def _write_batches(layout: Layout) -> Iterator[tuple[Task, Problems, Batch]]:
    """Yield each accepted task with problems and their batch."""
    for task in _list_accepted_tasks(layout):
        problems = _draw_problems(task)
        yield task, problems, layout.write(problems, task)


def _draw_problems(task: Task, size_count: int = 6) -> Problems:
    """Return problems of the ``size_count`` smallest sizes."""
    draw = stream(0, "laws", task.name, size_count)
    sizes = torch.tensor(task.list_smallest_sizes(size_count))
    return task.sample(sizes[torch.randint(size_count, (ROW_COUNT, len(task.axes)), generator=draw) % len(sizes)], draw)


def _describe_row(task: Task, problems: Problems, row: int) -> str:
    ((prompt, _),) = decode_problems(task, problems.take(slice(row, row + 1)))
    return f"{task.name} {prompt}"


def _change_answers(layout: Layout, task: Task, problems: Problems) -> Iterator[Problems]:
    """Yield the same prompts with changed answers. If the layout reads answers, one symbol of each answer is changed;
    else all symbols and, if the layout writes end symbols, also the lengths of answers are changed."""
    answer = torch.nn.functional.pad(problems.answer, (0, 1))
    symbol = torch.arange(answer.shape[1])
    if not layout.decodes:
        length = problems.answer_length
        if layout.ends:
            length = length % task.answer_slots(problems.sizes) + 1
        yield replace(problems, answer=(answer + 1) % 2 * (symbol < length[:, None]), answer_length=length)
        return
    for column in range(problems.answer.shape[1]):
        chosen = (symbol == column) & (symbol < problems.answer_length[:, None])
        yield replace(problems, answer=torch.where(chosen, (answer + 1) % 2, answer))
