"""Families: structured problems of a task, each kind with a name. Uniform problems hardly ever hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.fields import suggest
from lengthwise.base.types import Problems, UsageError

Sampler = Callable[[Int[Tensor, "b axes"], Generator], Problems]


@dataclass(frozen=True)
class Family:
    """One kind of structured problems. ``sample`` draws one problem per row of sizes, of exactly these sizes. Below
    ``smallest``, on the first axis, the family is neither measured nor drawn for training."""

    name: str
    about: str  # one sentence
    sample: Sampler
    smallest: int = 0

    @staticmethod
    def of(function: Callable[..., object], sample: Sampler, about: str = "") -> Family:
        """Named after a function: ``one_symbol`` → ``one-symbol``; described by its docstring's first sentence."""
        said = " ".join((function.__doc__ or "").split("\n\n")[0].split())
        return Family(function.__name__.strip("_").replace("_", "-"), about or said, sample)


def draw_mixture(families: Sequence[Family], sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
    """One problem per row of sizes, each of a family drawn uniformly among those that the size is large enough for
    (of the first where it is too small for all). Rows of one family stand together."""
    fits = sizes[:, 0] >= torch.tensor([[family.smallest] for family in families])
    which = torch.randint(len(families), (len(sizes),), generator=generator) % fits.sum(0).clamp(min=1)
    which = fits.int().argsort(dim=0, descending=True, stable=True).gather(0, which[None])[0]
    rows = ((family, sizes[which == number]) for number, family in enumerate(families))
    return Problems.join([family.sample(asked, generator) for family, asked in rows if len(asked)])


def choose_families(families: Sequence[Family], names: Sequence[str], task: str) -> Sequence[Family]:
    """Those of these names; without names, all. UsageError where there is no such family."""
    known = {family.name: family for family in families}
    for name in names:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise UsageError(f"{task} has no family {name!r}{suggest(name, known)}; it has: {listed}")
    return [known[name] for name in names] if names else families
