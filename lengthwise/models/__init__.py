"""Models: what one loop of a computation does. How often it is done, and how, is a runner's business (``depth``)."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Generator, Tensor, nn

from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab

Context = Any  # tensors whose first axis is the row, or is 1 for all rows alike; what is no tensor; or tuples of these
State = Any  # likewise


class Model(nn.Module, ABC):
    """One loop of a computation that may be repeated: ``embed`` what stays the same, ``start`` a state, ``advance`` it,
    ``read`` it. A standard model is advanced once, a looped one T(n) times. It has no randomness but dropout, and no
    row depends on another one."""

    @abstractmethod
    def embed(self, inputs: Inputs) -> Context:
        """All that stays the same from loop to loop, attention biases too."""

    @abstractmethod
    def start(self, context: Context) -> State:
        """The state before the first loop, h_0."""

    @abstractmethod
    def advance(self, state: State, context: Context) -> State:
        """One loop."""

    @abstractmethod
    def read(self, state: State) -> Float[Tensor, "r t v"]:
        """The logits of every position."""


class ModelSpec(ABC):
    """The configuration of a model. Subclasses are frozen dataclasses."""

    @abstractmethod
    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model | nn.Module:
        """A new model, initialised with torch's global generator. A plain module, tokens → logits, will be wrapped."""

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        """What a model is shown of a batch in training, where that is to differ from test."""
        return inputs


class Once(Model):
    """Any module of tokens "b t" → logits "b t v", as a model advanced once. A module whose ``forward`` has a parameter
    named ``padding_mask`` is given it: "b t", True for a real token."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.masked = "padding_mask" in inspect.signature(module.forward).parameters

    def embed(self, inputs: Inputs) -> Context:
        return inputs.tokens, inputs.padding_mask

    def start(self, context: Context) -> State:
        return context[0]

    def advance(self, state: State, context: Context) -> State:
        tokens, padding_mask = context
        logits = self.module(tokens, padding_mask=padding_mask) if self.masked else self.module(tokens)
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != tokens.shape:
            found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UsageError(
                f"a module takes tokens {tuple(tokens.shape)} to logits (rows, positions, vocabulary), "
                f"but {type(self.module).__name__} gave {found}"
            )
        return logits

    def read(self, state: State) -> Float[Tensor, "r t v"]:
        return state
