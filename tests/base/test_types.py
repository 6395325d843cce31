"""Batches of problems are selected and joined by rows; intervals are Wilson intervals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.base.types import Batch, Inputs, Problems, Score, wilson_interval


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_wilson_intervals_solve_their_equation(count, successes):
    """Each end p of the interval satisfies |share − p| = z standard errors of p."""
    share, z = min(successes, count) / count, 1.959964
    low, high = wilson_interval(share, count)
    assert 0 <= low <= share <= high <= 1
    with pytest.raises(ValueError, match="at least one"):
        wilson_interval(0.5, 0)
    assert wilson_interval(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)  # Newcombe 1998, table I
    for end in (low, high):
        assert (share - end) ** 2 == pytest.approx(z * z * end * (1 - end) / count, abs=1e-9)


def test_a_score_row_includes_its_interval():
    score = Score("parity", "weights", "Oracle", "uniform", (3, 4), 10, 0.5, 0.4, 0.75, 2.0)
    low, high = score.interval
    assert score.row() == {"task": "parity", "weights": "weights", "stopping": "Oracle", "problems": "uniform",
                           "sizes": [3, 4], "count": 10, "exact": 0.5, "whole_row": 0.4, "token_accuracy": 0.75,
                           "loops": 2.0, "low": low, "high": high}  # fmt: skip
    assert low == pytest.approx(0.2366, abs=5e-5)


def build_problems(rows, prompt_width, answer_width, first_number):
    def build_grid(width):
        return torch.arange(first_number, first_number + rows * width).view(rows, width)

    row = torch.arange(first_number, first_number + rows)
    return Problems(
        row[:, None],
        build_grid(prompt_width),
        row % prompt_width + 1,
        build_grid(answer_width),
        row % answer_width + 1,
        row,
    )


def build_batch(rows, width):
    grid = torch.arange(rows * width).view(rows, width)
    row = torch.arange(rows)
    inputs = Inputs(grid, -grid, grid + 2, grid % 2 == 0)
    return Batch(inputs, grid + 1, grid % 3 == 0, grid % 5 == 0, row, row[:, None])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_take_returns_the_requested_rows_in_order(rows):
    whole, some = build_batch(6, 4), build_batch(6, 4).take(torch.tensor(rows))
    assert len(some) == len(rows)
    for position, row in enumerate(rows):
        one = whole.take(slice(row, row + 1))
        for taken, single in ((some.inputs, one.inputs), (some, one)):
            for name in vars(single).keys() - {"inputs"}:
                assert torch.equal(getattr(taken, name)[position], getattr(single, name)[0])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=4))
def test_join_concatenates_rows_and_pads_with_zeros(shapes):
    parts = [build_problems(*shape, first_number=100 * i + 1) for i, shape in enumerate(shapes)]
    joined = Problems.join(parts)
    assert len(joined) == sum(map(len, parts))
    start = 0
    for part in parts:
        back = joined.take(slice(start, start + len(part)))
        for name, value in vars(part).items():
            kept = getattr(back, name)
            if value.dim() == 2:
                kept, padding = kept[:, : value.shape[1]], kept[:, value.shape[1] :]
                assert not padding.any()
            assert torch.equal(kept, value)
        start += len(part)


def test_inputs_on_a_device_keep_their_copy_on_the_cpu():
    """Inputs on a device refer to their original on the CPU; a selection of columns does not."""
    inputs = build_batch(2, 3).inputs
    moved = inputs.to(torch.device("meta"))
    assert all(getattr(moved, name).is_meta for name in vars(inputs))
    assert moved.host is inputs is inputs.host is inputs.to(torch.device("cpu"))
    assert moved.columns(0, 2).host.tokens.is_meta


def test_shapes_are_checked_in_tests():
    """The import hook of conftest.py checks shapes: rows that do not fit together are refused."""
    row, grid = torch.arange(2), torch.zeros(3, 4, dtype=torch.long)
    with pytest.raises(TypeError):
        Problems(row[:, None], grid, row, grid, row, row)
