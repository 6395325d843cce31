"""Laws of every task: each sample has the requested size and the right answer by the reference algorithm."""

import operator
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from task_cases import ADDITIONS, CASES, DECIMAL, MULTIPLICATIONS, TASKS, assert_laws, list_sizes, sample, to_texts

import lengthwise as lw
from lengthwise.tasks.arithmetic import Multiplication
from lengthwise.tasks.bits import BinarySum, BitwiseOr
from lengthwise.tasks.sorting import LABELS, Sorting
from lengthwise.tasks.strings import Copy, UniqueSet

TASKS_WITH_HARDER_SET = [task for task in TASKS if type(task).sample_hard is not lw.Task.sample_hard]


def read_digits(task, prompt):
    """Return each operand's digits, least significant first."""
    return [[int(d) for d in (operand if task.order == "least" else operand[::-1])] for operand in prompt.split("+")]


# Every task


@pytest.mark.parametrize("task", CASES, ids=repr)
def test_every_task_satisfies_the_laws(task, monkeypatch):
    assert_laws(task, monkeypatch)


@pytest.mark.parametrize("task", [task for task in TASKS if getattr(task, "order", None)], ids=repr)
def test_to_text_writes_the_most_significant_digit_first(task):
    prompts, _ = to_texts(task, sample(task, list_sizes(task, repeats=2)))
    for prompt in prompts:
        turned = re.sub(r"\d+", lambda number: number[0][::-1], prompt)
        assert task.to_text(task.vocab.encode(prompt)) == (turned if task.order == "least" else prompt)


def get_default_question(docstring):
    """Return the default question of a task with this docstring, through a class outside the catalog."""
    return lw.Task.question.fget(type("Own", (), {"__doc__": docstring, "name": "own"})())


def test_the_default_question_is_the_docstring_s_first_sentence():
    assert get_default_question("Bits, in\n    order. And more.\n\n    And more yet.") == "Bits, in order."
    assert get_default_question("Is this word balanced? A word of two kinds.") == "Is this word balanced?"
    for docstring in (None, "Own(base: int = 2)"):  # without a docstring, dataclasses write the second
        with pytest.raises(lw.UsageError, match="own: its class has no docstring"):
            get_default_question(docstring)


@pytest.mark.parametrize(
    "task",
    [task for task in TASKS if type(task).sample_natural is lw.Task.sample_natural and not task.listed_sizes],
    ids=repr,
)
def test_natural_problems_have_all_sizes_equally_often(task):
    """Sizes are uniform on every axis, unless the task defines natural sizes."""
    low, high = task.smallest + 1, task.smallest + 4
    for axis in task.sample_natural(2000, low, high, lw.stream(0, "pool")).sizes.unbind(1):
        assert (compute_fractions(axis.tolist(), high + 1)[low:] - 0.25).abs().max() <= 5 * (0.25 * 0.75 / 2000) ** 0.5


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_invalid_natural_sizes_are_refused_in_one_line(task):
    for count, low, high in ((5, task.smallest - 1, 9), (5, 9, 8), (0, 8, 9), (-1, 8, 9)):
        with pytest.raises(lw.UsageError, match=rf"^{task.name}: [^\n]*$"):
            task.sample_natural(count, low, high, lw.stream(0))


# Sizes and rounds


@pytest.mark.parametrize("is_hard", [False, True])
@pytest.mark.parametrize("task", ADDITIONS, ids=repr)
def test_leading_zeros_occur_only_if_allowed(task, is_hard):
    sizes = list_sizes(task, repeats=30)
    prompts, answers = to_texts(task, sample(task, sizes, is_hard))
    tops = [number[-1] for prompt in prompts for number in read_digits(task, prompt) if len(number) > 1]
    if task.leading_zeros:
        assert 0 in tops
        assert [len(answer) for answer in answers] == [max(size) + 1 for size in sizes]
    else:
        assert 0 not in tops
        turned = [answer if task.order == "most" else answer[::-1] for answer in answers]
        assert all(answer == "0" or answer[0] != "0" for answer in turned)


# Distributions of 4,000 rows: a right share is off by less than five standard deviations


def compute_fractions(values, count):
    return torch.bincount(torch.tensor(values), minlength=count) / len(values)


@pytest.mark.parametrize("task", ADDITIONS, ids=repr)
def test_digits_are_uniform(task):
    sizes = [3] if task.equal_lengths else [3, 2]
    rows = [read_digits(task, prompt) for prompt in to_texts(task, sample(task, [sizes] * 4000))[0]]
    for operand in (0, 1):
        for position in range(len(rows[0][operand])):
            share = compute_fractions([row[operand][position] for row in rows], task.base)
            lowest = 0 if task.leading_zeros or position < len(rows[0][operand]) - 1 else 1
            wanted = torch.where(torch.arange(task.base) >= lowest, 1 / (task.base - lowest), 0.0)
            assert (share - wanted).abs().max() <= 5 * (0.25 / 4000) ** 0.5
            assert (share[wanted == 0] == 0).all()
    assert_uncorrelated(torch.tensor([first + second for first, second in rows]))


def assert_uncorrelated(rows):
    difference = torch.corrcoef(rows.T.float()) - torch.eye(rows.shape[1])
    assert difference.nan_to_num().abs().max() < 0.08  # NaN for constant digits


@pytest.mark.parametrize("task", [lw.Parity(), Copy(), Copy(5), BinarySum(), UniqueSet(), UniqueSet(3)], ids=repr)
def test_symbols_of_single_rows_are_uniform_at_every_place(task):
    problems, wanted = sample(task, [[3]] * 4000), 1 / len(task.symbols)
    for position in range(3):
        share = compute_fractions(problems.prompt[:, position].tolist(), len(task.symbols))
        assert len(share) == len(task.symbols)
        assert share.min() > 0
        assert (share - wanted).abs().max() <= 5 * (wanted * (1 - wanted) / 4000) ** 0.5


@pytest.mark.parametrize("size", [(1, 3), (2, 3), (3, 1)])
def test_bits_of_both_factors_are_uniform_and_uncorrelated(size):
    problems = sample(Multiplication(), [size] * 4000)
    bits = torch.cat([problems.prompt[:, : size[0]], problems.prompt[:, size[0] + 1 :]], 1)
    assert (bits.float().mean(0) - 0.5).abs().max() <= 5 * (0.25 / 4000) ** 0.5
    assert_uncorrelated(bits)


def measure_longest_carry(task, prompt):
    """Return the length of the longest run of columns through which one carry propagates."""
    first, second = read_digits(task, prompt)
    width = max(len(first), len(second))
    longest = run = carry = 0
    for a, b in zip(first + [0] * (width - len(first)), second + [0] * (width - len(second)), strict=True):
        run = run + 1 if carry and a + b == task.base - 1 else int(a + b >= task.base)
        carry = int(a + b + carry >= task.base)
        longest = max(longest, run)
    return longest


@pytest.mark.parametrize("task", ADDITIONS, ids=repr)
def test_the_hard_set_has_long_carries(task):
    """Uniform problems rarely have long carries; in a third of hard problems a carry passes through half of the
    columns, also beyond the shorter operand."""
    runs = {}
    for hard, size in ((False, 20), (True, 20), *([] if task.equal_lengths else [(True, (12, 3)), (True, (3, 12))])):
        sizes = [[size] * len(task.axes) if isinstance(size, int) else size] * 500
        problems = sample(task, sizes, hard)
        runs[hard, size] = [measure_longest_carry(task, prompt) for prompt in to_texts(task, problems)[0]]
        assert task.difficulty_features(problems)["longest carry"].tolist() == runs[hard, size]
    long = {key: sum(run >= (10 if key[1] == 20 else 8) for run in found) / 500 for key, found in runs.items()}
    assert long.pop((False, 20)) < (0.1 if task.base == 2 else 0.02)
    assert min(long.values()) > 0.3 and max(runs[True, 20]) > 15
    # Half of the carries pass through 9 above 0, with the nines in either operand.
    if task == ADDITIONS[0]:
        rows = [read_digits(task, prompt) for prompt in to_texts(task, sample(task, [[8, 8]] * 1000, is_hard=True))[0]]
        for nine, zero in ((9, 0), (0, 9)):
            found = sum(sum(pair == (nine, zero) for pair in zip(*row, strict=True)) >= 4 for row in rows)
            assert 50 < found < 400


FEATURES = [(task, "ones", lambda prompt: prompt.count("1")) for task in (lw.Parity(), BinarySum(), Multiplication())]
FEATURES += [(Copy(), "longest run", lambda prompt: max(map(len, re.findall(r"0+|1+", prompt))))]
FEATURES += [(UniqueSet(5), "repeats", lambda prompt: len(prompt) - len(set(prompt)))]


@pytest.mark.parametrize(("task", "name", "count_feature"), FEATURES)
def test_difficulty_features_are_counted(task, name, count_feature):
    problems = sample(task, list_sizes(task, count=7))
    features = {key: found.tolist() for key, found in task.difficulty_features(problems).items()}
    assert features == {name: list(map(count_feature, to_texts(task, problems)[0]))}


@pytest.mark.parametrize("order", ["least", "most"])
def test_lists_to_sort_have_the_requested_form(order):
    """Lists have the requested count and digits, no leading zeros, and consecutive labels from a uniform start."""
    task, lengths, starts = Sorting(order), [], []
    for prompt in to_texts(task, sample(task, [[4, 3]] * 3000))[0]:
        labels, numbers = zip(*(part.split(":") for part in prompt.split(",")), strict=True)
        numbers = [number[::-1] if order == "least" else number for number in numbers]
        assert len(numbers) == 4
        assert all(number == "0" or number[0] != "0" for number in numbers)
        lengths += map(len, numbers)
        starts.append(LABELS.index(labels[0]))
        assert list(labels) == [LABELS[(starts[-1] + i) % len(LABELS)] for i in range(4)]
    assert (compute_fractions(lengths, 4)[1:] - 1 / 3).abs().max() <= 5 * (2 / 9 / 12000) ** 0.5
    assert len(set(starts)) == len(LABELS)


def test_the_shorter_vector_holds_a_one_at_a_uniform_place():
    task = BitwiseOr()
    for size in ((3, 5), (5, 3), (4, 4)):
        rows = [prompt.split("|") for prompt in to_texts(task, sample(task, [size] * 3000))[0]]
        assert {(len(first), len(second)) for first, second in rows} == {size}
        assert all((first + second).count("1") == 1 for first, second in rows)
        in_first = sum("1" in first for first, _ in rows) / 3000
        assert in_first == pytest.approx(float(size[0] < size[1]) if size[0] != size[1] else 0.5, abs=0.05)
        positions = [max(first.find("1"), second.find("1")) for first, second in rows]
        assert (compute_fractions(positions, min(size)) - 1 / min(size)).abs().max() < 0.05


def test_counts_of_ones_are_uniform_in_hard_binary_sums():
    problems = sample(BinarySum(), [[9]] * 5000, is_hard=True)
    share = compute_fractions(problems.prompt.sum(1).tolist(), 10)
    assert (share - 0.1).abs().max() <= 5 * (0.1 * 0.9 / 5000) ** 0.5
    position = problems.prompt.float().mean(0)  # no position is preferred
    assert (position - 0.5).abs().max() <= 5 * (0.25 / 5000) ** 0.5


@pytest.mark.parametrize("task", MULTIPLICATIONS, ids=repr)
def test_the_hard_set_of_multiplication_is_rich_in_largest_digits(task):
    """The fraction of largest digits is uniform from 0 to 1 in hard problems, and 1 / base in uniform problems."""
    share = {}
    for hard in (False, True):
        prompts, _ = to_texts(task, sample(task, [[6, 14]] * 2000, hard))
        share[hard] = torch.tensor([prompt.count(str(task.base - 1)) / 20 for prompt in prompts])
    assert share[False].mean() == pytest.approx(1 / task.base, abs=0.03)
    assert share[True].mean() == pytest.approx(0.5, abs=0.03)
    assert (share[False] >= 0.9).float().mean() < 0.01
    assert 0.08 < (share[True] >= 0.9).float().mean() < 0.16


def test_hard_problems_of_the_unique_set_repeat_symbols():
    """A hard row draws its symbols from a random subset of 1 to n symbols."""
    problems = sample(UniqueSet(), [[8]] * 4000, is_hard=True)
    alone = compute_fractions(problems.answer_length.tolist(), 9)
    assert alone[1] > 1 / 8
    assert problems.answer_length.float().mean() < 5
    symbols = compute_fractions(problems.prompt.flatten().tolist(), 50)
    assert len(symbols) == 50
    assert (symbols - 0.02).abs().max() < 0.006


@pytest.mark.parametrize("task", [task for task in TASKS if task not in TASKS_WITH_HARDER_SET], ids=repr)
def test_a_task_without_a_harder_set_refuses_hard_problems(task):
    with pytest.raises(lw.UsageError, match="no harder set"):
        sample(task, [[3] * len(task.axes)], is_hard=True)


def test_lists_longer_than_the_labels_are_refused():
    with pytest.raises(lw.UsageError, match="labels for at most 52 numbers, not 53"):
        sample(Sorting(), [[53, 1]])


# Parsed problems against plain arithmetic

OPERANDS = st.one_of(st.integers(0, 20), st.integers(0, 10**6), st.integers(10**99, 10**100 - 1))


@pytest.mark.parametrize("task", [*ADDITIONS, *MULTIPLICATIONS], ids=repr)
@given(OPERANDS, OPERANDS, st.integers(0, 3), st.integers(0, 3))
def test_typed_sums_and_products_equal_plain_arithmetic(task, first, second, zeros_first, zeros_second):
    (sign,), combine = task.signs, operator.add if "+" in task.signs else operator.mul
    one = "0" * zeros_first + np.base_repr(first, task.base)
    two = "0" * zeros_second + np.base_repr(second, task.base)
    problems = task.parse(f" {one} {sign} {two} ")
    wanted = np.base_repr(combine(first, second), task.base)
    assert task.format(problems.answer[0, : int(problems.answer_length)]) == wanted
    (prompt,), (answer,) = to_texts(task, problems)
    numbers = prompt.split(sign)
    turn = 1 if task.order == "most" else -1
    assert [int(number[::turn], task.base) for number in numbers] == [first, second]
    assert task.reference(prompt) == answer and len(answer) <= int(task.answer_slots(problems.sizes))
    assert problems.sizes.tolist() == [[len(number) for number in numbers][: len(task.axes)]]
    if len(task.axes) == 1:
        assert len(numbers[0]) == len(numbers[1])
    elif task.leading_zeros:
        assert [*map(len, numbers)] == [len(one), len(two)]


def test_bases_and_alphabets_have_bounds():
    for kind, low, high in ((lw.Addition, 2, 10), (Multiplication, 2, 10), (Copy, 2, 36), (UniqueSet, 2, 62)):
        for size in (low - 1, high + 1):
            with pytest.raises(lw.UsageError, match=f"must be {low} to {high}"):
                kind(size)


# Binary sum, multiplication and unique set


PROBLEMS = {
    BinarySum(): [
        ("0", "0", "0", "0", 1), ("0000", "0000", "0", "0", 4), (" 1 0 1 \n", "101", "01", "10", 3),
        ("1011011111", "1011011111", "0001", "1000", 10), ("11110011", "11110011", "011", "110", 8),
    ],
    Multiplication(): [
        ("1*1", "1*1", "10", "1", 1), ("00*101", "00*101", "00000", "0", 6),
        (" 10 * 110\n", "10*110", "00110", "1100", 6), ("110*10", "110*10", "00110", "1100", 6),
        ("11*1111", "11*1111", "101101", "101101", 8), ("01*0011", "01*0011", "110000", "11", 8),  # leading zeros stay
    ],
    DECIMAL: [("12*34", "21*43", "804", "408", 4), ("007*0", "7*0", "0", "0", 1)],
    Multiplication(10, "most", "most", False): [("12*34", "12*34", "408", "408", 4)],
    Multiplication(10, "most", "most", True): [("02*34", "02*34", "0068", "68", 4)],
    Multiplication(3, "least", "least", True): [("12*2", "21*2", "101", "101", 2)],  # 5 · 2 = 10
    Sorting(): [
        ("A:321,B:54", "A:123,B:45", "B,A", "B,A", 2), ("z:7", "z:7", "z", "z", 1),
        ("Y:10,Z:010,a:9", "Y:01,Z:01,a:9", "a,Y,Z", "a,Y,Z", 3),
        (f"A:1{'0' * 30},B:{'9' * 30}", f"A:{'0' * 30}1,B:{'9' * 30}", "B,A", "B,A", 2),
    ],
    BitwiseOr(): [("01|0011", "01|0011", "0111", "0111", 4), ("1111|0", "1111|0", "1111", "1111", 4)],
    UniqueSet(): [("b a b c a", "babca", "bac", "bac", 5), ("aAaA", "aAaA", "aA", "aA", 4)],
    UniqueSet(62): [("9Z9z0", "9Z9z0", "9Zz0", "9Zz0", 5)],
}  # fmt: skip


@pytest.mark.parametrize(("task", "expected_row"), [(task, row) for task, rows in PROBLEMS.items() for row in rows])
def test_known_problems_have_the_expected_rows(task, expected_row):
    text, prompt, answer, formatted, rounds = expected_row
    problems = task.parse(text)
    assert to_texts(task, problems) == ([prompt], [answer])
    assert task.reference(prompt) == answer
    assert task.format(task.vocab.encode(answer)) == formatted
    assert problems.rounds.tolist() == [rounds]


def test_operands_of_a_product_have_leading_zeros_only_if_allowed():
    rows = [prompt.split("*") for prompt in to_texts(DECIMAL, sample(DECIMAL, [[1, 3]] * 3000))[0]]
    assert {first for first, _ in rows} == set("0123456789")
    assert all(second[-1] != "0" for _, second in rows)  # written least significant digit first
    share = compute_fractions([int(second[-1]) for _, second in rows], 10)
    assert (share[1:] - 1 / 9).abs().max() <= 5 * (8 / 81 / 3000) ** 0.5


@pytest.mark.parametrize("size", [2, 50, 62])
def test_a_set_needs_no_more_slots_than_its_alphabet_has_symbols(size):
    task = UniqueSet(size)
    assert len(set(task.symbols)) == len(task.symbols) == size
    lengths = torch.tensor([[1], [size - 1], [size], [size + 1], [10 * size]])
    assert task.answer_slots(lengths).tolist() == [1, size - 1, size, size, size]
    problems = sample(task, [[20 * size]] * 20)
    assert int(problems.answer_length.max()) == size
