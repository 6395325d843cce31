"""Tasks that a finite automaton solves: each symbol changes a state."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask


class Automaton(SequenceTask):
    """Symbols change a state; the answer is the state's symbol, after every symbol (``each``) or after the last one.
    T(n) = n."""

    each: bool  # a field of each task

    @property
    def answers_each_symbol(self) -> bool:  # type: ignore[override]
        return self.each

    @abstractmethod
    def automaton(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        """Return the next states, by state and index of the symbol among those that the task reads, and the id of each
        state's symbol. The first state is 0."""

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        next_state, outputs = _tables_of(self)
        index = torch.zeros(len(self.symbols), dtype=torch.long)  # of each symbol among those that the task reads
        index[self.vocab.encode(self.reads or self.symbols).long()] = torch.arange(next_state.shape[1])
        state, states = torch.zeros(len(row), dtype=torch.long), []
        for symbol in index[row.long()].T:
            state = next_state[state, symbol]
            states.append(state)
        by_position = torch.stack(states, 1)
        if self.each:
            answer = zero_after(outputs[by_position].to(row.dtype), length)
            return Problems(sizes, row, length, answer, length, length)
        last = outputs[by_position.gather(1, length[:, None] - 1)].to(row.dtype)
        return Problems(sizes, row, length, last, torch.ones_like(length), length)

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0] if self.each else torch.ones_like(sizes[:, 0])

    def reference(self, prompt: str) -> str:
        ends = range(1, len(prompt) + 1) if self.each else [len(prompt)]
        return "".join(self.state_after(prompt[:end]) for end in ends)

    @abstractmethod
    def state_after(self, word: str) -> str:
        """Return the answer's symbol after a word, by the plainest algorithm."""


@cache
def _tables_of(task: Automaton) -> tuple[Tensor, Tensor]:
    return task.automaton()


@dataclass(frozen=True)
class EvenPairs(Automaton):
    """Bits → 1 if neighbours differ an even number of times, else 0 (Delétang et al. 2023): the same as whether the
    first and the last bit are equal."""

    each: bool = False  # after every bit; false: after the last one

    symbols = ("0", "1")

    @property
    def question(self) -> str:
        what = "for each bit of" if self.each else "for"
        return f"Write, {what} this sequence of bits, 1 if neighbouring bits up to there differ evenly often, else 0."

    def automaton(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        # States: 0 at the start, then 1 + 2 · first bit + last bit.
        table = [[1, 4], *([1 + 2 * first, 2 + 2 * first] for first in (0, 1) for _ in (0, 1))]
        return torch.tensor(table), torch.tensor([1, 1, 0, 0, 1])

    def state_after(self, word: str) -> str:
        return str(int(sum(a != b for a, b in pairwise(word)) % 2 == 0))


@dataclass(frozen=True)
class CycleNavigation(Automaton):
    """Moves on a cycle → the place where they end (Delétang et al. 2023). A walk starts at place 0; ``+`` and ``-`` go
    one place on and back, ``.`` stays."""

    places: Annotated[int, Range(2, 10)] = 5  # of the cycle
    each: bool = False  # after every move; false: after the last one

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

    def automaton(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        place = torch.arange(self.places)
        return torch.stack([place, place + 1, place - 1], 1) % self.places, place + len(self.reads)

    def state_after(self, word: str) -> str:
        return str((word.count("+") - word.count("-")) % self.places)
