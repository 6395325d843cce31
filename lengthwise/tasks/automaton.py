"""Tasks that a finite automaton solves: each symbol changes a state."""

from __future__ import annotations

import itertools
import string
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Literal

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask


class Automaton(SequenceTask):
    """A task in which each symbol changes a state. The answer is the output symbol of the last state or, with ``each``,
    the output symbols of the states after each symbol. T(n) = n."""

    each: bool  # answer after every symbol; every subclass declares this field

    @property
    def answers_each_symbol(self) -> bool:  # type: ignore[override]
        return self.each

    @abstractmethod
    def build_tables(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        """Return two tables: the next state for each state and symbol id, and the id of each state's output symbol.
        State 0 is the start. Symbols that the task reads have the lowest ids."""

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        next_state, outputs = _get_tables(self)
        state, answers = torch.zeros(len(rows), dtype=torch.long), []
        for symbol in rows.long().T:
            state = next_state[state, symbol]
            answers.append(outputs[state])
        answer = torch.stack(answers, 1).to(rows.dtype)
        if self.each:
            return Problems(sizes, rows, length, zero_after(answer, length), length, length)
        return Problems(sizes, rows, length, answer.gather(1, length[:, None] - 1), torch.ones_like(length), length)

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0] if self.each else torch.ones_like(sizes[:, 0])

    def reference(self, prompt: str) -> str:
        ends = range(1, len(prompt) + 1) if self.each else [len(prompt)]
        return "".join(self.compute_output(prompt[:end]) for end in ends)

    @abstractmethod
    def compute_output(self, word: str) -> str:
        """Return the output symbol after a word, computed by the simplest algorithm."""


@cache
def _get_tables(task: Automaton) -> tuple[Tensor, Tensor]:
    return task.build_tables()


@dataclass(frozen=True)
class EvenPairs(Automaton):
    """Bits → 1 if an even number of neighbouring pairs differ, else 0 (Delétang et al. 2023). The answer is 1 exactly
    if the first and the last bit are equal. The paper's code swaps the labels: 0 means even."""

    each: bool = False  # answer after every bit; false: after the last one

    symbols = ("0", "1")

    @property
    def question(self) -> str:
        if self.each:
            pairs = "neighbouring pairs up to it differ"
            return f"For each bit of this sequence, in order, write 1 if an even number of {pairs}, and 0 if not."
        return "Write 1 if an even number of neighbouring pairs of bits in this sequence differ, and 0 if not."

    def build_tables(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        # States: 0 at the start, then 1 + 2 · first bit + last bit.
        table = [[1, 4], *([1 + 2 * first, 2 + 2 * first] for first in (0, 1) for _ in (0, 1))]
        return torch.tensor(table), torch.tensor([1, 1, 0, 0, 1])

    def compute_output(self, word: str) -> str:
        return str(int(sum(a != b for a, b in pairwise(word)) % 2 == 0))


@dataclass(frozen=True)
class CycleNavigation(Automaton):
    """Moves on a cycle → the place where they end (Delétang et al. 2023). The walk starts at place 0; ``+`` goes one
    place forward, ``-`` one place back, and ``.`` stays."""

    places: Annotated[int, Range(2, 10)] = 5  # number of places on the cycle
    each: bool = False  # answer after every move; false: after the last one

    reads = (".", "+", "-")

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple("0123456789"[: self.places])

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.reads, *self.writes)

    @property
    def question(self) -> str:
        when = "after each of" if self.each else "after"
        return (
            f"You stand at place 0 of a cycle of {self.places} places, numbered in order; + goes one place on, - one "
            f"place back, and . stays: write the place where you are {when} these moves."
        )

    def build_tables(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        place = torch.arange(self.places)
        return torch.stack([place, place + 1, place - 1], 1) % self.places, place + len(self.reads)

    def compute_output(self, word: str) -> str:
        return str((word.count("+") - word.count("-")) % self.places)


GREEK, CYRILLIC = map(chr, range(0x3B1, 0x3CA)), map(chr, range(0x430, 0x450))
# One letter per group element, the neutral element first.
LETTERS = (*string.ascii_letters, *string.digits, *GREEK, *CYRILLIC, "ё")
Permutation = tuple[int, ...]


@dataclass(frozen=True)
class GroupWords(Automaton):
    """Elements of a group → their product from left to right, after every element (``each``) or after the last one.

    S3, S4 and S5 consist of all permutations of 3, 4 and 5 things, A5 of the even permutations of 5 things; Z2 and Z60
    are addition modulo 2 and 60. S3 and S4 are solvable; A5 and S5 are not, so their word problems are complete for
    NC¹ (Barrington 1989). A5 and Z60 both have 60 elements.
    """

    group: Literal["S3", "S4", "A5", "S5", "Z2", "Z60"] = "S3"  # symmetric (S), alternating (A) or cyclic (Z)
    each: bool = True  # answer after every element; false: after the last one

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return LETTERS[: len(list_elements(self.group))]

    @property
    def question(self) -> str:
        each = "each element of" if self.each else "the last element of"
        members = zip(self.symbols, list_elements(self.group), strict=True)
        listed = ", ".join(f"{letter} = {''.join(map(str, element))}" for letter, element in members)
        return (
            f"Letters stand for elements of the group {self.group}: {listed}; write, for {each} this word, the product "
            "of all elements up to it, where a product ab first arranges the things as a says, then as b says."
        )

    def build_tables(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        members = list_elements(self.group)
        number = {element: i for i, element in enumerate(members)}
        table = [[number[multiply(self.group, a, b)] for b in members] for a in members]
        return torch.tensor(table), torch.arange(len(members))

    def compute_output(self, word: str) -> str:
        members = list_elements(self.group)
        state = members[0]
        for letter in word:
            state = multiply(self.group, state, members[LETTERS.index(letter)])
        return LETTERS[members.index(state)]

    @property
    def patterns(self) -> tuple[Callable[..., Tensor], ...]:  # type: ignore[override]
        return (*super().patterns, inverse_pairs, word_and_inverse)

    def draw_pattern(self, pattern: Callable[..., Tensor], sizes: Tensor, generator: Generator) -> Problems:
        if pattern not in (inverse_pairs, word_and_inverse):
            return super().draw_pattern(pattern, sizes, generator)
        rows = torch.randint(len(self.symbols), (len(sizes), int(sizes.max())), generator=generator)
        inverses = (_get_tables(self)[0] == 0).long().argmax(1)  # the product with it is the neutral element
        rows = pattern(rows, inverses, sizes[:, 0])
        return self.from_rows(sizes, zero_after(rows.to(torch.int8), sizes[:, 0]))


def inverse_pairs(rows: Int[Tensor, "b n"], inverse: Int[Tensor, " g"], length: Tensor) -> Int[Tensor, "b n"]:
    """Words in which every second element is the inverse of the element before it."""
    first = rows[:, (torch.arange(rows.shape[1]) // 2) * 2]
    return torch.where(torch.arange(rows.shape[1]) % 2 == 0, first, inverse[first])


def word_and_inverse(rows: Int[Tensor, "b n"], inverse: Int[Tensor, " g"], length: Tensor) -> Int[Tensor, "b n"]:
    """Words followed by their inverse: the inverses of the elements in reverse order."""
    index = torch.arange(rows.shape[1])
    mirror = (length[:, None] - 1 - index).clamp(min=0)
    return torch.where(index < length[:, None] // 2, rows, inverse[rows.gather(1, mirror)])


@cache
def list_elements(group: str) -> list[Permutation]:
    """Return the elements of a group, the neutral element first, as permutations or, for Z2 and Z60, as 1-tuples of a
    number."""
    size = int(group[1:])
    if group[0] == "Z":
        return [(number,) for number in range(size)]
    permutations = itertools.permutations(range(size))
    if group[0] == "S":
        return list(permutations)
    # An even permutation has an even number of pairs in the wrong order.
    return [order for order in permutations if sum(a > b for a, b in itertools.combinations(order, 2)) % 2 == 0]


def multiply(group: str, a: Permutation, b: Permutation) -> Permutation:
    """Return the product ab. The product of permutations has the value a[b[i]] at i."""
    if group[0] == "Z":
        return ((a[0] + b[0]) % int(group[1:]),)
    return tuple(a[i] for i in b)
