"""Models, which define one loop of a computation. Runners repeat this loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from lengthwise.base.fields import Config
from lengthwise.base.types import Inputs, Vocab
from lengthwise.base.types import UsageError as UsageError
from lengthwise.nn.position import Encoding

Context = Any  # tensors with a first axis of rows, or of 1 if all rows share them; non-tensors; or tuples of these
State = Any  # of the same form as Context


class Model(nn.Module, ABC):
    """A model as one loop of a computation: c = embed(x), h_0 = start(c), h_{k+1} = advance(h_k, c), logits = read(h).

    A runner calls ``advance`` once for a standard model, and once per loop for a looped model. Dropout and the noise of
    h_0 are the only sources of randomness, and rows do not depend on each other.
    """

    # Standard deviation of the normal noise that ``start`` adds to h_0 in training (0: none) and ``Restarts`` at test
    # time. With noise, h_0 must be a single tensor "r t …".
    start_noise: float = 0.0

    @abstractmethod
    def embed(self, inputs: Inputs) -> Context:
        """Compute the context, which is the same in every loop: the embedded input and the attention bias."""

    @abstractmethod
    def start(self, context: Context) -> State:
        """Return the state before the first loop, h_0."""

    @abstractmethod
    def advance(self, state: State, context: Context) -> State:
        """Return the state after one more loop."""

    def step(self, state: State, memory: Any) -> tuple[State, Any]:
        """Compute one loop of a causal model at one or more next positions. Return the states of these positions, and
        the memory after the last of them; ``memory`` is None before the first position of a row. For a model without
        ``step``, decoding computes the whole row again for every symbol."""
        raise NotImplementedError

    @abstractmethod
    def read(self, state: State) -> Float[Tensor, "r t v"]:
        """Return the logits of every position."""

    def answer_state(self, state: State) -> State:
        """Return the part of a state from which answers are read. Rules such as ``Settled`` stop a row when further
        loops barely change this part."""
        return state


def get_device(model: nn.Module) -> torch.device:
    """Return a model's device, or the CPU for a model without parameters and buffers."""
    return next(chain(model.parameters(), model.buffers()), torch.empty(0)).device


def find_limited_encodings(model: nn.Module) -> list[Encoding]:
    """Return the model's positional encodings that limit the length of a row, e.g. learned tables."""
    encodings = [part for part in model.modules() if isinstance(part, Encoding)]
    return [encoding for encoding in encodings if type(encoding).check is not Encoding.check]


@contextmanager
def preserve_modes(model: nn.Module) -> Iterator[None]:
    """Restore the ``training`` flags of all modules at the end of a ``with`` block, as ``eval`` overwrites them."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


class ModelSpec(Config):
    """Base class of configurations of models. Subclasses are frozen dataclasses."""

    @abstractmethod
    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model | nn.Module:
        """Build a new model that reads tokens of the vocabulary ``reads`` and returns logits for the symbols of
        ``writes``. With ``causal``, no position may see a later position. Initial weights come from torch's global
        generator, which the recipe seeds. A module that is not a ``Model`` is later wrapped in ``SinglePass``."""

    @property
    def spec_without_seed(self) -> ModelSpec:
        """The configuration without values that differ between a recipe's seeds, e.g. a hash of initial weights."""
        return self

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        """Augment the inputs of a training batch, e.g. shift positions; not used at test time."""
        return inputs


class SequenceModel(Model):
    """Base class of models that read from left to right and define ``step``. The context "r t d" holds the embedded
    tokens; the state "r t d" is the output of a loop."""

    embedding: nn.Module
    readout: nn.Module

    def embed(self, inputs: Inputs) -> Float[Tensor, "r t d"]:
        return self.embedding(inputs.tokens)

    def start(self, context: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return context

    def advance(self, state: Float[Tensor, "r t d"], context: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return self.step(state, None)[0]

    def read(self, state: Float[Tensor, "r t d"]) -> Float[Tensor, "r t v"]:
        return self.readout(state)
