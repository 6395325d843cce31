"""Laws of every layout on every task that it accepts: inputs, targets and answer slots."""

from dataclasses import dataclass

import pytest
import torch
from conftest import LONG
from hypothesis import given
from hypothesis import strategies as st
from specs import choose_covering, list_parts

import lengthwise as lw
from lengthwise.experiment.layout import FullOutput, NextToken, Pairs, mask_before_end, mask_through_end
from lengthwise.tasks.arithmetic import Multiplication
from lengthwise.tasks.expression import Expression
from lengthwise.tasks.modular_arithmetic import ModularArithmetic
from lengthwise.testing import laws_of_layouts
from lengthwise.testing.laws import check_part
from lengthwise.testing.laws_of_tasks import decode_problems


@dataclass(frozen=True)
class Copy300(lw.Copy):
    """Copy with 300 symbols, whose ids do not fit into a byte."""

    @property
    def symbols(self):
        return tuple(chr(ord("一") + i) for i in range(300))


SUM_FORMS = [(), (3, "least"), (10, "least", True, True), (2, "most", True, False), (10, "most", False, True)]
NAMED_TASKS = [Copy300(), lw.Parity(), lw.Copy(), lw.Copy(36), *(lw.Addition(*f) for f in SUM_FORMS), Expression()]
ROW_LAYOUTS = [FullOutput(), FullOutput(3), NextToken(), NextToken(2)]
ROW_LAYOUTS += [NextToken(framed=True), FullOutput(2, framed=True), FullOutput(causal=False)]
LAYOUT_FORMS = [*ROW_LAYOUTS, Pairs(), Pairs(carry=False)]
LAYOUTS = [*LAYOUT_FORMS, *(layout for layout in list_parts("layouts") if type(layout) not in map(type, LAYOUT_FORMS))]
TASKS = [*NAMED_TASKS, *(task for task in list_parts("tasks") if type(task) not in map(type, NAMED_TASKS))]
# Every layout on the tasks named here, and its default form on all others.
ALL_PAIRS = [(task, layout) for task in TASKS for layout in (LAYOUTS if task in NAMED_TASKS else list_parts("layouts"))]
ACCEPTED_PAIRS = [(task, layout) for task, layout in ALL_PAIRS if layout.accepts(task)]
PAIR_FEATURES = {
    (task, layout): {repr(task), (repr(layout), task.mirrored, bool(task.signs), task.answers_each_symbol)}
    for task, layout in ACCEPTED_PAIRS
}
CHOSEN_PAIRS = ACCEPTED_PAIRS if LONG else choose_covering(PAIR_FEATURES)
parametrize_pairs = pytest.mark.parametrize(("task", "layout"), CHOSEN_PAIRS, ids=repr)
ROW_PAIRS = [pair for pair in CHOSEN_PAIRS if isinstance(pair[1], (FullOutput, NextToken))]


def sample_problems(task, count=20, largest_size=6, seed=0):
    draw = lw.stream(seed, "layout", repr(task))
    small = torch.tensor([*task.list_smallest_sizes(largest_size)])
    return task.sample(small[torch.randint(len(small), (count, len(task.axes)), generator=draw)], draw)


@parametrize_pairs
def test_the_laws_of_layouts_hold_on_every_task(task, layout, monkeypatch):
    monkeypatch.setattr(laws_of_layouts, "TASKS", (task,))
    assert not check_part(layout).broken


def test_each_layout_accepts_what_it_can_write():
    """Row layouts accept all tasks except grids; ``Pairs`` accepts only sums; each task and layout is in some pair."""
    assert {type(task) for task, layout in ACCEPTED_PAIRS if isinstance(layout, Pairs)} == {lw.Addition}
    for layout in ROW_LAYOUTS:
        assert [task.name for task in TASKS if not layout.accepts(task)] in ([], ["maze"])  # a grid has its own layout
    assert {type(layout) for _, layout in ACCEPTED_PAIRS} == {type(layout) for layout in list_parts("layouts")}
    assert len({type(task) for task, _ in ACCEPTED_PAIRS}) >= len(list_parts("tasks"))


# Inputs


def write_row(task, layout, prompt, answer, slots):
    """Return a row's tokens, targets and digit positions in plain Python; ``prompt`` and ``answer`` are symbols."""
    before = [*"^" * layout.framed, *prompt, "=", *"#" * layout.pauses]
    first, tail = len(before) - 1, [*answer, *"$" * (slots - len(answer))]
    tokens = [*before, *(tail[:-1] if layout.decodes else "$" * (slots - 1))]
    positions, is_sign = [], [symbol in (*task.signs, *"^=#") for symbol in before]
    for i in range(len(before)):
        # Digits are counted from the sign before them or, where mirrored, from the sign after them.
        start = max((j + 1 for j in range(i + 1) if is_sign[j]), default=0)
        end = min(j for j in range(i, len(before)) if is_sign[j])
        positions.append(0 if is_sign[i] else end - i if task.mirrored else i + 1 - start)
    return tokens, [*"$" * first, *tail], [*positions, *range(1, slots)]


@pytest.mark.parametrize("top", [6, 30])
@pytest.mark.parametrize(("task", "layout"), ROW_PAIRS, ids=repr)
def test_rows_equal_rows_written_in_plain_python(task, layout, top):
    problems = sample_problems(task, largest_size=1 if isinstance(task, Expression) else top)
    batch, vocab = layout.write(problems, task), layout.vocabs(task)[0]
    slots, inputs = task.answer_slots(problems.sizes) + 1, batch.inputs
    for i, (prompt, answer) in enumerate(decode_problems(task, problems)):
        count, symbols = int(slots[i]), (task.vocab.split(prompt), task.vocab.split(answer))
        tokens, targets, positions = write_row(task, layout, *symbols, count)
        length, first = len(tokens), len(tokens) - count
        assert inputs.padding_mask[i].nonzero()[:, 0].tolist() == [*range(length)]
        assert [vocab.symbols[j] for j in inputs.tokens[i, :length]] == tokens
        assert [vocab.symbols[j] for j in batch.targets[i, first:length]] == targets[first:]
        assert batch.answer_slots[i].nonzero()[:, 0].tolist() == [*range(first, length)]
        assert batch.loss_mask[i].nonzero()[:, 0].tolist() == [*range(first, first + len(symbols[1]) + 1)]
        assert inputs.digit_position[i, :length].tolist() == positions
        assert inputs.position[i].tolist() == [*range(batch.targets.shape[1])]
        assert not layout.framed or set(inputs.tokens[i, length:].tolist()) <= {vocab.id("_")}
    assert batch.targets.shape[1] == int(inputs.padding_mask.sum(1).max())


@pytest.mark.parametrize(("task", "layout"), [p for p in CHOSEN_PAIRS if isinstance(p[1], Pairs)], ids=repr)
def test_pairs_stack_the_operands_and_pad_them_with_zeros(task, layout):
    problems = sample_problems(task)
    reads, writes = layout.vocabs(task)
    batch = layout.write(problems, task)
    assert len(reads) == task.base**2 and len(writes) == task.base
    for i, (prompt, answer) in enumerate(decode_problems(task, problems)):
        numbers = [number if task.order == "least" else number[::-1] for number in prompt.split("+")]
        width = max(map(len, numbers)) + layout.carry
        assert int(batch.inputs.padding_mask[i].sum()) == width == int(batch.answer_slots[i].sum())
        columns = zip(*(number.ljust(width, "0") for number in numbers), strict=True)
        assert reads.decode(batch.inputs.tokens[i, :width]) == " ".join(map("".join, columns))
        lowest = answer if task.order == "least" else answer[::-1]
        assert writes.decode(batch.targets[i, :width]) == lowest.ljust(width, "0")[:width]
        assert torch.equal(batch.loss_mask, batch.answer_slots)


# Supervised positions, answer slots, padding


@pytest.mark.parametrize("task", NAMED_TASKS[::3], ids=repr)
def test_a_whole_tail_is_supervised_and_level_rows_are_extended_to_the_longest(task):
    """All answer slots are supervised, those after the answer with the end symbol; nothing else changes."""
    problems, end = sample_problems(task), FullOutput().end_id(task)
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


@pytest.mark.parametrize(
    ("task", "layout", "prompt", "positions"),
    [
        (lw.Addition(2, "most", True, True), FullOutput(), "101+011", [1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4]),
        (
            Multiplication(),
            FullOutput(),
            "10*011",
            [2, 1, 0, 3, 2, 1, 0, 1, 2, 3, 4, 5],
        ),  # from their ends
        (ModularArithmetic(), lw.Labelled(), "3+2*4", [1, 0, 1, 0, 1, 0]),
        (type("_Mirrored", (lw.Copy,), {"mirrored": True})(), lw.Tagged(), "0110", [4, 3, 2, 1]),
    ],
)
def test_digits_of_equal_place_value_have_equal_positions(task, layout, prompt, positions):
    assert layout.write(task.parse(prompt), task).inputs.digit_position[0].tolist() == positions


# Refusals and the end symbol


@pytest.mark.parametrize("symbol", ["=", "$", "#"])
@pytest.mark.parametrize("layout", [FullOutput(1), NextToken(1)], ids=repr)
def test_a_task_must_not_use_the_layout_s_own_symbols(layout, symbol):
    class _UsesLayoutSymbol(lw.Copy):
        symbols = ("0", symbol)

    for task, refusing in ((_UsesLayoutSymbol(), layout), (lw.Parity(), Pairs())):
        with pytest.raises(lw.UsageError, match="does not accept"):
            refusing.write(sample_problems(lw.Copy()), task)


def test_invalid_fields_of_a_layout_are_refused():
    for build, message in (
        (lambda: FullOutput(-1), "pauses must be 0 or more"),
        (lambda: FullOutput(level=True), r"^level adds slots after the answer, .*: set both$"),
    ):
        with pytest.raises(lw.UsageError, match=message):
            build()


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=3), st.integers(0, 3))
def test_masks_before_and_through_the_end_equal_plain_loops(predicted, end):
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
