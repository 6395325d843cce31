"""What the runners of models that read from left to right share: rows without padding, position after position."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Inputs
from lengthwise.depth import Runner
from lengthwise.depth.plain import Plain
from lengthwise.fast import claims
from lengthwise.fast.groups import by_length, in_order
from lengthwise.fast.packing import Packing
from lengthwise.fast.ragged import picked
from lengthwise.models import Model

TOGETHER = 32_768  # positions, padding counted, that are computed quickest at a time, about


class Sequential(Runner):
    """For a model whose state is "r t d", and at first the embedded input."""

    model: Any
    kind: ClassVar[type[Model]]
    parts: ClassVar[claims.Known]

    @classmethod
    def meant(cls, model: Model) -> bool:
        """Is this a model of the kind?"""
        return isinstance(model, cls.kind)

    @classmethod
    def declines(cls, model: Model) -> str | None:
        """Why it is not claimed; None where it is."""
        return claims.declined(model, cls.parts)

    @abstractmethod
    def along(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        """One loop over all that is no padding, packed."""

    def last(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"], *, untracked: int = 0
    ) -> Float[Tensor, "n v"]:
        if untracked or int(loops.max()) > 1:
            return Plain(_Looped(self)).last(inputs, loops, at, untracked=untracked)
        rows, logits = by_length(inputs, TOGETHER), []
        for group in rows:
            part = inputs.take(group).narrow()
            packing, wanted = Packing.of(part.padding_mask), at[group, : part.tokens.shape[1]]
            found = self.along(self.model.embed(part), packing)
            logits.append(self.model.readout(picked(found, packing.find(wanted))))
        return in_order(torch.cat(logits), torch.cat(rows), at)

    def each(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"]
    ) -> Iterator[tuple[int, Int[Tensor, " r"], Float[Tensor, "n v"]]]:
        return Plain(_Looped(self)).each(inputs, loops, at)


class _Looped(Model):
    """The same model, each loop of it run fast."""

    def __init__(self, runner: Sequential) -> None:
        super().__init__()
        self.runner = runner

    def embed(self, inputs: Inputs) -> tuple[Float[Tensor, "b t d"], Bool[Tensor, "b t"]]:
        return self.runner.model.embed(inputs), inputs.padding_mask

    def start(self, context: Any) -> Float[Tensor, "r t d"]:
        return context[0]

    def advance(self, state: Float[Tensor, "r t d"], context: Any) -> Float[Tensor, "r t d"]:
        packing = Packing.of(context[1])
        return packing.unpack(self.runner.along(state, packing), state.shape[1])

    def read(self, state: Float[Tensor, "r t d"]) -> Float[Tensor, "r t v"]:
        return self.runner.model.read(state)
