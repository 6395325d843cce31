"""Sudoku of 4 × 4, 6 × 6 and 9 × 9 cells (as in Palm et al. 2018; Wang et al. 2025)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from lengthwise.base.rng import derive_seed
from lengthwise.base.types import SYMBOL_DTYPE, Problems, Purpose, UsageError
from lengthwise.tasks import SquareGridTask, Task

# All puzzles arise from base puzzles by symmetries. Each line of ``sudoku.txt`` is a base puzzle's solution, with clues
# as digits and blank cells as letters (a is 1). Base puzzles are random solutions from which clues were removed one by
# one, in random order or first those of one box, until none could be spared; this file's history has the script.

BOX_SHAPES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # lines and columns of a box
PARTS: tuple[tuple[Purpose, int], ...] = (("train", 80), ("validation", 90), ("test", 100))  # cumulative percentages


@cache
def index_units(side: int) -> tuple[tuple[int, int, int], ...]:
    """Return, for each cell, the indices of its row, column and box."""
    down, right = BOX_SHAPES[side]
    cells = [divmod(cell, side) for cell in range(side**2)]
    return tuple((row, column, row // down * (side // right) + column // right) for row, column in cells)


def solve(board: Sequence[int], side: int) -> list[list[int]]:
    """Return up to two solutions of a board, which is written row after row with 0 for a blank. The search tries the
    digits of the cell with the fewest candidates first. A board that breaks the rules has no solutions."""
    used, solutions, board = [[0] * side for _ in range(3)], list[list[int]](), [*board]
    units, all_digits = index_units(side), (1 << side) - 1

    def toggle_digit(cell: int, bit: int) -> bool:
        """Mark a digit, given as a bit, as used in a cell's row, column and box, or unmark it. Return whether it was
        unused in all three."""
        free = not any(used[kind][unit] & bit for kind, unit in enumerate(units[cell]))
        for kind, unit in enumerate(units[cell]):
            used[kind][unit] ^= bit
        return free

    def search() -> None:
        best, fewest = -1, side + 1
        for cell, digit in enumerate(board):
            if not digit:
                row, column, box = units[cell]
                count = (all_digits & ~(used[0][row] | used[1][column] | used[2][box])).bit_count()
                if count < fewest:
                    best, fewest = cell, count
        if best < 0:
            solutions.append([*board])
            return
        for digit in range(side):
            if toggle_digit(best, 1 << digit) and len(solutions) < 2:
                board[best] = digit + 1
                search()
            toggle_digit(best, 1 << digit)
        board[best] = 0

    if all(toggle_digit(cell, 1 << digit - 1) for cell, digit in enumerate(board) if digit):
        search()
    return solutions


def choose_purpose(puzzle: str, side: int) -> Purpose:
    """Return the part (training, validation or test) of a base puzzle, by a hash of properties that no symmetry
    changes. So equivalent puzzles belong to one part."""
    clues = [cell for cell, symbol in enumerate(puzzle) if symbol.isdigit()]
    counts = [Counter(index_units(side)[cell][kind] for cell in clues) for kind in range(3)]
    digits = Counter(puzzle[cell] for cell in clues)
    clue_features = []
    for cell in clues:
        row, column, box = (count[index_units(side)[cell][kind]] for kind, count in enumerate(counts))
        clue_features.append((*sorted((row, column)), box, digits[puzzle[cell]]))
    share = derive_seed(side, str(sorted(clue_features))) % 100
    return next(purpose for purpose, below in PARTS if share < below)


@cache
def read_base_puzzles(side: int, purpose: Purpose | None) -> tuple[Int[Tensor, "n cells"], Bool[Tensor, "n cells"]]:
    """Return the solutions of the base puzzles for ``purpose`` (None: of all base puzzles), and masks of their
    clues."""
    lines = (Path(__file__).parent / "sudoku.txt").read_text(encoding="utf-8").split()
    bases = [line for line in lines if len(line) == side**2]
    chosen_bases = [base for base in bases if purpose in (None, choose_purpose(base, side))]
    is_clue = torch.tensor([[symbol.isdigit() for symbol in base] for base in chosen_bases])
    letters = str.maketrans("abcdefghi", "123456789")
    return torch.tensor([[int(symbol) for symbol in base.translate(letters)] for base in chosen_bases]), is_clue


# A family's function: it returns a mask of the clues, given the side, the solutions and masks of clues of base puzzles,
# and a generator.
ClueChooser = Callable[[int, Tensor, Tensor, Generator], Bool[Tensor, "b cells"]]


def some_extra_clues(side: int, solution: Tensor, is_clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Minimal puzzles with 0 to 4 extra clues."""
    count = is_clue.sum(1) + torch.randint(5, (len(is_clue),), generator=generator)
    rank = (torch.rand(is_clue.shape, generator=generator) - is_clue.float()).argsort(1).argsort(1)
    return rank < count[:, None]


def fewest_clues(side: int, solution: Tensor, is_clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Minimal puzzles, from which no clue can be removed."""
    return is_clue


def empty_box(side: int, solution: Tensor, is_clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Puzzles in which all cells are clues except those of one box."""
    return ~_mask_random_unit(2, side, len(is_clue), generator)


def empty_line(side: int, solution: Tensor, is_clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Puzzles in which all cells are clues except those of one line."""
    return ~_mask_random_unit(0, side, len(is_clue), generator)


def empty_column(side: int, solution: Tensor, is_clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Puzzles in which all cells are clues except those of one column."""
    return ~_mask_random_unit(1, side, len(is_clue), generator)


def full_box(side: int, solution: Tensor, is_clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Minimal puzzles with all cells of one box as extra clues."""
    return is_clue | _mask_random_unit(2, side, len(is_clue), generator)


def chessboard(side: int, solution: Tensor, is_clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Minimal puzzles with every second cell as an extra clue."""
    return is_clue | torch.tensor([(row + column) % 2 == 0 for row, column, _ in index_units(side)])


def one_cell_left(side: int, solution: Tensor, is_clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Puzzles in which all cells but one are clues."""
    return torch.arange(side**2) != torch.randint(side**2, (len(is_clue), 1), generator=generator)


def one_digit_left(side: int, solution: Tensor, is_clue: Tensor, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Puzzles in which all cells are clues except those of one digit."""
    return solution != torch.randint(1, side + 1, (len(is_clue), 1), generator=generator)


@dataclass(frozen=True)
class Sudoku(SquareGridTask):
    """Fill a grid with digits so that each row, each column and each box holds every digit once.

    Size n (4, 6 or 9) means n × n cells in boxes of 2 × 2, 2 × 3 or 3 × 3, written line after line; a ``.`` is a blank.
    Every puzzle has exactly one solution. Uniform puzzles are base puzzles with 0 to 4 extra clues, whose digits, rows
    and columns are permuted at random. Training, validation and test use different base puzzles, which no symmetry
    turns into each other. T(n) is the number of blanks.
    """

    bases: Literal["all", "train", "validation", "test"] = "all"  # the base puzzles that are drawn from

    symbols = (".", *"123456789")
    writes = symbols[1:]
    axes = ("side",)
    listed_sizes = (*BOX_SHAPES,)
    patterns = (
        fewest_clues, empty_box, empty_line, empty_column, full_box, chessboard, one_cell_left, one_digit_left
    )  # fmt: skip
    question = (
        "This is a Sudoku, its lines separated by /, in which . is a blank. Write it again with all blanks filled."
    )

    def select_part(self, purpose: Purpose) -> Task:
        return replace(self, bases=purpose)

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(some_extra_clues, sizes, generator)

    def draw_pattern(self, pattern: ClueChooser, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        def draw_puzzles(side: int, count: int) -> Problems:
            if side not in BOX_SHAPES:
                raise UsageError(f"{self.name}: the sizes are 4, 6 and 9, not {side}")
            solution, is_clue = read_base_puzzles(side, None if self.bases == "all" else self.bases)
            base = torch.randint(len(solution), (count,), generator=generator)
            solution, is_clue = solution[base], pattern(side, solution[base], is_clue[base], generator)
            line, column = (_shuffle_blocks(count, side, size, generator) for size in BOX_SHAPES[side])
            cell = (line[:, :, None] * side + column[:, None]).flatten(1)
            new_digit = torch.rand(count, side, generator=generator).argsort(1) + 1
            answer = new_digit.gather(1, solution.gather(1, cell) - 1)
            return _build_problems(answer * is_clue.gather(1, cell), answer)

        return self.draw_by_size(sizes, draw_puzzles)

    def parse(self, text: str) -> Problems:
        lines = text.replace("/", " ").replace("0", ".").split()
        side = len(lines)
        if side == 1 and (side := math.isqrt(len(text := lines[0]))) in BOX_SHAPES:
            lines = [text[i : i + side] for i in range(0, len(text), side)]
        if side not in BOX_SHAPES or [*map(len, lines)] != [side] * side:
            raise UsageError(f"{self.name}: write a square of 4, 6 or 9 lines, separated by /")
        if unknown := sorted({*"".join(lines)} - {*self.symbols[: side + 1]}):
            raise UsageError(f"{self.name}: {unknown[0]!r} is not one of: {' '.join(self.symbols[: side + 1])}")
        prompt = self.vocab.encode("".join(lines)).long()
        solutions = solve(prompt.tolist(), side)
        if len(solutions) != 1:
            count = "several" if solutions else "none"
            raise UsageError(f"{self.name}: a puzzle must have exactly one solution; this one has {count}")
        return _build_problems(prompt[None], torch.tensor(solutions))

    def reference(self, prompt: str) -> str:
        """Solve the puzzle by backtracking search."""
        (solution,) = solve(self.vocab.encode(prompt).tolist(), round(len(prompt) ** 0.5))
        return "".join(map(str, solution))

    def side(self, size: Any) -> Any:
        return size

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"clues": (problems.prompt > 0).sum(1)}


def _mask_random_unit(unit_kind: int, side: int, count: int, generator: Generator) -> Bool[Tensor, "b cells"]:
    """Return a mask for each row: the cells of a random line (``unit_kind`` 0), column (1) or box (2)."""
    unit = torch.tensor([cell_units[unit_kind] for cell_units in index_units(side)])
    return unit == torch.randint(side, (count, 1), generator=generator)


def _build_problems(prompt: Int[Tensor, "b n"], answer: Int[Tensor, "b n"]) -> Problems:
    """Return problems, given puzzles of one size and their solutions."""
    count, cells = prompt.shape
    size, length = torch.full((count, 1), round(cells**0.5)), torch.full((count,), cells)
    rounds = (prompt == 0).sum(1).clamp(min=1)
    return Problems(size, prompt.to(SYMBOL_DTYPE), length, answer.to(SYMBOL_DTYPE), length, rounds)


def _shuffle_blocks(count: int, side: int, block_size: int, generator: Generator) -> Int[Tensor, "b side"]:
    """Return random orders of ``side`` lines, in which each block of ``block_size`` lines stays together."""
    blocks = torch.rand(count, side // block_size, 1, generator=generator).argsort(1) * block_size
    return (blocks + torch.rand(count, side // block_size, block_size, generator=generator).argsort(2)).flatten(1)
