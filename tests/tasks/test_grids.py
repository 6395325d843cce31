"""Sudoku and mazes: base puzzles, parsing, and the cells that heads and mixers on their grids see."""

from itertools import product

import pytest
import torch
from conftest import LONG
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.base.rng import stream
from lengthwise.experiment.layout import Grid
from lengthwise.nn.window import GridHeadsEncoding, find_neighbouring_cells
from lengthwise.tasks import sudoku
from lengthwise.tasks.maze import MOVES, Maze
from lengthwise.tasks.sudoku import (
    BOX_SHAPES,
    Sudoku,
    _shuffle_blocks,
    choose_purpose,
    index_units,
    read_base_puzzles,
    solve,
)


@pytest.mark.timeout(1800)  # also on a busy machine
@pytest.mark.parametrize("side", BOX_SHAPES)
def test_base_puzzles_have_one_solution_and_no_redundant_clue(side):
    full, clue = read_base_puzzles(side, None)
    for row in range(0, len(full), 1 if LONG else len(full) // 2):
        board = (full[row] * clue[row]).tolist()
        assert solve(board, side) == [full[row].tolist()]
        for cell in clue[row].nonzero()[:, 0].tolist():
            assert len(solve([*board[:cell], 0, *board[cell + 1 :]], side)) > 1


@given(st.sampled_from([*BOX_SHAPES]), st.integers(0, 999), st.booleans())
def test_equivalent_base_puzzles_belong_to_one_part(side, seed, is_mirrored):
    draw, (full, clue) = stream(seed, "base"), read_base_puzzles(side, None)
    number = int(torch.randint(len(full), (), generator=draw))
    line, column = (_shuffle_blocks(1, side, size, draw)[0] for size in BOX_SHAPES[side])
    name = torch.randperm(side, generator=draw)
    bases = []
    for cell in (torch.arange(side**2), (line[:, None] * side + column).flatten()):
        given_, digit = clue[number, cell], name[full[number, cell] - 1] + 1
        if is_mirrored and side != 6:
            given_, digit = (part.view(side, side).T.flatten() for part in (given_, digit))
        pairs = zip(given_.tolist(), digit.tolist(), strict=True)
        bases.append("".join(str(right) if shown else "abcdefghi"[right - 1] for shown, right in pairs))
    assert choose_purpose(bases[0], side) == choose_purpose(bases[1], side)


def test_parts_share_no_base_puzzle():
    for side in BOX_SHAPES:
        parts = [read_base_puzzles(side, purpose) for purpose in ("train", "validation", "test")]
        puzzles = [{tuple(row) for row in (full * clue).tolist()} for full, clue in parts]
        assert all(puzzles) and sum(map(len, puzzles)) == len(set.union(*puzzles)) == len(
            read_base_puzzles(side, None)[0]
        )
        part = Sudoku().select_part("test")
        drawn = part.draw_pattern(Sudoku.patterns[0], torch.tensor([[side]] * 50), stream(0, "test"))
        clues = {int(count) for count in (drawn.prompt > 0).sum(1)}
        assert clues <= set(parts[2][1].sum(1).tolist())


@pytest.mark.parametrize(
    "text", ["1...\n..2.\n.3..\n...4\n", "1000/0020/0300/0004", "1.....2..3.....4", "1000002003000004"]
)
def test_puzzles_and_mazes_are_parsed_in_common_formats(text):
    """Puzzles may be written line by line, with 0 for a blank, or without breaks."""
    assert Sudoku().format(Sudoku().parse(text).answer[0]) == "1243/3421/4312/2134"
    maze = Maze().parse("#####\n#S.G#\n#.###\n#...#\n#####")
    assert Maze().format(maze.answer[0]) == "#####/#ooo#/#.###/#...#/#####"


def test_a_cell_of_a_maze_sees_the_cells_around_it():
    """In a batch of grids of two sizes, neighbours equal those found by walking through the grid."""
    inputs = Grid().write(Maze().sample(torch.tensor([[2], [3]]), stream(0, "cells")), Maze()).inputs
    near, count = find_neighbouring_cells(inputs, causal=False), inputs.tokens.shape[1]
    for row, side in enumerate((5, 7)):
        for line, column in product(range(side), repeat=2):
            around = [(line + down, column + right) for down, right in MOVES]
            index = [i * side + j if 0 <= i < side and 0 <= j < side else count for i, j in around]
            assert near[row, line * side + column].tolist() == index


def test_heads_see_rows_columns_and_boxes():
    """Heads see rows, columns and boxes in grids of all sizes in one batch."""
    sizes = torch.tensor([[side] for side in BOX_SHAPES])
    inputs = Grid().write(Sudoku().sample(sizes, stream(0, "cells")), Sudoku()).inputs
    bias = GridHeadsEncoding(4).attention_bias(inputs)
    for row, side in enumerate(BOX_SHAPES):
        of = torch.tensor(index_units(side))
        seen = bias[row, :, : side**2, : side**2] == 0
        for kind in range(3):
            assert torch.equal(seen[kind], of[:, None, kind] == of[:, kind])
        assert seen[3].all()


def test_a_base_puzzle_yields_its_whole_symmetry_class(monkeypatch):
    """A 4 × 4 base puzzle yields all grids of its class, 96 or 192 of the 288 solutions (Felgenhauer and Jarvis)."""
    one = tuple(part[:1] for part in read_base_puzzles(4, None))
    monkeypatch.setattr(sudoku, "read_base_puzzles", lambda side, part: one)
    problems = Sudoku().sample(torch.full((4000, 1), 4), stream(0))
    assert len(problems.answer.unique(dim=0)) in (96, 192)
