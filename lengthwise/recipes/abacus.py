"""Abacus embeddings and looped decoders (McLeish et al. 2024), and what a reproduction of them took.

``abacus-addition`` is ours, at a small width; ``abacus-<architecture>-<positions>`` compare at equal budget;
``paper-abacus-…`` and ``blog-abacus-addition`` are as published, for a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from lengthwise.layout import NextToken
from lengthwise.lengths import Uniform
from lengthwise.loops import Constant
from lengthwise.models.transformer import Injection, Transformer
from lengthwise.nn.position import Abacus
from lengthwise.objectives.final import Final
from lengthwise.objectives.progressive import Progressive
from lengthwise.optim import AdamW, Schedule
from lengthwise.recipe import Recipe, Watch
from lengthwise.tasks.addition import Addition

PROBES = ("1+1", "57+24", "999999+8888", f"{'789' * 50}+{'12' * 20}")
DEPTH = 16  # effective layers as published


class Split(NamedTuple):
    """How ``DEPTH`` effective layers are split into layers and loops, and how the input is injected."""

    layers: int
    injection: Injection = "add"

    @property
    def loops(self) -> int:
        return DEPTH // self.layers


SPLITS = {
    "16x1": Split(16, "once"),
    "16x1-injection": Split(16, "layers"),
    "8x2": Split(8),
    "4x4": Split(4),
    "1x16": Split(1),
}


def paper() -> dict[str, Recipe]:
    """A decoder of McLeish et al. 2024 as published: width 1024, 20 million sums of up to 20 digits; for a GPU."""
    found = [_published(name, split) for name, split in SPLITS.items()]
    return {recipe.name: recipe for recipe in found}


def _published(name: str, split: Split) -> Recipe:
    # Batches are of one size: the published one grows to 8,192 over the first 60 % of the run.
    model = Transformer(
        width=1024,
        layers=split.layers,
        heads=16,
        mlp=1,
        gated=True,
        norm="post",
        final_norm="readout",
        embedding_norm=True,
        eps=1e-12,
        biases=False,
        readout="mlp",
        positions=(Abacus(size=511, offset=101),),
        injection=split.injection,
        noise=0.02 if split.loops > 1 else 0.0,
    )
    return Recipe(
        name=f"paper-abacus-{name}",
        task=Addition(order="least"),
        layout=NextToken(),
        lengths=Uniform(20),
        loops=Constant(split.loops),
        model=model,
        objective=Progressive(weight=1.0, truncated=True) if split.loops > 1 else Final(),
        steps=2440,
        batch=8192,
        optimizer=AdamW(rate=1e-4, betas=(0.9, 0.98)),
        schedule=Schedule("trapezoid", warmup=0.1, cooldown=0.1),
        clip=0.5,
        watch=Watch(every=244, sizes=(20, 25), count=100, probes=PROBES),
    )


def blog_abacus_addition() -> Recipe:
    """The published reproduction: one layer, 16 loops, the input read in every layer, and places added to queries and
    keys; 27 hours of one GPU. Expect a mean of 0.61 over 40 × 40 (its text)."""
    model = Transformer(
        width=1024,
        layers=1,
        heads=16,
        mlp=2,
        final_norm="none",
        positions=(Abacus(size=511, offset=100, each_row=True, at="attention"),),
        injection="reads",
    )
    return replace(
        _published("1x16", SPLITS["1x16"]),
        name="blog-abacus-addition",
        model=model,
        objective=Progressive(),
        steps=210_000,
        batch=95,
        optimizer=AdamW(rate=1e-4),
        schedule=Schedule(),
        clip=1.0,
        watch=Watch(every=5000, sizes=(20, 25), count=100, probes=PROBES),
    )


def abacus_addition() -> Recipe:
    """Ours: two layers, two loops, width 128."""
    return Recipe(
        name="abacus-addition",
        task=Addition(order="least"),
        layout=NextToken(),
        lengths=Uniform(20),
        loops=Constant(2),
        model=Transformer(
            width=128, layers=2, heads=4, positions=(Abacus(size=160, offset=100, std=0.3),), init_std=0.05,
            embedding_std=0.5,
        ),
        objective=Progressive(),
        steps=20_000,
        batch=64,
        optimizer=AdamW(rate=1e-3),
        schedule=Schedule("cosine", warmup=0.02, cooldown=0.5),
        ema=0.998,
        watch=Watch(every=500, sizes=(20, 25), count=200, probes=PROBES),
    )  # fmt: skip
