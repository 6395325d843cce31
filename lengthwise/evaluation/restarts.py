"""Random first states at test, so that a model may try a problem again (``Restarts``)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.base.rng import stream
from lengthwise.base.types import Inputs, UsageError
from lengthwise.models import Model, State


def from_start(model: Model, number: int) -> Model:
    """Return the model with another first state: its own for ``number`` 0, else a random one (see ``RandomStart``).
    Raises UsageError if its first state is never random."""
    return RandomStart(model, number) if number else model


class RandomStart(Model):
    """A model whose first state is h_0 + σ ε, with σ its ``start_noise`` and ε standard normal. A row's ε follows from
    its own symbols and ``number``: neither other rows nor padding change it."""

    def __init__(self, model: Model, number: int) -> None:
        super().__init__()
        if not model.start_noise:
            raise UsageError(
                f"{type(model).__name__} starts from one state here: Restarts needs a model whose first state is "
                "random in training, e.g. Transformer(noise=1)"
            )
        self.model, self.number = model, number

    def embed(self, inputs: Inputs) -> tuple[Any, Int[Tensor, "b t"], Tensor]:
        return self.model.embed(inputs), inputs.tokens, inputs.padding_mask

    def start(self, context: tuple[Any, Tensor, Tensor]) -> State:
        inner, tokens, padding_mask = context
        state = self.model.start(inner)
        noise = torch.zeros(state.shape)
        for row, (symbols, real) in enumerate(zip(tokens.cpu(), padding_mask.cpu(), strict=True)):
            generator = stream(self.number, "start", *symbols[real].tolist())
            noise[row, real] = torch.randn(int(real.sum()), *state.shape[2:], generator=generator)
        return state + self.model.start_noise * noise.to(state)

    def advance(self, state: State, context: tuple[Any, Tensor, Tensor]) -> State:
        return self.model.advance(state, context[0])

    def read(self, state: State) -> Float[Tensor, "r t v"]:
        return self.model.read(state)

    def answer_state(self, state: State) -> State:
        return self.model.answer_state(state)
