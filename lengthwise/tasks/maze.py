"""Mazes: find the way through a grid without cycles (Schwarzschild et al. 2021; Bansal et al. 2022)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.types import SYMBOL, Problems, UsageError
from lengthwise.tasks.maze_patterns import PATTERNS, Carver, depth_first
from lengthwise.tasks.square_grid import SquareGridTask

WALL, FREE, START, GOAL, WAY = range(5)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


@dataclass(frozen=True)
class Maze(SquareGridTask):
    """Mark the way from S to G in a maze without cycles.

    Size n is n × n cells, drawn as a grid of 2n + 1 by 2n + 1 symbols, line after line: ``#`` is a wall, ``.`` is free,
    ``S`` and ``G`` are the start and the goal. The answer is the same grid, with ``o`` on the path from S to G, both
    included.
    Uniform mazes are spanning trees made by randomised depth-first search, with uniform S and G. T(n) is 1 + the
    rounds of dead-end filling: all free symbols with one free neighbour become walls at once, until none is left.
    """

    symbols = ("#", ".", "S", "G", "o")
    reads = symbols[:4]
    writes = ("#", ".", "o")
    axes = ("cells",)
    smallest = 2
    largest = 30
    question = (
        "This is a maze, its lines separated by /, in which # is a wall and . is free. Write it again with o on each "
        "symbol of the way from S to G, S and G included, and with . on the other free symbols."
    )

    patterns = PATTERNS

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(depth_first, sizes, generator)

    def draw_pattern(self, pattern: Carver, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_by_size(sizes, partial(self._draw, pattern, generator))

    def _draw(self, pattern: Carver, generator: Generator, cells: int, count: int) -> Problems:
        free, ends = pattern(count, cells, generator)
        if ends is None:
            ends = torch.rand(count, cells * cells, generator=generator).topk(2, 1).indices
        grid = free.long().flatten(1)
        place = (2 * (ends // cells) + 1) * (2 * cells + 1) + 2 * (ends % cells) + 1
        grid.scatter_(1, place, torch.tensor([[START, GOAL]]).expand(count, -1))
        return self._from_grids(grid, cells)

    def _from_grids(self, grid: Int[Tensor, "b n"], cells: int) -> Problems:
        """Return grids of one size as problems with their answers."""
        side = 2 * cells + 1
        way, rounds = fill_dead_ends(grid.view(-1, side, side))
        answer = (grid > WALL).long().masked_fill(way.flatten(1), WAY)
        length = torch.full((len(grid),), side * side)
        sizes = torch.full((len(grid), 1), cells)
        return Problems(sizes, grid.to(SYMBOL), length, answer.to(SYMBOL), length, rounds + 1)

    def parse(self, text: str) -> Problems:
        lines = [line for line in text.replace("/", " ").split() if line]
        side = len(lines)
        if side < 5 or side % 2 == 0 or {len(line) for line in lines} != {side}:
            raise UsageError(
                f"{self.name}: lines separated by / that form a square of odd side, 5 or more, are expected"
            )
        if unknown := sorted({*text} - {*self.reads, "/", *" \n\r\t"}):
            raise UsageError(f"{self.name}: {unknown[0]!r} is not one of: {' '.join(self.reads)}")
        grid = self.vocab.encode("".join(lines)).long().view(1, side, side)
        if text.count("S") != 1 or text.count("G") != 1:
            raise UsageError(f"{self.name}: one S and one G are expected")
        border = torch.ones_like(grid).bool()
        border[:, 1:-1, 1:-1] = False
        if (grid[border] != WALL).any():
            raise UsageError(f"{self.name}: walls (#) all around are expected")
        way, _ = fill_dead_ends(grid)
        degree, ends = count_neighbours(way), grid >= START
        if (degree[way] != torch.where(ends, 1, 2)[way]).any() or not _is_connected(way[0]):
            raise UsageError(f"{self.name}: exactly one way from S to G, and no cycle, is expected")
        return self._from_grids(grid.flatten(1), side // 2)

    def reference(self, prompt: str) -> str:
        """Breadth-first search from S."""
        side = round(len(prompt) ** 0.5)
        start, cell = prompt.index("S"), prompt.index("G")
        previous, queue = {start: start}, deque([start])
        while queue:
            current = queue.popleft()
            for step in (-side, side, -1, 1):
                if prompt[current + step] != "#" and current + step not in previous:
                    previous[current + step] = current
                    queue.append(current + step)
        way = {start}
        while cell != start:
            way.add(cell)
            cell = previous[cell]
        return "".join("o" if i in way else "#" if symbol == "#" else "." for i, symbol in enumerate(prompt))

    def side(self, size: Any) -> Any:
        return 2 * size + 1

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"length of the way": (problems.answer == WAY).sum(1)}


def count_neighbours(free: Bool[Tensor, "b h w"]) -> Int[Tensor, "b h w"]:
    """Return how many of the four neighbours of each symbol are True."""
    padded = F.pad(free.int(), (1, 1, 1, 1))
    return padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:]


def fill_dead_ends(grid: Int[Tensor, "b h w"]) -> tuple[Bool[Tensor, "b h w"], Int[Tensor, " b"]]:
    """Fill dead ends until there are none; return the remaining free symbols and the number of rounds."""
    way, rounds = grid > WALL, torch.zeros(len(grid), dtype=torch.long)
    ends = grid >= START
    while (dead := way & ~ends & (count_neighbours(way) <= 1)).any():
        rounds += dead.flatten(1).any(1)
        way = way & ~dead
    return way, rounds


def _is_connected(way: Bool[Tensor, "h w"]) -> bool:
    """Return whether the True symbols are connected."""
    cells = {(i, j) for i, j in way.nonzero().tolist()}
    queue = [cells.pop()]
    while queue:
        i, j = queue.pop()
        near = {(i + down, j + right) for down, right in MOVES} & cells
        cells -= near
        queue += near
    return not cells
