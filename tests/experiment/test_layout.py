"""Laws of every layout on every task that it accepts: inputs, targets, hidden answers, and answer slots."""

from dataclasses import dataclass, replace

import pytest
import torch
from conftest import LONG
from forms import covering, shipped
from hypothesis import given
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.experiment.layout import (
    FullOutput,
    Grid,
    NextToken,
    Pairs,
    Tagged,
    digit_positions,
    mask_before_end,
    mask_through_end,
)
from lengthwise.tasks.arithmetic import Multiplication
from lengthwise.tasks.expression import Expression
from lengthwise.tasks.sorting import Sorting
from lengthwise.testing import laws_of_layouts
from lengthwise.testing.laws import check_part


@dataclass(frozen=True)
class ManySymbols(lw.Copy):
    """Copy of more symbols than fit a byte."""

    @property
    def symbols(self):
        return tuple(chr(ord("一") + i) for i in range(300))


ADDITIONS = [(), (3, "least"), (10, "least", True, True), (2, "most", True, False), (10, "most", False, True)]
NAMED = [ManySymbols(), lw.Parity(), lw.Copy(), lw.Copy(36), *(lw.Addition(*form) for form in ADDITIONS), Expression()]
ROWS = [FullOutput(), FullOutput(3), NextToken(), NextToken(2)]
ROWS += [NextToken(framed=True), FullOutput(2, framed=True), FullOutput(causal=False)]
FORMS = [*ROWS, Pairs(), Pairs(carry=False)]
LAYOUTS = [*FORMS, *(layout for layout in shipped("layouts") if type(layout) not in map(type, FORMS))]
TASKS = [*NAMED, *(task for task in shipped("tasks") if type(task) not in map(type, NAMED))]
# Every layout on the tasks named here, and its default form on all others.
FITTING = [(task, layout) for task in TASKS for layout in (LAYOUTS if task in NAMED else shipped("layouts"))]
EVERY = [(task, layout) for task, layout in FITTING if layout.accepts(task)]
KINDS = {
    (task, layout): {repr(task), (repr(layout), task.mirrored, bool(task.signs), task.answers_each_symbol)}
    for task, layout in EVERY
}
CHOSEN = EVERY if LONG else covering(KINDS)
every = pytest.mark.parametrize(("task", "layout"), CHOSEN, ids=repr)
IN_ROWS = [pair for pair in CHOSEN if isinstance(pair[1], (FullOutput, NextToken))]
rows_only = pytest.mark.parametrize(("task", "layout"), IN_ROWS, ids=repr)


def sample(task, count=20, top=6, seed=0):
    draw = lw.stream(seed, "layout", repr(task))
    small = torch.tensor([*task.list_smallest_sizes(top)])
    return task.sample(small[torch.randint(len(small), (count, len(task.axes)), generator=draw)], draw)


def one_by_one(rows):
    return [rows.take(slice(i, i + 1)) for i in range(len(rows))]


def text(vocab, ids):
    return [vocab.symbols[i] for i in ids.tolist()]


def wanted(task, layout, problem):
    """Return the right answer as text; without a carry, modulo base^n."""
    answer = task.format(problem.answer[0, : int(problem.answer_length)])
    if layout == Pairs(carry=False):
        value, answer = int(answer, task.base) % task.base ** int(problem.rounds), ""
        while value or not answer:
            value, digit = divmod(value, task.base)
            answer = str(digit) + answer
    return answer


@every
def test_the_laws_of_layouts_hold_on_every_task(task, layout, monkeypatch):
    monkeypatch.setattr(laws_of_layouts, "TASKS", (task,))
    assert not check_part(layout).broken


def test_each_layout_accepts_what_it_can_write():
    """Rows accept every task, and pairs accept sums; every task and layout is covered."""
    assert {type(task) for task, layout in EVERY if isinstance(layout, Pairs)} == {lw.Addition}
    for layout in ROWS:
        assert [task.name for task in TASKS if not layout.accepts(task)] in ([], ["maze"])  # a grid has its own layout
    assert {type(layout) for _, layout in EVERY} == {type(layout) for layout in shipped("layouts")}
    assert len({type(task) for task, _ in EVERY}) >= len(shipped("tasks"))


# Inputs


@rows_only
def test_a_row_reads_prompt_equals_pauses(task, layout):
    problems = sample(task)
    vocab, _ = layout.vocabs(task)
    batch = layout.write(problems, task)
    for problem, row in zip(one_by_one(problems), one_by_one(batch), strict=True):
        prompt = [task.symbols[i] for i in problem.prompt[0, : int(problem.prompt_length)]]
        first = int(row.answer_slots[0].long().argmax())
        shown = text(vocab, row.inputs.tokens[0])
        assert shown[: first + 1] == [*"^" * layout.framed, *prompt, "=", *"#" * layout.pauses]
        shown = text(vocab, row.inputs.tokens[row.inputs.padding_mask])
        assert shown[first + 1 :] == ["$"] * len(shown[first + 1 :]) or isinstance(layout, NextToken)


def test_padding_has_its_own_symbol():
    task, layout = lw.Addition(), NextToken(framed=True)
    batch = layout.write(sample(task), task)
    pad = layout.vocabs(task)[0].id("_")
    assert torch.equal(batch.inputs.tokens == pad, ~batch.inputs.padding_mask)
    assert not (batch.targets == pad).any()
    assert not batch.inputs.padding_mask.all()


@pytest.mark.parametrize(("task", "layout"), [p for p in CHOSEN if isinstance(p[1], Pairs)], ids=repr)
def test_pairs_stack_the_operands_and_end_blank(task, layout):
    problems = sample(task)
    reads, writes = layout.vocabs(task)
    batch = layout.write(problems, task)
    assert len(reads) == task.base**2 and len(writes) == task.base
    for problem, row in zip(one_by_one(problems), one_by_one(batch), strict=True):
        prompt = "".join(task.symbols[i] for i in problem.prompt[0, : int(problem.prompt_length)])
        numbers = [number if task.order == "least" else number[::-1] for number in prompt.split("+")]
        width = max(map(len, numbers))
        assert int(row.inputs.padding_mask.sum()) == width + layout.carry == int(row.answer_slots.sum())
        columns = zip(*(number.ljust(width + layout.carry, "0") for number in numbers), strict=True)
        assert text(reads, row.inputs.tokens[0, : width + layout.carry]) == ["".join(column) for column in columns]


@every
def test_rows_preserve_prompt_and_answer(task, layout):
    """Different problems give different rows, and the targets are the answer."""
    problems = sample(task)
    batch = layout.write(problems, task)
    for problem, row in zip(one_by_one(problems), one_by_one(batch), strict=True):
        predicted = row.targets[row.answer_slots]
        assert task.format(layout.answer(predicted, task)) == wanted(task, layout, problem)
        if layout.end_id(task) is not None:
            loss_mask = text(layout.vocabs(task)[1], row.targets[row.loss_mask])
            assert loss_mask == [*text(task.vocab, problem.answer[0, : int(problem.answer_length)]), "$"]
    prompts = {tuple(p.prompt[0, : int(p.prompt_length)].tolist()) for p in one_by_one(problems)}
    present, slots = batch.inputs.padding_mask, batch.answer_slots
    shown = present if isinstance(layout, Tagged) else present & ~slots
    rows = {tuple(tokens[at].tolist()) for tokens, at in zip(batch.inputs.tokens, shown, strict=True)}
    if not isinstance(layout, Pairs):
        assert len(rows) == len(prompts)


# Supervised positions, answer slots, padding


@every
def test_a_row_its_answer_slots_and_its_supervised_positions_are_contiguous(task, layout):
    """There are as many slots as the task requests."""
    problems = sample(task)
    batch = layout.write(problems, task)
    padding_mask = batch.inputs.padding_mask
    if isinstance(layout, Pairs):
        slots = problems.sizes.amax(1) + layout.carry
    else:
        slots = task.answer_slots(problems.sizes) + layout.ends
    assert batch.answer_slots.sum(1).equal(slots)
    for run in (padding_mask, batch.answer_slots, batch.loss_mask):  # one per row
        starts = run & ~torch.nn.functional.pad(run, (1, 0))[:, :-1]
        assert (starts.sum(1) == 1).all()
    assert padding_mask[:, 0].all()
    assert int(padding_mask.sum(1).max()) == padding_mask.shape[1]
    assert torch.equal(batch.answer_slots.long().argmax(1), batch.loss_mask.long().argmax(1))
    if not isinstance(layout, Grid):  # a grid counts positions by column
        assert torch.equal(batch.inputs.position, torch.arange(batch.targets.shape[1]).expand(len(batch), -1))


@pytest.mark.parametrize("task", NAMED[::3], ids=repr)
def test_a_whole_tail_is_supervised_and_level_rows_are_extended_to_the_longest(task):
    """All answer slots are supervised, those after the answer with the end symbol; nothing else changes."""
    problems, end = sample(task), FullOutput().end_id(task)
    own, tail = (FullOutput(2, whole_tail=whole).write(problems, task) for whole in (False, True))
    assert torch.equal(tail.loss_mask, own.answer_slots)
    assert (tail.targets[tail.loss_mask & ~own.loss_mask] == end).all()
    assert own.inputs.tokens.equal(tail.inputs.tokens) and own.targets.equal(tail.targets)
    layout = FullOutput(2, whole_tail=True, level=True)
    level, more = layout.write_training(problems, task), ~own.inputs.padding_mask
    assert layout.write(problems, task).inputs.padding_mask.equal(own.inputs.padding_mask)
    assert level.inputs.padding_mask.all()
    assert (level.answer_slots & ~own.answer_slots).equal(more) and level.loss_mask.equal(level.answer_slots)
    assert (level.inputs.tokens[more] == end).all() and (level.targets[more] == end).all()
    for name in ("tokens", "position", "digit_position"):
        assert getattr(level.inputs, name)[~more].equal(getattr(own.inputs, name)[~more])
    assert level.targets[~more].equal(own.targets[~more])


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=5), st.integers(0, 7))
def test_digit_positions_against_a_plain_loop(rows, middle):
    """Digits count forwards; where ``mirrored``, backwards from the number's end, a sign or the row's end."""
    signs = torch.tensor(rows)
    forwards, backwards = [], []
    for row in rows:
        count, ahead = [], []
        for i, sign in enumerate(row):
            count.append(0 if sign else 1 + (count[-1] if count else 0))
            ahead.append(next((j for j in range(i, 7) if row[j]), 7) - i)
        forwards.append(count)
        backwards.append(ahead[:middle] + count[middle:])
    assert digit_positions(signs).tolist() == forwards
    assert digit_positions(signs, (torch.arange(7) < middle).expand(len(rows), -1)).tolist() == backwards


LONGEST = {Expression: 1, Sorting: 20}  # the largest sizes of these tasks


@pytest.mark.parametrize("top", [6, 90])
@pytest.mark.parametrize(("task", "layout"), [pair for pair in IN_ROWS if not pair[0].mirrored], ids=repr)
def test_a_symbol_s_position_is_counted_in_its_own_number(task, layout, top):
    """Positions count from 1 after each sign; the answer's from the position that predicts its first symbol."""
    batch = layout.write(sample(task, top=min(top, LONGEST.get(type(task), top))), task)
    signs = {*task.signs, "^", "=", "#"}
    for row, tokens in enumerate(batch.inputs.tokens):
        first, position, positions = int(batch.answer_slots[row].long().argmax()), 0, []
        for i, symbol in enumerate(text(layout.vocabs(task)[0], tokens)):
            position = 0 if symbol in signs and i <= first else position + 1
            positions.append(position)
        assert batch.inputs.digit_position[row].tolist() == positions


@pytest.mark.parametrize(
    ("task", "prompt", "positions"),
    [
        (lw.Addition(2, "most", True, True), "1011+0110", [1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]),
        (Multiplication(), "10*011", [2, 1, 0, 3, 2, 1, 0, 1, 2, 3, 4, 5]),  # operands from their ends, as mirrored
    ],
)
def test_digits_of_equal_weight_have_equal_positions(task, prompt, positions):
    assert FullOutput().write(task.parse(prompt), task).inputs.digit_position[0].tolist() == positions


# Hidden answers


@pytest.mark.parametrize(("task", "layout"), [p for p in CHOSEN if p[1].decodes], ids=repr)
def test_a_next_token_row_shows_a_symbol_right_after_predicting_it(task, layout):
    problems = sample(task)
    batch = layout.write(problems, task)
    position = torch.arange(batch.answer_slots.shape[1])
    for j in range(problems.answer.shape[1]):
        answer = problems.answer.clone()
        answer[:, j] = (answer[:, j] + 1) % 2
        again = layout.write(replace(problems, answer=answer), task)
        read_off = batch.answer_slots.long().argmax(1)[:, None] + j
        has_symbol = problems.answer_length[:, None] > j
        shown = (position == read_off + 1) & has_symbol
        assert torch.equal(batch.inputs.tokens != again.inputs.tokens, shown)
        assert torch.equal(batch.targets != again.targets, (position == read_off) & has_symbol)
        assert torch.equal(batch.inputs.tokens[shown], batch.targets[(position == read_off) & has_symbol])


def test_a_task_need_not_be_hashable():
    class Loose(lw.Copy):
        __hash__ = None  # as a dataclass that is not frozen

    task = Loose()
    tight, loose = (NextToken().write(sample(lw.Copy(), seed=3), each) for each in (lw.Copy(), task))
    assert torch.equal(tight.inputs.tokens, loose.inputs.tokens)


# Refusals and the end symbol


@pytest.mark.parametrize("symbol", ["=", "$", "#"])
@pytest.mark.parametrize("layout", [FullOutput(1), NextToken(1)], ids=repr)
def test_a_task_must_not_use_the_layout_s_own_symbols(layout, symbol):
    class _Foreign(lw.Copy):
        symbols = ("0", symbol)

    for task, refusing in ((_Foreign(), layout), (lw.Parity(), Pairs())):
        with pytest.raises(lw.UsageError, match="does not accept"):
            refusing.write(sample(lw.Copy()), task)


def test_fields_that_do_not_fit_are_refused():
    for build, message in (
        (lambda: FullOutput(-1), "pauses must be 0 or more"),
        (lambda: FullOutput(level=True), r"^level adds slots after the answer, .*: set both$"),
    ):
        with pytest.raises(lw.UsageError, match=message):
            build()


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=3), st.integers(0, 3))
def test_masks_before_and_through_the_end_against_plain_loops(predicted, end):
    rows = torch.tensor(predicted)
    wanted = [[end not in row[: position + 1] for position in range(len(row))] for row in predicted]
    assert mask_before_end(rows, end).tolist() == wanted
    wanted = [[end not in row[:position] for position in range(len(row))] for row in predicted]
    assert mask_through_end(rows, end).tolist() == wanted
    assert mask_before_end(rows, None).all() and mask_through_end(rows, None).all()


def test_an_answer_ends_before_its_first_end_symbol():
    """Symbols outside the task are kept: an answer with one is wrong, and must not be shown as right."""
    task, layout = lw.Copy(3), NextToken(1)
    vocab = layout.vocabs(task)[1]
    for predicted, answer in (("1=#2$01", "1=#2"), ("12$$", "12"), ("$12", ""), ("120", "120")):
        assert vocab.decode(layout.answer(vocab.encode(predicted), task)) == answer
