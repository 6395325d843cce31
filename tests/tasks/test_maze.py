"""Mazes, and the neighbours that a mixer on a grid sees."""

import torch

from lengthwise.base.rng import stream
from lengthwise.experiment.layout import Grid
from lengthwise.nn.window import neighbouring_cells
from lengthwise.tasks.maze import MOVES, Maze


def test_lines_may_be_typed_one_below_the_other():
    typed = "#####/#S.G#/#.###/#...#/#####"
    assert Maze().format(Maze().parse(typed.replace("/", "\n")).answer[0]) == "#####/#ooo#/#.###/#...#/#####"


def test_a_cell_sees_the_cells_around_it():
    """In a batch of grids of two sizes, neighbours equal those found by walking through the grid."""
    sizes = torch.tensor([[2], [3]])
    inputs = Grid().write(Maze().sample(sizes, stream(0, "cells")), Maze()).inputs
    near, count = neighbouring_cells(inputs, causal=False), inputs.tokens.shape[1]
    for row, side in enumerate((5, 7)):
        for line in range(side):
            for column in range(side):
                around = [(line + down, column + right) for down, right in MOVES]
                inside = [0 <= i < side and 0 <= j < side for i, j in around]
                index = [i * side + j if there else count for (i, j), there in zip(around, inside, strict=True)]
                assert near[row, line * side + column].tolist() == index
