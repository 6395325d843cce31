"""Families: kinds of structured problems, each with a name. They are rare among uniform problems."""

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
    """One kind of structured problem. ``sample`` draws one problem per row of sizes, of exactly these sizes. Sizes
    below ``smallest``, on the first axis, are neither measured nor drawn for training."""

    name: str
    about: str  # one sentence
    sample: Sampler
    smallest: int = 0

    @staticmethod
    def of(function: Callable[..., object], sample: Sampler, about: str = "") -> Family:
        """Name a family after a function (``one_symbol`` → ``one-symbol``), and describe it by ``about`` or the
        function's docstring."""
        docstring = " ".join((function.__doc__ or "").split("\n\n")[0].split())
        return Family(function.__name__.strip("_").replace("_", "-"), about or docstring, sample)


def draw_mixture(families: Sequence[Family], sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
    """Draw one problem per row of sizes, each from a uniform family among those whose ``smallest`` admits the size
    (from the first family if none does). Rows of one family are contiguous."""
    fits = sizes[:, 0] >= torch.tensor([[family.smallest] for family in families])
    chosen = torch.randint(len(families), (len(sizes),), generator=generator) % fits.sum(0).clamp(min=1)
    chosen = fits.int().argsort(dim=0, descending=True, stable=True).gather(0, chosen[None])[0]
    rows = ((family, sizes[chosen == number]) for number, family in enumerate(families))
    return Problems.join([family.sample(own_sizes, generator) for family, own_sizes in rows if len(own_sizes)])


def choose_families(families: Sequence[Family], names: Sequence[str], task: str) -> Sequence[Family]:
    """Return the families with these names, or all without names. Raises UsageError for an unknown name."""
    known = {family.name: family for family in families}
    for name in names:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise UsageError(f"{task} has no family {name!r}{suggest(name, known)}; it has: {listed}")
    return [known[name] for name in names] if names else families
