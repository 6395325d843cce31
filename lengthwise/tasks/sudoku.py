"""Sudoku of 4 × 4, 6 × 6 and 9 × 9 cells (as in Palm et al. 2018; Wang et al. 2025)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from lengthwise.base.types import SYMBOL, Problems, Purpose, UsageError
from lengthwise.tasks import Task
from lengthwise.tasks.square_grid import SquareGridTask
from lengthwise.tasks.sudoku_bases import BOXES, read_bases, solve, units

# side, the solutions and clues of bases, a generator → where the clues of puzzles are
Chooser = Callable[[int, Tensor, Tensor, Generator], Bool[Tensor, "b cells"]]
SPARE = 4  # clues beyond a base puzzle's, at most


def some_spare_clues(side: int, full: Tensor, clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Minimal puzzles with 0 to 4 further clues."""
    count = clue.sum(1) + torch.randint(SPARE + 1, (len(clue),), generator=generator)
    rank = (torch.rand(clue.shape, generator=generator) - clue.float()).argsort(1).argsort(1)
    return rank < count[:, None]


def fewest_clues(side: int, full: Tensor, clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Minimal puzzles, of which no clue can be spared."""
    return clue


def empty_box(side: int, full: Tensor, clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """All clues but those of one box."""
    return ~_one_unit(2, side, len(clue), generator)


def empty_line(side: int, full: Tensor, clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """All clues but those of one line."""
    return ~_one_unit(0, side, len(clue), generator)


def empty_column(side: int, full: Tensor, clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """All clues but those of one column."""
    return ~_one_unit(1, side, len(clue), generator)


def full_box(side: int, full: Tensor, clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Minimal puzzles with all clues of one box, too."""
    return clue | _one_unit(2, side, len(clue), generator)


def chessboard(side: int, full: Tensor, clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Minimal puzzles with a clue in every second cell, too."""
    return clue | torch.tensor([(row + column) % 2 == 0 for row, column, _ in units(side)])


def one_cell_left(side: int, full: Tensor, clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """All clues but one."""
    return torch.arange(side**2) != torch.randint(side**2, (len(clue), 1), generator=generator)


def one_digit_left(side: int, full: Tensor, clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """All clues but those of one digit."""
    return full != torch.randint(1, side + 1, (len(clue), 1), generator=generator)


@dataclass(frozen=True)
class Sudoku(SquareGridTask):
    """Fill a grid with digits so that each row, each column and each box holds every digit once.

    Size n, which is 4, 6 or 9, is n × n cells in boxes of 2 × 2, 2 × 3 or 3 × 3, line after line; a ``.`` is a blank.
    Every puzzle has one solution. Uniform puzzles are minimal ones with 0 to 4 further clues: base puzzles whose
    digits, rows and columns are exchanged at random. Training, validation and test have base puzzles of their own that
    no symmetry turns into each other. T(n) is the number of blanks.
    """

    bases: Literal["all", "train", "validation", "test"] = "all"  # the base puzzles that are drawn from

    symbols = (".", *"123456789")
    writes = symbols[1:]
    axes = ("side",)
    listed_sizes = (*BOXES,)
    patterns = (
        fewest_clues, empty_box, empty_line, empty_column, full_box, chessboard, one_cell_left, one_digit_left
    )  # fmt: skip
    question = (
        "This is a Sudoku, its lines separated by /, in which . is a blank. Write it again with all blanks filled."
    )

    def part(self, purpose: Purpose) -> Task:
        return replace(self, bases=purpose)

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(some_spare_clues, sizes, generator)

    def draw_pattern(self, pattern: Chooser, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_by_size(sizes, partial(self._draw, pattern, generator))

    def _draw(self, pattern: Chooser, generator: Generator, side: int, count: int) -> Problems:
        if side not in BOXES:
            raise UsageError(f"{self.name}: the sizes are 4, 6 and 9, not {side}")
        full, clue = read_bases(side, None if self.bases == "all" else self.bases)
        base = torch.randint(len(full), (count,), generator=generator)
        full, clue = full[base], pattern(side, full[base], clue[base], generator)
        down, right = BOXES[side]
        line, column = (_shuffle_blocks(count, side, size, generator) for size in (down, right))
        cell = (line[:, :, None] * side + column[:, None]).flatten(1)
        name = torch.rand(count, side, generator=generator).argsort(1) + 1
        answer = name.gather(1, full.gather(1, cell) - 1)
        return _problems(answer * clue.gather(1, cell), answer)

    def parse(self, text: str) -> Problems:
        lines = text.replace("/", " ").replace("0", ".").split()
        side = len(lines)
        if side == 1 and (side := math.isqrt(len(text := lines[0]))) in BOXES:
            lines = [text[i : i + side] for i in range(0, len(text), side)]
        if side not in BOXES or {len(line) for line in lines} != {side}:
            raise UsageError(f"{self.name}: 4, 6 or 9 lines of as many symbols, separated by /, are expected")
        if unknown := sorted({*"".join(lines)} - {*self.symbols[: side + 1]}):
            raise UsageError(f"{self.name}: {unknown[0]!r} is not one of: {' '.join(self.symbols[: side + 1])}")
        prompt = self.vocab.encode("".join(lines)).long()
        found = solve(prompt.tolist(), side)
        if len(found) != 1:
            raise UsageError(f"{self.name}: one solution is expected; this has {'several' if found else 'none'}")
        return _problems(prompt[None], torch.tensor(found))

    def reference(self, prompt: str) -> str:
        """Try digits in each blank, and go back where none fits."""
        (found,) = solve(self.vocab.encode(prompt).tolist(), round(len(prompt) ** 0.5))
        return "".join(map(str, found))

    def side(self, size: Any) -> Any:
        return size

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"clues": (problems.prompt > 0).sum(1)}


def _one_unit(kind: int, side: int, rows: int, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Return where the cells of a random line (kind 0), column (1) or box (2) are."""
    unit = torch.tensor([of[kind] for of in units(side)])
    return unit == torch.randint(side, (rows, 1), generator=generator)


def _problems(prompt: Int[Tensor, "b n"], answer: Int[Tensor, "b n"]) -> Problems:
    """Return puzzles of one size as problems."""
    rows, cells = prompt.shape
    length, rounds = torch.full((rows,), cells), (prompt == 0).sum(1).clamp(min=1)
    return Problems(
        torch.full((rows, 1), round(cells**0.5)), prompt.to(SYMBOL), length, answer.to(SYMBOL), length, rounds
    )


def _shuffle_blocks(rows: int, side: int, block: int, generator: Generator) -> Int[Tensor, "b side"]:
    """Return random orders of lines in which each block of lines stays together."""
    blocks = torch.rand(rows, side // block, 1, generator=generator).argsort(1) * block
    return (blocks + torch.rand(rows, side // block, block, generator=generator).argsort(2)).flatten(1)
