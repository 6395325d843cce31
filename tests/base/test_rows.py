"""Rows of different lengths: batched functions equal a loop over rows."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.base.rng import stream
from lengthwise.base.rows import extract_windows, length_mask, shift_right, zero_after
from lengthwise.base.types import SYMBOL_DTYPE
from lengthwise.tasks.digits import count_digits, propagate_carries, reorder, replace_leading_zeros, to_machine_words

sizes = st.integers(1, 9)
seeds = st.integers(0, 10_000)
types = st.sampled_from([SYMBOL_DTYPE, torch.int16, torch.int32, torch.long])


def drawn(seed, rows, width, dtype=torch.long, below=100):
    return torch.randint(1, below, (rows, width), generator=stream(seed, "rows"), dtype=dtype)


def numbers(seed, low, high, count):
    return torch.randint(low, high + 1, (count,), generator=stream(seed, "numbers"))


@given(seeds, sizes, sizes, types)
def test_rows_are_masked_and_zeroed_beyond_their_lengths(seed, rows, width, dtype):
    length = numbers(seed, 0, width, rows)
    row = drawn(seed, rows, width, dtype)
    marked, kept = length_mask(length, width), zero_after(row, length)
    assert kept.dtype == dtype
    for i, count in enumerate(length.tolist()):
        assert marked[i].tolist() == [True] * count + [False] * (width - count)
        assert kept[i].tolist() == row[i, :count].tolist() + [0] * (width - count)
    table = length.view(1, -1).expand(2, -1)
    assert torch.equal(length_mask(table, width), marked.expand(2, -1, -1))


@given(seeds, sizes, sizes, sizes, types)
def test_each_row_is_shifted_by_its_own_offset(seed, rows, size, width, dtype):
    by = numbers(seed, -size, width, rows)
    row = drawn(seed, rows, size, dtype)
    moved = shift_right(row, by, width)
    assert moved.dtype == dtype
    for i, positions in enumerate(by.tolist()):
        expected = [row[i, j - positions].item() if 0 <= j - positions < size else 0 for j in range(width)]
        assert moved[i].tolist() == expected


@given(seeds, sizes, sizes)
def test_windows_are_cut_out_of_one_row(seed, count, width):
    row = drawn(seed, 1, 20)[0]
    starts = numbers(seed, 0, 20 - width, count)
    assert extract_windows(row, starts, width).tolist() == [row[i : i + width].tolist() for i in starts.tolist()]


@given(st.integers(2, 10), st.lists(st.integers(0, 10**60), min_size=1, max_size=4), st.integers(1, 400))
def test_carrying_keeps_the_value_and_gives_digits(base, values, most):
    """Carrying turns columns of up to ``most`` into digits of the same number."""
    width = 220
    totals = torch.zeros(len(values), width, dtype=torch.long)
    for i, value in enumerate(values):
        for position in range(width):
            value, digit = divmod(value, most + 1)
            totals[i, position] = digit
            if not value:
                break
    answer_slots = torch.nn.functional.pad(totals, (0, 20))
    digits = propagate_carries(answer_slots, base, most)
    assert int(digits.min()) >= 0
    assert int(digits.max()) < base
    for i in range(len(values)):
        assert worth(digits[i].tolist(), base) == worth(answer_slots[i].tolist(), base)


def worth(columns, base):
    return sum(column * base**position for position, column in enumerate(columns))


def test_a_carry_propagates_through_a_hundred_nines():
    nines = torch.full((1, 101), 9)
    nines[0, 100] = 0
    nines[0, 0] += 1
    assert propagate_carries(nines, 10, largest_total=18).tolist() == [[0] * 100 + [1]]


@given(seeds, st.integers(2, 10), st.integers(1, 60))
def test_machine_words_sort_as_their_numbers(seed, base, width):
    digits = drawn(seed, 5, width, SYMBOL_DTYPE, base + 1) - 1
    digits[3:, width // 2 :] = digits[2, width // 2 :]  # equal upper halves: the lower words decide
    values = [worth(row, base) for row in digits.tolist()]
    by_words = list(zip(*(part.tolist() for part in reversed(to_machine_words(digits, base))), strict=True))
    assert sorted(range(5), key=values.__getitem__) == sorted(range(5), key=by_words.__getitem__)


@given(seeds, sizes, sizes)
def test_only_a_leading_zero_is_replaced(seed, rows, width):
    digits = torch.randint(2, (rows, 2, width), generator=stream(seed, "digits"), dtype=SYMBOL_DTYPE)
    others = drawn(seed, rows * 2, width, SYMBOL_DTYPE).view(rows, 2, width)
    length = numbers(seed, 1, width, rows * 2).view(rows, 2)
    found = replace_leading_zeros(digits, length, others)
    expected = digits.clone()
    for i in range(rows):
        for j in range(2):
            top = int(length[i, j]) - 1
            if top > 0 and digits[i, j, top] == 0:
                expected[i, j, top] = others[i, j, top]
    assert torch.equal(found, expected)


@given(seeds, sizes, sizes)
def test_reversing_the_digit_order_twice_restores_the_digits(seed, rows, width):
    length = numbers(seed, 1, width, rows)
    digits = zero_after(drawn(seed, rows, width), length)
    turned = reorder(digits, length, "most")
    for i, count in enumerate(length.tolist()):
        assert turned[i].tolist() == digits[i, :count].flip(0).tolist() + [0] * (width - count)
    assert torch.equal(reorder(turned, length, "most"), digits)
    assert reorder(digits, length, "least") is digits
    assert torch.equal(count_digits(digits), length)
