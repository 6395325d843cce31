"""Pushing on a stack and popping from it (Delétang et al. 2023): a context-free task."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.rows import length_mask, zero_after
from lengthwise.base.types import SYMBOL, Problems, UsageError
from lengthwise.tasks import Task, parse_symbols
from lengthwise.tasks.patterns import every_row

POP, EMPTY = 4, 5  # ids: 0 and 1 are letters on the stack, 2 and 3 push them
Parts = tuple[Int[Tensor, "b 1"], Int[Tensor, "b p"]]


@dataclass(frozen=True)
class StackManipulation(Task):
    """A stack's letters, a or b, from its bottom, then actions: ``A`` and ``B`` push a letter, ``-`` pops one, unless
    the stack is empty → the letters that are left, from the top, or ``.`` for none: ``abb-A`` → ``aba`` (Delétang et
    al. 2023).

    The size is the number n of letters and actions, of which uniformly many, at least one, are letters. T(n) = n.
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
        row = torch.randint(2, shape, generator=generator)
        actions = torch.randint(2, EMPTY, shape, generator=generator)
        letters = 1 + (torch.rand(len(sizes), 1, generator=generator) * sizes).long()
        letters, actions = pattern(letters, actions, sizes)
        row = torch.where(torch.arange(shape[1]) < letters, row, actions)
        return self.from_rows(sizes, zero_after(row.to(SYMBOL), sizes[:, 0]))

    @property
    def patterns(self) -> tuple[Callable, ...]:  # type: ignore[override]
        return (no_actions, pushes, pops, refilled, alternating_push_pop, deep_at_once, top_replaced, few_left)

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length, width = sizes[:, 0], row.shape[1]
        stack, depth = torch.zeros(len(row), width + 1, dtype=torch.long), torch.zeros(len(row), 1, dtype=torch.long)
        for symbol, real in zip(row.long().split(1, 1), length_mask(length, width).split(1, 1), strict=True):
            pushes = real & (symbol != POP)
            stack = torch.where(pushes, stack.scatter(1, depth, symbol % 2), stack)
            depth = (depth + pushes.long() - (real & (symbol == POP)).long()).clamp(min=0)
        left = depth[:, 0].clamp(min=1)
        place = torch.arange(int(left.max()))
        answer = stack.gather(1, (depth - 1 - place).clamp(min=0)).masked_fill(depth == 0, EMPTY)
        return Problems(sizes, row, length, zero_after(answer.to(SYMBOL), left), left, length)

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        rows = every_row(EMPTY, size[0], most)
        if rows is None:
            return None
        letters = rows < 2
        rows = rows[letters[:, 0] & (letters.long().diff(dim=1) <= 0).all(1)]
        return self.from_rows(torch.full((len(rows), 1), size[0]), rows.to(SYMBOL))

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        if not re.fullmatch("[ab]+[AB-]*", self.vocab.decode(row)):
            raise UsageError(f"{self.name}: {text!r} is not letters a and b, then actions A, B and -, such as abb-A")
        return self.from_rows(torch.tensor([[len(row)]]), row[None])

    def reference(self, prompt: str) -> str:
        stack = ""
        for symbol in prompt:
            stack = stack[:-1] if symbol == "-" else stack + symbol.lower()
        return stack[::-1] or "."

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0]


# Families: the number of letters at the start, and the actions after them.


def no_actions(letters: Tensor, actions: Tensor, sizes: Tensor) -> Parts:
    """Only letters: the answer is their reverse."""
    return sizes, actions


def pushes(letters: Tensor, actions: Tensor, sizes: Tensor) -> Parts:
    """Nothing is popped."""
    return letters, 2 + actions % 2


def pops(letters: Tensor, actions: Tensor, sizes: Tensor) -> Parts:
    """Everything after the letters pops, in half of the rows from an empty stack."""
    return letters, torch.full_like(actions, POP)


def refilled(letters: Tensor, actions: Tensor, sizes: Tensor) -> Parts:
    """A third letters, a third pops, so that the stack is empty, a third pushes."""
    third = (sizes + 2) // 3
    return third, torch.where(torch.arange(actions.shape[1]) < 2 * third, POP, 2 + actions % 2)


def alternating_push_pop(letters: Tensor, actions: Tensor, sizes: Tensor) -> Parts:
    """One letter, then a push and a pop in turn."""
    return torch.ones_like(letters), torch.where(torch.arange(actions.shape[1]) % 2 == 0, POP, 2 + actions % 2)


def deep_at_once(letters: Tensor, actions: Tensor, sizes: Tensor) -> Parts:
    """Pushes up to three quarters, then pops."""
    return torch.ones_like(letters), torch.where(4 * torch.arange(actions.shape[1]) < 3 * sizes, 2 + actions % 2, POP)


def top_replaced(letters: Tensor, actions: Tensor, sizes: Tensor) -> Parts:
    """Half letters, then a pop and a push in turn, so that only the top changes."""
    half = (sizes + 1) // 2
    return half, torch.where((torch.arange(actions.shape[1]) - half) % 2 == 0, POP, 2 + actions % 2)


def few_left(letters: Tensor, actions: Tensor, sizes: Tensor) -> Parts:
    """Letters, then pops until one or two are left."""
    return sizes // 2 + 1, torch.full_like(actions, POP)
