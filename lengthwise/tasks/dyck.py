"""Dyck words: nested brackets of several kinds, a context-free language (Hewitt et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems, UsageError
from lengthwise.tasks import Task, parse_symbols
from lengthwise.tasks.family import Family
from lengthwise.tasks.patterns import every_row

OPENING, CLOSING = "([{<", ")]}>"
NONE = "."  # the answer's symbol where no bracket is open


@dataclass(frozen=True)
class Dyck(Task):
    """A prefix of a Dyck word, n brackets of ``kinds`` kinds → for each of them, the bracket that would close the
    innermost open one, or ``.`` if none is open: the top of a stack, at every position.

    In uniform problems each bracket opens or closes with probability 1/2, where both are possible. T(n) = n.
    """

    kinds: Annotated[int, Range(1, 4)] = 2  # of brackets

    answers_each_symbol = True

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*OPENING[: self.kinds], *CLOSING[: self.kinds])

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*CLOSING[: self.kinds], NONE)

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.reads, NONE)

    @property
    def question(self) -> str:
        return (
            "Write, for each of these brackets, the bracket that would close the innermost one that is open after it, "
            f"and {NONE} where none is open."
        )

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self._walk(0.5, sizes, generator)

    @property
    def families(self) -> Sequence[Family]:
        return (
            Family("deep", "Nine brackets of ten open.", partial(self._walk, 0.9)),
            Family("shallow", "Three brackets of ten open, so few are open at a time.", partial(self._walk, 0.3)),
            Family("flat", "Each bracket is closed at once.", self._flat),
            Family("one-mountain", "Brackets open up to the middle, and close after it.", self._mountain),
            Family("sawtooth", "Several open, then as many close, again and again.", self._sawtooth),
            Family("deep-then-flat", "Brackets open up to the middle; then each is closed at once.", self._deep_flat),
            Family("one-kind", "Brackets of one kind.", partial(self._walk, 0.5, one_kind=True)),
            Family("deep-of-one-kind", "Nine of ten open, all of one kind.", partial(self._walk, 0.9, one_kind=True)),
        )

    def _walk(
        self, opens: float, sizes: Int[Tensor, "b axes"], generator: Generator, *, one_kind: bool = False
    ) -> Problems:
        chance = torch.rand(len(sizes), int(sizes.max()), generator=generator)
        return self._nest(chance < opens, sizes, generator, one_kind=one_kind)

    def _deep_flat(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        position = torch.arange(int(sizes.max()))
        return self._nest((position < sizes // 2) | (position % 2 == 0), sizes, generator)

    def _flat(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        opens = torch.arange(int(sizes.max())) % 2 == 0
        return self._nest(opens.expand(len(sizes), -1), sizes, generator)

    def _mountain(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self._nest(torch.arange(int(sizes.max())) < (sizes + 1) // 2, sizes, generator)

    def _sawtooth(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        tooth = torch.randint(2, 6, (len(sizes), 1), generator=generator)
        return self._nest(torch.arange(int(sizes.max())) % (2 * tooth) < tooth, sizes, generator)

    def _nest(
        self, opens: Tensor, sizes: Int[Tensor, "b axes"], generator: Generator, *, one_kind: bool = False
    ) -> Problems:
        """Draw brackets of uniform kinds that open where ``opens`` is True, or where no bracket is open."""
        rows, width = opens.shape
        kind = torch.randint(self.kinds, (rows, 1 if one_kind else width), generator=generator).expand(-1, width)
        stack, depth, row = torch.zeros(rows, width + 1, dtype=torch.long), torch.zeros(rows, 1, dtype=torch.long), []
        for place in range(width):
            opening = opens[:, place : place + 1] | (depth == 0)
            top = stack.gather(1, (depth - 1).clamp(min=0))
            opened = kind[:, place : place + 1]
            stack = torch.where(opening, stack.scatter(1, depth, opened), stack)
            row.append(torch.where(opening, opened, self.kinds + top))
            depth = depth + torch.where(opening, 1, -1)
        return self.from_rows(sizes, zero_after(torch.cat(row, 1).to(torch.int8), sizes[:, 0]))

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        """Return these rows of brackets as problems with their answers."""
        rows, width = row.shape
        stack, depth, answer = torch.zeros(rows, width + 1, dtype=torch.long), torch.zeros(rows, 1).long(), []
        for place in range(width):
            symbol = row[:, place : place + 1].long()
            opening = symbol < self.kinds
            stack = torch.where(opening, stack.scatter(1, depth, symbol % self.kinds), stack)
            depth = (depth + torch.where(opening, 1, -1)).clamp(min=0)  # after a row's end it does not matter
            top = stack.gather(1, (depth - 1).clamp(min=0)) + self.kinds
            answer.append(torch.where(depth > 0, top, 2 * self.kinds))
        length = sizes[:, 0]
        return Problems(sizes, row, length, zero_after(torch.cat(answer, 1).to(row.dtype), length), length, length)

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        rows = every_row(2 * self.kinds, size[0], most)
        if rows is None:
            return None
        rows = rows[[self._is_prefix(row) for row in rows.tolist()]]
        return self.from_rows(torch.full((len(rows), 1), size[0]), rows)

    def _is_prefix(self, row: Sequence[int]) -> bool:
        """Return whether each closing bracket matches the innermost open one."""
        expected: list[int] = []
        for symbol in row:
            if symbol < self.kinds:
                expected.append(symbol + self.kinds)
            elif not expected or expected.pop() != symbol:
                return False
        return True

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        if not self._is_prefix(row.tolist()):
            raise UsageError(f"{self.name}: in {text!r} a bracket closes one that is not open, or of another kind")
        return self.from_rows(torch.tensor([[len(row)]]), row[None])

    def reference(self, prompt: str) -> str:
        stack, answer = "", ""
        for bracket in prompt:
            stack = stack + CLOSING[OPENING.index(bracket)] if bracket in OPENING else stack[:-1]
            answer += stack[-1:] or NONE
        return answer

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        steps: Float[Tensor, "b p"] = torch.where(problems.prompt < self.kinds, 1, -1).float()
        real = torch.arange(problems.prompt.shape[1]) < problems.prompt_length[:, None]
        return {"depth": (steps * real).cumsum(1).amax(1).long()}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0]
