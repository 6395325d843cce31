"""Write the labels of numbers in ascending order of the numbers (McLeish et al. 2024, section 4)."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from lengthwise.base.rows import length_mask, zero_after
from lengthwise.base.types import SYMBOL_DTYPE, Problems, UsageError
from lengthwise.tasks import Task
from lengthwise.tasks.digits import Order, argsort_rows, count_digits, reorder, replace_leading_zeros, to_reading_order
from lengthwise.tasks.family import enumerate_rows

# Lists of numbers: their digits, least significant first, and the numbers' lengths.
Numbers = tuple[Int[Tensor, "b n d"], Int[Tensor, "b n"]]


@dataclass(frozen=True)
class NumberListSampler:
    """A sampler of structured lists of numbers without leading zeros. Each method in ``patterns`` draws a family."""

    sizes: Int[Tensor, "b 2"]  # the number of numbers, and their largest number of digits
    generator: Generator

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.sizes), int(self.sizes[:, 0].max()), int(self.sizes[:, 1].max())

    @property
    def position(self) -> Int[Tensor, " d"]:
        return torch.arange(self.shape[2])

    @property
    def largest_lengths(self) -> Int[Tensor, "b n"]:
        return self.sizes[:, 1:].expand(-1, self.shape[1])

    def draw_fractions(self, *shape: int) -> Float[Tensor, "*shape"]:
        """Draw uniform numbers in [0, 1)."""
        return torch.rand(shape, generator=self.generator)

    def draw_digits(self, count: int) -> Int[Tensor, "b count d"]:
        """Draw the digits of ``count`` numbers per row, each of the row's largest length, without leading zeros."""
        rows, _, width = self.shape
        drawn = torch.randint(10, (rows, count, width), generator=self.generator)
        return torch.where(self.is_top_digit & (drawn == 0), 1, drawn)

    @property
    def is_top_digit(self) -> Bool[Tensor, "b 1 d"]:
        """A mask that is True at the top digit of numbers of the row's largest length, if that is more than 1."""
        return (self.position == self.sizes[:, 1:] - 1)[:, None] & (self.sizes[:, 1] > 1)[:, None, None]

    def draw_lengths(self) -> Int[Tensor, "b n"]:
        """Draw each number's length, uniform from 1 to the row's largest length."""
        return (self.draw_fractions(*self.shape[:2]) * self.sizes[:, 1:]).long() + 1

    def draw_consecutive_numbers(self, rank: Int[Tensor, "b n"]) -> Numbers:
        """Draw a uniform start for each row, and return the numbers start + ``rank``, clipped to the largest number."""
        low_digits = torch.minimum(self.sizes[:, 1], torch.tensor(3))  # these digits change; the others are shared
        value_count = 10**low_digits
        start = (self.draw_fractions(len(value_count)) * (value_count - self.sizes[:, 0]).clamp(min=1)).long()
        value = torch.minimum(start[:, None] + rank, value_count[:, None] - 1)
        low = value[..., None] // 10 ** self.position.clamp(max=3) % 10
        digits = torch.where(self.position < low_digits[:, None, None], low, self.draw_digits(1))
        real_digits = digits * (self.position < self.sizes[:, 1:, None])
        return digits, count_digits(real_digits.flatten(0, 1)).view(real_digits.shape[:2])

    def draw_uniform(self) -> Numbers:
        """Numbers of uniform lengths, uniform among the numbers of their length."""
        length = self.draw_lengths()
        digits = torch.randint(10, self.shape, generator=self.generator, dtype=SYMBOL_DTYPE)
        others = torch.randint(1, 10, self.shape, generator=self.generator, dtype=SYMBOL_DTYPE)
        return replace_leading_zeros(digits, length, others), length

    def all_equal(self) -> Numbers:
        """Lists of equal numbers, whose labels keep their order."""
        return self.draw_digits(1).expand(-1, self.shape[1], -1), self.largest_lengths

    def odd_one_out(self) -> Numbers:
        """Lists of equal numbers, except one that differs in a single digit."""
        rows, count, _ = self.shape
        place = self.position == (self.draw_fractions(rows, 1, 1) * self.sizes[:, 1:, None]).long()
        other = torch.randint(1, 10, (rows, 1, 1), generator=self.generator)
        digits = self.draw_digits(1)
        changed = (digits + place * other) % 10
        changed = torch.where(self.is_top_digit & (changed == 0), torch.where(digits == 5, 6, 5), changed)
        odd = torch.arange(count) == (self.draw_fractions(rows, 1) * self.sizes[:, :1]).long()
        return torch.where(odd[..., None], changed, digits), self.largest_lengths

    def two_values(self) -> Numbers:
        """Lists of two different numbers, each in about half of the places."""
        rows, count, width = self.shape
        which = torch.randint(2, (rows, count, 1), generator=self.generator).expand(-1, -1, width)
        return self.draw_digits(2).gather(1, which), self.largest_lengths

    def same_length(self) -> Numbers:
        """Numbers that all have the largest number of digits."""
        return self.draw_digits(self.shape[1]), self.largest_lengths

    def one_digit(self) -> Numbers:
        """Numbers of one digit, many of which are equal."""
        digits, length = self.draw_digits(self.shape[1]), torch.ones_like(self.largest_lengths)
        digits[..., 0] = torch.randint(10, digits.shape[:2], generator=self.generator)
        return digits, length

    def shared_front(self) -> Numbers:
        """Numbers that differ only in their last digit."""
        last_digit = torch.randint(1, 10, (*self.shape[:2], 1), generator=self.generator)
        return torch.where(self.position == 0, last_digit, self.draw_digits(1)), self.largest_lengths

    def shared_back(self) -> Numbers:
        """Numbers that differ only in their first digit."""
        first_digit = torch.randint(1, 10, (*self.shape[:2], 1), generator=self.generator)
        front = (self.position == self.sizes[:, 1:] - 1)[:, None]
        return torch.where(front, first_digit, self.draw_digits(1)), self.largest_lengths

    def powers(self) -> Numbers:
        """Powers of ten, and numbers one below or above: 99, 100, 101."""
        length = self.draw_lengths()
        change = torch.randint(-1, 2, (*length.shape, 1), generator=self.generator)
        power = (self.position == length[..., None] - 1).long()
        return torch.where(change < 0, 9, torch.where((change > 0) & (self.position == 0), 1, power)), length

    def all_highest(self) -> Numbers:
        """Numbers of nines only: 9, 99, 999."""
        length = self.draw_lengths()
        return torch.full((*length.shape, self.shape[2]), 9), length

    def repeated_digit(self) -> Numbers:
        """Numbers that repeat one digit: 444, 77, 3."""
        length = self.draw_lengths()
        digit = torch.randint(1, 10, (*length.shape, 1), generator=self.generator)
        return digit.expand(-1, -1, self.shape[2]), length

    def zeros(self) -> Numbers:
        """Lists in which about half of the numbers are zero."""
        digits, length = self.draw_digits(self.shape[1]), self.draw_lengths()
        zero = self.draw_fractions(*length.shape) < 0.5
        digits = torch.where(digits == 0, 1, digits).masked_fill(zero[..., None], 0)
        return digits, torch.where(zero, 1, length)

    def ascending(self) -> Numbers:
        """Consecutive numbers in order."""
        return self.draw_consecutive_numbers(torch.arange(self.shape[1]).expand(self.shape[:2]))

    def descending(self) -> Numbers:
        """Consecutive numbers in reverse order."""
        return self.draw_consecutive_numbers((self.sizes[:, :1] - 1 - torch.arange(self.shape[1])).clamp(min=0))

    def neighbours(self) -> Numbers:
        """Consecutive numbers in random order: 42, 44, 43."""
        padding = torch.arange(self.shape[1]) >= self.sizes[:, :1]
        order = self.draw_fractions(*self.shape[:2]).masked_fill(padding, 2).argsort(1)
        return self.draw_consecutive_numbers(order.argsort(1))

    patterns = (
        all_equal, odd_one_out, two_values, same_length, one_digit, shared_front, shared_back, powers, all_highest,
        repeated_digit, zeros, ascending, descending, neighbours,
    )  # fmt: skip


LABELS = string.ascii_uppercase + string.ascii_lowercase
FIRST_LABEL, COLON, COMMA = 10, 10 + len(LABELS), 11 + len(LABELS)  # ids of the first label and of the two signs


@dataclass(frozen=True)
class Sorting(Task):
    """Labelled numbers → their labels, in ascending order of the numbers: ``A:321,B:54`` → ``B,A``. Equal numbers keep
    the prompt's order. T is the number of numbers.

    The sizes are the number of numbers and their largest number of digits. A number has a uniform number of digits from
    1 up, and is uniform among numbers of that length (a one-digit number may be 0, unlike in the paper). The labels are
    consecutive letters of a circular alphabet, A–Z and a–z (the paper's code has more symbols), from a uniform start.
    """

    order: Order = "least"  # which digit of a number is written first

    symbols = (*string.digits, *LABELS, ":", ",")
    signs = (*LABELS, ":", ",")
    axes = ("numbers", "digits")
    largest = len(LABELS)
    question = (
        "Sort these labelled numbers in ascending order, equal ones in the order in which they stand. "
        "Write the labels alone, separated by commas without spaces."
    )

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(NumberListSampler.draw_uniform, sizes, generator)

    patterns = NumberListSampler.patterns

    def draw_pattern(self, pattern: Callable, sizes: Int[Tensor, "b 2"], generator: Generator) -> Problems:
        numbers = NumberListSampler(sizes, generator)
        rows, count, _ = numbers.shape
        if count > len(LABELS):
            raise UsageError(f"sorting: there are labels for at most {len(LABELS)} numbers, not {count}")
        digits, length = pattern(numbers)
        start = torch.randint(len(LABELS), (rows, 1), generator=generator)
        labels = (start + torch.arange(count)) % len(LABELS)
        return self._build_problems(sizes, digits.to(SYMBOL_DTYPE).contiguous(), length, labels)

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        """Return all lists of one-digit numbers, each with every first label, or None for longer numbers or more than
        ``limit`` problems."""
        count, width = size
        row = enumerate_rows(10, count, limit // len(LABELS)) if width == 1 else None
        if row is None:
            return None
        start = torch.arange(len(LABELS)).repeat(len(row))[:, None]
        digits = row.repeat_interleave(len(LABELS), 0)[..., None].to(SYMBOL_DTYPE)
        sizes = torch.tensor([[count, width]]).repeat(len(digits), 1)
        length = torch.ones_like(digits[..., 0], dtype=torch.long)
        return self._build_problems(sizes, digits, length, (start + torch.arange(count)) % len(LABELS))

    def _build_problems(
        self, sizes: Int[Tensor, "b 2"], digits: Int[Tensor, "b n d"], length: Tensor, labels: Int[Tensor, "b n"]
    ) -> Problems:
        """Return problems on these labelled numbers. Their digits are least significant first; those beyond a number's
        length are ignored."""
        real = length_mask(sizes[:, 0], labels.shape[1])
        length = length * real
        digits = zero_after(digits, length)
        ranked = argsort_rows(digits, real)
        answer = torch.full((len(sizes), 2 * labels.shape[1] - 1), COMMA, dtype=SYMBOL_DTYPE)
        answer[:, ::2] = FIRST_LABEL + labels.gather(1, ranked)
        answer_length = 2 * sizes[:, 0] - 1
        # For each number, a prompt has a comma, its label, a colon and its digits; the first comma is cut.
        digits = reorder(digits.flatten(0, 1), length.flatten(), self.order).view_as(digits)
        heads = [sign * real for sign in (COMMA, FIRST_LABEL + labels, COLON)]
        size = (length + len(heads)) * real
        end = size.cumsum(1)
        width = int(end.max())
        prompt = digits.new_zeros(len(digits), width + len(heads) + digits.shape[2])
        # Empty places are 0, which adds nothing to the next number's symbols.
        for offset, part in enumerate([*(head[..., None] for head in heads), digits]):
            position = (end - size)[..., None] + torch.arange(offset, offset + part.shape[2])
            prompt.scatter_add_(1, position.flatten(1), part.flatten(1).to(SYMBOL_DTYPE))
        answer = zero_after(answer, answer_length)
        return Problems(sizes, prompt[:, 1:width], end[:, -1] - 1, answer, answer_length, sizes[:, 0])

    def parse(self, text: str) -> Problems:
        """Read labelled numbers, most significant digit first. Raises UsageError unless the labels are consecutive
        letters."""
        parts = [part.split(":") for part in "".join(text.split()).split(",")]
        for part in parts:
            if len(part) != 2 or part[0] not in [*LABELS] or not (part[1].isascii() and part[1].isdigit()):
                raise UsageError(f"sorting: write labelled numbers, such as A:321,B:54, not {text.strip()!r}")
        names, numbers = zip(*((name, number.lstrip("0") or "0") for name, number in parts), strict=True)
        start = LABELS.index(names[0])
        consecutive = (*LABELS[start:], *LABELS[:start])[: len(names)]
        if names != consecutive:
            found = f"{','.join(consecutive)} instead of {','.join(names)}"
            raise UsageError(f"sorting: labels must be consecutive letters, A to Z, then a to z, then A again: {found}")
        width = max(map(len, numbers))
        padded = [[int(digit) for digit in number[::-1].ljust(width, "0")] for number in numbers]
        digits = torch.tensor([padded], dtype=SYMBOL_DTYPE)
        length = torch.tensor([[len(number) for number in numbers]])
        labels = (start + torch.arange(len(names))[None]) % len(LABELS)
        return self._build_problems(torch.tensor([[len(names), width]]), digits, length, labels)

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        """Return a prompt as text, each number's most significant digit first."""
        return to_reading_order(self.vocab.decode(prompt), self.order)

    def reference(self, prompt: str) -> str:
        turn = slice(None, None, -1 if self.order == "least" else 1)
        pairs = [part.split(":") for part in prompt.split(",")]
        return ",".join(label for label, _ in sorted(pairs, key=lambda pair: int(pair[1][turn])))

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return 2 * sizes[:, 0] - 1
