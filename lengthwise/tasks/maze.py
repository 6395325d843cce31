"""Find the path from start to goal in mazes without cycles (Schwarzschild et al. 2021; Bansal et al. 2022)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.types import SYMBOL_DTYPE, Problems, UsageError
from lengthwise.tasks import SquareGridTask, parse_symbols

WALL, FREE, START, GOAL, WAY = range(5)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

# A ``Carver`` draws uniform mazes or one family, given their number, the cells per side, and a generator. It returns a
# mask of the free symbols in the grids (2 · cells + 1 per side), and the cells of start and goal, numbered line after
# line, or None for uniform cells.
Carving = tuple[Bool[Tensor, "b side side"], Int[Tensor, "b 2"] | None]
Carver = Callable[[int, int, Generator], Carving]


def carve_depth_first(count: int, cells: int, generator: Generator) -> Carving:
    """Mazes carved by randomized depth-first search, with uniform start and goal."""
    visited = torch.zeros(count, cells + 2, cells + 2, dtype=torch.bool)  # with a border that counts as visited
    visited[:, [0, -1]], visited[:, :, [0, -1]] = True, True
    free = torch.zeros(count, 2 * cells + 1, 2 * cells + 1, dtype=torch.bool)
    moves, mazes = torch.tensor(MOVES), torch.arange(count)
    cell = torch.randint(cells, (count, 2), generator=generator)
    stack, depth = torch.zeros(count, cells * cells + 1, 2, dtype=torch.long), torch.zeros(count, dtype=torch.long)
    visited[mazes, cell[:, 0] + 1, cell[:, 1] + 1] = True
    free[mazes, 2 * cell[:, 0] + 1, 2 * cell[:, 1] + 1] = True
    for _ in range(2 * cells * cells - 1):  # every cell is entered once, and left once
        near = cell[:, None] + moves
        is_open = ~visited[mazes[:, None], near[..., 0] + 1, near[..., 1] + 1]
        choice = ((torch.rand(count, 4, generator=generator) + 1) * is_open).argmax(1)
        enters = is_open.any(1)
        target = torch.where(enters[:, None], near[mazes, choice], stack[mazes, (depth - 1).clamp(min=0)])
        new, old, entered = mazes[enters], cell[enters], target[enters]
        stack[new, depth[new]] = old
        wall = old + entered + 1
        free[new, wall[:, 0], wall[:, 1]] = True
        free[new, 2 * entered[:, 0] + 1, 2 * entered[:, 1] + 1] = True
        visited[new, entered[:, 0] + 1, entered[:, 1] + 1] = True
        depth = torch.where(enters, depth + 1, (depth - 1).clamp(min=0))
        cell = target
    return free, None


def opposite_corners(count: int, cells: int, generator: Generator) -> Carving:
    """Mazes with start and goal in opposite corners."""
    free, _ = carve_depth_first(count, cells, generator)
    last = cells - 1
    pairs = torch.tensor([(0, cells * cells - 1), (last, last * cells), (cells * cells - 1, 0), (last * cells, last)])
    return free, pairs[torch.randint(4, (count,), generator=generator)]


def ends_of_a_line(count: int, cells: int, generator: Generator) -> Carving:
    """Mazes with start and goal at the two ends of one line of cells."""
    free, _ = carve_depth_first(count, cells, generator)
    first = torch.randint(cells, (count, 1), generator=generator) * cells
    ends = torch.cat([first, first + cells - 1], 1)
    return free, torch.where(torch.rand(count, 1, generator=generator) < 0.5, ends, ends.flip(1))


def from_the_centre(count: int, cells: int, generator: Generator) -> Carving:
    """Mazes with the start in the centre and the goal in a corner."""
    free, _ = carve_depth_first(count, cells, generator)
    last, centre = cells - 1, cells // 2 * (cells + 1)
    corners = torch.tensor([0, last, last * cells])  # in a maze of 2 × 2 cells, the fourth corner is the centre
    goal = corners[torch.randint(3, (count,), generator=generator)]
    return free, torch.stack([torch.full_like(goal, centre), goal], 1)


def side_by_side(count: int, cells: int, generator: Generator) -> Carving:
    """Mazes with start and goal in neighbouring cells, often with a wall between them and a long way around it."""
    free, _ = carve_depth_first(count, cells, generator)
    line = torch.randint(cells, (count,), generator=generator)
    column = torch.randint(cells - 1, (count,), generator=generator)
    upright = torch.rand(count, generator=generator) < 0.5
    first = torch.where(upright, column * cells + line, line * cells + column)
    return free, torch.stack([first, first + torch.where(upright, cells, 1)], 1)


def binary_tree(count: int, cells: int, generator: Generator) -> Carving:
    """Mazes in which every cell is open upwards or to the left, which gives many short dead ends."""
    up = torch.rand(count, cells, cells, generator=generator) < 0.5
    up[:, 0], up[:, 1:, 0] = False, True
    left = ~up
    left[:, :, 0] = False
    return _open_walls(up, left, None, generator)


def comb(count: int, cells: int, generator: Generator) -> Carving:
    """Mazes with a corridor along one side; a dead end runs across the maze from each cell of the corridor."""
    up = torch.ones(count, cells, cells, dtype=torch.bool)
    up[:, 0] = False
    left = torch.zeros_like(up)
    left[:, 0, 1:] = True
    return _open_walls(up, left, None, generator)


def snake(count: int, cells: int, generator: Generator) -> Carving:
    """Mazes of one corridor that runs through all cells line by line, with start and goal at its ends."""
    lines = [range(i * cells, (i + 1) * cells) for i in range(cells)]
    order = [cell for i, line in enumerate(lines) for cell in (line if i % 2 == 0 else reversed(line))]
    return _build_corridor(order, count, cells, generator)


def spiral(count: int, cells: int, generator: Generator) -> Carving:
    """Mazes of one corridor that spirals through all cells, with start and goal at its ends."""
    remaining, order = torch.arange(cells * cells).view(cells, cells), list[int]()
    while remaining.numel():
        order += remaining[0].tolist()
        remaining = remaining[1:].rot90()
    return _build_corridor(order, count, cells, generator)


def _build_corridor(cell_order: list[int], count: int, cells: int, generator: Generator) -> Carving:
    """Return mazes with one corridor through all cells in the given order, and start and goal at its ends."""
    up, left = torch.zeros(2, count, cells, cells, dtype=torch.bool)
    for pair in pairwise(cell_order):
        later_cell, distance = max(pair), abs(pair[0] - pair[1])
        (left if distance == 1 else up)[:, later_cell // cells, later_cell % cells] = True
    ends = torch.tensor([[cell_order[0], cell_order[-1]]]).repeat(count, 1)
    backwards = torch.rand(count, generator=generator) < 0.5
    return _open_walls(up, left, torch.where(backwards[:, None], ends.flip(1), ends), generator)


def _open_walls(up: Bool[Tensor, "b n n"], left: Tensor, ends: Tensor | None, generator: Generator) -> Carving:
    """Return mazes whose cells are open to the neighbour above where ``up`` is True, and to the left neighbour where
    ``left`` is True. A random symmetry of the square is applied to each maze, its start and its goal (``ends``)."""
    count, cells = up.shape[:2]
    free = torch.zeros(count, 2 * cells + 1, 2 * cells + 1, dtype=torch.bool)
    free[:, 1::2, 1::2] = True
    free[:, 0:-1:2, 1::2], free[:, 1::2, 0:-1:2] = up, left
    number = torch.arange(cells * cells).view(cells, cells)
    forms = [(free.rot90(k, (1, 2)), number.rot90(k)) for k in range(4)]
    forms += [(grid.transpose(1, 2), numbers.T) for grid, numbers in forms]
    which, row = torch.randint(8, (count,), generator=generator), torch.arange(count)
    turned = torch.stack([grid for grid, _ in forms])[which, row]
    if ends is None:
        return turned, None
    places = torch.stack([numbers.flatten().argsort() for _, numbers in forms])  # the new place of each cell
    return turned, places[which].gather(1, ends)


@dataclass(frozen=True)
class Maze(SquareGridTask):
    """Mark the way from S to G in a maze without cycles.

    Size n means n × n cells, written as a grid of 2n + 1 by 2n + 1 symbols, line after line: ``#`` is a wall, ``.`` is
    free, ``S`` and ``G`` are the start and the goal. The answer is the same grid, with ``o`` on the path from S to G,
    both included. Uniform mazes are spanning trees, carved by randomized depth-first search, with uniform S and G. T(n)
    is 1 + the number of rounds of dead-end filling, in each of which all free symbols with at most one free neighbour
    become walls.

    The papers' mazes differ: their search starts at S, and "9 × 9", counted without the border, is n = 5.
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

    patterns = (opposite_corners, ends_of_a_line, from_the_centre, side_by_side, binary_tree, comb, snake, spiral)

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(carve_depth_first, sizes, generator)

    def draw_pattern(self, pattern: Carver, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        def draw_mazes(cells: int, count: int) -> Problems:
            free, ends = pattern(count, cells, generator)
            if ends is None:
                ends = torch.rand(count, cells * cells, generator=generator).topk(2, 1).indices
            grid = free.long().flatten(1)
            place = (2 * (ends // cells) + 1) * (2 * cells + 1) + 2 * (ends % cells) + 1
            return self._from_grids(grid.scatter_(1, place, torch.tensor([[START, GOAL]]).expand(count, -1)), cells)

        return self.draw_by_size(sizes, draw_mazes)

    def _from_grids(self, grid: Int[Tensor, "b n"], cells: int) -> Problems:
        """Return problems with their answers, given grids of one size."""
        side = 2 * cells + 1
        way, rounds = fill_dead_ends(grid.view(-1, side, side))
        answer = (grid > WALL).long().masked_fill(way.flatten(1), WAY)
        length = torch.full((len(grid),), side * side)
        sizes = torch.full((len(grid), 1), cells)
        return Problems(sizes, grid.to(SYMBOL_DTYPE), length, answer.to(SYMBOL_DTYPE), length, rounds + 1)

    def parse(self, text: str) -> Problems:
        lines = text.replace("/", " ").split()
        side = len(lines)
        if side < 5 or side % 2 == 0 or {len(line) for line in lines} != {side}:
            raise UsageError(f"{self.name}: write n lines of n symbols, separated by /, where n is odd and at least 5")
        grid = parse_symbols(self, "".join(lines)).view(1, side, side)
        if text.count("S") != 1 or text.count("G") != 1:
            raise UsageError(f"{self.name}: write exactly one S and one G")
        border = torch.ones_like(grid).bool()
        border[:, 1:-1, 1:-1] = False
        if (grid[border] != WALL).any():
            raise UsageError(f"{self.name}: the maze's border must be walls (#)")
        way, _ = fill_dead_ends(grid)
        degree, ends = count_neighbours(way), grid >= START
        has_path_degrees = bool((degree == torch.where(ends, 1, 2))[way].all())
        if not has_path_degrees or self.reference("".join(lines)).count("o") < way.sum():
            raise UsageError(f"{self.name}: there must be one path from S to G, and no cycle")
        return self._from_grids(grid.flatten(1), side // 2)

    def reference(self, prompt: str) -> str:
        """Find the way by breadth-first search from S."""
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


def count_neighbours(mask: Bool[Tensor, "b h w"]) -> Int[Tensor, "b h w"]:
    """Return each position's number of True neighbours, 0 to 4."""
    padded = F.pad(mask.int(), (1, 1, 1, 1))
    return padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:]


def fill_dead_ends(grid: Int[Tensor, "b h w"]) -> tuple[Bool[Tensor, "b h w"], Int[Tensor, " b"]]:
    """Fill dead ends until none are left. Return a mask of the remaining free symbols, and each maze's number of
    rounds."""
    way, rounds = grid > WALL, torch.zeros(len(grid), dtype=torch.long)
    ends = grid >= START
    while (dead := way & ~ends & (count_neighbours(way) <= 1)).any():
        rounds += dead.flatten(1).any(1)
        way = way & ~dead
    return way, rounds
