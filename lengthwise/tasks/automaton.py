"""Tasks that a finite automaton solves: each symbol changes a state."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask


class Automaton(SequenceTask):
    """Symbols that the task ``reads`` change a state; the answer says which symbol belongs to it, after every symbol
    (``each``) or after the last. T(n) = n. ``build`` gives the table of next states, by state and symbol, the symbol
    (its id) that each state is answered by, and the first state is 0."""

    each: bool  # a field of each task

    @property
    def answers_each_symbol(self) -> bool:  # type: ignore[override]
        return self.each

    @abstractmethod
    def automaton(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        """The next states by state and symbol, and the id of each state's answer; the first state is 0."""

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        following, outputs = _tables(self)
        number = torch.zeros(len(self.symbols), dtype=torch.long)  # of a symbol among those that are read
        number[self.vocab.encode(self.reads or self.symbols).long()] = torch.arange(following.shape[1])
        state, states = torch.zeros(len(row), dtype=torch.long), []
        for symbol in number[row.long()].T:
            state = following[state, symbol]
            states.append(state)
        found = torch.stack(states, 1)
        if self.each:
            return Problems(sizes, row, length, zero_after(outputs[found].to(row.dtype), length), length, length)
        last = outputs[found.gather(1, length[:, None] - 1)].to(row.dtype)
        return Problems(sizes, row, length, last, torch.ones_like(length), length)

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0] if self.each else torch.ones_like(sizes[:, 0])

    def reference(self, prompt: str) -> str:
        states = [
            self.state_after(prompt[: end + 1]) for end in (range(len(prompt)) if self.each else [len(prompt) - 1])
        ]
        return "".join(states)

    @abstractmethod
    def state_after(self, word: str) -> str:
        """The answer's symbol after a word, by the plainest algorithm."""


@cache
def _tables(task: Automaton) -> tuple[Tensor, Tensor]:
    return task.automaton()
