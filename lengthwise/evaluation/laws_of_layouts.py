"""Laws of every layout: what a row shows, hides, asks for and leaves room for. Each is tried on several tasks, those
of them that the layout accepts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Problems
from lengthwise.evaluation.laws_of_parts import Broken
from lengthwise.recipe.layout import Layout
from lengthwise.tasks import Task
from lengthwise.tasks.addition import Addition
from lengthwise.tasks.multiplication import Multiplication
from lengthwise.tasks.unique_set import UniqueSet

# Answers as long as there is room for and shorter ones; prompts with signs and without; stacked digits.
TASKS = (UniqueSet(5), Addition(3), Addition(10, "least", True, True), Multiplication())
ROWS = 40
MASKS = ("loss_mask", "answer_slots")


class Case(NamedTuple):
    """A layout and a task that it accepts."""

    layout: Layout
    task: Task

    def drawn(self, top: int = 6) -> Problems:
        """Problems of sizes up to this much above the smallest."""
        draw = stream(0, "laws", self.task.name, top)
        sizes = torch.randint(top, (ROWS, len(self.task.axes)), generator=draw) + self.task.smallest
        return self.task.sample(sizes, draw)

    def written(self, problems: Problems) -> Batch:
        return self.layout.write(problems, self.task)

    def prompt(self, problems: Problems, row: int) -> str:
        return self.task.typed(problems.prompt[row, : int(problems.prompt_length[row])])


def what_is_asked_for_is_the_answer(layout: Layout) -> None:
    """The targets of a row's answer slots read as its answer, whatever stands where no symbol is asked for."""
    for case in cases(layout):
        answers_come_back(case)


def what_is_asked_for_has_room(layout: Layout) -> None:
    """Each row asks for one symbol or more, all of them in its answer slots, and those in the row."""
    for case in cases(layout):
        masks_are_nested(case)


def all_symbols_are_known(layout: Layout) -> None:
    """Tokens and targets are ids of the vocabularies of inputs and outputs."""
    for case in cases(layout):
        ids_are_known(case)


def the_answer_is_not_shown(layout: Layout) -> None:
    """Inputs do not depend on the answer or, where answer symbols are read, on none that is still to be predicted."""
    for case in cases(layout):
        answers_are_hidden(case)


def there_is_room_whatever_the_answer(layout: Layout) -> None:
    """Rows of one size and prompt length have the same answer slots, however long their answers are."""
    for case in cases(layout):
        room_is_known(case)


def a_problem_is_written_as_it_is_alone(layout: Layout) -> None:
    """A row does not depend on the rows beside it: longer ones add padding, in which nothing is asked for."""
    for case in cases(layout):
        neighbours_do_not_matter(case)


def rounds_and_sizes_are_kept(layout: Layout) -> None:
    """A batch has the sizes and the rounds T(n) of its problems, in their order."""
    for case in cases(layout):
        problems = case.drawn()
        batch = case.written(problems)
        if not torch.equal(batch.rounds, problems.rounds) or not torch.equal(batch.sizes, problems.sizes):
            raise Broken(f"{case.task.name}: rounds {problems.rounds.tolist()} become {batch.rounds.tolist()}")


def cases(layout: Layout) -> Iterator[Case]:
    """The tasks that it accepts, of those that laws know."""
    return (Case(layout, task) for task in TASKS if layout.accepts(task))


def answers_come_back(case: Case) -> None:
    """Raise Broken unless reading what is asked for gives the answer, where it has room."""
    problems = case.drawn()
    batch, draw = case.written(problems), stream(0, "rubbish")
    symbols = len(case.layout.vocabs(case.task)[1])
    rubbish = torch.randint(symbols, batch.targets.shape, generator=draw)
    said = batch.targets.where(batch.loss_mask, rubbish)  # what a model may say where nobody asks
    for i, (row, slots) in enumerate(zip(said, batch.answer_slots, strict=True)):
        answer = problems.answer[i, : int(problems.answer_length[i])]
        if int(slots.sum()) < len(answer) + case.layout.ends:
            continue  # as in sums modulo baseⁿ
        read, right = (case.task.format(part) for part in (case.layout.answer(row[slots], case.task), answer))
        if read != right:
            raise Broken(f"{case.task.name} {case.prompt(problems, i)}: {right!r} is read as {read!r}")


def masks_are_nested(case: Case) -> None:
    """Raise Broken unless what is asked for lies in the answer slots, and these in the row."""
    problems = case.drawn()
    batch = case.written(problems)
    for name, outer in (("loss_mask", batch.answer_slots), ("answer_slots", batch.inputs.padding_mask)):
        outside = (getattr(batch, name) & ~outer).any(1)
        if outside.any():
            prompt = case.prompt(problems, int(outside.long().argmax()))
            raise Broken(f"{case.task.name} {prompt}: {name} reaches out of {MASKS[1] if name != MASKS[1] else 'row'}")
    if not batch.loss_mask.any(1).all():
        raise Broken(f"{case.task.name}: a row asks for nothing")


def ids_are_known(case: Case) -> None:
    """Raise Broken unless tokens and targets are in their vocabularies."""
    batch = case.written(case.drawn())
    reads, writes = map(len, case.layout.vocabs(case.task))
    for name, ids, count in (("tokens", batch.inputs.tokens, reads), ("targets", batch.targets, writes)):
        if int(ids.min()) < 0 or int(ids.max()) >= count:
            raise Broken(f"{case.task.name}: {name} from {ids.min()} to {ids.max()}, of {count} symbols")


def answers_are_hidden(case: Case) -> None:
    """Raise Broken if a position reads a symbol of the answer that it, or a later one, has yet to predict."""
    problems = case.drawn()
    batch = case.written(problems)
    for other in _other_answers(case, problems):
        again = case.written(other)
        # Where answers are read, all may change after the position that predicts the symbol; else nothing may.
        changed = (batch.targets != again.targets).long()
        hidden = (changed.cumsum(1) - changed == 0) | (not case.layout.decodes)
        for name, one in vars(batch.inputs).items():
            differs = (one != getattr(again.inputs, name)) & hidden
            if differs.any():
                row, position = divmod(int(differs.flatten().long().argmax()), differs.shape[1])
                prompt = case.prompt(problems, row)
                raise Broken(f"{case.task.name} {prompt}: another answer changes {name} at position {position}")


def _other_answers(case: Case, problems: Problems) -> Iterator[Problems]:
    """The same prompts, with one symbol of each answer changed or, where none is read, all of them and the length."""
    answer = torch.nn.functional.pad(problems.answer, (0, 1))
    symbol = torch.arange(answer.shape[1])
    if not case.layout.decodes:
        slots = case.task.answer_slots(problems.sizes)
        length = problems.answer_length % slots + 1
        yield replace(problems, answer=(answer + 1) % 2 * (symbol < length[:, None]), answer_length=length)
        return
    for column in range(problems.answer.shape[1]):
        at = (symbol == column) & (symbol < problems.answer_length[:, None])
        yield replace(problems, answer=torch.where(at, (answer + 1) % 2, answer))


def room_is_known(case: Case) -> None:
    """Raise Broken if answers of one size and prompt length have other slots than each other."""
    problems = case.task.sample(torch.full((100, len(case.task.axes)), case.task.smallest + 2), stream(0, "room"))
    batch = case.written(problems)
    for length in problems.prompt_length.unique():
        for name, mask in (("answer_slots", batch.answer_slots), ("padding_mask", batch.inputs.padding_mask)):
            alike = mask[problems.prompt_length == length]
            if (alike != alike[0]).any():
                raise Broken(f"{case.task.name}: {name} of prompts of {length} symbols differ with their answers")


def neighbours_do_not_matter(case: Case) -> None:
    """Raise Broken if a row alone is not what it is among others, in another order and beside a longer one."""
    problems = case.drawn(top=4)
    longer = case.task.sample(torch.full((1, len(case.task.axes)), case.task.smallest + 8), stream(1, "longer"))
    order = torch.randperm(ROWS, generator=stream(0, "order"))
    together = case.written(Problems.join([problems.take(order), longer]))
    for place, i in enumerate(order.tolist()):
        alone = case.written(problems.take(slice(i, i + 1)))
        for name, one, beside in _parts(alone, together):
            width = one.shape[1]
            prompt, reach = f"{case.task.name} {case.prompt(problems, i)}", beside[place, width:]
            if not torch.equal(one[0], beside[place, :width]):
                raise Broken(f"{prompt}: {name} is {one[0].tolist()} alone, {beside[place, :width].tolist()} beside")
            if one.dtype == torch.bool and reach.any():
                raise Broken(f"{prompt}: {name} reaches into the padding beside a longer row")


def _parts(alone: Batch, together: Batch) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What two batches hold position by position, under its name."""
    for one, two, names in (
        (alone, together, ("targets", *MASKS)),
        (alone.inputs, together.inputs, tuple(vars(alone.inputs))),
    ):
        yield from ((name, getattr(one, name), getattr(two, name)) for name in names)
