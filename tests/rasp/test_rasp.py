"""RASP operations equal plain loops, programs solve their tasks, and the checker refuses forbidden programs."""

import operator
import re
from functools import partial
from itertools import product, starmap

import jaxtyping
import pytest
import torch
from conftest import LONG
from hypothesis import given
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.base.types import END
from lengthwise.experiment.data import draw_fresh_problems
from lengthwise.rasp.language import (
    Places,
    RaspError,
    Selector,
    SymbolSequence,
    after,
    aggregate,
    before,
    both,
    compare,
    count,
    each,
    latest,
    positions,
    record,
    seen,
    select,
    shift,
)
from lengthwise.rasp.program import (
    Program,
    check_program,
    execute,
    format_answer,
    format_rounds,
    format_row,
)
from lengthwise.rasp.programs import PROGRAMS, PUBLISHED_TASKS, ParityProgram, find_program
from lengthwise.tasks.arithmetic import Multiplication
from lengthwise.tasks.bits import BinarySum
from lengthwise.tasks.strings import Copy, UniqueSet

RELATIONS = {"==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
ROW_SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 6))
ALPHABETS = st.lists(st.sampled_from(["a", "b", "c", "7", None, True, False]), min_size=1, max_size=4, unique=True)
MARK_ALPHABETS = st.sampled_from([(False, True), (True, False), (True,), (False,)])


def draw_matrix(draw, shape, low, high):
    numbers = draw(st.lists(st.integers(low, high), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return torch.tensor(numbers).view(shape)


@st.composite
def rows(draw, row_count, alphabets=ALPHABETS):
    """Draw the parts of rows of one shape, each over an alphabet of its own. (Tests build the rows: beartype, which
    checks them, draws random numbers, which Hypothesis does not allow in strategies.)"""
    shape = draw(ROW_SHAPES)
    found = []
    for _ in range(row_count):
        symbols = tuple(draw(alphabets))
        found.append((symbols, draw_matrix(draw, shape, 0, len(symbols) - 1)))
    return found


@st.composite
def places_of_one_shape(draw, list_count):
    """Draw places of one shape: any integers from −1."""
    shape = draw(ROW_SHAPES)
    return [draw_matrix(draw, shape, -1, shape[1]) for _ in range(list_count)]


@st.composite
def selectors_and_rows(draw, selector_count):
    """Draw causal selectors, a row and places of one shape."""
    b, t = draw(ROW_SHAPES)
    symbols = tuple(draw(ALPHABETS))
    masks = [
        draw_matrix(draw, (b * t, t), 0, 1).view(b, t, t).bool() & torch.ones(t, t).bool().tril()
        for _ in range(selector_count)
    ]
    return masks, (symbols, draw_matrix(draw, (b, t), 0, len(symbols) - 1)), draw_matrix(draw, (b, t), -1, t)


def to_lists(values):
    """Return the value at each position, as plain lists."""
    if isinstance(values, Places):
        return values.numbers.tolist()
    if isinstance(values, Selector):
        return values.mask.tolist()
    return [[values.alphabet[i] for i in ids] for ids in values.ids.tolist()]


def have_equal_symbols(first, second):
    """Return whether two rows have equal symbols: True is not 1, and unused symbols of alphabets are ignored."""
    return repr(to_lists(first)) == repr(to_lists(second))


# Core operations compared with plain loops


@given(rows(2), st.data())
def test_each_applies_its_function_to_symbols(parts, data):
    one, other = starmap(SymbolSequence, parts)
    pairs = list(product(one.alphabet, other.alphabet))
    results = data.draw(st.lists(st.sampled_from("xyz"), min_size=len(pairs), max_size=len(pairs)))
    # A list, as True == 1 in a dict.
    table = [(repr(pair), result) for pair, result in zip(pairs, results, strict=True)]

    def look_up(*pair):
        return dict(table)[repr(pair)]

    row = each(look_up, one, other)
    both_rows = zip(to_lists(one), to_lists(other), strict=True)
    assert to_lists(row) == [[look_up(a, b) for a, b in zip(first, second, strict=True)] for first, second in both_rows]
    assert row.alphabet == tuple(sorted(set(results)))


@given(places_of_one_shape(2), st.sampled_from(sorted(RELATIONS)))
def test_places_are_compared_selected_and_moved(parts, relation):
    one, other = map(Places, parts)
    first, second = to_lists(one), to_lists(other)
    pairs = [list(zip(*pair, strict=True)) for pair in zip(first, second, strict=True)]
    assert to_lists(compare(one, other, relation)) == [[RELATIONS[relation](a, b) for a, b in row] for row in pairs]
    assert to_lists(before(one)) == [[a - 1 for a in row] for row in first]
    assert to_lists(after(one)) == [[a + 1 for a in row] for row in first]
    assert to_lists(select(one, other, relation)) == select_by_loops(first, second, RELATIONS[relation])


def select_by_loops(keys, queries, is_related):
    """Return the expected mask: queries are rows, keys are columns, and later keys are not selected."""
    return [
        [[k <= q and is_related(key[k], query[q]) for k in range(len(key))] for q in range(len(query))]
        for key, query in zip(keys, queries, strict=True)
    ]


@given(rows(2))
def test_symbols_are_selected_and_positions_start_at_0(parts):
    keys, queries = starmap(SymbolSequence, parts)
    for related in (lambda key, query: (key, query) == ("a", "b"), lambda key, _: key, lambda _, query: query is None):
        expected = select_by_loops(to_lists(keys), to_lists(queries), lambda k, q, f=related: bool(f(k, q)))
        assert to_lists(select(keys, queries, related)) == expected
    assert to_lists(select(keys, queries)) == select_by_loops(to_lists(keys), to_lists(queries), operator.eq)
    assert to_lists(positions(keys)) == [list(range(len(symbols))) for symbols in to_lists(keys)]


@given(selectors_and_rows(3))
def test_both_and_count_equal_plain_loops(parts):
    selectors = list(map(Selector, parts[0]))
    t = range(selectors[0].mask.shape[2])
    tables = list(zip(*map(to_lists, selectors), strict=True))
    assert to_lists(both(*selectors)) == [[[all(one[q][k] for one in row) for k in t] for q in t] for row in tables]
    assert to_lists(count(selectors[0])) == [[sum(looks) for looks in row] for row in to_lists(selectors[0])]


@given(selectors_and_rows(1), st.sampled_from(["a", "z", None, False]), st.sampled_from(["max", "min"]))
def test_aggregate_equals_plain_loops(parts, default, how):
    selector, row, where = Selector(parts[0][0]), SymbolSequence(*parts[1]), Places(parts[2])

    def aggregate_by_loops(values, key, default):
        choose, found = max if how == "max" else min, []
        for rows, value in zip(to_lists(selector), values, strict=True):
            chosen = [[v for v, look in zip(value, looks, strict=True) if look] for looks in rows]
            found.append([choose(some, key=key, default=default) for some in chosen])
        return found

    found = aggregate(selector, row, default, how)
    assert to_lists(found) == aggregate_by_loops(to_lists(row), row.alphabet.index, default)
    assert found.alphabet == (row.alphabet if default in row.alphabet else (*row.alphabet, default))
    assert to_lists(aggregate(selector, where, how=how)) == aggregate_by_loops(to_lists(where), None, -1)


# Library operations compared with their definitions


@given(rows(1), st.sampled_from(["a", "z", None]))
def test_shift_equals_its_definition(parts, default):
    row = SymbolSequence(*parts[0])
    defined = aggregate(select(after(positions(row)), positions(row)), row, default)
    assert have_equal_symbols(shift(row, default), defined)
    assert shift(row, default).alphabet == defined.alphabet
    assert to_lists(shift(row, default)) == [[default, *symbols[:-1]] for symbols in to_lists(row)]


@given(rows(1, MARK_ALPHABETS))
def test_seen_equals_its_definition(parts):
    marks = SymbolSequence(*parts[0])
    ordered = each(lambda s: s, marks)  # False before True
    assert have_equal_symbols(seen(marks), aggregate(select(ordered, ordered, lambda key, _: True), ordered))
    assert to_lists(seen(marks)) == [[any(row[: i + 1]) for i in range(len(row))] for row in to_lists(marks)]


@given(rows(1), st.data(), st.sampled_from(["a", "z", None]))
def test_latest_equals_its_definition(parts, data, default):
    values = SymbolSequence(*parts[0])
    symbols = data.draw(MARK_ALPHABETS)
    marks = SymbolSequence(symbols, draw_matrix(data.draw, values.ids.shape, 0, len(symbols) - 1))
    where = aggregate(select(marks, marks, lambda key, _: key), positions(values))
    defined = aggregate(select(positions(values), where), values, default)
    assert have_equal_symbols(latest(values, marks, default), defined)
    assert latest(values, marks, default).alphabet == defined.alphabet


# Laws of every operation

# Each takes two rows over "abc" and marks.
OPERATIONS = {
    "each": lambda row, other, marks: each(lambda a, b: f"{a}{b}", row, other),
    "places": lambda row, other, marks: positions(row),
    "before": lambda row, other, marks: before(count(select(row, other))),
    "after": lambda row, other, marks: after(count(select(row, other))),
    "compare": lambda row, other, marks: compare(positions(row), count(select(row, other)), "<="),
    "select by symbols": lambda row, other, marks: select(row, other),
    "select by a function": lambda row, other, marks: select(row, other, lambda key, query: key > query),
    "select by places": lambda row, other, marks: select(count(select(row, row)), count(select(row, other)), ">="),
    "both": lambda row, other, marks: both(select(row, other), select(marks, marks)),
    "aggregate symbols": lambda row, other, marks: aggregate(select(row, other), other),
    "aggregate places": lambda row, other, marks: aggregate(select(row, other), positions(row), how="min"),
    "count": lambda row, other, marks: count(select(row, other)),
    "shift": lambda row, other, marks: shift(row, "z"),
    "seen": lambda row, other, marks: seen(marks),
    "latest": lambda row, other, marks: latest(row, marks, "z"),
}
every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def take_prefix(part, length):
    """Return the first ``length`` positions of each row; for a selector, only the positions that these select."""
    if isinstance(part, Selector):
        assert not any(any(look[length:]) for row in to_lists(part) for look in row[:length])
        return [[look[:length] for look in row[:length]] for row in to_lists(part)]
    return [row[:length] for row in to_lists(part)]


@st.composite
def rows_with_equal_prefixes(draw):
    """Draw three rows twice, and a position before which both versions of each row are equal."""
    b, t = draw(ROW_SHAPES)
    keep = draw(st.integers(0, t))
    kept, changed = [], []
    for symbols in (("a", "b", "c"), ("a", "b"), (False, True)):
        one, other = (draw_matrix(draw, (b, t), 0, len(symbols) - 1) for _ in range(2))
        kept.append((symbols, one))
        changed.append((symbols, torch.where(torch.arange(t) < keep, one, other)))
    return kept, changed, keep


@every_operation
@given(parts=rows_with_equal_prefixes())
def test_operations_are_causal_and_do_not_depend_on_other_rows(operation, parts):
    one, other, keep = list(starmap(SymbolSequence, parts[0])), list(starmap(SymbolSequence, parts[1])), parts[2]
    together = operation(*one)
    assert take_prefix(together, keep) == take_prefix(operation(*other), keep)
    if keep:
        shorter = operation(*[SymbolSequence(row.alphabet, row.ids[:, :keep]) for row in one])
        assert take_prefix(shorter, keep) == take_prefix(together, keep)
    for i, row in enumerate(to_lists(together)):
        assert to_lists(operation(*[SymbolSequence(part.alphabet, part.ids[i : i + 1]) for part in one])) == [row]


@every_operation
@given(parts=rows_with_equal_prefixes())
def test_operations_on_abstract_rows_give_the_same_calls_and_alphabets(operation, parts):
    rows = list(starmap(SymbolSequence, parts[0]))
    with record() as concrete_calls:
        concrete = operation(*rows)
    with record() as abstract_calls:
        abstract = operation(*[SymbolSequence(row.alphabet, None) for row in rows])
    assert concrete_calls
    assert [call[::3] for call in concrete_calls] == [call[::3] for call in abstract_calls]  # names and settings
    assert type(abstract) is type(concrete)
    if isinstance(concrete, SymbolSequence):
        assert abstract.alphabet == concrete.alphabet
    assert not any(isinstance(value, torch.Tensor) for value in vars(abstract).values())


# Programs

ALL_TASKS = [
    *PUBLISHED_TASKS,
    lw.Addition(2, "least", True, True),
    lw.Addition(10, "most", True, True),
    lw.Addition(10, "least", True, True),
]
every_program = pytest.mark.parametrize("task", ALL_TASKS, ids=repr)


def draw_problems(task, n, count):
    """Draw problems of length n; for products, problems of one bit and of two bits times n bits."""
    sizes = [(n,)] if len(task.axes) == 1 else [(1, n), (2, n)]
    return [draw_fresh_problems(task, size, count, seed=0) for size in sizes]


def choose_problem_count(task, n):
    """Return the number of problems of length n to try: fewer if a program compares all pairs of positions in long
    rows, and 0 for most lengths if the alphabet is large. (bench/programs.py tries 1,000 problems per length.)"""
    is_decimal = getattr(task, "base", 2) == 10
    if (not LONG and n not in {*range(1, 7), 9, 16, 32, 33, 200}) or (is_decimal and n > 32):
        return 0
    if task == UniqueSet():
        return 50 if n % 16 == 0 else 0
    if n == 200:
        return 100 if LONG else 20
    return (1000 if LONG else 100) if n <= 16 or type(task) in (lw.Parity, Copy, BinarySum) else 30


@pytest.fixture
def disabled_shape_checks(monkeypatch):
    """Turn off jaxtyping, which would take most of this test's time; other tests check shapes."""
    monkeypatch.setattr(jaxtyping, "jaxtyped", lambda **_: lambda function: function)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("task", [*ALL_TASKS, UniqueSet(20)], ids=repr)
def test_programs_solve_every_problem_in_t_rounds(task, disabled_shape_checks):
    runner = find_program(task)
    for n in filter(partial(choose_problem_count, task), [*range(1, 65), 200]):
        for problems in draw_problems(task, n, choose_problem_count(task, n)):
            execution = execute(runner, problems)
            assert len(execution.is_right) == len(problems)
            assert execution.is_right.all(), f"length {n}"
            assert torch.equal(runner.count_rounds(problems.sizes), problems.rounds)
            assert {len(execution.states) - 1} == set(problems.rounds.tolist())
            if n > 5:
                continue
            for answer, row in zip(to_lists(execution.output), to_lists(execution.row), strict=True):
                start = row.index("=")
                written, _, _ = "".join(map(str, answer[start:])).partition(END)
                assert written == task.reference("".join(row[:start]))


@every_program
def test_one_round_fewer_does_not_solve_the_problem(task):
    """Products of 2 × n bits are an exception: their n + 2 digits need fewer rounds than T = 2n."""
    runner = find_program(task)
    execution = execute(runner, draw_problems(task, 9, 200)[0])
    assert to_lists(runner.finish(execution.states[-2], execution.row)) != to_lists(execution.output)


@pytest.mark.parametrize(
    "change_answer", [lambda bit: {"0": "1", "1": "0"}.get(bit, END), lambda bit: bit or "0"], ids=["answer", "end"]
)
def test_a_wrong_answer_or_a_missing_end_counts_as_wrong(change_answer):
    class WrongAnswer(ParityProgram):
        def finish(self, state, row):
            return each(change_answer, state["answer"])

    assert not execute(WrongAnswer(lw.Parity()), draw_fresh_problems(lw.Parity(), (5,), 50, seed=0)).is_right.any()


def test_products_with_equal_rounds_run_together():
    """Rows of 1 × 6 and 2 × 3 bits have different lengths; the output for 2 × 3 bits is the same as without the other
    rows."""
    task = Multiplication()
    parts = [draw_fresh_problems(task, size, 20, seed=0) for size in ((1, 6), (2, 3))]
    together = execute(find_program(task), lw.Problems.join(parts))
    assert together.is_right.all()
    alone = execute(find_program(task), parts[1])
    width = alone.row.ids.shape[1]
    assert [row[:width] for row in to_lists(together.output)[20:]] == to_lists(alone.output)


# Tasks without a program


def test_tasks_and_problems_without_a_program_are_refused(monkeypatch):
    for options in ((False, False), (True, False), (False, True)):
        with pytest.raises(lw.UsageError, match="needs equal_lengths=true leading_zeros=true"):
            find_program(lw.Addition(2, "most", *options))
    product = find_program(Multiplication())
    assert execute(product, Multiplication().parse("1*1")).is_right.all()
    with pytest.raises(lw.UsageError, match="a first operand of 1 or 2 bits, not 3"):
        execute(product, Multiplication().parse("101*11"))
    parts = [draw_fresh_problems(lw.Parity(), (n,), 2, seed=0) for n in (3, 5)]
    with pytest.raises(ValueError, match=r"same number of rounds, not \[3, 5\]"):
        execute(find_program(lw.Parity()), lw.Problems.join(parts))
    monkeypatch.delitem(PROGRAMS, lw.Parity)
    known = "copy, addition, binary-sum, multiplication, unique-set"
    with pytest.raises(lw.UsageError, match=f"^parity has no n-RASP-L program; these tasks have one: {known}$"):
        find_program(lw.Parity())


# The checker


@pytest.mark.parametrize(
    "task", [*ALL_TASKS, Copy(36), UniqueSet(2), UniqueSet(62), lw.Addition(3, "least", True, True)], ids=repr
)
def test_every_program_is_allowed(task):
    check_program(find_program(task))


class AllowedProgram(Program):
    """An allowed program that does nothing; the forbidden programs below override its methods."""

    done = 0  # rounds

    def prepare(self, row):
        return {"row": row, "where": positions(row), "count": count(select(row, row))}

    def step(self, state, row):
        self.done += 1
        return state | self.change(state, row)

    def change(self, state, row):
        return {}

    def finish(self, state, row):
        return state["row"]


def assert_refused(message, **methods):
    """Check that a program with these methods is refused in one line."""
    with pytest.raises(RaspError, match=f"^Cheat: [^\n]*{re.escape(message)}[^\n]*$"):
        check_program(type("Cheat", (AllowedProgram,), methods)(lw.Parity()))


# Forbidden operations of a step, on the row and the positions, and the errors that they give.
OPAQUE_ERROR = "no arithmetic, conditions or indexing on"
FORBIDDEN_OPERATIONS = {
    f"{OPAQUE_ERROR} Places": [
        "where + 1", "1 + where", "where + where", "where - where", "1 - where", "where * 2", "2 * where", "-where",
        "where // 2", "where / 2", "where % 2", "where < where", "where[-1]", "'abc'[where]", "int(where)",
        "float(where)", "row if where else shift(row, None)",
    ],
    f"{OPAQUE_ERROR} SymbolSequence": [
        "row >= row", "row & row", "row | row", "row ^ row", "~row", "row[0]", "row[1:]", "len(row)", "list(row)",
        "'1' in row", "row if row else shift(row, None)", "row if not row else shift(row, None)",
        "row if compare(where, where, '<') else shift(row, None)",
    ],
    f"{OPAQUE_ERROR} Selector": ["row if select(row, row) else shift(row, None)"],
    "reads the data of rows": [
        "row if row.ids[0, 0] else shift(row, None)", "row if row.ids.shape[1] > 9 else shift(row, None)",
        "row if int(where.numbers.max()) > 9 else shift(row, None)", "row if select(row, row).mask.any() else row",
        "SymbolSequence(row.alphabet, torch.flip(row.ids, [1]))", "where**2",
    ],
    "symbols have no order": ["count(select(row, row, '<'))"],
    "compared only by == < <= > >=": [
        "compare(where, where, '!=')", "count(select(where, where, lambda k, q: k == 2 * q))",
        "count(select(where, where, '!='))",
    ],
    "symbols can be compared only with symbols": ["count(select(row, where))", "count(select(where, row))"],
    "marks must be True or False": ["seen(row)", "latest(row, row, None)"],
    "16384 combinations of symbols; at most 10000 are allowed": ["each(lambda *s: s[0], *[row] * 7)"],
    "a state must be a dict of rows and places": ["3", "select(row, row)", "[row]"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "text"), [(key, text) for key, texts in FORBIDDEN_OPERATIONS.items() for text in texts]
)
def test_forbidden_operations_are_refused_in_every_method(message, text):
    def evaluate_operation(row, places):
        return eval(text, globals() | {"row": row, "where": places})

    assert_refused(
        message,
        prepare=lambda self, row: AllowedProgram.prepare(self, row) | {"more": row},
        step=lambda self, state, row: state | {"more": evaluate_operation(row, state["where"])},
    )
    if message != "a state must be a dict of rows and places":
        assert_refused(message, prepare=lambda self, row: (evaluate_operation(row, positions(row)), {})[1])
        assert_refused(message, finish=lambda self, state, row: evaluate_operation(row, state["where"]))


def flip_bits(state, should_flip):
    turn = {"0": "1", "1": "0"} if should_flip else {}
    return {"row": each(lambda s: turn.get(s, s), state["row"])}


def flip_where(condition):
    return lambda self, state, row: flip_bits(state, row.ids is not None and condition(row.ids))


FORBIDDEN_CHANGES = [
    ("may not count rounds", lambda self, state, row: {"row": shift(state["row"], "0")} if self.done > 3 else {}),
    # The operation and its alphabet are the same, only the table differs.
    ("may not count rounds", lambda self, state, row: flip_bits(state, self.done > 3)),
    ("may not count rounds", lambda self, state, row: flip_bits(state, self.done > 20)),
    ("operations differ between rows", flip_where(lambda ids: ids.shape[1] > 5)),
    ("operations differ between rows", flip_where(lambda ids: (ids == 1).any())),
]


@pytest.mark.parametrize(("message", "change"), FORBIDDEN_CHANGES)
def test_operations_may_depend_on_neither_rounds_nor_length_nor_data(message, change):
    check_program(AllowedProgram(lw.Parity()))
    assert_refused(message, change=change)


@pytest.mark.parametrize(("limit", "is_allowed"), [(4, True), (40, False), (10**9, False)])
def test_a_program_whose_alphabets_keep_growing_is_refused(limit, is_allowed):
    """A bounded count has one more symbol after each step until it reaches its limit."""
    methods = {
        "prepare": lambda self, row: {"count": each(lambda _: 0, row)},
        "step": lambda self, state, row: {"count": each(lambda n, s: min(n + (s == "1"), limit), state["count"], row)},
        "finish": lambda self, state, row: row,
    }
    if is_allowed:
        check_program(type("Bounded", (AllowedProgram,), methods)(lw.Parity()))
    else:
        assert_refused("still growing", **methods)


def test_a_step_must_keep_the_state_s_parts_and_finish_must_return_a_row():
    for change in (lambda self, state, row: state | {"new": row}, lambda self, state, row: {"row": row}):
        assert_refused("the state's parts may not change: row, where, count became", step=change)
    for end in (positions, lambda row: select(row, row), lambda row: "1", lambda row: {"row": row}):
        assert_refused("finish must return a row of symbols", finish=lambda self, state, row, end=end: end(row))


def test_other_errors_of_a_program_are_raised_unchanged():
    broken = type("Broken", (AllowedProgram,), {"change": lambda self, state, row: state["nowhere"]})
    with pytest.raises(KeyError):
        check_program(broken(lw.Parity()))


# Formatting


def test_rounds_of_parity_are_formatted():
    execution = execute(find_program(lw.Parity()), lw.Parity().parse("1011"))
    bits = ["1011··", "·1011·", "··1011", "···101", "····10"]
    answers = ["····0·", "····1·", "····0·", "····0·", "····1·"]
    wanted = [{"bits": row, "answer": answer} for row, answer in zip(bits, answers, strict=True)]
    assert format_rounds(execution) == wanted
    assert (format_row(execution.row), format_row(execution.output)) == ("1011=$", "$$$$1$")
    assert format_answer(execution, lw.Parity()) == "1"
    assert format_row(Places(torch.tensor([[-1, 0, 10], [5, 5, 5]]))) == "-1 0 10"
    assert format_row(SymbolSequence((None, True, False, "a"), torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]]))) == "·^·a"
