"""Base puzzles of Sudoku, from which symmetries make all others: solving, making and reading them.

``sudoku.txt`` holds a base puzzle per line: its solution, with clues as digits and blank cells as letters (a is 1). It
was made by ``python -m lengthwise.tasks.sudoku_bases > sudoku.txt``.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.rng import address
from lengthwise.base.types import Purpose

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # lines and columns of a box
COUNTS = {4: 200, 6: 1000, 9: 500}  # base puzzles
PARTS: tuple[tuple[Purpose, int], ...] = (("train", 80), ("validation", 90), ("test", 100))  # cumulative percentages


@cache
def units(side: int) -> tuple[tuple[int, int, int], ...]:
    """Return the numbers of each cell's row, column and box."""
    down, right = BOXES[side]
    cells = [divmod(cell, side) for cell in range(side**2)]
    return tuple((row, column, row // down * (side // right) + column // right) for row, column in cells)


def solve(board: Sequence[int], side: int, most: int = 2, dice: random.Random | None = None) -> list[list[int]]:
    """Return up to ``most`` solutions of a board, row after row with 0 for a blank, by trying the digits of the cell
    with the fewest candidates; with ``dice``, in random order. A board that breaks the rules has none."""
    used, found, board = [[0] * side for _ in range(3)], list[list[int]](), [*board]
    of, whole = units(side), (1 << side) - 1

    def place(cell: int, bit: int) -> bool:
        """Set or unset a digit in a cell's units; return whether it was free in all."""
        free = not any(used[kind][unit] & bit for kind, unit in enumerate(of[cell]))
        for kind, unit in enumerate(of[cell]):
            used[kind][unit] ^= bit
        return free

    def go() -> None:
        best, fewest = -1, side + 1
        for cell, digit in enumerate(board):
            if not digit:
                row, column, box = of[cell]
                count = (whole & ~(used[0][row] | used[1][column] | used[2][box])).bit_count()
                if count < fewest:
                    best, fewest = cell, count
        if best < 0:
            found.append([*board])
            return
        row, column, box = of[best]
        taken = used[0][row] | used[1][column] | used[2][box]
        digits = [digit for digit in range(side) if not taken >> digit & 1]
        if dice:
            dice.shuffle(digits)
        for digit in digits:
            board[best] = digit + 1
            place(best, 1 << digit)
            go()
            place(best, 1 << digit)
            if len(found) >= most:
                break
        board[best] = 0

    if all(place(cell, 1 << digit - 1) for cell, digit in enumerate(board) if digit):
        go()
    return found


def make_base(side: int, seed: int) -> str:
    """Return a minimal puzzle, one that no clue can be taken from. Every fifth has a box without clues, if there is
    such a puzzle of this solution."""
    dice = random.Random(seed)
    (full,) = solve([0] * side**2, side, 1, dice)
    board, order, box = full[:], [*range(side**2)], dice.randrange(side)
    dice.shuffle(order)
    if seed % 5 == 0:
        order.sort(key=lambda cell: units(side)[cell][2] != box)
    for cell in order:
        board[cell] = 0
        if len(solve(board, side)) > 1:
            board[cell] = full[cell]
    return "".join(
        chr(ord("a") + right - 1) if not given else str(given) for right, given in zip(full, board, strict=True)
    )


def purpose_of(base: str, side: int) -> Purpose:
    """Return the part that a base puzzle belongs to: by a hash of what no symmetry changes, so that equivalent puzzles
    belong to the same part."""
    clues = [cell for cell, symbol in enumerate(base) if symbol.isdigit()]
    counts = [Counter(units(side)[cell][kind] for cell in clues) for kind in range(3)]
    digits = Counter(base[cell] for cell in clues)
    each = []
    for cell in clues:
        row, column, box = (count[units(side)[cell][kind]] for kind, count in enumerate(counts))
        each.append((*sorted((row, column)), box, digits[base[cell]]))
    share = address(side, str(sorted(each))) % 100
    return next(purpose for purpose, below in PARTS if share < below)


@cache
def read_bases(side: int, purpose: Purpose | None) -> tuple[Int[Tensor, "n cells"], Bool[Tensor, "n cells"]]:
    """Return the solutions of all base puzzles of a part (None: of all), and where their clues are."""
    lines = (Path(__file__).parent / "sudoku.txt").read_text(encoding="utf-8").split()
    bases = [line for line in lines if len(line) == side**2]
    kept = [base for base in bases if purpose in (None, purpose_of(base, side))]
    clue = torch.tensor([[symbol.isdigit() for symbol in base] for base in kept])
    letters = str.maketrans("abcdefghi", "123456789")
    return torch.tensor([[int(symbol) for symbol in base.translate(letters)] for base in kept]), clue


if __name__ == "__main__":
    for side, count in COUNTS.items():
        found: dict[str, None] = {}
        seed = 0
        while len(found) < count and seed < 3 * count:
            found[make_base(side, seed)] = None
            seed += 1
        sys.stdout.write("".join(f"{base}\n" for base in found))
