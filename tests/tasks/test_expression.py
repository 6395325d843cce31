"""Arithmetic expressions have the distribution of their grammar, and the values that Python computes."""

import itertools
import random
import re
from collections import Counter
from functools import cache
from itertools import product

import pytest
import task_cases
import torch
from conftest import LONG
from hypothesis import given
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.tasks.expression import Expression
from lengthwise.tasks.grammar import MAX_CHARACTERS, SYMBOLS, draw_expressions, evaluate, get_tables

TASK = Expression()
SAMPLE_COUNT = 50_000 if LONG else 25_000


# The grammar, rule by rule


def draw_equation(draw):
    row = f"{draw_value(draw)}{'+' if (u := draw()) < 0.35 else '-' if u < 0.7 else '*'}{draw_value(draw)}"
    return row if draw() < 0.5 else f"({row})"


def draw_value(draw):
    return draw_equation(draw) if draw() < 0.46 else draw_number(draw)


def draw_number(draw):
    if draw() < 0.05:
        return "0"
    sign = "-" if draw() < 0.5 else ""
    digits = "123456789"[int(9 * draw())]
    while draw() < 0.2:
        digits += "0123456789"[int(10 * draw())]
    return sign + digits


def fold_signs(row):
    return row.replace("--", "+").replace("+-", "-")


@cache
def sample_reference(low, high, count, seed=0):
    """Return ``count`` expressions of ``low`` to ``high`` characters, and their values of at most five characters."""
    draw, kept = random.Random(seed).random, []
    while len(kept) < count:
        row = fold_signs(draw_equation(draw))
        if low <= len(row) <= high and len(answer := str(eval(row))) <= 5:
            kept.append((row, answer))
    return kept


def list_texts(problems):
    return task_cases.to_texts(TASK, problems)


def count_operators(row):
    return len(re.findall(r"(?<=[\d)])[-+*]", row))


def measure_depth(row):
    return max(itertools.accumulate((symbol == "(") - (symbol == ")") for symbol in row))


# Chi-square


def compute_p_value(sample, reference):
    """Return the p-value of Pearson's test that two samples have one distribution; rare categories are merged."""
    sample, reference = Counter(sample), Counter(reference)
    often = {key for key in sample | reference if sample[key] + reference[key] >= 20}
    pairs = [(sample[key], reference[key]) for key in sorted(often, key=repr)]
    pairs.append((sample.total() - sum(a for a, _ in pairs), reference.total() - sum(b for _, b in pairs)))
    pairs = [pair for pair in pairs if sum(pair)]
    assert len(pairs) > 1
    scale = (reference.total() / sample.total()) ** 0.5
    statistic = sum((a * scale - b / scale) ** 2 / (a + b) for a, b in pairs)
    halves = torch.tensor([len(pairs) - 1, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(*halves))


def test_the_chi_square_test_is_calibrated():
    """P-values are right for samples of equal and of different distributions."""
    draw = random.Random(0)
    first, second, other = (draw.choices("abc", weights, k=20_000) for weights in ([5, 3, 2], [5, 3, 2], [50, 33, 17]))
    assert compute_p_value(first, second) > 0.01 and compute_p_value(first, other) < 1e-6
    spread = [compute_p_value(draw.choices("abc", k=300), draw.choices("abc", k=200)) for _ in range(400)]
    assert sum(p < 0.1 for p in spread) / 400 == pytest.approx(0.1, abs=0.06)


# Distribution


@pytest.fixture(scope="module")
def natural_sample():
    return TASK.sample_natural(SAMPLE_COUNT, 8, 30, lw.stream(0, "pool"))


@pytest.fixture(scope="module")
def distinct_expressions(natural_sample):
    """Return two sets of distinct expressions with their values: the task's and the reference's."""
    return set(zip(*list_texts(natural_sample), strict=True)), set(sample_reference(8, 30, SAMPLE_COUNT))


STATISTICS = {
    "length": lambda row, answer: len(row),
    "operators": lambda row, answer: count_operators(row),
    "depth": lambda row, answer: measure_depth(row),
    "value's length": lambda row, answer: len(answer),
    "first two symbols": lambda row, answer: row[:2],
    "last two symbols": lambda row, answer: row[-2:],
    "signs": lambda row, answer: (row.count("+"), row.count("-"), row.count("*")),
    "longest number": lambda row, answer: max(map(len, re.findall(r"\d+", row))),
    "value's last symbol": lambda row, answer: answer[-1],
}


def compare_statistic(sample, reference, name):
    """Return the p-value of the test that a statistic has one distribution in both sets of expressions."""
    return compute_p_value(*([STATISTICS[name](row, answer) for row, answer in rows] for rows in (sample, reference)))


@pytest.mark.parametrize("name", STATISTICS)
def test_natural_problems_have_the_grammar_s_distribution(distinct_expressions, name):
    """Natural problems and the reference also have equally many duplicates, up to chance."""
    assert compare_statistic(*distinct_expressions, name) > 0.001
    ours, theirs = map(len, distinct_expressions)
    assert 0.9 * SAMPLE_COUNT < ours < SAMPLE_COUNT and abs(ours - theirs) < 5 * (2 * (SAMPLE_COUNT - theirs)) ** 0.5


@pytest.mark.parametrize("length", [8, 12])
def test_problems_of_one_length_have_the_grammar_s_conditional_distribution(length):
    theirs = [problem for problem in sample_reference(8, 30, SAMPLE_COUNT) if len(problem[0]) == length]
    problems = TASK.sample(torch.full((40_000, 1), length), lw.stream(0, "length", length))
    ours = [*zip(*list_texts(problems), strict=True)]
    assert {len(row) for row, _ in ours} == {length}
    for name in ("operators", "depth", "first two symbols", "value's length", "last two symbols", "signs"):
        assert compare_statistic(ours, theirs, name) > 0.001
    # The most frequent expressions of one half of ours, and all shapes.
    often = {row for row, _ in Counter(row for row, _ in ours[:20_000]).most_common(300)}
    rows = [row for row, _ in ours[20_000:]], [row for row, _ in theirs]
    assert compute_p_value(*([row if row in often else "" for row in of] for of in rows)) > 0.001
    assert compute_p_value(*(map(to_shape, of) for of in rows)) > 0.001


def to_shape(row):
    """Return the expression with d for digits from 1 to 9, and t for a number's later digits."""
    return re.sub(r"[1-9]\d*", lambda digits: "d" + "t" * (len(digits[0]) - 1), row)


def enumerate_shapes(max_length):
    """Return the shapes of all expressions of up to ``max_length`` characters, whose signs are not folded yet (see
    ``fold_signs``), and their probabilities by the grammar's rules."""
    numbers = {"0": 0.05}
    for sign, digits in product(("", "-"), range(1, max_length)):
        numbers[f"{sign}d{'t' * (digits - 1)}"] = 0.95 * 0.5 * 0.2 ** (digits - 1) * 0.8
    equations = {}
    for _ in range(max_length // 2):  # each pass adds one level of nesting: two characters or more
        vals = Counter({row: 0.54 * p for row, p in numbers.items()})
        for row, p in equations.items():
            vals[row] += 0.46 * p
        pairs, equations = Counter(), Counter()
        for (a, p), (b, q) in product(vals.items(), repeat=2):
            if len(a) + len(b) < max_length:
                pairs[a, b] += p * q
        for (a, b), p in pairs.items():
            for operator, q in (("+", 0.35), ("-", 0.35), ("*", 0.3)):
                row = f"{a}{operator}{b}"
                equations[row] += p * q / 2
                if len(row) + 2 <= max_length:
                    equations[f"({row})"] += p * q / 2
    return equations


def test_lengths_have_the_grammar_s_probabilities():
    """Expressions of at most five characters have at most seven before their signs are folded."""
    exact = Counter()
    for row, p in enumerate_shapes(7).items():
        exact[len(fold_signs(row))] += p
    assert get_tables(5).mass[3:6].tolist() == pytest.approx([exact[length] for length in (3, 4, 5)], rel=1e-12)


def test_digits_are_uniform():
    prompts, _ = list_texts(TASK.sample(torch.full((20_000, 1), 14), lw.stream(0, "digits")))
    numbers = [digits for prompt in prompts for digits in re.findall(r"\d+", prompt)]
    assert compute_p_value([n[0] for n in numbers if n != "0"], [*"123456789"] * 20_000) > 0.001
    assert compute_p_value([d for n in numbers for d in n[1:]], [*"0123456789"] * 20_000) > 0.001
    assert not any(n[0] == "0" for n in numbers if len(n) > 1)


@pytest.mark.parametrize("max_characters", [1, 2, 3, 9])
def test_values_have_at_most_the_given_number_of_characters(max_characters):
    """Problems with longer values are left out, and the distribution of the others does not change."""
    task = Expression(max_characters)
    prompts, answers = list_texts(task.sample(torch.full((10_000, 1), 9), lw.stream(0, "most", max_characters)))
    assert max(map(len, answers)) == min(max_characters, 8) == int(task.answer_slots(torch.tensor([[9]])))
    assert answers == [str(eval(prompt)) for prompt in prompts]
    whole, values = draw_expressions(torch.full((30_000,), 9), lw.stream(0, "whole"))
    fits = [i for i, result in enumerate(values.tolist()) if len(str(result)) <= max_characters]
    theirs = ["".join(SYMBOLS[i] for i in whole[row].tolist()) for row in fits]
    for statistic in (count_operators, measure_depth, lambda row: row[:2]):
        assert compute_p_value(map(statistic, prompts), map(statistic, theirs)) > 0.001


@pytest.mark.parametrize("lengths", [(31, 40), (MAX_CHARACTERS - 10, MAX_CHARACTERS)])
def test_long_expressions_are_drawn(lengths):
    low, high = lengths
    sizes = torch.arange(low, high + 1).repeat(1200 // high)[:, None]
    problems = TASK.sample(sizes, lw.stream(0, "long"))
    prompts, answers = list_texts(problems)
    assert [*map(len, prompts)] == sizes[:, 0].tolist()
    assert answers == [str(eval(prompt)) for prompt in prompts]
    assert max(map(len, answers)) == 5
    natural_sample, _ = list_texts(TASK.sample_natural(200, low, high, lw.stream(1, "long")))
    assert {*map(len, natural_sample)} == set(range(low, high + 1))


def test_draws_do_not_depend_on_their_index(natural_sample):
    """Natural problems are in random order, and problems of one size have the same distribution at every index."""
    length = natural_sample.sizes[:, 0].tolist()
    assert compute_p_value(length[: SAMPLE_COUNT // 2], length[SAMPLE_COUNT // 2 :]) > 0.001
    rows, _ = list_texts(TASK.sample(torch.tensor([[8], [20], [8], [9], [8]]).repeat(3000, 1), lw.stream(0, "place")))
    for statistic in (count_operators, measure_depth, lambda row: row[:2]):
        assert compute_p_value(map(statistic, rows[0::5]), map(statistic, rows[4::5])) > 0.001


# Values


@pytest.mark.parametrize(
    "row",
    [
        "9007199254740993-1", "1+9007199254740992+1-9007199254740992", "9007199254740993*3-27021597764222979+5",
        "99999999999*99999999999-99999999998*99999999999", f"0*{'9' * 400}+3", f"{'9' * 400}-{'9' * 399}8",
        "4294967296*4294967296+12", "0-9223372036854775807-1", "1-2-3", "2-3*4-5", "2*-3*-4", "-2*3", "(-2-3)*-4",
        "0-(1+2)", "((((1+2)*3-4)*5+6)*7-8)*9", "0*0+0-0",
    ],
)  # fmt: skip
def test_large_and_nested_values_are_exact(row):
    assert evaluate(row) == eval(row)


def test_values_of_long_expressions_equal_python_s_clamped_to_64_bits():
    rows, values = draw_expressions(torch.full((8000,), MAX_CHARACTERS), lw.stream(0, "long"))
    exact = [eval("".join(SYMBOLS[i] for i in row)) for row in rows.tolist()]
    clamped = [max(-(2**63), min(number, 2**63 - 1)) for number in exact]
    assert values.tolist() == clamped != exact


def test_deep_and_long_expressions_need_no_recursion():
    deep = "(" * 5000 + "1+1" + ")+1" * 5000
    long = "1" + "+1-1*1" * 5000
    assert evaluate(deep) == 5002
    assert evaluate(long) == 1
    assert TASK.format(TASK.parse(deep).answer[0]) == "5002"


# Parsing


PARSED_EXPRESSIONS = [
    ("(3-8)*-4", "(3-8)*-4", "20", 2), ("12--3", "12+3", "15", 1), ("5+-3", "5-3", "2", 1),
    (" 5 - - 3\n", "5+3", "8", 1), ("-3+(-3--3)", "-3+(-3+3)", "-3", 2), ("007+010", "7+10", "17", 1),
    ("00*0", "0*0", "0", 1), ("3*-0", "3*0", "0", 1), ("-0+3", "0+3", "3", 1), ("(-00-0)*3", "(0-0)*3", "0", 2),
    ("3--0", "3+0", "3", 1), ("3+-05", "3-5", "-2", 1), ("100-0", "100-0", "100", 1), ("(1+2)", "(1+2)", "3", 1),
    ("9999*-1", "9999*-1", "-9999", 1), ("99999*1", "99999*1", "99999", 1),
    (f"{'9' * 5000}*0", f"{'9' * 5000}*0", "0", 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "prompt", "answer", "rounds"), PARSED_EXPRESSIONS)
def test_parsed_expressions_are_folded_and_evaluated(text, prompt, answer, rounds):
    problems = TASK.parse(text)
    assert list_texts(problems) == ([prompt], [answer])
    assert TASK.format(problems.answer[0]) == answer == TASK.reference(prompt)
    assert problems.rounds.tolist() == [rounds]
    assert problems.sizes.tolist() == [[len(prompt)]] == [problems.prompt_length.tolist()]
    assert problems.answer_length <= TASK.answer_slots(problems.sizes)


SYNTAX_ERROR = "write numbers with + - * and parentheses, as in (3-8)*-4, not"
INVALID_EXPRESSIONS = [
    "7", "-7", "(7)", "((3+4))", "2*((3+4))", "-(3+4)", "3*-(3+4)", "3---4", "3+*4", "+3", "()", "(3+)", "3(4+5)",
    "(4+5)3", "(4+5)(6+7)", "3+4)", "(3+4", "3+", "3*-", "(",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, f"{SYNTAX_ERROR} {text}") for text in INVALID_EXPRESSIONS),
        *(
            (text, f"the value of {text} has more than 5 characters")
            for text in ("99999+1", "0-9999-1", "9" * 40 + "*1")
        ),
        ("2^3", "'^' at position 2 is not one of: 0 1 2 3 4 5 6 7 8 9 + - * ( )"),
    ],
)
def test_an_invalid_expression_is_refused_in_one_line(text, message):
    with pytest.raises(lw.UsageError) as error:
        TASK.parse(text)
    assert str(error.value) == f"expression: {message}"


@given(st.text("0123+-*()", max_size=9))
def test_parsing_accepts_only_expressions(text):
    """An accepted text has Python's value, and its prompt parses to itself."""
    try:
        problems = TASK.parse(text)
    except lw.UsageError as error:
        assert "\n" not in str(error)
        return
    (prompt,), (answer,) = list_texts(problems)
    assert eval(re.sub(r"(?<!\d)0+(?=\d)", "", text)) == eval(prompt) == int(answer)
    assert count_operators(prompt) > 0
    assert list_texts(TASK.parse(prompt)) == ([prompt], [answer])


# Sizes


@pytest.mark.parametrize("size", [0, 2])
def test_sizes_below_three_characters_are_refused(size):
    with pytest.raises(lw.UsageError, match=f"lengths must be 3 or more, not {size}"):
        TASK.sample(torch.tensor([[8], [size]]), lw.stream(0))


def test_drawing_longer_expressions_than_the_limit_is_refused():
    limit = f"at most {MAX_CHARACTERS} characters can be drawn, not {MAX_CHARACTERS + 1}"
    with pytest.raises(lw.UsageError, match=limit):
        TASK.sample(torch.tensor([[MAX_CHARACTERS + 1]]), lw.stream(0))
