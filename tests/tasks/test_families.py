"""Families of structured problems have the structure that their names describe; laws of tasks check their answers."""

from itertools import product, zip_longest
from random import Random

import pytest
import torch
from conftest import LONG
from task_cases import CASES, TASKS, shrink_sizes, to_texts

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.evaluation.attack import attack
from lengthwise.evaluation.families import evaluate_families
from lengthwise.experiment.data import draw_recipe_problems
from lengthwise.runs.run import Weights, load
from lengthwise.tasks.bits import COUNTS_OF_ONES, BinarySum
from lengthwise.tasks.expression import Expression, ExpressionWriter
from lengthwise.tasks.family import choose_families, draw_mixture
from lengthwise.tasks.maze import Maze
from lengthwise.tasks.sorting import Sorting
from lengthwise.tasks.sudoku import Sudoku
from lengthwise.testing.laws_of_tasks import draw_family_sizes


def find_family(task, name):
    (family,) = choose_families(task.families, (name,), task.name)
    return family


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_tasks_have_eight_families_or_more_and_enumerate_a_small_size(task):
    assert len(task.families) >= 8
    size = [task.smallest] * len(task.axes)
    problems = task.enumerate(size, 3000)
    if isinstance(task, (Maze, Sudoku)):  # too many problems to enumerate, even of small sizes
        assert problems is None
        return
    assert problems.sizes.tolist() == [size] * len(problems)
    assert task.enumerate(size, len(problems) - 1) is None or type(task).__name__ == "Addition"


@pytest.mark.parametrize("task", [task for task in CASES if type(task).__name__ != "Sorting"], ids=repr)
def test_a_parsed_problem_has_its_size(task, monkeypatch):
    """Parsed problems, uniform or of families, have the size that they were drawn with."""
    shrink_sizes(task, monkeypatch)
    for family in (task, *task.families):
        sizes = draw_family_sizes(task, family.name)[:: 1 if LONG else 3]
        prompts, _ = to_texts(task, family.sample(sizes, lw.stream(1, family.name)))
        parsed = [task.parse(task.to_text(task.vocab.encode(prompt))) for prompt in prompts]
        assert [problems.sizes[0].tolist() for problems in parsed] == sizes.tolist()


@pytest.mark.parametrize("task", CASES, ids=repr)
def test_problems_of_a_mixture_have_right_answers(task):
    sizes = torch.full((3 * len(task.families), len(task.axes)), 6)
    prompts, answers = to_texts(task, draw_mixture(task.families, sizes, lw.stream(0, "mixed")))
    assert len(prompts) == len(sizes) and answers == [task.reference(prompt) for prompt in prompts]


def test_the_binary_sum_has_a_family_for_each_count_at_which_a_counter_carries():
    """Uniform rows rarely have 31 ones, so an error at such counts would stay hidden."""
    task = BinarySum()
    names = [family.name for family in task.families if family.name[0].isdigit()]
    assert names == [f"{n}-ones" for n in COUNTS_OF_ONES]
    for ones in COUNTS_OF_ONES:
        family = find_family(task, f"{ones}-ones")
        for size in (ones, ones + 1, 3 * ones):
            problems = family.sample(torch.tensor([[size]] * 20), lw.stream(0, family.name))
            assert problems.prompt.sum(1).tolist() == [ones] * 20 and problems.sizes.tolist() == [[size]] * 20


@pytest.mark.parametrize("name", ["looped-binary-sum", "halting-binary-sum"])
def test_shipped_weights_count_ones_past_powers_of_two(name):
    """Earlier weights were right on nearly all rows, but counted 47 ones in rows of one zero and 31 ones."""
    weights = load(name)
    counts = [f"{ones}-ones" for ones in (15, 16, 31, 32)]
    found = {score.problems: score.exact for score in evaluate_families(weights, [40], samples=10, names=counts)}
    assert found == dict.fromkeys(counts, 1.0)


@pytest.fixture(scope="module")
def untrained_weights():
    recipe = catalog.find_recipe("looped-binary-sum", ["model.width=8", "model.layers=1"])
    return Weights("untrained", recipe, recipe.build().eval())


def test_a_mixture_draws_no_family_at_sizes_below_its_smallest():
    """If families were drawn below their smallest size, rows of a single symbol would be too frequent."""
    task, sizes = BinarySum(), torch.full((4000, 1), 6)
    fitting = [family for family in task.families if family.smallest <= 6]
    found = [draw_mixture(families, sizes, lw.stream(0, "mixed")).prompt for families in (task.families, fitting)]
    full = [float((prompt.sum(1) == 6).double().mean()) for prompt in found]
    assert len(fitting) < len(task.families) and full[0] == pytest.approx(full[1], abs=0.03)
    families = [find_family(task, name) for name in ("3-ones", "15-ones")]
    for size, ones in ((14, {3}), (15, {3, 15})):  # from its smallest size on
        problems = draw_mixture(families, torch.full((50, 1), size), lw.stream(0, "mixed"))
        assert set(problems.prompt.sum(1).tolist()) == ones


def test_a_family_is_neither_measured_nor_drawn_at_sizes_below_its_smallest(untrained_weights):
    for size in (30, 31):
        there = {score.problems for score in evaluate_families(untrained_weights, [size], samples=1)}
        assert {"3-ones", "15-ones"} < there and ("31-ones" in there) == (size >= 31) and "32-ones" not in there
    with pytest.raises(lw.UsageError, match=r"^binary-sum: its 31-ones problems start at size 31, not 30$"):
        draw_recipe_problems(untrained_weights.recipe, 30, 5, seed=0, kind="31-ones")
    for names, message in (
        ('["31-ones","63-ones"]', r"^family_names: sizes start at 31, above lengths\.top=20: name other families$"),
        ('["runz"]', r"binary-sum has no family 'runz' \(did you mean runs\?\)"),
    ):
        with pytest.raises(lw.UsageError, match=message):
            catalog.find_recipe("short-binary-sum", [f"family_names={names}"])


def draw_operands(task, name, size, count=200):
    """Return both operands of sums as integers."""
    prompts, _ = to_texts(task, find_family(task, name).sample(torch.tensor([size] * count), lw.stream(0, name)))
    return [tuple(int(number) for number in prompt.split("+")) for prompt in prompts]


def add_columns(first, second):
    """Return the totals of a sum's columns, from the lowest."""
    return [int(a) + int(b) for a, b in zip_longest(str(first)[::-1], str(second)[::-1], fillvalue="0")]


def test_families_of_sums_have_the_structure_in_their_names():
    task, top = lw.Addition(equal_lengths=True, leading_zeros=True), 10**7 - 1
    powers = {10**k + more for k in range(7) for more in (-1, 0, 1)} | {top}
    for name, holds in {
        "all-highest": lambda a, b: a == b == top,
        "complement": lambda a, b: a + b == top,
        "complement-and-one": lambda a, b: a + b == top + 1,
        "interrupted-carry": lambda a, b: a + b != top + 1,
        "twice": lambda a, b: a == b,
        "zeros": lambda a, b: 0 in (a, b),
        "powers": lambda a, b: {a, b} <= powers,
        "every-column-carries": lambda a, b: min(add_columns(a, b)) >= 10 and len(add_columns(a, b)) == 7,
        "no-column-carries": lambda a, b: max(add_columns(a, b)) < 10,
    }.items():
        assert all(holds(*pair) for pair in draw_operands(task, name, [7])), name
    assert {first + second == top + 1 for first, second in draw_operands(task, "highest-and-one", [7])} == {True, False}


@pytest.mark.parametrize("size", [(2, 2), (4, 4), (6, 3)], ids=repr)
def test_families_of_sums_without_leading_zeros_have_the_structure_in_their_names(size):
    task, top = lw.Addition(order="most"), 10 ** max(size)
    for name, holds in {
        "no-column-carries": lambda a, b: a + b < top and max(add_columns(a, b)) < 10,
        "every-column-carries": lambda a, b: min(add_columns(a, b)[: min(size)]) > 9,
        "interrupted-carry": lambda a, b: a + b != top,
        "palindrome": lambda *pair: all(str(number)[::-1] == str(number) for number in pair),
        "one-symbol": lambda *pair: all(len(set(str(number))) == 1 for number in pair),
        "mirrored": lambda a, b: size[0] != size[1] or str(a) == str(b)[::-1],
    }.items():
        assert all(holds(*pair) for pair in draw_operands(task, name, size, 1000)), name


def test_carry_chains_come_with_and_without_an_entering_carry():
    """Chains with and chains without an entering carry are both frequent, and may be longer than 9 columns."""
    task = lw.Addition(equal_lengths=True, leading_zeros=True)
    lengths = {True: [], False: []}  # of runs of 3 columns or more that add up to 9, entered by a carry or not
    for first, second in draw_operands(task, "carry-chain", [12], 400):
        totals = (add_columns(first, second) + [0] * 12)[:12]
        for start in (i for i in range(12) if totals[i] == 9 and (i == 0 or totals[i - 1] != 9)):
            length = next((j for j in range(start, 12) if totals[j] != 9), 12) - start
            if length > 2:
                lengths[first % 10**start + second % 10**start >= 10**start].append(length)
    assert all(len(found) > 60 and max(found) > 9 for found in lengths.values())


def test_doubled_rows_and_those_with_one_changed_bit_differ_in_parity():
    """Doubled rows have even parity; doubled rows with one bit changed have odd parity."""
    sizes = torch.full((300, 1), 12)
    even = find_family(lw.Parity(), "doubled").sample(sizes, lw.stream(0))
    odd = find_family(lw.Parity(), "doubled-but-one").sample(sizes, lw.stream(0))
    assert (set(even.answer.flatten().tolist()), set(odd.answer.flatten().tolist())) == ({0}, {1})


def test_expressions_have_the_structure_of_their_family():
    """The grammar's own distribution replaces a family only where the family's values are too long."""
    task = Expression()
    for size in (3, 4, 5, 9, 30, 61):
        rows = to_texts(task, find_family(task, "only-plus").sample(torch.tensor([[size]] * 20), lw.stream(0)))[0]
        assert all(set(row) <= set("0123456789+") for row in rows)
    rows = to_texts(task, find_family(task, "nested-left").sample(torch.tensor([[43]] * 20), lw.stream(0)))[0]
    assert all(row.startswith("((((((((((") for row in rows)
    for size, seed in product((3, 4, 5, 6, 9, 12), range(100)):
        text = ExpressionWriter(size, Random(seed)).nearly_cancelling()
        one, other = text.split("-") if size % 2 else text[1:].split("+")
        assert len(text) == size and one[:-1] == other[:-1] and one != other
        text = ExpressionWriter(size, Random(seed)).signs()
        assert len(text) == size and {factor.strip("-") for factor in text.split("*")} == {"1"}


@pytest.mark.parametrize("size", range(7, 40))
@pytest.mark.parametrize("write_expression", [ExpressionWriter.nested_left, ExpressionWriter.nested_right])
def test_parentheses_are_as_deep_as_the_size_allows_or_one_level_less(write_expression, size):
    """The depth is one level less where one character would remain, as a term has at least two characters."""
    depth = (size - 3) // 4 - ((size - 3) % 4 == 1)
    for seed in range(20):
        text = write_expression(ExpressionWriter(size, Random(seed)))
        assert len(text) == size and text.count("(") == text.count(")") == depth, text


def test_a_task_of_one_symbol_has_one_family_and_can_be_attacked():
    unary = type("_Unary", (lw.Copy,), {"symbols": ("x",)})
    small = ["model.width=8", "model.layers=1", "family_names=()", "families=0"]
    recipe = catalog.find_recipe("looped-copy", small).change([], task=unary())
    assert [(family.name, family.about) for family in recipe.task.families] == [
        ("one-symbol", "Rows of one repeated symbol.")
    ]
    found = attack(Weights("untrained", recipe, recipe.build().eval()), [3, 5], tries=200)
    assert found["tries"] == 5  # x to xxxxx


@pytest.mark.parametrize(
    ("name", "sizes", "has_structure"),
    [
        ("neighbours", [[3, 4], [20, 4], [5, 2]], lambda n: sorted(n) == [*range(min(n), min(n) + len(n))]),
        ("odd-one-out", [[3, 4], [20, 4], [5, 2]], lambda n: len(set(n)) == 2),
        ("ascending", [[12, 1]], lambda n: n == sorted(n)),  # longer than the range of numbers
        ("descending", [[12, 1]], lambda n: n == sorted(n)[::-1]),
    ],
)
def test_lists_of_any_length_in_one_batch_fit_their_family(name, sizes, has_structure):
    problems = find_family(Sorting(), name).sample(torch.tensor(sizes * 50), lw.stream(0, name))
    for row, length in zip(problems.prompt, problems.prompt_length, strict=True):
        assert has_structure([int(part.split(":")[1]) for part in Sorting().to_text(row[:length]).split(",")])
