"""Addition in any base from 2 to 10, digits in either order (Fan et al. 2025; McLeish et al. 2024)."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.rows import shift_right, zero_after
from lengthwise.base.types import SYMBOL, Problems
from lengthwise.tasks import TwoOperandTask
from lengthwise.tasks.digits import (
    Base,
    Order,
    arithmetic,
    as_read,
    carry,
    join_numbers,
    number_length,
    reorder,
    split_numbers,
    strip_zeros,
    without_leading_zeros,
)
from lengthwise.tasks.family import Family
from lengthwise.tasks.operands import SHARED, SUMS, Pair, PairPattern, every_pair, families, fit_pattern


@dataclass(frozen=True)
class Addition(TwoOperandTask):
    """Two numbers → their sum. T = the longer operand's digits: a carry travels one digit per round.

    With ``equal_lengths`` both operands have ``length`` digits; without, the axes are ``first`` and ``second``. With
    ``leading_zeros`` every digit is uniform (the operand is uniform in [0, base^n − 1]) and the answer always has one
    digit more than the longer operand; without, an operand is a uniform number of exactly n digits (of one digit: 0
    may be drawn) and the answer has no leading zeros. The harder set is rich in long carries.
    """

    base: Base = 10  # of the numbers, 2 to 10
    order: Order = "most"  # which digit is written first: the least or the most significant
    equal_lengths: bool = False  # both operands have the same number of digits
    leading_zeros: bool = False  # every digit is uniform, and the answer has one digit more than the longer operand

    signs = ("+",)
    harder = "long-carry"
    answers_numbers = True

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*string.digits[: self.base], "+")

    @property
    def axes(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("length",) if self.equal_lengths else ("first", "second")

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """The longest carry: the columns that one passes, from the one that makes it on."""
        totals = self.stack(problems)[0].sum(2)
        above = torch.nn.functional.pad(totals, (0, 1))[:, 1:] % self.base
        carried = self.digits(problems, totals.shape[1] + 1)[:, 1:] != above
        position = torch.arange(totals.shape[1])
        made = torch.where(totals >= self.base, position, -1).cummax(1).values
        return {"longest carry": ((position - made + 1) * carried).amax(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes.max(1).values + 1

    # Sampling

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        lengths = sizes.expand(-1, 2)
        columns = torch.randint(self.base, (len(sizes), int(sizes.max()), 2), generator=generator, dtype=SYMBOL)
        return self._problems(sizes, self._trim(columns.mT.contiguous(), lengths, generator), lengths)

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Sums with one long carry: it starts at a uniform position and is passed on to a uniform later one (in half of
        the rows to the very end), through columns that add up to base − 1; in half of the rows these columns hold a
        largest digit above a zero, as in 99…9 + 1. The other columns are uniform."""
        rows, width, top = len(sizes), int(sizes.max()), self.base - 1
        lengths = sizes.expand(-1, 2)
        longer, shorter = lengths.max(1, keepdim=True).values, lengths.min(1, keepdim=True).values

        def uniform() -> Tensor:
            return torch.rand(rows, 1, generator=generator)

        def digits() -> Tensor:
            return torch.randint(self.base, (rows, width), generator=generator, dtype=SYMBOL)

        position = torch.arange(width)
        start = (uniform() * shorter).long()
        end = start + 1 + (uniform() * (longer - start)).long()
        end = torch.where(uniform() < 0.5, longer, end)
        passes, starts = (position > start) & (position < end), position == start
        # The longer operand's digits, then the shorter's: beyond its end, the longer alone must pass the carry on.
        passing = torch.where((uniform() < 0.5) | (position >= shorter), top, digits())
        above = torch.where(passes, passing, digits())
        above = torch.where(starts, above.clamp(min=1), above)
        below = torch.where(passes, top - passing, digits())
        below = torch.where(starts, self.base - above + below % above.clamp(min=1), below)
        swap = (lengths[:, :1] < lengths[:, 1:]) | ((longer == shorter) & (uniform() < 0.5))
        operands = torch.stack([torch.where(swap, below, above), torch.where(swap, above, below)], 1)
        return self._problems(sizes, self._trim(operands, lengths, generator), lengths)

    @property
    def families(self) -> Sequence[Family]:
        return (*super().families, *families((*SHARED, *SUMS), self._draw_pattern))

    def _draw_pattern(self, pattern: PairPattern, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        pair = Pair(sizes.expand(-1, 2), self.base, self.leading_zeros, generator)
        return self._problems(sizes, fit_pattern(pattern, pair), pair.lengths)

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        operands = every_pair((size[0], size[-1]), self.base, self.leading_zeros, most)
        if operands is None:
            return None
        sizes = torch.tensor([list(size)]).expand(len(operands), -1)
        return self._problems(sizes, operands.to(SYMBOL), sizes.expand(-1, 2))

    def _trim(
        self, operands: Int[Tensor, "b 2 n"], lengths: Int[Tensor, "b 2"], generator: Generator
    ) -> Int[Tensor, "b 2 n"]:
        """Zero beyond each operand's length; without leading zeros, a zero as the top digit is drawn again."""
        if not self.leading_zeros:
            others = torch.randint(1, self.base, operands.mT.shape, generator=generator, dtype=SYMBOL)
            operands = without_leading_zeros(operands, lengths, others.mT)
        return zero_after(operands, lengths)

    def _problems(
        self, sizes: Int[Tensor, "b axes"], operands: Int[Tensor, "b 2 n"], lengths: Int[Tensor, "b 2"]
    ) -> Problems:
        """From the operands' digits, least significant first and padded with zeros."""
        longest = lengths.amax(1)
        first, second = operands.unbind(1)
        totals = torch.nn.functional.pad(first + second, (0, 1))
        total = carry(totals, self.base, most=2 * (self.base - 1))
        # A number's top digit is not 0: only a carry makes a sum longer.
        further = torch.ones_like(longest) if self.leading_zeros else (total.gather(1, longest[:, None]) > 0)[:, 0]
        answer_length = longest + further
        prompt = join_numbers(first, second, lengths, self.order, self.base)
        answer = reorder(total, answer_length, self.order)[:, : int(answer_length.max())]
        return Problems(sizes, prompt, lengths.sum(1) + 1, answer, answer_length, longest)

    # Digits

    def stack(self, problems: Problems) -> tuple[Int[Tensor, "b n 2"], Int[Tensor, " b"]]:
        plus = (problems.prompt == self.base).long().argmax(1)
        lengths = torch.stack([plus, problems.prompt_length - plus - 1], 1)
        width = int(lengths.max())
        operands = []
        for start, length in ((torch.zeros_like(plus), lengths[:, 0]), (plus + 1, lengths[:, 1])):
            digits = zero_after(shift_right(problems.prompt, -start, width), length)
            operands.append(reorder(digits, length, self.order))
        return torch.stack(operands, -1), lengths.max(1).values

    def digits(self, problems: Problems, count: int) -> Int[Tensor, "b count"]:
        lowest = reorder(problems.answer, problems.answer_length, self.order)[:, :count]
        return torch.nn.functional.pad(lowest, (0, count - lowest.shape[1]))

    def answer(self, digits: Int[Tensor, " n"]) -> Int[Tensor, " a"]:
        row = digits[None]
        length = torch.tensor([len(digits)]) if self.leading_zeros else number_length(row)
        return reorder(row, length, self.order)[0, : int(length)]

    # People

    def parse(self, text: str) -> Problems:
        numbers = list(split_numbers(self, text, self.base))
        if not self.leading_zeros:
            numbers = [strip_zeros(number) for number in numbers]
        width = max(len(number) for number in numbers)
        if self.equal_lengths:
            numbers = [torch.nn.functional.pad(number, (width - len(number), 0)) for number in numbers]
        operands = torch.stack(
            [torch.nn.functional.pad(number.flip(0), (0, width - len(number))) for number in numbers]
        )
        lengths = torch.tensor([[len(number) for number in numbers]])
        sizes = lengths[:, :1] if self.equal_lengths else lengths
        return self._problems(sizes, operands[None], lengths)

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """Most significant digit first, without leading zeros."""
        digits = self.vocab.decode(answer if self.order == "most" else answer.flip(0))
        return digits.lstrip("0") or "0"

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        """Most significant digit first."""
        return as_read(self.vocab.decode(prompt), self.order)

    @property
    def question(self) -> str:
        return arithmetic(self.base)

    def reference(self, prompt: str) -> str:
        turn = slice(None, None, -1 if self.order == "least" else 1)
        operands = prompt.split("+")
        total, digits = sum(int(operand[turn], self.base) for operand in operands), ""
        while total or not digits:
            total, digit = divmod(total, self.base)
            digits = str(digit) + digits
        if self.leading_zeros:
            digits = digits.rjust(max(map(len, operands)) + 1, "0")
        return digits[turn]
