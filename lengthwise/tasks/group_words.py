"""Words over a finite group: the product of its elements, from left to right (Liu et al. 2023; Merrill et al. 2024)."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks.automaton import Automaton

GREEK, CYRILLIC = map(chr, range(0x3B1, 0x3CA)), map(chr, range(0x430, 0x450))
LETTERS = (*string.ascii_letters, *string.digits, *GREEK, *CYRILLIC, "ё")  # one for each element; the first is neutral
Permutation = tuple[int, ...]


@dataclass(frozen=True)
class GroupWords(Automaton):
    """Elements of a group → their product from left to right, after every element or after the last.

    S3, S4, S5: all permutations of 3, 4, 5 things; A5: the even ones; Z2 and Z60: addition modulo 2 and 60. S3 and S4
    are solvable; A5 and S5 are not, so their words are complete for NC¹ (Barrington 1989). A5 and Z60 have equally many
    elements.
    """

    group: Literal["S3", "S4", "A5", "S5", "Z2", "Z60"] = "S3"  # symmetric (S), alternating (A) or cyclic (Z)
    each: bool = True  # the product after every element; false: after the last one

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return LETTERS[: len(elements(self.group))]

    @property
    def question(self) -> str:
        what = "each element of" if self.each else "the last element of"
        members = zip(self.symbols, elements(self.group), strict=True)
        listed = ", ".join(f"{letter} = {''.join(map(str, element))}" for letter, element in members)
        return (
            f"Letters stand for elements of the group {self.group}: {listed}; write, for {what} this word, the product "
            "of all elements up to it, where a product ab first arranges the things as a says, then as b says."
        )

    def automaton(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        members = elements(self.group)
        number = {element: i for i, element in enumerate(members)}
        table = [[number[product(self.group, a, b)] for b in members] for a in members]
        return torch.tensor(table), torch.arange(len(members))

    def state_after(self, word: str) -> str:
        members = elements(self.group)
        state = members[0]
        for letter in word:
            state = product(self.group, state, members[LETTERS.index(letter)])
        return LETTERS[members.index(state)]

    @property
    def patterns(self) -> tuple[Callable[..., Tensor], ...]:  # type: ignore[override]
        return (*super().patterns, inverse_pairs, word_and_inverse)

    def draw_pattern(self, pattern: Callable[..., Tensor], sizes: Tensor, generator: Generator) -> Problems:
        if pattern not in (inverse_pairs, word_and_inverse):
            return super().draw_pattern(pattern, sizes, generator)
        elements = torch.randint(len(self.symbols), (len(sizes), int(sizes.max())), generator=generator)
        row = pattern(elements, inverses(self.group), sizes[:, 0])
        return self.from_rows(sizes, zero_after(row.to(torch.int8), sizes[:, 0]))


def inverse_pairs(row: Int[Tensor, "b n"], inverse: Int[Tensor, " g"], length: Int[Tensor, " b"]) -> Int[Tensor, "b n"]:
    """Each element followed by its inverse."""
    first = row[:, (torch.arange(row.shape[1]) // 2) * 2]
    return torch.where(torch.arange(row.shape[1]) % 2 == 0, first, inverse[first])


def word_and_inverse(
    row: Int[Tensor, "b n"], inverse: Int[Tensor, " g"], length: Int[Tensor, " b"]
) -> Int[Tensor, "b n"]:
    """A word followed by its inverse: the inverses of its elements in reverse order."""
    index = torch.arange(row.shape[1])
    mirror = (length[:, None] - 1 - index).clamp(min=0)
    return torch.where(index < length[:, None] // 2, row, inverse[row.gather(1, mirror)])


@cache
def elements(group: str) -> list[Permutation]:
    """Return the elements of a group, the neutral one first: permutations, or for Z2 and Z60 numbers in 1-tuples."""
    size = int(group[1:])
    if group[0] == "Z":
        return [(number,) for number in range(size)]
    permutations = itertools.permutations(range(size))
    return [permutation for permutation in permutations if group[0] == "S" or is_even(permutation)]


def is_even(permutation: Permutation) -> bool:
    """Return whether an even number of pairs is in the wrong order."""
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


def product(group: str, a: Permutation, b: Permutation) -> Permutation:
    """Return the product ab: position i gets the value of a at position b[i]."""
    if group[0] == "Z":
        return ((a[0] + b[0]) % int(group[1:]),)
    return tuple(a[i] for i in b)


@cache
def inverses(group: str) -> Int[Tensor, " g"]:
    """Return the number of each element's inverse."""
    members = elements(group)
    return torch.tensor([[product(group, a, b) for b in members].index(members[0]) for a in members])
