"""RASP operations equal plain loops, programs solve their tasks, and the checker refuses forbidden programs."""

from functools import partial
from itertools import product, starmap

import jaxtyping
import pytest
import torch
from conftest import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.base.types import END
from lengthwise.experiment.data import fresh_problems
from lengthwise.rasp.language import (
    Forbidden,
    Places,
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
    format_state,
    input_alphabet,
)
from lengthwise.rasp.programs import PROGRAMS, PUBLISHED, ParityProgram, find_program
from lengthwise.tasks.arithmetic import Multiplication
from lengthwise.tasks.bits import BinarySum
from lengthwise.tasks.strings import Copy, UniqueSet

RELATIONS = {
    "==": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
WIDTHS = st.tuples(st.integers(1, 3), st.integers(1, 6))
SYMBOLS = st.lists(st.sampled_from(["a", "b", "c", "7", None, True, False]), min_size=1, max_size=4, unique=True)
MARKS = st.sampled_from([(False, True), (True, False), (True,), (False,)])


def matrix(draw, shape, low, high):
    numbers = draw(st.lists(st.integers(low, high), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return torch.tensor(numbers).view(shape)


@st.composite
def rows(draw, number, alphabets=SYMBOLS):
    """Draw the parts of rows of one shape, each over an alphabet of its own. (Tests build the rows: beartype, which
    checks them, draws random numbers, which Hypothesis does not allow in strategies.)"""
    shape = draw(WIDTHS)
    found = []
    for _ in range(number):
        symbols = tuple(draw(alphabets))
        found.append((symbols, matrix(draw, shape, 0, len(symbols) - 1)))
    return found


@st.composite
def place_lists(draw, number):
    """Draw places of one shape: any integers from −1."""
    shape = draw(WIDTHS)
    return [matrix(draw, shape, -1, shape[1]) for _ in range(number)]


@st.composite
def selector_parts(draw, number):
    """Draw a causal selector, a row and places of one shape."""
    b, t = draw(WIDTHS)
    symbols = tuple(draw(SYMBOLS))
    chosen = [
        matrix(draw, (b * t, t), 0, 1).view(b, t, t).bool() & torch.ones(t, t).bool().tril() for _ in range(number)
    ]
    return chosen, (symbols, matrix(draw, (b, t), 0, len(symbols) - 1)), matrix(draw, (b, t), -1, t)


def read(part):
    """Return the value at each position, as plain lists."""
    if isinstance(part, Places):
        return part.numbers.tolist()
    if isinstance(part, Selector):
        return part.chosen.tolist()
    return [[part.alphabet[i] for i in ids] for ids in part.ids.tolist()]


def equal_as_symbols(one, other):
    """Return whether two rows have equal symbols: True is not 1, and unused symbols of alphabets are ignored."""
    return repr(read(one)) == repr(read(other))


# Core operations compared with plain loops


@given(rows(2), st.data())
def test_each_applies_a_table_of_symbols(drawn, data):
    one, other = starmap(SymbolSequence, drawn)
    pairs = list(product(one.alphabet, other.alphabet))
    results = data.draw(st.lists(st.sampled_from("xyz"), min_size=len(pairs), max_size=len(pairs)))
    # A list, as True == 1 in a dict.
    table = [(repr(pair), result) for pair, result in zip(pairs, results, strict=True)]

    def function(*pair):
        return dict(table)[repr(pair)]

    row = each(function, one, other)
    both_rows = zip(read(one), read(other), strict=True)
    assert read(row) == [[function(a, b) for a, b in zip(first, second, strict=True)] for first, second in both_rows]
    assert row.alphabet == tuple(sorted(set(results)))


@given(place_lists(2), st.sampled_from(sorted(RELATIONS)))
def test_compare_before_and_after(drawn, relation):
    one, other = map(Places, drawn)
    wanted = [
        [RELATIONS[relation](a, b) for a, b in zip(*pair, strict=True)]
        for pair in zip(read(one), read(other), strict=True)
    ]
    assert read(compare(one, other, relation)) == wanted
    assert read(before(one)) == [[a - 1 for a in row] for row in read(one)]
    assert read(after(one)) == [[a + 1 for a in row] for row in read(one)]


@given(rows(1))
def test_places_are_counted_from_0(drawn):
    row = SymbolSequence(*drawn[0])
    assert read(positions(row)) == [list(range(len(symbols))) for symbols in read(row)]


def selected(keys, queries, related):
    """Return the selector as a matrix: queries are rows, keys are columns, and later keys are hidden."""
    return [
        [[k <= q and related(key[k], query[q]) for k in range(len(key))] for q in range(len(query))]
        for key, query in zip(keys, queries, strict=True)
    ]


@given(place_lists(2), st.sampled_from(sorted(RELATIONS)))
def test_select_by_places(drawn, relation):
    keys, queries = map(Places, drawn)
    wanted = selected(read(keys), read(queries), RELATIONS[relation])
    assert read(select(keys, queries, relation)) == wanted
    if relation == "==":
        assert read(select(keys, queries)) == wanted


@given(rows(2))
def test_select_by_symbols(drawn):
    keys, queries = starmap(SymbolSequence, drawn)
    for related in (lambda key, query: (key, query) == ("a", "b"), lambda key, _: key, lambda _, query: query is None):
        wanted = selected(read(keys), read(queries), lambda k, q, related=related: bool(related(k, q)))
        assert read(select(keys, queries, related)) == wanted
    assert read(select(keys, queries)) == selected(read(keys), read(queries), lambda k, q: k == q)


@given(selector_parts(3))
def test_both_and_count(drawn):
    selectors = list(map(Selector, drawn[0]))
    t = range(selectors[0].chosen.shape[2])
    tables = list(zip(*map(read, selectors), strict=True))
    assert read(both(*selectors)) == [[[all(one[q][k] for one in row) for k in t] for q in t] for row in tables]
    assert read(count(selectors[0])) == [[sum(looks) for looks in row] for row in read(selectors[0])]


@given(selector_parts(1), st.sampled_from(["a", "z", None, False]), st.sampled_from(["max", "min"]))
def test_aggregate(drawn, default, how):
    selector, row, where = Selector(drawn[0][0]), SymbolSequence(*drawn[1]), Places(drawn[2])
    choose = max if how == "max" else min

    def best(values, key, default):
        held = zip(read(selector), values, strict=True)
        return [
            [
                choose((v for v, look in zip(value, looks, strict=True) if look), key=key, default=default)
                for looks in row
            ]
            for row, value in held
        ]

    found = aggregate(selector, row, default, how)
    assert read(found) == best(read(row), row.alphabet.index, default)
    assert found.alphabet == (row.alphabet if default in row.alphabet else (*row.alphabet, default))
    assert read(aggregate(selector, where, how=how)) == best(read(where), None, -1)


# Library operations compared with their definitions


@given(rows(1), st.sampled_from(["a", "z", None]))
def test_shift_equals_its_definition(drawn, default):
    row = SymbolSequence(*drawn[0])
    defined = aggregate(select(after(positions(row)), positions(row)), row, default)
    assert equal_as_symbols(shift(row, default), defined)
    assert shift(row, default).alphabet == defined.alphabet
    assert read(shift(row, default)) == [[default, *symbols[:-1]] for symbols in read(row)]


@given(rows(1, MARKS))
def test_seen_equals_its_definition(drawn):
    marks = SymbolSequence(*drawn[0])
    ordered = each(lambda s: s, marks)  # False before True
    assert equal_as_symbols(seen(marks), aggregate(select(ordered, ordered, lambda key, _: True), ordered))
    assert read(seen(marks)) == [[any(row[: i + 1]) for i in range(len(row))] for row in read(marks)]


@given(rows(1), st.data(), st.sampled_from(["a", "z", None]))
def test_latest_equals_its_definition(drawn, data, default):
    values = SymbolSequence(*drawn[0])
    symbols = data.draw(MARKS)
    marks = SymbolSequence(symbols, matrix(data.draw, values.ids.shape, 0, len(symbols) - 1))
    where = aggregate(select(marks, marks, lambda key, _: key), positions(values))
    defined = aggregate(select(positions(values), where), values, default)
    assert equal_as_symbols(latest(values, marks, default), defined)
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


def prefix(part, length):
    """Return the first places of each row; for a selector, what these places attend to."""
    if isinstance(part, Selector):
        assert not any(any(look[length:]) for row in read(part) for look in row[:length])
        return [[look[:length] for look in row[:length]] for row in read(part)]
    return [row[:length] for row in read(part)]


@st.composite
def triples(draw):
    """Draw arguments twice, equal before a random place, and that place."""
    b, t = draw(WIDTHS)
    keep = draw(st.integers(0, t))
    kept, changed = [], []
    for symbols in (("a", "b", "c"), ("a", "b"), (False, True)):
        one, other = (matrix(draw, (b, t), 0, len(symbols) - 1) for _ in range(2))
        kept.append((symbols, one))
        changed.append((symbols, torch.where(torch.arange(t) < keep, one, other)))
    return kept, changed, keep


@every_operation
@given(drawn=triples())
def test_operations_are_causal(operation, drawn):
    one, other, keep = list(starmap(SymbolSequence, drawn[0])), list(starmap(SymbolSequence, drawn[1])), drawn[2]
    assert prefix(operation(*one), keep) == prefix(operation(*other), keep)
    if keep:
        shorter = operation(*[SymbolSequence(row.alphabet, row.ids[:, :keep]) for row in one])
        assert prefix(shorter, keep) == prefix(operation(*one), keep)


@every_operation
@given(drawn=triples())
def test_operations_without_symbols_give_the_same_calls_and_alphabets(operation, drawn):
    rows = list(starmap(SymbolSequence, drawn[0]))
    with record() as done:
        concrete = operation(*rows)
    with record() as told:
        empty = operation(*[SymbolSequence(row.alphabet, None) for row in rows])
    assert [(call.name, call.facts) for call in done] == [(call.name, call.facts) for call in told] != []
    assert type(empty) is type(concrete)
    if isinstance(concrete, SymbolSequence):
        assert empty.alphabet == concrete.alphabet
    assert not any(isinstance(value, torch.Tensor) for value in vars(empty).values())


@every_operation
@given(drawn=triples())
def test_operations_do_not_depend_on_other_rows(operation, drawn):
    together = read(operation(*starmap(SymbolSequence, drawn[0])))
    for i in range(len(together)):
        assert (
            read(operation(*[SymbolSequence(symbols, ids[i : i + 1]) for symbols, ids in drawn[0]]))
            == together[i : i + 1]
        )


# Programs

ALL = [
    *PUBLISHED,
    lw.Addition(2, "least", True, True),
    lw.Addition(10, "most", True, True),
    lw.Addition(10, "least", True, True),
]
every_program = pytest.mark.parametrize("task", ALL, ids=repr)


LENGTHS = {*range(1, 7), 9, 16, 32, 33, 200}


def problems_of(task, n, count):
    """Return problems of length n; for products, one bit and two bits times n."""
    sizes = [(n,)] if len(task.axes) == 1 else [(1, n), (2, n)]
    return [fresh_problems(task, size, count, seed=0) for size in sizes]


def problem_count(task, n):
    """Return how many problems of length n to try: fewer if a program compares all pairs of positions in long rows, and
    not all lengths of tasks with large alphabets. (bench/programs.py tries a thousand everywhere.)"""
    if not LONG and n not in LENGTHS:
        return 0
    if n == 200:
        return 0 if getattr(task, "base", 2) == 10 else 100 if LONG else 20
    if task == UniqueSet():
        return 50 if n % 16 == 0 else 0
    if n > 32 and getattr(task, "base", 2) == 10:
        return 0
    return (1000 if LONG else 100) if n <= 16 or type(task) in (lw.Parity, Copy, BinarySum) else 30


@pytest.fixture
def no_shape_checks(monkeypatch):
    """Turn off jaxtyping, which would take most of the time; other tests use it."""
    monkeypatch.setattr(jaxtyping, "jaxtyped", lambda **_: lambda function: function)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("task", [*ALL, UniqueSet(20)], ids=repr)
def test_every_problem_is_solved_in_as_many_rounds_as_the_task_says(task, no_shape_checks):
    runner = find_program(task)
    for n in filter(partial(problem_count, task), [*range(1, 65), 200]):
        for problems in problems_of(task, n, problem_count(task, n)):
            execution = execute(runner, problems)
            assert len(execution.is_right) == len(problems)
            assert execution.is_right.all(), f"length {n}"
            assert torch.equal(runner.rounds(problems.sizes), problems.rounds)
            assert {len(execution.states) - 1} == set(problems.rounds.tolist())


@every_program
def test_one_round_fewer_does_not_solve_the_problem(task):
    """Products 2 × n are an exception: they have n + 2 places and T = 2n."""
    problems = problems_of(task, 9, 200)[0]
    runner = find_program(task)
    execution = execute(runner, problems)
    early = read(runner.finish(execution.states[-2], execution.row))
    late = read(execution.output)
    assert any(one != other for one, other in zip(early, late, strict=True))


@every_program
def test_the_reference_solution_is_scored_as_right(task):
    """The answer is read from the ``=`` to the first end and compared symbol by symbol."""
    for n in (1, 2, 5):
        for problems in problems_of(task, n, 40):
            execution = execute(find_program(task), problems)
            for i, (said, row) in enumerate(zip(read(execution.output), read(execution.row), strict=True)):
                start = row.index("=")
                written, _, _ = "".join(map(str, said[start:])).partition(END)
                assert written == task.reference("".join(row[:start]))
                assert execution.answer_slots[i].tolist().index(True) == start
                assert int(execution.loss_mask[i].sum()) == len(written) + 1


@pytest.mark.parametrize(
    "spoil", [lambda answer: {"0": "1", "1": "0"}.get(answer, END), lambda answer: answer or "0"], ids=["answer", "end"]
)
def test_a_wrong_answer_or_end_is_not_right(spoil):
    class Wrong(ParityProgram):
        def finish(self, state, row):
            return each(spoil, state["answer"])

    assert not execute(Wrong(lw.Parity()), fresh_problems(lw.Parity(), (5,), 50, seed=0)).is_right.any()


def test_products_with_equal_rounds_run_together():
    """Rows of 1 × 6 and 2 × 3 have different lengths, and each gives the same as alone."""
    task = Multiplication()
    parts = [fresh_problems(task, size, 20, seed=0) for size in ((1, 6), (2, 3))]
    together = execute(find_program(task), lw.Problems.join(parts))
    assert together.is_right.all()
    alone = execute(find_program(task), parts[1])
    width = alone.row.ids.shape[1]
    assert [row[:width] for row in read(together.output)[20:]] == read(alone.output)


@every_program
@settings(max_examples=6)
@given(st.integers(0, 99), st.integers(1, 12))
def test_programs_are_causal_on_any_row(task, seed, keep):
    """This includes rows that no problem has; the alphabets do not depend on the rows."""
    runner, symbols, draw = find_program(task), input_alphabet(task), lw.stream(seed, "rows")
    ids = torch.randint(len(symbols), (3, 12), generator=draw)
    other = ids.where(torch.arange(12) < keep, torch.randint(len(symbols), ids.shape, generator=draw))

    def run(ids):
        row = SymbolSequence(symbols, ids)
        states = [runner.prepare(row)]
        for _ in range(4):
            states.append(runner.step(states[-1], row))
        return [*(part for state in states for part in state.values()), runner.finish(states[-1], row)]

    one, changed, shorter, empty = run(ids), run(other), run(ids[:, :keep]), run(None)
    assert [prefix(part, keep) for part in one] == [prefix(part, keep) for part in changed] == list(map(read, shorter))
    assert [part.alphabet for part in one] == [part.alphabet for part in empty]
    assert all(part.ids is None for part in empty)


def test_problems_of_different_rounds_are_not_run_together():
    parts = [fresh_problems(lw.Parity(), (n,), 2, seed=0) for n in (3, 5)]
    with pytest.raises(ValueError, match=r"same number of rounds, not \[3, 5\]"):
        execute(find_program(lw.Parity()), lw.Problems.join(parts))


# Tasks without a program


def test_the_error_for_a_task_without_a_program_lists_those_with_one(monkeypatch):
    monkeypatch.delitem(PROGRAMS, lw.Parity)
    with pytest.raises(lw.UsageError) as error:
        find_program(lw.Parity())
    assert str(error.value) == (
        "parity has no n-RASP-L program; these have: copy, addition, binary-sum, multiplication, unique-set"
    )


@pytest.mark.parametrize(("equal_lengths", "leading_zeros"), [(False, False), (True, False), (False, True)])
def test_addition_has_a_program_only_for_its_published_form(equal_lengths, leading_zeros):
    with pytest.raises(lw.UsageError, match="needs equal_lengths=true leading_zeros=true"):
        find_program(lw.Addition(2, "most", equal_lengths, leading_zeros))


@pytest.mark.parametrize("text", ["101*11", "1*1"])
def test_multiplication_takes_one_or_two_bits(text):
    problems = Multiplication().parse(text)
    if text == "1*1":
        assert execute(find_program(Multiplication()), problems).is_right.all()
        return
    with pytest.raises(lw.UsageError, match="supports 1 or 2 bits times n, not 3"):
        execute(find_program(Multiplication()), problems)


# The checker


@pytest.mark.parametrize(
    "task", [*ALL, Copy(36), UniqueSet(2), UniqueSet(62), lw.Addition(3, "least", True, True)], ids=repr
)
def test_every_program_is_allowed(task):
    check_program(find_program(task))


class Honest(Program):
    """An allowed program that does nothing; each forbidden one below differs from it in one thing."""

    def prepare(self, row):
        return {"row": row, "where": positions(row), "count": count(select(row, row))}

    def step(self, state, row):
        return state

    def finish(self, state, row):
        return state["row"]


def test_doing_nothing_is_allowed():
    check_program(Honest(lw.Parity()))


# Forbidden operations of a step, on the row and the state's parts
STEPS = {
    "add to a place": lambda row, where: where + 1,
    "add a place": lambda row, where: 1 + where,
    "add places": lambda row, where: where + where,
    "subtract": lambda row, where: where - where,
    "subtract from": lambda row, where: 1 - where,
    "multiply": lambda row, where: where * 2,
    "multiply by a place": lambda row, where: 2 * where,
    "negate": lambda row, where: -where,
    "halve": lambda row, where: where // 2,
    "divide": lambda row, where: where / 2,
    "parity of a place": lambda row, where: where % 2,
    "power": lambda row, where: where**2,
    "order of places": lambda row, where: where < where,
    "order of rows": lambda row, where: row >= row,
    "and": lambda row, where: row & row,
    "or": lambda row, where: row | row,
    "exclusive or": lambda row, where: row ^ row,
    "not": lambda row, where: ~row,
    "index": lambda row, where: row[0],
    "slice": lambda row, where: row[1:],
    "index places": lambda row, where: where[-1],
    "use a place as an index": lambda row, where: "abc"[where],
    "length": lambda row, where: len(row),
    "whole number": lambda row, where: int(where),
    "number": lambda row, where: float(where),
    "iterate": lambda row, where: list(row),
    "membership": lambda row, where: "1" in row,
    "branch on symbols": lambda row, where: row if row else shift(row, None),
    "branch on places": lambda row, where: row if where else shift(row, None),
    "branch on a selector": lambda row, where: row if select(row, row) else shift(row, None),
    "branch on a comparison": lambda row, where: row if compare(where, where, "<") else shift(row, None),
    "not of symbols": lambda row, where: row if not row else shift(row, None),
    "look at the data": lambda row, where: row if row.ids[0, 0] else shift(row, None),
    "look at the length": lambda row, where: row if row.ids.shape[1] > 9 else shift(row, None),
    "look at a place": lambda row, where: row if int(where.numbers.max()) > 9 else shift(row, None),
    "look at a selector": lambda row, where: row if select(row, row).chosen.any() else shift(row, None),
    "reverse": lambda row, where: SymbolSequence(row.alphabet, torch.flip(row.ids, [1])),
    "order of symbols": lambda row, where: count(select(row, row, "<")),
    "unknown comparison": lambda row, where: compare(where, where, "!="),
    "unknown selection": lambda row, where: count(select(where, where, "!=")),
    "a function of places": lambda row, where: count(select(where, where, lambda k, q: k == 2 * q)),
    "symbols with places": lambda row, where: count(select(row, where)),
    "places with symbols": lambda row, where: count(select(where, row)),
    "marks that are none": lambda row, where: seen(row),
    "latest of marks that are none": lambda row, where: latest(row, row, None),
    "a map of too many": lambda row, where: each(lambda *s: s[0], *[row] * 7),
    "a number in the state": lambda row, where: 3,
    "a selector in the state": lambda row, where: select(row, row),
    "a list in the state": lambda row, where: [row],
}
SAID = {
    "add to a place": "no arithmetic, tests or indexing on Places",
    "index": "no arithmetic, tests or indexing on SymbolSequence",
    "branch on a selector": "no arithmetic, tests or indexing on Selector",
    "look at the data": "reads the data of rows",
    "order of symbols": "symbols have no order",
    "unknown comparison": "compared only by == < <= > >=",
    "symbols with places": "symbols can be compared only with symbols, and places only with places",
    "marks that are none": "marks must be True or False",
    "a map of too many": "16384 combinations of symbols; at most 10000 are allowed",
    "a number in the state": "a state must be a dict of rows and places",
}


def refused(cheat):
    with pytest.raises(Forbidden) as error:
        check_program(cheat)
    said = str(error.value)
    assert said.startswith(f"{type(cheat).__name__}: ")
    assert "\n" not in said
    return said


@pytest.mark.parametrize("name", STEPS)
def test_forbidden_operations_are_refused_in_every_method(name):
    class Cheat(Honest):
        def step(self, state, row):
            return state | {"more": STEPS[name](row, state["where"])}

        def prepare(self, row):
            return super().prepare(row) | {"more": row}

    assert SAID.get(name, "") in refused(Cheat(lw.Parity()))
    if "in the state" in name:
        return

    class Early(Honest):
        def prepare(self, row):
            STEPS[name](row, positions(row))
            return super().prepare(row)

    class Late(Honest):
        def finish(self, state, row):
            STEPS[name](row, state["where"])
            return row

    assert refused(Early(lw.Parity())).partition(": ")[2] == refused(Late(lw.Parity())).partition(": ")[2]


def test_rounds_may_not_be_counted():
    class Counter(Honest):
        done = 0

        def step(self, state, row):
            self.done += 1
            return state | ({"row": shift(state["row"], "0")} if self.done > 3 else {})

    assert "may not count its rounds" in refused(Counter(lw.Parity()))


@pytest.mark.parametrize("since", [1, 3, 20])
def test_a_table_may_not_change_between_rounds(since):
    """The operation and its alphabet are the same, only the function differs."""

    class Switch(Honest):
        done = 0

        def step(self, state, row):
            self.done += 1
            turn = {"0": "1", "1": "0"} if self.done > since else {}
            return state | {"row": each(lambda s: turn.get(s, s), state["row"])}

    assert refused(Switch(lw.Parity()))


@pytest.mark.parametrize("steers", [lambda ids: ids.shape[1] > 5, lambda ids: bool((ids == 1).any())])
def test_control_flow_may_not_depend_on_length_or_data(steers):
    class Branching(Honest):
        def step(self, state, row):
            steered = row.ids is not None and steers(row.ids)
            return state | {"row": shift(state["row"], "1" if steered else "0")}

    assert "operations differ between rows" in refused(Branching(lw.Parity()))


def test_a_state_must_reach_finitely_many_alphabets():
    class Endless(Honest):
        def prepare(self, row):
            return {"count": each(lambda _: 0, row)}

        def step(self, state, row):
            return {"count": each(lambda n: n + 1, state["count"])}

        def finish(self, state, row):
            return row

    assert "still growing" in refused(Endless(lw.Parity()))


@pytest.mark.parametrize(("most", "allowed"), [(4, True), (40, False)])
def test_a_state_closes_within_a_few_steps(most, allowed):
    """A bounded count has one more symbol after each step until it reaches its limit."""

    class Bounded(Honest):
        def prepare(self, row):
            return {"count": each(lambda _: 0, row)}

        def step(self, state, row):
            return {"count": each(lambda n, s: min(n + (s == "1"), most), state["count"], row)}

        def finish(self, state, row):
            return row

    if allowed:
        check_program(Bounded(lw.Parity()))
    else:
        assert "still growing" in refused(Bounded(lw.Parity()))


@pytest.mark.parametrize(
    "change",
    [lambda state, row: state | {"new": row}, lambda state, row: {"row": row}, lambda state, row: {}],
    ids=["more", "fewer", "none"],
)
def test_a_state_keeps_its_parts(change):
    class Cheat(Honest):
        def step(self, state, row):
            return change(state, row)

    assert "the state changes its parts: row, where, count became" in refused(Cheat(lw.Parity()))


@pytest.mark.parametrize(
    "end", [lambda row: positions(row), lambda row: select(row, row), lambda row: "1", lambda row: {"row": row}]
)
def test_a_program_finishes_with_a_row(end):
    class Cheat(Honest):
        def finish(self, state, row):
            return end(row)

    assert "finish must return a row of symbols" in refused(Cheat(lw.Parity()))


def test_other_errors_of_a_program_are_raised_unchanged():
    class Broken(Honest):
        def step(self, state, row):
            return {"row": state["nowhere"]}

    with pytest.raises(KeyError):
        check_program(Broken(lw.Parity()))


# Formatting


def test_rounds_of_parity_are_formatted():
    execution = execute(find_program(lw.Parity()), lw.Parity().parse("1011"))
    assert format_rounds(execution) == [
        {"bits": "1011··", "answer": "····0·"},
        {"bits": "·1011·", "answer": "····1·"},
        {"bits": "··1011", "answer": "····0·"},
        {"bits": "···101", "answer": "····0·"},
        {"bits": "····10", "answer": "····1·"},
    ]
    assert format_state(execution.row) == "1011=$"
    assert format_state(execution.output) == "$$$$1$"
    assert format_answer(execution, lw.Parity()) == "1"


def test_the_first_row_of_a_state_is_formatted_with_places_as_numbers():
    assert format_state(Places(torch.tensor([[-1, 0, 10], [5, 5, 5]]))) == "-1 0 10"
    assert format_state(SymbolSequence((None, True, False, "a"), torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]]))) == "·^·a"
