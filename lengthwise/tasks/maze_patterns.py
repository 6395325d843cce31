"""Uniform mazes, and the families.

Each function takes the number of mazes, the cells per side, and a generator. It returns which symbols of the grids
(2 cells + 1 per side) are free, and the cells of start and goal, numbered line after line; None: uniform cells.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

Carved = tuple[Bool[Tensor, "b side side"], Int[Tensor, "b 2"] | None]
Carver = Callable[[int, int, Generator], Carved]


def depth_first(rows: int, cells: int, generator: Generator) -> Carved:
    """Uniform start and goal in mazes made by randomised depth-first search."""
    visited = torch.zeros(rows, cells + 2, cells + 2, dtype=torch.bool)  # with a border that counts as visited
    visited[:, [0, -1]], visited[:, :, [0, -1]] = True, True
    free = torch.zeros(rows, 2 * cells + 1, 2 * cells + 1, dtype=torch.bool)
    moves, row = torch.tensor([(-1, 0), (1, 0), (0, -1), (0, 1)]), torch.arange(rows)
    cell = torch.randint(cells, (rows, 2), generator=generator)
    stack, depth = torch.zeros(rows, cells * cells + 1, 2, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
    visited[row, cell[:, 0] + 1, cell[:, 1] + 1] = True
    free[row, 2 * cell[:, 0] + 1, 2 * cell[:, 1] + 1] = True
    for _ in range(2 * cells * cells - 1):  # every cell is entered once, and left once
        near = cell[:, None] + moves
        open_ = ~visited[row[:, None], near[..., 0] + 1, near[..., 1] + 1]
        choice = ((torch.rand(rows, 4, generator=generator) + 1) * open_).argmax(1)
        enters = open_.any(1)
        target = torch.where(enters[:, None], near[row, choice], stack[row, (depth - 1).clamp(min=0)])
        new, old, to = row[enters], cell[enters], target[enters]
        stack[new, depth[new]] = old
        wall = old + to + 1
        free[new, wall[:, 0], wall[:, 1]] = True
        free[new, 2 * to[:, 0] + 1, 2 * to[:, 1] + 1] = True
        visited[new, to[:, 0] + 1, to[:, 1] + 1] = True
        depth = torch.where(enters, depth + 1, (depth - 1).clamp(min=0))
        cell = target
    return free, None


def opposite_corners(rows: int, cells: int, generator: Generator) -> Carved:
    """Start and goal in opposite corners."""
    free, _ = depth_first(rows, cells, generator)
    last = cells - 1
    pairs = torch.tensor([(0, last * cells + last), (last, last * cells)])
    pairs = torch.cat([pairs, pairs.flip(1)])
    return free, pairs[torch.randint(4, (rows,), generator=generator)]


def ends_of_a_line(rows: int, cells: int, generator: Generator) -> Carved:
    """Start and goal at the two ends of one line of cells."""
    free, _ = depth_first(rows, cells, generator)
    first = torch.randint(cells, (rows, 1), generator=generator) * cells
    ends = torch.cat([first, first + cells - 1], 1)
    return free, torch.where(torch.rand(rows, 1, generator=generator) < 0.5, ends, ends.flip(1))


def from_the_centre(rows: int, cells: int, generator: Generator) -> Carved:
    """Start in the centre, goal in a corner."""
    free, _ = depth_first(rows, cells, generator)
    last, centre = cells - 1, cells // 2 * (cells + 1)
    corners = torch.tensor([0, last, last * cells])  # of 2 × 2 cells the fourth is the centre
    goal = corners[torch.randint(3, (rows,), generator=generator)]
    return free, torch.stack([torch.full_like(goal, centre), goal], 1)


def side_by_side(rows: int, cells: int, generator: Generator) -> Carved:
    """Start and goal in neighbouring cells, often with a wall between them and a long way around it."""
    free, _ = depth_first(rows, cells, generator)
    line = torch.randint(cells, (rows,), generator=generator)
    column = torch.randint(cells - 1, (rows,), generator=generator)
    upright = torch.rand(rows, generator=generator) < 0.5
    first = torch.where(upright, column * cells + line, line * cells + column)
    return free, torch.stack([first, first + torch.where(upright, cells, 1)], 1)


def binary_tree(rows: int, cells: int, generator: Generator) -> Carved:
    """Mazes in which every cell is open upwards or to the left: many short dead ends."""
    up = torch.rand(rows, cells, cells, generator=generator) < 0.5
    up[:, 0], up[:, 1:, 0] = False, True
    left = ~up
    left[:, :, 0] = False
    return _apply_symmetry(_open_walls(up, left), None, cells, generator)


def comb(rows: int, cells: int, generator: Generator) -> Carved:
    """One corridor along a side, with a dead end as long as the maze at each of its cells."""
    up = torch.ones(rows, cells, cells, dtype=torch.bool)
    up[:, 0] = False
    left = torch.zeros_like(up)
    left[:, 0, 1:] = True
    return _apply_symmetry(_open_walls(up, left), None, cells, generator)


def snake(rows: int, cells: int, generator: Generator) -> Carved:
    """One corridor through all cells, line by line, from start to goal."""
    lines = [range(i * cells, (i + 1) * cells) for i in range(cells)]
    order = [cell for i, line in enumerate(lines) for cell in (line if i % 2 == 0 else reversed(line))]
    return _build_corridor(order, rows, cells, generator)


def spiral(rows: int, cells: int, generator: Generator) -> Carved:
    """One corridor through all cells, from the corner to the middle, from start to goal."""
    left, order = torch.arange(cells * cells).view(cells, cells), list[int]()
    while left.numel():
        order += left[0].tolist()
        left = left[1:].rot90()
    return _build_corridor(order, rows, cells, generator)


PATTERNS: tuple[Carver, ...] = (
    opposite_corners, ends_of_a_line, from_the_centre, side_by_side, binary_tree, comb, snake, spiral
)  # fmt: skip


def _build_corridor(order: list[int], rows: int, cells: int, generator: Generator) -> Carved:
    """Return mazes with one corridor through cells in this order, and start and goal at its ends."""
    up, left = torch.zeros(2, rows, cells, cells, dtype=torch.bool)
    for pair in pairwise(order):
        later, along = max(pair), abs(pair[0] - pair[1])
        (left if along == 1 else up)[:, later // cells, later % cells] = True
    ends = torch.tensor([[order[0], order[-1]]]).repeat(rows, 1)
    backwards = torch.rand(rows, generator=generator) < 0.5
    return _apply_symmetry(_open_walls(up, left), torch.where(backwards[:, None], ends.flip(1), ends), cells, generator)


def _open_walls(up: Bool[Tensor, "b n n"], left: Bool[Tensor, "b n n"]) -> Bool[Tensor, "b side side"]:
    """Return grids whose cells are open to the neighbours above (``up``) and on the left."""
    rows, cells = up.shape[:2]
    free = torch.zeros(rows, 2 * cells + 1, 2 * cells + 1, dtype=torch.bool)
    free[:, 1::2, 1::2] = True
    free[:, 0:-1:2, 1::2], free[:, 1::2, 0:-1:2] = up, left
    return free


def _apply_symmetry(
    free: Bool[Tensor, "b side side"], ends: Int[Tensor, "b 2"] | None, cells: int, generator: Generator
) -> Carved:
    """Turn or mirror each maze, with its start and goal, by one of the eight symmetries of a square."""
    number = torch.arange(cells * cells).view(cells, cells)
    forms = [(free.rot90(k, (1, 2)), number.rot90(k)) for k in range(4)]
    forms += [(grid.transpose(1, 2), numbers.T) for grid, numbers in forms]
    which, row = torch.randint(8, (len(free),), generator=generator), torch.arange(len(free))
    turned = torch.stack([grid for grid, _ in forms])[which, row]
    if ends is None:
        return turned, None
    places = torch.stack([numbers.flatten().argsort() for _, numbers in forms])  # the new place of each cell
    return turned, places[which].gather(1, ends)
