"""Sizes, loops and stopping rules are pure functions with inclusive bounds; plain loops over rows check them."""

import math
import re
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.base import fields
from lengthwise.base.fields import find_part_classes
from lengthwise.base.score_rows import FORMER_FIELDS, update_rule_name
from lengthwise.evaluation.answers import decode
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.data import draw_batch
from lengthwise.experiment.loops import AnyLoops, Constant, ExtraLoops, PerRound
from lengthwise.experiment.resources import estimate_evaluation
from lengthwise.experiment.stopping import (
    After,
    Converged,
    Halted,
    MaxConfidence,
    Oracle,
    Settled,
    Stopping,
    choose_loops,
)
from lengthwise.runs.run import load


def count_values(values, largest):
    return torch.bincount(values.flatten(), minlength=largest + 1).tolist()


# Lengths


@pytest.mark.parametrize("bottom", [1, 3])
def test_log_uniform_sizes_have_probability_inverse_to_size(bottom):
    sizes = lw.LogUniform(20, bottom).draw(0, 20_000, 2, lw.stream(0, "log-uniform"))
    weights = 1 / torch.arange(bottom, 21)
    wanted = torch.cat([torch.zeros(bottom), weights / weights.sum()])
    for axis in sizes.unbind(1):
        assert torch.allclose(torch.tensor(count_values(axis, 20)) / len(axis), wanted, atol=0.01)
    assert sizes.double().T.corrcoef()[0, 1].abs() < 0.03


@given(st.integers(1, 9), st.integers(0, 4), st.integers(1, 4), st.integers(1, 3))
def test_sizes_in_steps_are_those_between_the_bounds(bottom, count, step, axes):
    lengths = lw.Uniform(bottom + count * step, bottom, step=step)
    found = lengths.draw(0, 400, axes, lw.stream(0, "x"))
    assert found.shape == (400, axes) and found.unique().tolist() == list(range(bottom, lengths.top + 1, step))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_sizes_of_a_list_are_as_frequent_as_in_the_list(sizes):
    lengths = lw.OneOf(tuple(sizes))
    assert (lengths.bottom, lengths.top) == (min(sizes), max(sizes))
    share = torch.tensor(count_values(lengths.draw(0, 8000, 1, lw.stream(0, "x")), 50)) / 8000
    wanted = torch.tensor(count_values(torch.tensor(sizes), 50)) / len(sizes)
    assert torch.allclose(share, wanted, atol=0.04)


@pytest.mark.parametrize("largest_sizes", [(4, 4), (2, 4), (2, 2)])
def test_uniform_sizes_are_uniform_and_their_axes_independent(largest_sizes):
    lengths = lw.Uniform(4) if largest_sizes == (4, 4) else lw.Curriculum(top=4, every=1, max_per_axis=largest_sizes)
    sizes, cells = lengths.draw(9, 8000, 2, lw.stream(0, "x")) - 1, largest_sizes[0] * largest_sizes[1]
    pairs = torch.bincount(sizes[:, 0] * largest_sizes[1] + sizes[:, 1], minlength=cells) / 8000
    assert len(pairs) == cells and (pairs - 1 / cells).abs().max() < 5 * (1 / cells / 8000) ** 0.5


@pytest.mark.parametrize(("fraction", "rows", "count"), [(0.5, 10, 5), (1.0, 10, 10), (0.25, 8, 2), (0.0, 8, 0)])
def test_a_fraction_of_the_rows_has_the_longest_size_on_every_axis(fraction, rows, count):
    """Uniform sizes from 1 to 10⁶ never reach the longest size by chance."""
    for lengths in (lw.Uniform(10**6, longest=fraction), lw.Mastery(10**6, start=10**6, longest=fraction)):
        is_longest = lengths.draw(0, rows, 2, lw.stream(0, "x")) == 10**6
        assert int(is_longest.all(1).sum()) == int(is_longest.any(1).sum()) == count


def test_rows_of_the_longest_size_stand_anywhere_in_a_batch_and_respect_largest_sizes():
    """The first rows of a batch, which may be hard problems, are no longer than the others."""
    sizes = lw.Uniform(40, longest=0.5).problems(lw.Parity(), 0, 64, lw.stream(0, "x")).sizes[:, 0]
    assert 8 < int((sizes[:32] == 40).sum()) < 24
    sizes = lw.Mastery(11, start=5, max_per_axis=(2, 11), longest=0.5).draw(3, 8, 2, lw.stream(0, "x"))
    assert sizes[:4].tolist() == [[2, 8]] * 4 and sizes.amax(0).tolist() == [2, 8]


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 4), st.integers(1, 5), st.integers(0, 9))
def test_the_largest_size_of_a_curriculum_counts_up(bottom, start_offset, top_offset, every, hold):
    """The maximum starts at ``start``, grows by 1 every ``every`` steps after ``hold_steps``, and stays at ``top``."""
    start, top = bottom + start_offset, bottom + start_offset + top_offset
    lengths = lw.Curriculum(top=top, every=every, start=start, bottom=bottom, hold_steps=hold)
    wanted = [start] * hold + [min(top, start + i) for i in range(top_offset + 2) for _ in range(every)]
    assert [lengths.maximum(step) for step in range(len(wanted))] == wanted
    for step in (0, len(wanted) // 2):
        sizes = lengths.draw(step, 400, 2, lw.stream(0, "x", step))
        assert sorted(sizes.unique().tolist()) == list(range(bottom, wanted[step] + 1))


LARGEST_SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=3)


@given(LARGEST_SIZES, st.integers(1, 3), st.integers(0, 6), st.integers(0, 30))
def test_an_axis_stops_growing_at_its_largest_size(offsets, bottom, top_offset, step):
    """Each axis is uniform from the bottom to its own bound, or to the maximum while that is smaller."""
    most = tuple(bottom + more for more in offsets)
    lengths = lw.Curriculum(top=bottom + top_offset, every=3, start=bottom, bottom=bottom, max_per_axis=most)
    sizes = lengths.draw(step, 400, len(most), lw.stream(0, "x", step))
    assert sizes.shape == (400, len(most))
    for axis, top in enumerate(most):
        reached = min(top, lengths.maximum(step))
        assert sorted(sizes[:, axis].unique().tolist()) == list(range(bottom, reached + 1))
    assert lengths.tops(len(most)) == tuple(min(top, lengths.top) for top in most)


@given(st.integers(1, 4), st.integers(0, 8), st.integers(1, 3), st.integers(0, 40))
def test_a_largest_size_that_is_not_reached_does_not_change_the_draw(bottom, top_offset, axes, step):
    """The sizes of all axes come from one draw, even with a ``max_per_axis`` that no size reaches yet."""
    lengths = lw.Curriculum(top=bottom + top_offset, every=4, start=bottom, bottom=bottom)
    draw, top = lw.stream(0, "x", step), lengths.maximum(step)
    before = torch.randint(bottom, top + 1, (50, axes), generator=draw)
    for most in ((), (top,) * axes, (99,) * axes):
        again = lw.stream(0, "x", step)
        assert torch.equal(replace(lengths, max_per_axis=most).draw(step, 50, axes, again), before)
        assert torch.equal(again.get_state(), draw.get_state())


@pytest.mark.parametrize(("largest_sizes", "axes"), [((2,), 2), ((2, 3), 1)])
def test_largest_sizes_must_be_given_for_every_axis(largest_sizes, axes):
    lengths = lw.Curriculum(top=5, every=1, max_per_axis=largest_sizes)
    for ask in (lengths.tops, lambda axes: lengths.draw(0, 4, axes, lw.stream(0, "x"))):
        with pytest.raises(
            lw.UsageError, match=rf"max_per_axis needs the largest size on each of {axes} axes, not \(2"
        ):
            ask(axes)


CONTRADICTIONS = [(lw.Uniform, (3, 4), {}), (lw.Uniform, (9, 2), {"step": 3}), (lw.OneOf, ((),), {})]
CONTRADICTIONS += [(lw.LogUniform, (3, 4), {}), (lw.Mastery, (3,), {"start": 4}), (lw.Curriculum, (3, 1), {"start": 4})]
CONTRADICTIONS += [(lw.Curriculum, (3, 1), {"bottom": 2}), (lw.Curriculum, (3, 1), {"max_per_axis": (2, 0)})]
CONTRADICTIONS += [(lw.Curriculum, (3, 1), {"start": 2, "bottom": 2, "max_per_axis": (1, 3)})]


@pytest.mark.parametrize(("kind", "values", "options"), CONTRADICTIONS)
def test_bounds_that_contradict_each_other_are_refused(kind, values, options):
    with pytest.raises(lw.UsageError):
        kind(*values, **options)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (torch.full((4, 1), 6), "Uniform: draw returned sizes 6 to 6; .* bottom=1 to top=5"),
        (torch.zeros(4, 1, dtype=torch.long), "Uniform: draw returned sizes 0 to 0"),
        (torch.full((4,), 3), r"Uniform: draw must return torch.long of \(4, 1\), not torch.int64 of \(4,\)"),
        (torch.ones(4, 1), r"torch.long of \(4, 1\), not torch.float32 of"),
        ([[3]] * 4, "not list"),
    ],
)
def test_a_user_s_draw_must_return_sizes_of_the_training_range(sizes, message, monkeypatch):
    monkeypatch.setattr(lw.Uniform, "draw", lambda *_: sizes)
    with pytest.raises(lw.UsageError, match=message):
        lw.Uniform(5).problems(lw.Parity(), 0, 4, lw.stream(0, "x"))


def test_lengths_without_top_are_refused():
    @dataclass(frozen=True)
    class Unbounded(lw.SampledLengths):
        def draw(self, step, rows, axes, generator):
            return torch.ones(rows, axes, dtype=torch.long)

    with pytest.raises(lw.UsageError, match="Unbounded needs a field with the longest training length"):
        Unbounded()


# Loops

ROUNDS = st.lists(st.integers(1, 30), min_size=1, max_size=20).map(torch.tensor)


@given(ROUNDS, st.integers(-40, 40))
def test_planned_loops_are_the_rounds_plus_an_offset_and_at_least_one(rounds, offset):
    wanted = [max(1, n + offset) for n in rounds.tolist()]
    assert PerRound(offset).planned(rounds).tolist() == wanted
    assert PerRound(offset, times=3).planned(rounds).tolist() == [max(1, 3 * n + offset) for n in rounds.tolist()]
    assert ExtraLoops(offset).planned(rounds).tolist() == wanted
    assert Constant(abs(offset) + 1).planned(rounds).tolist() == [abs(offset) + 1] * len(rounds)


@pytest.mark.parametrize("loops", [Constant(3), PerRound(), PerRound(2), ExtraLoops(extra=0)], ids=repr)
@given(rounds=ROUNDS)
def test_without_extra_loops_training_runs_the_planned_ones(loops, rounds):
    assert torch.equal(loops.draw(rounds, lw.stream(0, "x")), loops.planned(rounds))


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda rounds: rounds * 0, "PerRound: draw returned 0 loops; it must return 1 or more"),
        (
            lambda rounds: rounds / 2,
            "PerRound: draw must return a torch.long for each of 32 rows, not torch.float32 of",
        ),
    ],
)
def test_drawn_loops_must_be_whole_and_at_least_one(draw, message, monkeypatch):
    monkeypatch.setattr(PerRound, "draw", lambda self, rounds, generator: draw(rounds))
    with pytest.raises(lw.UsageError, match=message):
        draw_batch(lw.find("looped-parity"), 0)


def test_a_user_s_schedule_may_return_a_tensor(monkeypatch):
    monkeypatch.setattr(lw.Schedule, "factor", lambda *_: torch.tensor(0.5))
    assert type(lw.find("looped-parity").rate_at(0)) is float


@pytest.mark.parametrize("extra", [1, 3, 5])
@pytest.mark.parametrize("offset", [-3, 0, 2])
def test_extra_loops_are_uniform_from_0_to_extra(extra, offset):
    loops, rounds = ExtraLoops(offset, extra), torch.arange(6000) % 7 + 1
    share = torch.bincount(loops.draw(rounds, lw.stream(0, "x")) - loops.planned(rounds), minlength=extra + 1) / 6000
    assert len(share) == extra + 1 and (share - 1 / (extra + 1)).abs().max() < 0.035  # five standard deviations


# Stopping


@st.composite
def draw_traces(draw):
    """Draw planned loops, and a trace of rows that ran 1 to 6 loops each, with noise in loops that were not run."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def draw_tensor(values, *shape):
        count = math.prod(shape)
        return torch.tensor(draw(st.lists(values, min_size=count, max_size=count))).view(shape)

    loops = draw_tensor(st.integers(1, 6), rows)
    shape = int(loops.max()), rows
    # Multiples of 1/4, so that equals occur and means are exact.
    confidence = draw_tensor(st.integers(-6, 0), *shape) / 4
    predicted, ends = draw_tensor(st.integers(0, 1), *shape, width), draw_tensor(st.integers(1, width), *shape)
    movement = draw_tensor(st.integers(0, 8), *shape, 2) / 20
    return lw.Trace(predicted, ends, confidence, loops, movement), draw_tensor(st.integers(1, 6), rows)


def choose_by_loop(stopping, trace, planned, row):
    """Compute, in plain Python, the loop whose answer is used for ``row``."""
    ran = int(trace.loops[row])
    confidence = trace.confidence[:ran, row].tolist()
    predicted = [trace.predictions[k, row, : int(trace.ends[k, row])].tolist() for k in range(ran)]
    match stopping:
        case Oracle(offset=offset):
            return max(1, int(planned[row]) + offset)
        case After(loops=loops):
            return loops
        case MaxConfidence(per="batch"):
            confidence = [sum(trace.confidence[k].tolist()) for k in range(int(trace.loops.min()))]
            return confidence.index(max(confidence)) + 1
        case MaxConfidence():
            return confidence.index(max(confidence)) + 1
        case Halted(delay=delay):
            return min(next((k + 1 for k in range(ran) if len(predicted[k]) > 1), ran) + delay, ran)
        case Converged(patience=patience):
            same = [predicted[k : k + patience + 1] == [predicted[k]] * (patience + 1) for k in range(ran)]
            return (same.index(True) if True in same else ran - 1) + 1
        case Settled(below=below, period=period):
            moved = trace.movement[:ran, row, period - 1].tolist()
            return next((k + 1 for k in range(ran) if moved[k] < below), ran)


PLANNED_RULES = [Oracle(), Oracle(-2), Oracle(3), After(2)]
OUTPUT_RULES = [MaxConfidence(), MaxConfidence(per="batch"), *map(Converged, (1, 2, 4, 9)), Halted(), Halted(delay=3)]
OUTPUT_RULES += [Settled(), Settled(0.3, period=2, max_loops=7)]


def test_some_rows_train_with_fewer_loops_and_the_others_with_extra_loops():
    rounds = torch.full((6000,), 5)
    loops = AnyLoops(extra=2, early=0.4).draw(rounds, lw.stream(0, "any"))
    found = torch.bincount(loops, minlength=8) / len(loops)
    assert found[0] == 0 and len(found) == 8
    assert (found[1:5] - 0.1).abs().max() < 0.02 and (found[5:] - 0.2).abs().max() < 0.02
    assert torch.equal(AnyLoops(early=0.0, extra=0).draw(rounds, lw.stream(0, "any")), rounds)
    assert AnyLoops().draw(torch.ones(50, dtype=torch.long), lw.stream(0, "any")).min() == 1


@pytest.mark.parametrize("stopping", [*PLANNED_RULES, *OUTPUT_RULES], ids=repr)
@given(drawn=draw_traces())
def test_chosen_loops_equal_those_of_a_plain_loop_over_rows(stopping, drawn):
    trace, planned = drawn
    wanted = [choose_by_loop(stopping, trace, planned, i) for i in range(len(planned))]
    assert stopping.choose(trace, planned).tolist() == wanted
    assert stopping.reads_output == (stopping in OUTPUT_RULES)


def test_the_batch_wise_rule_depends_on_the_other_rows():
    """The published variant chooses one loop for all rows, by the mean over rows."""
    confidence, loops = torch.tensor([[-0.1, -9.0], [-1.0, -0.5]]), torch.tensor([2, 2])
    trace = lw.Trace(torch.zeros(2, 2, 1, dtype=torch.long), torch.ones(2, 2, dtype=torch.long), confidence, loops)
    assert MaxConfidence(per="batch").choose(trace, loops).tolist() == [2, 2]
    assert MaxConfidence().choose(trace, loops).tolist() == [1, 2]


@given(ROUNDS, st.integers(0, 9))
def test_limits_are_the_planned_loops_and_extra_loops_or_a_maximum(planned, extra):
    assert Oracle(-extra).limit(planned).tolist() == [max(1, n - extra) for n in planned.tolist()]
    assert After(extra + 1).limit(planned).tolist() == [extra + 1] * len(planned)
    for kind in (MaxConfidence, Converged, Halted):
        assert kind(extra=extra).limit(planned).tolist() == [n + extra for n in planned.tolist()]
    for rule in (MaxConfidence(max_loops=7), Converged(max_loops=7), Halted(max_loops=7), Settled(max_loops=7)):
        assert rule.limit(planned).tolist() == [7] * len(planned)


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda loops: loops * 0, "choose returned loop 0 for a row; it must be 1 to 3"),
        (lambda loops: loops + 1, "choose returned loop 4 for a row; it must be 1 to 3"),
        (
            lambda loops: loops.float(),
            r"choose must return a torch.long for each of 2 rows, not torch.float32 of \(2,\)",
        ),
        (lambda loops: loops[:1], r"for each of 2 rows, not torch.int64 of \(1,\)"),
        (lambda loops: None, "for each of 2 rows, not NoneType"),
    ],
)
def test_a_user_s_rule_must_choose_a_loop_that_was_run(choose, message, monkeypatch):
    monkeypatch.setattr(Converged, "choose", lambda self, trace, planned: choose(trace.loops))
    loops, ends = torch.tensor([3, 3]), torch.ones(3, 2, dtype=torch.long)
    trace = lw.Trace(torch.zeros(3, 2, 1, dtype=torch.long), ends, torch.zeros(3, 2), loops)
    with pytest.raises(lw.UsageError, match=message):
        choose_loops(Converged(), trace, loops, loops)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (lambda planned: planned * 0, "limit returned 0 loops; it must return 1 or more"),
        (lambda planned: 7, "limit must return a torch.long for each of [12] rows?, not int"),
        (lambda planned: planned * 1.5, "limit must return a torch.long for each of [12] rows?, not torch.float32 of"),
        (lambda planned: planned.max(), "limit must return a torch.long for each of [12] rows?, not torch.int64 of"),
    ],
)
@pytest.mark.parametrize("rule", [Oracle(), Converged()], ids=str)
def test_an_invalid_limit_is_refused(rule, limit, message, monkeypatch):
    """An invalid ``limit`` is reported with the rule, in evaluation, decoding, and estimates of memory."""
    monkeypatch.setattr(type(rule), "limit", lambda self, planned: limit(planned))
    weights = load("looped-parity")
    recipe = weights.recipe
    batch = recipe.layout.write(recipe.task.sample(torch.tensor([[10], [10]]), lw.stream(0, "rows")), recipe.task)
    for work in (
        lambda: list(evaluate(weights, [10], samples=2, stopping=rule)),
        lambda: decode(weights.model, recipe, batch, rule),
        lambda: estimate_evaluation(recipe, [10], 2, [rule]),
    ):
        with pytest.raises(lw.UsageError, match=rf"^{re.escape(rule.name)}: {message}[^\n]*$"):
            work()


def test_a_rule_chooses_the_same_loops_alone_and_with_other_rules(monkeypatch):
    """A rule that takes half of the planned loops scores the same alone and with other rules."""
    monkeypatch.setattr(Oracle, "choose", lambda self, trace, planned: (planned + 1) // 2)
    assert Oracle().reads_output and not After(1).reads_output
    weights = load("looped-parity")
    (alone,) = evaluate(weights, [10], samples=60, stopping=Oracle())
    beside, _ = evaluate(weights, [10], samples=60, stopping=[Oracle(), After(10)])
    assert alone == beside and alone.loops == 5 and alone.exact < 0.9


def test_a_mastered_maximum_grows_by_one_or_by_a_factor():
    assert [lw.Mastery(9, start=7).maximum(passed) for passed in range(5)] == [7, 8, 9, 9, 9]
    grown = lw.Mastery(40, start=4, grow=1.5)
    assert [grown.maximum(passed) for passed in range(8)] == [4, 6, 9, 14, 21, 32, 40, 40]
    assert grown.exam_count() == 6 and grown.maximum(10**6) == 40
    assert [lw.Mastery(9, start=1, grow=1.1).maximum(passed) for passed in range(4)] == [1, 2, 3, 4]
    assert lw.Mastery(10**6, grow=2.0).exam_count() == 20 and lw.Mastery(10**5).exam_count() == 10**5 - 1


def test_names_of_rules_in_stored_scores_get_todays_field_names():
    """Reports rename fields in texts, because they do not import the rules: as the rules themselves would."""
    rules = [cls for cls in find_part_classes(Stopping).values() if cls.__module__.startswith("lengthwise.")]
    assert {cls.__name__: names for cls in rules if (names := cls.former_names)} == FORMER_FIELDS
    for name, former_names in FORMER_FIELDS.items():
        for former in former_names:
            text = f"{name}({former}=3)"
            assert update_rule_name(text) == fields.decode(Stopping, text).name != text
            nested = f"Restarts(rule={text}, count=4)"
            assert update_rule_name(nested) == fields.decode(Stopping, nested).name
            assert update_rule_name(update_rule_name(text)) == update_rule_name(text)
    assert update_rule_name("Mine(most=3)") == "Mine(most=3)" and update_rule_name("Oracle") == "Oracle"
