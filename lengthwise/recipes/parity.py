"""Parity of n bits, learned by looping (Fan et al. 2025)."""

from __future__ import annotations

from lengthwise.layout import FullOutput
from lengthwise.lengths import Curriculum
from lengthwise.loops import PerRound
from lengthwise.models.transformer import Transformer
from lengthwise.objectives.final import Final
from lengthwise.optim import AdamW
from lengthwise.recipe import Recipe, Watch
from lengthwise.tasks.parity import Parity


def looped_parity() -> Recipe:
    """FOP-Loop-Adaptive: no positional encoding, input injection, n loops for n bits."""
    return Recipe(
        name="looped-parity",
        task=Parity(),
        layout=FullOutput(),
        lengths=Curriculum(top=20, every=60),
        loops=PerRound(),
        model=Transformer(width=64, init_std=0.1, embedding_std=0.3),
        objective=Final(),
        steps=1500,
        optimizer=AdamW(rate=7e-4),
        ema=0.99,
        watch=Watch(every=250, sizes=(20, 26), count=200),
    )
