"""Formal languages that need counters or a stack: counted blocks, Dyck words (Hewitt et al. 2020), and stack
manipulation (Delétang et al. 2023)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import length_mask, zero_after
from lengthwise.base.types import SYMBOL_DTYPE, Problems, UsageError
from lengthwise.tasks import SequenceTask, Task, parse_symbols
from lengthwise.tasks.family import Family, enumerate_rows

Rows = Int[Tensor, "b p"]
Sizes = Int[Tensor, "b 1"]


@dataclass(frozen=True)
class CountedBlocks(Task):
    """A word → 1 if it is aⁿbⁿcⁿ (aⁿbⁿ if ``letters`` is 2), else 0. The size is n, and every prompt has ``letters`` ·
    n symbols, so its length does not reveal the answer. T(n) = n.

    Half of the uniform problems are in the language. Three quarters of the others have their blocks in the right order
    but random counts; one quarter have the right counts in random order.
    """

    letters: Annotated[int, Range(2, 5)] = 3  # number of letters, one per block of a word

    axes = ("count",)
    writes = ("0", "1")

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple("abcde"[: self.letters])

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.reads, *self.writes)

    @property
    def question(self) -> str:
        blocks = ", then ".join(self.reads)
        return f"Write 1 if this word is one block each of {blocks}, all of the same length, and 0 if it is not."

    def sample(self, sizes: Sizes, generator: Generator) -> Problems:
        kind = torch.rand(len(sizes), 1, generator=generator)
        blocks = torch.where(kind < 0.5, self._members(sizes), self._other_counts(sizes, generator))
        return self.from_rows(sizes, torch.where(kind < 0.875, blocks, self._shuffled(sizes, generator)))

    def draw_pattern(self, pattern: Callable[..., Rows], sizes: Sizes, generator: Generator) -> Problems:
        return self.from_rows(sizes, pattern(self, sizes, generator))

    def _members(self, sizes: Sizes, generator: Generator | None = None) -> Rows:
        """Words of the language: aaabbbccc."""
        return (self._list_positions(sizes) // sizes).clamp(max=self.letters - 1)

    def _one_moved(self, sizes: Sizes, generator: Generator) -> Rows:
        """Words in which one block has a letter too many, and a neighbouring block one too few: aaaabbccc."""
        which = torch.randint(self.letters - 1, (len(sizes), 1), generator=generator)
        step = 2 * torch.randint(2, (len(sizes), 1), generator=generator) - 1
        ends = sizes * torch.arange(1, self.letters)
        return self._build_blocks(sizes, ends + step * (torch.arange(self.letters - 1) == which))

    def _two_swapped(self, sizes: Sizes, generator: Generator) -> Rows:
        """Words of the language in which two neighbouring letters of different blocks are swapped: aababbccc."""
        which = torch.randint(1, self.letters, (len(sizes), 1), generator=generator)
        row, position, end = self._members(sizes), self._list_positions(sizes), which * sizes
        return torch.where(position == end - 1, which, torch.where(position == end, which - 1, row))

    def _one_changed(self, sizes: Sizes, generator: Generator) -> Rows:
        """Words of the language with one letter changed: acabbbccc."""
        place = (torch.rand(len(sizes), 1, generator=generator) * self.letters * sizes).long()
        other = torch.randint(1, self.letters, (len(sizes), 1), generator=generator)
        return (self._members(sizes) + other * (self._list_positions(sizes) == place)) % self.letters

    def _one_letter(self, sizes: Sizes, generator: Generator) -> Rows:
        """Words of one repeated letter: bbbbbbbbb."""
        letter = torch.randint(self.letters, (len(sizes), 1), generator=generator)
        return letter.expand(-1, self.letters * int(sizes.max()))

    def _other_counts(self, sizes: Sizes, generator: Generator) -> Rows:
        """Words whose blocks have the right order but random lengths: abbcccccc."""
        shape = len(sizes), self.letters - 1
        ends = (torch.rand(shape, generator=generator) * (self.letters * sizes + 1)).long().sort(1).values
        return self._build_blocks(sizes, ends)

    def _shuffled(self, sizes: Sizes, generator: Generator) -> Rows:
        """Words with the right counts of letters in random order: bacabcacb."""
        rows = self._members(sizes)
        order = torch.rand(rows.shape, generator=generator)
        return rows.gather(1, order.masked_fill(self._list_positions(sizes) >= self.letters * sizes, 2.0).argsort(1))

    def _repeated(self, sizes: Sizes, generator: Generator) -> Rows:
        """Words that repeat all letters in order: abcabcabc."""
        return (self._list_positions(sizes) % self.letters).expand(len(sizes), -1)

    patterns = (
        _members, _one_moved, _two_swapped, _one_changed, _one_letter, _other_counts, _shuffled, _repeated
    )  # fmt: skip

    def _list_positions(self, sizes: Sizes) -> Int[Tensor, " p"]:
        return torch.arange(self.letters * int(sizes.max()))

    def _build_blocks(self, sizes: Sizes, ends: Int[Tensor, "b cuts"]) -> Rows:
        """Return rows of letters in order; letter i ends before position ``ends[:, i]``, and the last one at the row's
        end."""
        return (self._list_positions(sizes) >= ends[..., None]).sum(1)

    def from_rows(self, sizes: Sizes, rows: Rows) -> Problems:
        """Return problems with their answers, given rows of letters."""
        length = self.letters * sizes[:, 0]
        rows, members = (zero_after(part.to(torch.int8), length) for part in (rows, self._members(sizes)))
        right = (rows == members).all(1)
        answer = (right.to(torch.int8) + self.letters)[:, None]
        return Problems(sizes, rows, length, answer, torch.ones_like(length), sizes[:, 0])

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        rows = enumerate_rows(self.letters, self.letters * size[0], limit)
        return None if rows is None else self.from_rows(torch.full((len(rows), 1), size[0]), rows.long())

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        if len(row) % self.letters:
            raise UsageError(f"{self.name}: the number of letters of {text!r} is not a multiple of {self.letters}")
        return self.from_rows(torch.tensor([[len(row) // self.letters]]), row[None])

    def reference(self, prompt: str) -> str:
        blocks = re.fullmatch("".join(f"({letter}*)" for letter in self.reads), prompt)
        return str(int(blocks is not None and len({len(block) for block in blocks.groups()}) == 1))

    def answer_slots(self, sizes: Sizes) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])


OPENING, CLOSING = "([{<", ")]}>"
NO_BRACKET = "."  # the answer's symbol where no bracket is open


@dataclass(frozen=True)
class Dyck(SequenceTask):
    """A prefix of a Dyck word, n brackets of ``kinds`` kinds → for each position, the bracket that would close the
    innermost open one, or ``.`` if none is open: the top of a stack.

    In uniform problems each bracket opens or closes with probability 1/2, if both are possible, at any depth. Hewitt
    et al. 2020 limit the depth and draw whole words. T(n) = n.
    """

    kinds: Annotated[int, Range(1, 4)] = 2  # number of kinds of brackets

    answers_each_symbol = True

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*OPENING[: self.kinds], *CLOSING[: self.kinds])

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*CLOSING[: self.kinds], NO_BRACKET)

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.reads, NO_BRACKET)

    @property
    def question(self) -> str:
        return (
            "Write, for each of these brackets, the bracket that would close the innermost one that is open after it, "
            f"and {NO_BRACKET} where none is open."
        )

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self._draw_walk(0.5, sizes, generator)

    @property
    def families(self) -> Sequence[Family]:
        walk, deep = self._draw_walk, "Brackets of which 90 % are opening ones"
        shallow = "Brackets of which few are open at a time: one opens with probability .3."
        shapes = self._flat, self._one_mountain, self._sawtooth, self._deep_then_flat
        return (
            Family("deep", f"{deep}.", partial(walk, 0.9)),
            Family("shallow", shallow, partial(walk, 0.3)),
            *(Family.from_function(draw, draw) for draw in shapes),
            Family("one-kind", "Brackets of one kind.", partial(walk, 0.5, has_one_kind=True)),
            Family("deep-of-one-kind", f"{deep}, all of one kind.", partial(walk, 0.9, has_one_kind=True)),
        )

    def _draw_walk(
        self, open_probability: float, sizes: Sizes, generator: Generator, *, has_one_kind: bool = False
    ) -> Problems:
        chance = torch.rand(len(sizes), int(sizes.max()), generator=generator)
        return self._draw_brackets(chance < open_probability, sizes, generator, has_one_kind=has_one_kind)

    def _flat(self, sizes: Sizes, generator: Generator) -> Problems:
        """Brackets that close directly after they open: ()[]()."""
        return self._draw_brackets(torch.arange(int(sizes.max())) % 2 == 0, sizes, generator)

    def _one_mountain(self, sizes: Sizes, generator: Generator) -> Problems:
        """Brackets that open up to the middle, and close after it: ([()])."""
        return self._draw_brackets(torch.arange(int(sizes.max())) < (sizes + 1) // 2, sizes, generator)

    def _sawtooth(self, sizes: Sizes, generator: Generator) -> Problems:
        """Brackets of which two to five open and then close, repeatedly: (())[[]]."""
        tooth = torch.randint(2, 6, (len(sizes), 1), generator=generator)
        return self._draw_brackets(torch.arange(int(sizes.max())) % (2 * tooth) < tooth, sizes, generator)

    def _deep_then_flat(self, sizes: Sizes, generator: Generator) -> Problems:
        """Brackets that open up to the middle; after it, each closes directly after it opens: ([([()()."""
        position = torch.arange(int(sizes.max()))
        return self._draw_brackets((position < sizes // 2) | (position % 2 == 0), sizes, generator)

    def _draw_brackets(
        self, opening_mask: Tensor, sizes: Sizes, generator: Generator, *, has_one_kind: bool = False
    ) -> Problems:
        """Draw problems whose brackets have uniform kinds, and open where ``opening_mask`` is True or no bracket is
        open."""
        rows, width = len(sizes), opening_mask.shape[-1]
        kind = torch.randint(self.kinds, (rows, 1 if has_one_kind else width), generator=generator).expand(-1, width)
        return self._follow_stack(sizes, opening_mask.expand(rows, -1), kind)

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        """Return problems with their answers, given rows of brackets."""
        return self._follow_stack(sizes, rows < self.kinds, rows.long() % self.kinds)

    def _follow_stack(self, sizes: Sizes, opening_mask: Bool[Tensor, "b p"], kind: Int[Tensor, "b p"]) -> Problems:
        """Return problems with their answers. A bracket of the kind in ``kind`` opens where ``opening_mask`` is True or
        no bracket is open; elsewhere, the innermost open bracket is closed."""
        count, width = kind.shape
        stack, depth, row, answer = torch.zeros(count, width + 1).long(), torch.zeros(count, 1).long(), [], []
        top = stack[:, :1]
        for opened, opens_here in zip(kind.split(1, 1), opening_mask.split(1, 1), strict=True):
            opening = opens_here | (depth == 0)
            row.append(torch.where(opening, opened, self.kinds + top))
            stack = torch.where(opening, stack.scatter(1, depth, opened), stack)
            depth = depth + torch.where(opening, 1, -1)
            top = stack.gather(1, (depth - 1).clamp(min=0))
            answer.append(torch.where(depth > 0, top + self.kinds, 2 * self.kinds))
        length = sizes[:, 0]
        prompt, answer = (zero_after(torch.cat(part, 1).to(SYMBOL_DTYPE), length) for part in (row, answer))
        return Problems(sizes, prompt, length, answer, length, length)

    def find_fault(self, prompt: str) -> str:
        expected: list[str] = []
        for bracket in prompt:
            if bracket in OPENING:
                expected.append(CLOSING[OPENING.index(bracket)])
            elif not expected or expected.pop() != bracket:
                return f"in {prompt!r} a closing bracket has no open bracket of its kind"
        return ""

    def reference(self, prompt: str) -> str:
        stack, answer = "", ""
        for bracket in prompt:
            stack = stack + CLOSING[OPENING.index(bracket)] if bracket in OPENING else stack[:-1]
            answer += stack[-1:] or NO_BRACKET
        return answer

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        steps = torch.where(problems.prompt < self.kinds, 1, -1)
        return {"depth": zero_after(steps, problems.prompt_length).cumsum(1).amax(1)}


POP, EMPTY = 4, 5  # ids: 0 and 1 are letters on the stack, 2 and 3 push them
# The number of letters at the start of each row, and the actions after them.
StackProgram = tuple[Int[Tensor, "b 1"], Int[Tensor, "b p"]]


def no_actions(letters: Tensor, actions: Tensor, sizes: Tensor) -> StackProgram:
    """Prompts of letters only: the answer is their reverse."""
    return sizes, actions


def pushes(letters: Tensor, actions: Tensor, sizes: Tensor) -> StackProgram:
    """Letters, then pushes only."""
    return letters, 2 + actions % 2


def pops(letters: Tensor, actions: Tensor, sizes: Tensor) -> StackProgram:
    """Letters, then pops only; in half of the rows, more pops than letters."""
    return letters, torch.full_like(actions, POP)


def refilled(letters: Tensor, actions: Tensor, sizes: Tensor) -> StackProgram:
    """Letters, then as many pops, which empty the stack, and as many pushes."""
    third = (sizes + 2) // 3
    return third, torch.where(torch.arange(actions.shape[1]) < 2 * third, POP, 2 + actions % 2)


def alternating_push_pop(letters: Tensor, actions: Tensor, sizes: Tensor) -> StackProgram:
    """One letter, then alternating pops and pushes."""
    return torch.ones_like(letters), torch.where(torch.arange(actions.shape[1]) % 2 == 0, POP, 2 + actions % 2)


def deep_at_once(letters: Tensor, actions: Tensor, sizes: Tensor) -> StackProgram:
    """One letter, pushes up to three quarters of the row, and then pops."""
    return torch.ones_like(letters), torch.where(4 * torch.arange(actions.shape[1]) < 3 * sizes, 2 + actions % 2, POP)


def top_replaced(letters: Tensor, actions: Tensor, sizes: Tensor) -> StackProgram:
    """Letters in the first half, then pops and pushes in turn, so that only the top of the stack changes."""
    half = (sizes + 1) // 2
    return half, torch.where((torch.arange(actions.shape[1]) - half) % 2 == 0, POP, 2 + actions % 2)


def few_left(letters: Tensor, actions: Tensor, sizes: Tensor) -> StackProgram:
    """Letters, then pops until one or two letters are left."""
    return sizes // 2 + 1, torch.full_like(actions, POP)


@dataclass(frozen=True)
class StackManipulation(SequenceTask):
    """The letters on a stack, a or b, from its bottom, and actions on it → the stack afterwards, from its top, or ``.``
    if it is empty: ``abb-A`` → ``aba`` (Delétang et al. 2023). ``A`` and ``B`` push a and b; ``-`` pops a letter, if
    there is one.

    The size is the number n of letters and actions. The number of letters is uniform from 1 to n; in the paper's code
    at least one symbol is an action, if n > 1. T(n) = n.
    """

    symbols = ("a", "b", "A", "B", "-", ".")
    reads, writes = symbols[:EMPTY], ("a", "b", ".")
    question = (
        "These are the letters on a stack, from its bottom, followed by actions: A and B push a and b, - pops. Write "
        "the stack afterwards, from its top, and . if it is empty."
    )

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(lambda letters, actions, sizes: (letters, actions), sizes, generator)

    def draw_pattern(self, pattern: Callable, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        shape = len(sizes), int(sizes.max())
        rows = torch.randint(2, shape, generator=generator)
        actions = torch.randint(2, EMPTY, shape, generator=generator)
        letters = 1 + (torch.rand(len(sizes), 1, generator=generator) * sizes).long()
        letters, actions = pattern(letters, actions, sizes)
        rows = torch.where(torch.arange(shape[1]) < letters, rows, actions)
        return self.from_rows(sizes, zero_after(rows.to(SYMBOL_DTYPE), sizes[:, 0]))

    patterns = (no_actions, pushes, pops, refilled, alternating_push_pop, deep_at_once, top_replaced, few_left)

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        length, width = sizes[:, 0], rows.shape[1]
        stack, depth = torch.zeros(len(rows), width + 1, dtype=torch.long), torch.zeros(len(rows), 1, dtype=torch.long)
        for symbol, real in zip(rows.long().split(1, 1), length_mask(length, width).split(1, 1), strict=True):
            pushes = real & (symbol != POP)
            stack = torch.where(pushes, stack.scatter(1, depth, symbol % 2), stack)
            depth = (depth + pushes.long() - (real & (symbol == POP)).long()).clamp(min=0)
        remaining = depth[:, 0].clamp(min=1)
        place = torch.arange(int(remaining.max()))
        answer = stack.gather(1, (depth - 1 - place).clamp(min=0)).masked_fill(depth == 0, EMPTY)
        return Problems(sizes, rows, length, zero_after(answer.to(SYMBOL_DTYPE), remaining), remaining, length)

    def find_fault(self, prompt: str) -> str:
        is_problem = re.fullmatch("[ab]+[AB-]*", prompt)
        return "" if is_problem else f"{prompt!r} is not letters a and b, then actions A, B and -, such as abb-A"

    def reference(self, prompt: str) -> str:
        stack = ""
        for symbol in prompt:
            stack = stack[:-1] if symbol == "-" else stack + symbol.lower()
        return stack[::-1] or "."
