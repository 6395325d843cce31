"""Rows of different lengths: batched functions equal a loop over rows."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.base.rng import stream
from lengthwise.base.rows import extract_windows, length_mask, shift_right, zero_after
from lengthwise.base.types import SYMBOL_DTYPE
from lengthwise.tasks.digits import argsort_rows

sizes = st.integers(1, 9)
seeds = st.integers(0, 10_000)
dtypes = st.sampled_from([SYMBOL_DTYPE, torch.int16, torch.int32, torch.long])


def draw_rows(seed, rows, width, dtype=torch.long, high=100):
    return torch.randint(1, high, (rows, width), generator=stream(seed, "rows"), dtype=dtype)


def draw_numbers(seed, low, high, count):
    return torch.randint(low, high + 1, (count,), generator=stream(seed, "numbers"))


@given(seeds, sizes, sizes, dtypes)
def test_rows_are_masked_and_zeroed_beyond_their_lengths(seed, rows, width, dtype):
    length = draw_numbers(seed, 0, width, rows)
    row = draw_rows(seed, rows, width, dtype)
    marked, kept = length_mask(length, width), zero_after(row, length)
    assert kept.dtype == dtype
    for i, count in enumerate(length.tolist()):
        assert marked[i].tolist() == [True] * count + [False] * (width - count)
        assert kept[i].tolist() == row[i, :count].tolist() + [0] * (width - count)
    table = length.view(1, -1).expand(2, -1)
    assert torch.equal(length_mask(table, width), marked.expand(2, -1, -1))


@given(seeds, sizes, sizes, sizes, dtypes)
def test_each_row_is_shifted_by_its_own_offset(seed, rows, size, width, dtype):
    by = draw_numbers(seed, -size, width, rows)
    row = draw_rows(seed, rows, size, dtype)
    moved = shift_right(row, by, width)
    assert moved.dtype == dtype
    for i, positions in enumerate(by.tolist()):
        expected = [row[i, j - positions].item() if 0 <= j - positions < size else 0 for j in range(width)]
        assert moved[i].tolist() == expected


@given(seeds, sizes, sizes)
def test_windows_are_cut_out_of_one_row(seed, count, width):
    row = draw_rows(seed, 1, 20)[0]
    starts = draw_numbers(seed, 0, 20 - width, count)
    assert extract_windows(row, starts, width).tolist() == [row[i : i + width].tolist() for i in starts.tolist()]


@given(seeds, st.integers(1, 60))
def test_numbers_longer_than_a_machine_word_are_sorted(seed, width):
    digits = draw_rows(seed, 5, width, SYMBOL_DTYPE, 11) - 1
    digits[3:, width // 2 :] = digits[2, width // 2 :]  # equal upper halves: the lower words decide
    values = [sum(digit * 10**position for position, digit in enumerate(row)) for row in digits.tolist()]
    order = argsort_rows(digits[None], torch.ones(1, 5, dtype=torch.bool))
    assert order[0].tolist() == sorted(range(5), key=values.__getitem__)
