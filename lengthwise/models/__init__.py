"""Models define what one loop computes; runners repeat it."""

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
from lengthwise.base.files import one_line
from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.models.calling import Call

Context = Any  # tensors with a first axis of rows, or of 1 if all rows share them; non-tensors; or tuples of these
State = Any  # as Context


class Model(nn.Module, ABC):
    """A model as one loop of a computation: c = embed(x), h_0 = start(c), h_{k+1} = advance(h_k, c), logits = read(h).

    A standard model is advanced once, a looped one as often as its recipe's loops say. Dropout and the noise of h_0 are
    the only randomness, and rows do not depend on each other.
    """

    @abstractmethod
    def embed(self, inputs: Inputs) -> Context:
        """Compute what is the same in every loop: the embedded input and the attention bias."""

    @abstractmethod
    def start(self, context: Context) -> State:
        """The state before the first loop, h_0."""

    @abstractmethod
    def advance(self, state: State, context: Context) -> State:
        """Compute one loop."""

    def step(self, state: State, memory: Any) -> tuple[State, Any]:
        """Compute one loop at the next positions, one or more, and return what to remember of them. ``memory`` is None
        before the first position. For causal models; one without it computes the whole row again in decoding."""
        raise NotImplementedError

    @abstractmethod
    def read(self, state: State) -> Float[Tensor, "r t v"]:
        """The logits of every position."""

    def answer_state(self, state: State) -> State:
        """The part of a state that answers are read from. How far a loop moves it says whether a model has settled."""
        return state


def device_of(model: nn.Module) -> torch.device:
    """Where a model computes; the CPU if it has neither parameters nor buffers."""
    return next(chain(model.parameters(), model.buffers()), torch.empty(0)).device


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Context manager: on exit, each of a model's modules has its ``training`` flag back, which ``eval`` overwrites."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


class ModelSpec(Config):
    """The configuration of a model. Subclasses are frozen dataclasses."""

    @abstractmethod
    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model | nn.Module:
        """Build a new model, initialised with torch's global generator, which a recipe seeds and holds meanwhile. Other
        modules are wrapped in ``SinglePass``."""

    @property
    def seedless(self) -> ModelSpec:
        """What the seeds of one recipe share: itself, unless it holds given weights."""
        return self

    @property
    def offsets(self) -> int:
        """How many of its positional encodings add a random offset to digit positions in training."""
        return sum(position.moves_digits for position in getattr(self, "positions", ()))

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        """Augment the inputs of a training batch, e.g. shift positions; not used at test."""
        return inputs


class SinglePass(Model):
    """Wraps a module that maps tokens "b t" to logits "b t v" as a model that is advanced once.

    If its ``forward`` has a parameter ``padding_mask`` or ``attention_mask``, it gets the mask "b t", True or 1 for a
    real token. Logits may also be the ``logits`` of an object or a dictionary, or stand in a tuple, as those of
    transformers and nanoGPT do; in 16 bits they are widened to 32. UsageError if there are none of this shape.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.call = Call.of(module)

    def embed(self, inputs: Inputs) -> Context:
        return inputs.tokens, inputs.padding_mask

    def start(self, context: Context) -> State:
        return context[0]

    def advance(self, state: State, context: Context) -> State:
        tokens, padding_mask = context
        try:
            return self.call.logits(self.module, tokens, padding_mask)
        except (IndexError, RuntimeError, AssertionError) as error:
            if not lacks_positions(error):
                raise
            said = too_few_positions(tokens.shape[1], error)
            raise TooFewPositions(f"{type(self.module).__name__} {said}") from error

    def read(self, state: State) -> Float[Tensor, "r t v"]:
        return state


class TooFewPositions(UsageError, IndexError):
    """A module fails on rows of this length, or does not know a symbol."""


def lacks_positions(error: Exception) -> bool:
    """Is this how a module fails where a table of positions or symbols ends, or a row does not fit what it is added to;
    or how it says so, as nanoGPT and x-transformers assert it?"""
    if isinstance(error, (IndexError, AssertionError)):
        return True
    return any(said in str(error) for said in ("must match the size of tensor", "must match the existing size"))


def too_few_positions(count: int, error: Exception) -> str:
    """What a message says of a module that fails on rows of ``count`` positions."""
    return (
        f"fails on rows of {count} positions ({type(error).__name__}: {one_line(error)}): if it has fewer, give it "
        "more, or shorter problems"
    )
