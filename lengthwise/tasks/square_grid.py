"""What tasks on square grids share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.types import Problems
from lengthwise.tasks import Task


class SquareGridTask(Task):
    """A task whose prompts and answers are square grids, line after line, typed with ``/`` between lines."""

    answers_each_symbol = True

    @abstractmethod
    def side(self, size: Any) -> Any:
        """Return the number of lines of a grid of this size, a number or a tensor."""

    def shape(self, size: Sequence[int]) -> tuple[int, int]:
        return self.side(size[0]), self.side(size[0])

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return self.side(sizes[:, 0]) ** 2

    def format(self, answer: Int[Tensor, " a"]) -> str:
        text, side = self.vocab.decode(answer), round(len(answer) ** 0.5)
        return "/".join(text[i : i + side] for i in range(0, len(text), side))

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        return self.format(prompt)

    @staticmethod
    def draw_by_size(sizes: Int[Tensor, "b 1"], draw: Callable[[int, int], Problems]) -> Problems:
        """Return a problem per row of ``sizes``; ``draw`` takes a size and a count, and draws all problems of one
        size."""
        parts, places = [], []
        for size in sizes[:, 0].unique().tolist():
            places.append((sizes[:, 0] == size).nonzero()[:, 0])
            parts.append(draw(size, len(places[-1])))
        return Problems.join(parts).take(torch.cat(places).argsort())
