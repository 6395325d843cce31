"""Formal languages: properties of their families, and group axioms."""

import itertools
import math
import re
from math import factorial

import pytest
import torch
from conftest import LONG
from task_cases import assert_laws

import lengthwise as lw
from lengthwise.tasks.arithmetic import MultiOperandAddition
from lengthwise.tasks.automaton import CycleNavigation, EvenPairs, GroupWords
from lengthwise.tasks.bits import SquareRoot
from lengthwise.tasks.family import choose_families
from lengthwise.tasks.languages import CountedBlocks, Dyck, StackManipulation
from lengthwise.tasks.modular_arithmetic import BracketedArithmetic, ModularArithmetic, SolveEquation
from lengthwise.tasks.recall import Recall
from lengthwise.tasks.strings import MissingDuplicate
from lengthwise.testing.laws_of_tasks import decode_problems

GROUP_ORDERS = {"S3": factorial(3), "S4": factorial(4), "A5": 60, "S5": factorial(5), "Z2": 2, "Z60": 60}
GROUP_TASKS = [GroupWords(group, each) for group in GROUP_ORDERS for each in (True, False)]
TASK_FORMS = [*(GROUP_TASKS if LONG else [*GROUP_TASKS[::6], *GROUP_TASKS[3::6]]), EvenPairs(each=True), Dyck(4)]
TASK_FORMS += [CycleNavigation(3, each=True), ModularArithmetic(10), CountedBlocks(2), CountedBlocks(5), Recall(3)]
TASK_FORMS += [BracketedArithmetic(10), SolveEquation(2), MissingDuplicate(10)]
TASK_FORMS += [MultiOperandAddition(2, "most"), MultiOperandAddition(7)]


def draw_family(task, name, size, count=50):
    (family,) = choose_families(task.families, [name], task.name)
    return decode_problems(task, family.sample(torch.full((count, 1), size), lw.stream(0, name)))


@pytest.mark.parametrize("task", TASK_FORMS, ids=repr)
def test_every_form_of_a_task_satisfies_the_laws(task, monkeypatch):
    assert_laws(task, monkeypatch)


@pytest.mark.parametrize("group", GROUP_ORDERS)
def test_multiplication_tables_satisfy_the_group_axioms(group):
    table, answers = GroupWords(group).build_tables()
    order = GROUP_ORDERS[group]
    everything = torch.arange(order)
    assert answers.tolist() == everything.tolist() and table.shape == (order, order)
    assert torch.equal(table[0], everything) and torch.equal(table[:, 0], everything)  # the first element is neutral
    for row in (table, table.T):  # so there are inverses
        assert torch.equal(row.sort(1).values, everything.expand(order, -1))
    few = torch.randint(order, (3, 200), generator=lw.stream(0, group))
    a, b, c = few
    assert torch.equal(table[table[a, b], c], table[a, table[b, c]])


def test_only_a5_and_s5_are_not_solvable():
    """The derived series of a group ends in the trivial group exactly if the group is solvable."""
    for group, solvable in {"S3": True, "S4": True, "A5": False, "S5": False, "Z60": True}.items():
        table = GroupWords(group).build_tables()[0].tolist()
        inverse = [row.index(0) for row in table]
        found = set(range(len(table)))
        for _ in range(5):
            made = {table[table[a][b]][table[inverse[a]][inverse[b]]] for a, b in itertools.product(found, found)}
            while len(more := made | {table[a][b] for a in made for b in made}) > len(made):
                made = more
            found = made
        assert (found == {0}) == solvable


def test_words_with_their_inverses_end_where_they_began():
    task = GroupWords("S5")
    for word, states in draw_family(task, "inverse-pairs", 12):
        assert states[1::2] == "a" * 6 and states[::2] == word[::2]
    for word, states in draw_family(task, "word-and-inverse", 12):
        assert states[-1] == "a" and states[:5] == states[10:5:-1] and len(word) == 12


def test_products_in_z2_are_running_parities():
    problems = GroupWords("Z2").sample(torch.full((20, 1), 9), lw.stream(0))
    assert torch.equal(problems.answer, problems.prompt.cumsum(1) % 2)
    for each in (True, False):
        assert lw.Tagged().accepts(GroupWords("Z2", each)) == each != lw.Labelled().accepts(GroupWords("Z2", each))


def test_words_of_each_family_have_the_right_label():
    task, labels = CountedBlocks(), {"members": "1", "one-moved": "0", "two-swapped": "0", "one-changed": "0"}
    for name, label in labels.items():
        assert {answer for _, answer in draw_family(task, name, 4)} == {label}
    uniform = task.sample(torch.full((2000, 1), 8), lw.stream(0))
    assert 0.47 < (uniform.answer == uniform.answer.max()).double().mean() < 0.53


def test_brackets_have_the_form_of_their_family():
    task = Dyck()
    for word, closers in draw_family(task, "flat", 8):
        assert closers[1::2] == "...." and "." not in closers[::2] and len(word) == 8
    for word, _ in draw_family(task, "one-mountain", 8):
        assert {*word[:4]} <= {*"(["} and {*word[4:]} <= {*")]"}
    assert all(len({*word} & {*"(["}) == 1 for word, _ in draw_family(task, "one-kind", 8))


def test_a_letter_s_last_digit_is_recalled():
    task = Recall()
    assert decode_problems(task, task.parse("a3b1a7 bab")) == [("a3b1a7bab", "171")]
    assert all(len({*word[:12:2]}) == 1 and {*answer} == {word[11]} for word, answer in draw_family(task, "one-key", 6))


def test_arithmetic_is_nested_in_the_form_of_its_family():
    task = BracketedArithmetic()
    assert all(word.startswith("(((((") and "((" not in word[5:] for word, _ in draw_family(task, "left-nested", 6))
    assert all(word.endswith(")))))") and "))" not in word[:-5] for word, _ in draw_family(task, "right-nested", 6))
    assert all(word[0] + word[6] + word[12] == "(" + word[6] + ")" for word, _ in draw_family(task, "balanced", 4))
    middle = r"\(\d.\(\(\d.\(\(\d.\d\).\d\)\).\d\)\)"
    assert all(re.fullmatch(middle, word) for word, _ in draw_family(task, "nested-from-both-ends", 6))
    uniform = decode_problems(task, task.sample(torch.full((500, 1), 4), lw.stream(0)))
    # All binary trees of four leaves, the fourth Catalan number.
    assert len({re.sub(r"[-+*]", ".", re.sub(r"\d", "1", word)) for word, _ in uniform}) == 5


def test_equations_have_one_solution_and_x_at_any_position():
    task = SolveEquation(7)
    problems = decode_problems(task, task.sample(torch.full((300, 1), 5), lw.stream(0)))
    assert len({word.index("x") for word, _ in problems}) > 5
    for word, answer in problems:
        assert [str(x) for x in range(7) if eval(word.replace("x", str(x)).replace(":", "-")) % 7 == 0] == [answer]


def test_a_stack_is_written_from_its_top():
    task = StackManipulation()
    assert decode_problems(task, task.parse("abb-A")) == [("abb-A", "aba")]
    assert {answer for word, answer in draw_family(task, "pops", 8) if word.count("-") >= 4} == {"."}
    assert all(answer == word[::-1] for word, answer in draw_family(task, "no-actions", 8))
    uniform = decode_problems(task, task.sample(torch.full((300, 1), 6), lw.stream(0)))
    assert {len(re.match("[ab]+", word)[0]) for word, _ in uniform} == {1, 2, 3, 4, 5, 6}


def test_roots_of_squares_and_of_numbers_one_below_are_right():
    task = SquareRoot()
    for name, less in (("squares", 0), ("below", 1)):
        for word, root in draw_family(task, name, 61):
            number, root = int(word[::-1], 2), int(root[::-1], 2)
            assert (root + less) ** 2 - less == number and root == math.isqrt(number)


def test_a_carry_passes_through_all_columns_of_several_numbers():
    task = MultiOperandAddition()
    (family,) = choose_families(task.families, ["one-carry-throughout"], task.name)
    for word, answer in decode_problems(task, family.sample(torch.tensor([[4, 9]] * 50), lw.stream(0))):
        assert answer == "0" * 9 + "1" and len(word) == 39
    assert task.to_text(task.parse("12+7+105").prompt[0]) == "012+007+105"
