"""A model with a clock: a smaller looped model beside it, which says whether it is done.

The halting unit of adaptive computation time (Graves 2016) reads the state of the model that it halts. Then what knows
that it is done need not have the answer so far ready at every loop, and may count in ways that end where training did
(docs/lab). Here the two share nothing but the row: ``Halting`` teaches the clock, and the answers as ``Final`` would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import END, EQUALS, PAUSE, Vocab
from lengthwise.models import Model, ModelSpec
from lengthwise.models.transformer import Transformer
from lengthwise.nn.position import Mark
from lengthwise.nn.window import Local

WAITS, DONE = 0, 1  # what a clock may say


@dataclass(frozen=True)
class Timed(ModelSpec):
    """``answers`` computes the answer, ``clock``, advanced as often, whether it is done. At the ``=``, which predicts
    an answer's first symbol, the end symbol, for no answer yet, has the probability that the clock waits; what is left
    goes to the other symbols, in the proportions of ``answers``. Elsewhere its logits are those of ``answers``.

    With ``Halting``, ``AnyLoops`` and ``Halted``, the loss of a row that stops early is the clock's alone. Raises
    UsageError for a layout without ``=`` or end symbol, or with pauses, after which another position is the first.
    """

    answers: ModelSpec = Transformer()  # what answers
    # what says when: a loop takes the mark of the first position one further, so it is at the = after n loops
    clock: ModelSpec = Transformer(width=32, positions=(Local(reach=1), Mark()), init_std=0.1, embedding_std=0.3)
    blind: bool = False  # to the clock all letters and digits are one symbol: T(n) follows from where they stand

    @property
    def offsets(self) -> int:
        return self.answers.offsets + self.clock.offsets

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        return self.clock.vary(self.answers.vary(inputs, generator), generator)

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        if EQUALS not in reads.symbols or END not in writes.symbols or PAUSE in reads.symbols:
            raise UsageError("Timed is for a layout with = and an end symbol, without pauses, e.g. FullOutput")
        answers = self.answers.build(reads, writes, causal=causal)
        clock = self.clock.build(reads, Vocab(("waits", "done")), causal=causal)
        if not isinstance(answers, Model) or not isinstance(clock, Model):
            raise UsageError("answers and clock of Timed are models that can be looped, e.g. Transformer")
        return TimedModel(
            answers, clock, reads.id(EQUALS), writes.id(END), _blind_symbols(reads) if self.blind else None
        )


def _blind_symbols(reads: Vocab) -> Int[Tensor, " v"]:
    """What a blind clock reads for each symbol: for every letter and digit the first of them."""
    alike = [symbol.isalnum() for symbol in reads.symbols]
    return torch.tensor([alike.index(True) if one else number for number, one in enumerate(alike)])


class TimedState(NamedTuple):
    """The states of both, and where a row has its ``=``."""

    answers: Any
    clock: Any
    first: Bool[Tensor, "r t"]


class TimedModel(Model):
    """The model of ``Timed``. The context has the form of the state."""

    def __init__(self, answers: Model, clock: Model, equals: int, end: int, seen: Int[Tensor, " v"] | None) -> None:
        super().__init__()
        self.answers, self.clock = answers, clock
        self.equals, self.end = equals, end
        self.seen: Tensor | None
        self.register_buffer("seen", seen, persistent=False)

    def embed(self, inputs: Inputs) -> TimedState:
        return TimedState(self.answers.embed(inputs), self.clock.embed(self.clock_inputs(inputs)), self.firsts(inputs))

    def clock_inputs(self, inputs: Inputs) -> Inputs:
        """What the clock reads."""
        return inputs if self.seen is None else replace(inputs, tokens=self.seen[inputs.tokens])

    def firsts(self, inputs: Inputs) -> Bool[Tensor, "b t"]:
        """Where the clock is asked."""
        return inputs.tokens == self.equals

    def start(self, context: TimedState) -> TimedState:
        return TimedState(self.answers.start(context.answers), self.clock.start(context.clock), context.first)

    def advance(self, state: TimedState, context: TimedState) -> TimedState:
        answers = self.answers.advance(state.answers, context.answers)
        return TimedState(answers, self.clock.advance(state.clock, context.clock), state.first)

    def read(self, state: TimedState) -> Float[Tensor, "r t v"]:
        return self.join_logits(self.answers.read(state.answers), self.clock.read(state.clock), state.first)

    def answer_state(self, state: TimedState) -> Any:
        return self.answers.answer_state(state.answers)

    def join_logits(
        self, answers: Float[Tensor, "*n v"], clock: Float[Tensor, "*n 2"], first: Bool[Tensor, "*n"]
    ) -> Float[Tensor, "*n v"]:
        """The logits of both as those of the whole."""
        said = clock.log_softmax(-1)
        ends = torch.arange(answers.shape[-1], device=answers.device) == self.end
        symbols = answers.masked_fill(ends, -torch.inf).log_softmax(-1) + said[..., DONE, None]
        return torch.where(first[..., None], torch.where(ends, said[..., WAITS, None], symbols), answers)
