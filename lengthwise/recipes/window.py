"""Looped transformers that see neighbours, not the whole row: our variant of the looped system (Fan et al., 2025).

Layout, loops and objective are those of the published method, ``fop-loop-adaptive``; recipes that halt by themselves
have other loops and objectives. Attention differs: in the published models, which have no positional encoding, a head
finds a position by counting, and counts grow with the length. Here a head sees only the left neighbour, the same digit
position of each number (``CoupledHeads``) or, to find symbols, all earlier positions (``EarlierHeads``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lengthwise.experiment.layout import FullOutput
from lengthwise.experiment.lengths import Curriculum, Mastery, Uniform
from lengthwise.experiment.loops import AnyLoops, Constant, PerRound
from lengthwise.experiment.optim import AdamW, Schedule
from lengthwise.experiment.recipe import ChosenOn, Recipe, Watch
from lengthwise.experiment.stopping import Halted
from lengthwise.models.timed import Timed
from lengthwise.models.transformer import Transformer
from lengthwise.nn.position import Mark
from lengthwise.nn.window import CoupledHeads, EarlierHeads, Local, LocalHeads
from lengthwise.objectives import Final, Halting
from lengthwise.recipes.pairs import CARRY_FAMILIES
from lengthwise.tasks.arithmetic import Addition, Multiplication
from lengthwise.tasks.bits import BinarySum, BitwiseOr, FlippedCopy
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.strings import Copy, UniqueSet

SMALL_MODEL = Transformer(width=64, positions=(Local(reach=1),), init_std=0.1, embedding_std=0.3)
COLUMN_WINDOWS = (LocalHeads(count=2), CoupledHeads(count=2))  # windows of the four heads
AHEAD = (LocalHeads(count=2), CoupledHeads(count=2, ahead=1))  # centred on the symbol to be predicted


# The base of the recipes below: n loops, each of which sees the left neighbour.
WINDOWED = Recipe(
    name="windowed",
    task=Parity(),
    layout=FullOutput(),
    lengths=Curriculum(top=20, every=60),
    loops=PerRound(),
    model=SMALL_MODEL,
    objective=Final(),
    steps=2000,
    batch=32,
    optimizer=AdamW(rate=7e-4),
    schedule=Schedule("cosine", cooldown=0.4),
    ema=0.99,
    watch=Watch(every=250, sizes=(20, 26), count=200),
    chosen_on=ChosenOn((20, 26)),
)
UP_TO_DOUBLE = ChosenOn((20, 26, 30, 40), ("uniform", "hard", "families"))  # up to twice the training length
UP_TO_TRIPLE = ChosenOn((20, 26, 30, 40, 60), ("uniform", "families"))
# The base of recipes that train longer.
LONG_TRAINING = replace(
    WINDOWED,
    clip=0.5,
    ema=0.998,
    watch=Watch(every=200, sizes=(20, 26), count=200),
)
HALTING: dict[str, Any] = {"objective": Halting(), "stopping": Halted()}  # the model decides when to stop


def looped_parity() -> Recipe:
    """Our model for parity: each loop sees only the left neighbour, at any length. Expect exact match 1.00
    at three times the training length; a seed takes two minutes of one CPU thread."""
    return replace(WINDOWED, name="looped-parity", chosen_on=ChosenOn((20, 26, 60)))


def halting_parity() -> Recipe:
    """``looped-parity`` that stops by itself, without T(n): in training, a quarter of the rows stop too early, and
    their target is the empty answer. The mark of the first bit moves one position per loop: when it reaches the ``=``,
    all bits have been seen. Expect exact match 1.00 at three times the training length; a seed takes a minute of one
    CPU thread."""
    return replace(
        WINDOWED,
        name="halting-parity",
        loops=AnyLoops(offset=0, extra=0, early=0.25),
        model=replace(SMALL_MODEL, positions=(Local(reach=1), Mark())),
        families=0.5,
        family_names=("few-in-runs",),
        chosen_on=UP_TO_TRIPLE,
        **HALTING,
    )


def looped_copy() -> Recipe:
    """Our model for copy: each loop moves the row on by one position. The model stops by itself when the mark of the
    first symbol reaches the ``=``. Expect every family to be right at 1.5 times the training length, and most families
    at twice the training length; a seed takes five minutes of one CPU thread."""
    return replace(
        halting_parity(),
        name="looped-copy",
        chosen_on=UP_TO_TRIPLE,
        task=Copy(),
        # Not ``Local``, whose bias per offset makes accuracy drop at shorter lengths (docs/lab).
        model=replace(SMALL_MODEL, positions=(LocalHeads(count=4), Mark())),
        steps=4000,
        batch=48,
        optimizer=AdamW(rate=7e-4, betas=(0.9, 0.95)),
        schedule=Schedule("cosine", cooldown=0.6),
        clip=0.5,
        ema=0.998,
    )


def looped_addition() -> Recipe:
    """Our model for binary addition: half of the heads see the left neighbour, half the same digit position of each
    number. Digits are thus paired without counting, and move past the carries by one position per loop. The answer is
    empty until the mark of the first position reaches the ``=``; then the model stops. A seed takes 25 minutes of one
    CPU thread. Expect exact match .99 or more on uniform sums at twice the training length and, in two of three seeds,
    .95 or more on every family at 1.5 times the training length."""
    return replace(
        LONG_TRAINING,
        name="looped-addition",
        chosen_on=UP_TO_DOUBLE,
        task=Addition(2, "most", True, True),
        loops=AnyLoops(offset=0, extra=0, early=0.3),
        model=replace(SMALL_MODEL, layers=3, positions=(*COLUMN_WINDOWS, Mark())),
        steps=4000,
        batch=48,
        # A large eps: steps vanish with the gradients, so that the model does not forget what it learned (docs/lab).
        optimizer=AdamW(rate=5e-4, betas=(0.9, 0.95), eps=1e-4),
        schedule=Schedule("cosine", cooldown=0.5),
        families=0.5,
        family_names=(*CARRY_FAMILIES, "runs", "alternating", "long-carry", "highest-and-one"),
        **HALTING,
    )


def columns_addition() -> Recipe:
    """An earlier form of ``looped-addition``, without the mark, trained for 1,800 steps. At twice the training length
    it solves uniform sums, but not complements. Ablations are based on this recipe."""
    return replace(
        WINDOWED,
        name="columns-addition",
        task=Addition(2, "most", True, True),
        model=replace(SMALL_MODEL, layers=3, positions=COLUMN_WINDOWS),
        steps=1800,
        optimizer=AdamW(rate=5e-4),
        schedule=Schedule("cosine", cooldown=0.5),
        hard=0.33,
        watch=Watch(every=100, sizes=(20, 26), count=200),
        chosen_on=ChosenOn((20, 26, 30), ("uniform", "hard")),
    )


def short_binary_sum() -> Recipe:
    """Our model for the binary sum, trained to 20 bits: n loops of three layers that see only the left neighbour. Three
    fifths of the problems are structured, since uniform bits rarely have sums near n. A seed takes 20 minutes of one
    CPU thread; expect most sums of 30 bits to be right, but not sums of 31 ones in longer rows."""
    return replace(
        LONG_TRAINING,
        name="short-binary-sum",
        chosen_on=UP_TO_DOUBLE,
        task=BinarySum(),
        model=replace(SMALL_MODEL, layers=3),
        steps=7500,
        batch=64,
        # A large eps: steps vanish with the gradients, so that the model does not forget what it learned.
        optimizer=AdamW(rate=7e-4, betas=(0.9, 0.95), eps=1e-5),
        schedule=Schedule("cosine", cooldown=0.6),
        families=0.6,
        family_names=("uniform-count", "few-in-runs", "near-power-of-two", "mostly-highest", "two-blocks"),
    )


def looped_binary_sum() -> Recipe:
    """``short-binary-sum`` that counts past 32 ones: trained to 36 bits, with rows of 7, 8, 15, 16, 31 and 32 ones,
    since training must contain the carries at powers of two. Training starts with up to ten bits, so that the model
    learns one rule for all positions of the answer. A seed takes 45 minutes of one CPU thread; only one seed was
    trained."""
    sums = short_binary_sum()
    return replace(
        sums,
        name="looped-binary-sum",
        lengths=Curriculum(top=36, every=60, start=10),
        steps=5000,
        families=0.7,
        family_names=(*sums.family_names, *(f"{count}-ones" for count in (7, 8, 15, 16, 31, 32))),
        watch=Watch(every=200, sizes=(36, 46)),
        chosen_on=ChosenOn((36, 40, 46), ("uniform", "hard", "families")),
    )


def halting_binary_sum() -> Recipe:
    """``looped-binary-sum`` that stops by itself. A clock runs beside the layers that count: one small layer that sees
    the left neighbour and the mark of the first bit, but no bits. In training, a tenth of the rows stop too early; they
    train only the clock. A model that both counts and detects the last bit does not count beyond the training lengths,
    and a clock that sees bits stops early on long rows (docs/lab). A seed takes half an hour of one CPU thread; only
    one seed was trained."""
    sums = looped_binary_sum()
    return replace(
        sums,
        name="halting-binary-sum",
        lengths=Mastery(top=40, start=10),
        watch=Watch(every=200, sizes=(40, 50)),
        chosen_on=ChosenOn((40, 50), ("uniform", "families")),
        loops=AnyLoops(offset=0, extra=0, early=0.1),
        model=Timed(answers=sums.model, merge_symbols=True),
        **HALTING,
    )


def looped_multiplication() -> Recipe:
    """Our model for products of 1 or 2 bits and n bits: n₁·n₂ + 2 loops, with heads as for addition. The first position
    is marked: without the mark no weights can distinguish 11 * 1 from 1 * 1, since averaging a digit with an equal
    neighbour changes nothing. Rows take up to twenty more loops in training, so that finished digits stay. A clock
    stops the model. It has two layers, since one operand determines how fast its mark moves along the other. Beyond the
    training lengths the clock may be early, so the answer is taken four loops later. A seed takes 20 minutes of one CPU
    thread; expect every family to be right at the training length."""
    return replace(
        LONG_TRAINING,
        name="looped-multiplication",
        task=Multiplication(),
        lengths=Curriculum(top=11, every=80, max_per_axis=(2, 11)),
        loops=AnyLoops(offset=2, extra=20, early=0.1),
        model=Timed(
            answers=replace(SMALL_MODEL, layers=4, positions=(*COLUMN_WINDOWS, Mark())),
            clock=replace(SMALL_MODEL, width=32, layers=2, positions=(Local(reach=1), Mark())),
        ),
        objective=Halting(offset=2),
        steps=2800,
        optimizer=AdamW(rate=5e-4, betas=(0.9, 0.95)),
        ema=0.995,
        families=0.4,
        family_names=("high-digits", "powers", "runs", "palindrome", "odd-one-out"),
        stopping=Halted(delay=4),
        watch=Watch(every=100, sizes=(11, 14), count=200),
        chosen_on=ChosenOn((11, 14, 15), ("uniform", "hard", "families")),
    )


def looped_unique_set() -> Recipe:
    """Our model for the unique set: one head sees the left neighbour; the other head finds equal symbols at all earlier
    positions. Three fifths of the problems are structured: a symbol has to find its own copies among many copies of
    another. The model stops by itself. A seed takes 45 minutes of one CPU thread; expect exact match .99 or more on
    every family at 1.5 times the training length."""
    positions = (LocalHeads(1), EarlierHeads(1), Mark())
    odd = ("odd-end", "odd-one-out", "two-odd", "in-order", "palindrome")
    return replace(
        LONG_TRAINING,
        name="looped-unique-set",
        chosen_on=UP_TO_DOUBLE,
        task=UniqueSet(),
        lengths=Curriculum(top=20, every=80, start=3, hold_steps=200),
        loops=AnyLoops(offset=0, extra=0, early=0.25),
        # Two wide heads instead of four: keys need about 50 dimensions to distinguish 50 symbols.
        model=replace(SMALL_MODEL, width=128, layers=3, heads=2, positions=positions, embedding_std=1.0),
        steps=4200,
        batch=64,
        # At a rate of 1e-3 with the default eps, heads of this width forgot all they had learned (docs/lab).
        optimizer=AdamW(rate=7e-4, betas=(0.9, 0.95), eps=1e-5),
        schedule=Schedule("cosine", cooldown=0.65),
        families=0.6,
        family_names=("few-symbols", "few-in-runs", "two-symbols", *odd),
        **HALTING,
    )


def looped_bitwise_or() -> Recipe:
    """Bitwise or of vectors of any length, always in two loops: no information has to travel along the row. Half of the
    heads see the left neighbour, half the digit position of the next symbol, in both vectors. Expect exact match 1.00
    at five times the training length; a seed takes half a minute of one CPU thread."""
    return replace(
        WINDOWED,
        name="looped-bitwise-or",
        task=BitwiseOr(),
        lengths=Uniform(20),
        loops=Constant(2),
        model=replace(SMALL_MODEL, positions=AHEAD),
        steps=600,
        optimizer=AdamW(rate=1e-3),
        families=0.5,
        watch=Watch(every=100, sizes=(20, 26), count=200),
        chosen_on=ChosenOn((20, 26, 30, 40), ("uniform", "families")),
    )


def looped_flipped_copy() -> Recipe:
    """Copy all bits, flipped if their parity is odd, in 2n loops: parity moves along the bits, then along the answer. A
    clock stops the model; its mark moves by one position every two loops. In training, rows take up to five more loops,
    so that a finished answer stays (docs/lab). Expect exact match .99 on uniform rows at twice the training length, and
    lower scores on some families; a seed takes a quarter of an hour of one CPU thread."""
    return replace(
        LONG_TRAINING,
        name="looped-flipped-copy",
        task=FlippedCopy(),
        # Some seeds need many steps for three bits, so a fixed schedule of lengths would be too fast.
        lengths=Mastery(top=20, every=50, pass_accuracy=0.9),
        loops=AnyLoops(offset=0, extra=5, early=0.1),
        model=Timed(answers=replace(SMALL_MODEL, layers=2, positions=(*AHEAD, Mark()))),
        steps=3000,
        # Once all rows are right, gradients vanish, and a rare wrong row would move weights far. A large eps and a
        # small second beta prevent this.
        optimizer=AdamW(rate=5e-4, betas=(0.9, 0.95), eps=1e-5),
        schedule=Schedule("cosine", cooldown=0.6),
        ema=0.995,
        families=0.5,
        family_names=("few-in-runs", "odd-one-out", "mostly-lowest", "mostly-highest", "alternating"),
        watch=Watch(every=100, sizes=(20, 26), count=200),
        chosen_on=ChosenOn((20, 26, 30, 40), ("uniform", "families")),
        **HALTING,
    )


CONTROLLED_RECIPES = {
    "parity": looped_parity,
    "copy": looped_copy,
    "addition": looped_addition,
    "binary-sum": short_binary_sum,
    "multiplication": looped_multiplication,
    "unique-set": looped_unique_set,
}
