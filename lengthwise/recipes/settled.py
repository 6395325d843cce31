"""Looped models whose answer is a fixed point: they can stop without knowing T(n)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lengthwise.experiment.layout import Grid, Tagged
from lengthwise.experiment.lengths import Curriculum, OneOf, Uniform
from lengthwise.experiment.loops import Constant, ExtraLoops, LogRounds
from lengthwise.experiment.optim import AdamW, Schedule
from lengthwise.experiment.recipe import ChosenOn, Recipe, Watch
from lengthwise.experiment.stopping import Converged, Settled
from lengthwise.models.scan import Scan
from lengthwise.models.transformer import Transformer
from lengthwise.nn.convolution import Convolution, GridConvolution
from lengthwise.nn.position import Mark
from lengthwise.nn.window import GridHeads, Local, LocalHeads
from lengthwise.objectives import Final, Segments
from lengthwise.recipes.window import AHEAD, SMALL_MODEL, looped_addition, looped_copy, looped_parity, short_binary_sum
from lengthwise.tasks.arithmetic import Addition
from lengthwise.tasks.bits import PrefixSum
from lengthwise.tasks.maze import Maze
from lengthwise.tasks.sudoku import Sudoku

_SETTLING: dict[str, Any] = {"objective": Final(), "stopping": Settled(below=0.1), "ema": 0.99}
_convolution = partial(Transformer, mlp=2, activation="relu", init_std=0.1, embedding_std=0.3)
_sudoku_transformer = partial(
    Transformer, positions=(GridHeads(),), activation="relu", noise=1.0, init_std=0.06, embedding_std=0.5
)


def settled_parity() -> Recipe:
    """``looped-parity`` with an answer that stays right after any number of further loops: the first bit is marked, and
    rows take up to ten more loops in training. A seed takes two minutes of one CPU thread."""
    return replace(
        looped_parity(),
        name="settled-parity",
        model=replace(SMALL_MODEL, positions=(*SMALL_MODEL.positions, Mark())),
        loops=ExtraLoops(extra=10),
        stopping=Settled(below=0.2),
        chosen_on=ChosenOn((20, 26, 60, 100)),
    )


def settled_copy() -> Recipe:
    """``looped-copy`` with an answer that stays right in further loops. One head sees the whole row, so that every
    position can detect when the copy is complete. A seed takes four minutes of one CPU thread."""
    return replace(
        looped_copy(),
        name="settled-copy",
        model=replace(SMALL_MODEL, positions=(LocalHeads(count=3), Mark())),
        lengths=Curriculum(top=20, every=35),
        loops=ExtraLoops(offset=2, extra=10),
        steps=2000,
        batch=32,
        # With a large eps, steps shrink as the gradients do. With 1e-8 the loss jumped at step 1,500 (docs/lab).
        optimizer=AdamW(rate=7e-4, betas=(0.9, 0.95), eps=1e-5),
        chosen_on=ChosenOn((20, 26, 30, 40), ("uniform", "families")),
        **_SETTLING,
    )


def settled_addition() -> Recipe:
    """Binary addition, lowest digit first, with a sum that stays right in further loops. The model needs about as many
    loops as the longest carry has digits, not T(n) = n. A seed takes eight minutes of one CPU thread."""
    return replace(
        looped_addition(),
        name="settled-addition",
        task=Addition(2, "least", True, True),
        model=replace(SMALL_MODEL, layers=2, positions=(*AHEAD, Mark())),
        loops=ExtraLoops(offset=1, extra=10),
        steps=2400,
        batch=32,
        chosen_on=ChosenOn((10, 13, 15, 20, 26, 40), ("uniform", "families")),
        **_SETTLING,
    )


def settled_binary_sum() -> Recipe:
    """The number of ones in up to 12 bits, with an answer that stays right in further loops. Counts that are larger
    than in training are wrong. A seed takes seven minutes of one CPU thread."""
    return replace(
        short_binary_sum(),
        name="settled-binary-sum",
        lengths=Curriculum(top=12, every=60),
        loops=ExtraLoops(offset=3, extra=12),
        model=replace(SMALL_MODEL, layers=3, positions=(Local(reach=1), Mark())),
        steps=3000,
        batch=32,
        watch=Watch(every=200, sizes=(12, 15), count=200),
        chosen_on=ChosenOn((10, 12, 13, 15), ("uniform", "families")),
        **_SETTLING,
    )


def looped_prefix_sum() -> Recipe:
    """Prefix sums by a looped convolution (Bansal et al., 2022): each loop sees the neighbours and the input."""
    return Recipe(
        name="looped-prefix-sum",
        task=PrefixSum(),
        layout=Tagged(causal=False),
        lengths=Curriculum(top=32, every=30),
        loops=ExtraLoops(extra=5),
        model=_convolution(width=32, positions=(Mark(),), mixer=Convolution()),
        objective=Final(),
        steps=1500,
        batch=32,
        schedule=Schedule("cosine", cooldown=0.4),
        ema=0.99,
        stopping=Settled(max_loops=1000),
        watch=Watch(every=250, sizes=(32, 41), count=200),
        chosen_on=ChosenOn((32, 41, 64, 128)),
    )


def scan_prefix_sum() -> Recipe:
    """Prefix sums in ⌈log₂ n⌉ loops: loop k looks 2^(k−1) positions back."""
    return replace(
        looped_prefix_sum(),
        name="scan-prefix-sum",
        lengths=Uniform(top=32),
        loops=LogRounds(),
        model=Scan(),
        steps=2000,
        batch=64,
        stopping=Settled(max_loops=40),
        chosen_on=ChosenOn((32, 41, 64, 512, 4096)),
    )


def looped_maze() -> Recipe:
    """Mazes of 2 to 4 cells a side, solved by a looped convolution on the grid. Each loop sees a cell's four
    neighbours, as one round of dead-end filling does."""
    return replace(
        looped_prefix_sum(),
        name="looped-maze",
        task=Maze(),
        layout=Grid(),
        lengths=Uniform(top=4, bottom=2, longest=0.5),
        loops=ExtraLoops(extra=8),
        model=_convolution(width=48, positions=(), mixer=GridConvolution()),
        steps=3000,
        batch=64,
        optimizer=AdamW(rate=2e-3),
        families=0.33,
        watch=Watch(),
        chosen_on=ChosenOn((4, 5)),
    )


def looped_sudoku() -> Recipe:
    """Sudoku of 6 × 6 and 4 × 4 cells, solved by looped attention within rows, columns and boxes, from random initial
    states. Training runs four segments of four loops on a batch, each followed by a step of the optimizer."""
    return replace(
        looped_maze(),
        name="looped-sudoku",
        task=Sudoku(),
        lengths=OneOf(sizes=(4, 6, 6, 6)),
        loops=Constant(4),
        model=_sudoku_transformer(),
        objective=Segments(count=4),
        steps=4000,
        batch=48,
        families=0.1,
        stopping=Settled(below=0.1, max_loops=64),
        chosen_on=ChosenOn((4, 6)),
    )


def looped_sudoku_9() -> Recipe:
    """``looped-sudoku`` on 9 × 9 cells, with a wider model and longer training. A seed takes 70 minutes of a fast CPU
    thread."""
    return replace(
        looped_sudoku(),
        name="looped-sudoku-9",
        lengths=OneOf(sizes=(9,)),
        model=_sudoku_transformer(width=96),
        steps=12_000,
        batch=24,
        optimizer=AdamW(rate=1.5e-3),
        schedule=replace(looped_maze().schedule, warmup=380 / 12_000),
        ema=0.999,
        stopping=Converged(patience=4, max_loops=256),  # a solved puzzle stays, while the state still changes
        chosen_on=ChosenOn((9,)),
    )
