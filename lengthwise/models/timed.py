"""A model with a clock, which is a smaller looped model that decides when the answer is done.

In adaptive computation time (Graves 2016), the halting unit reads the state of the model that it halts. Such a model
may count in ways that fail beyond the training lengths (docs/lab). Here the two models share only their input.
``Halting`` trains the clock, and trains the answers as ``Final`` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from lengthwise.base.types import END, EQUALS, PAUSE, Inputs, UsageError, Vocab
from lengthwise.models import Model, ModelSpec
from lengthwise.models.transformer import Transformer
from lengthwise.nn.position import Mark
from lengthwise.nn.window import Local

WAITS, DONE = 0, 1  # outputs of the clock


@dataclass(frozen=True)
class Timed(ModelSpec, former_names={"blind": "merge_symbols"}):
    """A model with a clock: ``answers`` computes the answer; ``clock``, advanced equally often, decides whether it is
    done. An answer's first symbol is predicted at the ``=``. There the end symbol means "no answer yet" and gets the
    probability that the clock waits; the model ``answers`` distributes the rest over the other symbols. At all other
    positions the logits are those of ``answers``.

    With ``Halting``, ``AnyLoops`` and ``Halted``, only the clock has a loss on a row that stops early. Raises
    UsageError for a layout without ``=`` or end symbol, or with pauses, which move the first position of the answer.
    """

    answers: ModelSpec = Transformer()  # the model that computes the answer
    # The model that halts. Each loop moves the mark of the first position by one, to the = after n loops.
    clock: ModelSpec = Transformer(width=32, positions=(Local(reach=1), Mark()), init_std=0.1, embedding_std=0.3)
    # The clock reads all letters and digits as one symbol: T(n) must then depend on positions only.
    merge_symbols: bool = False

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        return self.clock.vary(self.answers.vary(inputs, generator), generator)

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        if EQUALS not in reads.symbols or END not in writes.symbols or PAUSE in reads.symbols:
            raise UsageError("Timed needs a layout with = and an end symbol, but no pauses, e.g. FullOutput")
        answers = self.answers.build(reads, writes, causal=causal)
        clock = self.clock.build(reads, Vocab(("waits", "done")), causal=causal)
        if not isinstance(answers, Model) or not isinstance(clock, Model):
            raise UsageError("answers and clock of Timed must be models that can be looped, e.g. Transformer")
        return TimedModel(answers, clock, reads, writes, self.merge_symbols)


class TimedState(NamedTuple):
    """The states of both models, and a mask of each row's ``=``, which predicts the answer's first symbol."""

    answers: Any
    clock: Any
    is_first_slot: Bool[Tensor, "r t"]


class TimedModel(Model):
    """The model of ``Timed``. The context, like the state, is a ``TimedState``."""

    def __init__(self, answers: Model, clock: Model, reads: Vocab, writes: Vocab, merge_symbols: bool) -> None:
        super().__init__()
        self.answers, self.clock = answers, clock
        self.equals_id, self.end_id = reads.id(EQUALS), writes.id(END)
        # The id that the clock reads for each symbol. Merged symbols, all letters and digits, have the id of the first.
        merged = [symbol.isalnum() for symbol in reads.symbols]
        ids = [merged.index(True) if is_merged else number for number, is_merged in enumerate(merged)]
        self.clock_ids: Tensor | None
        self.register_buffer("clock_ids", torch.tensor(ids) if merge_symbols else None, persistent=False)

    def embed(self, inputs: Inputs) -> TimedState:
        answers = self.answers.embed(inputs)
        return TimedState(answers, self.clock.embed(self.build_clock_inputs(inputs)), self.build_clock_mask(inputs))

    def build_clock_inputs(self, inputs: Inputs) -> Inputs:
        """Return the clock's inputs: if ``merge_symbols``, with one id for all letters and digits."""
        return inputs if self.clock_ids is None else replace(inputs, tokens=self.clock_ids[inputs.tokens])

    def build_clock_mask(self, inputs: Inputs) -> Bool[Tensor, "b t"]:
        """Return a mask of the positions at which the clock changes the logits."""
        return inputs.tokens == self.equals_id

    def start(self, context: TimedState) -> TimedState:
        return TimedState(self.answers.start(context.answers), self.clock.start(context.clock), context.is_first_slot)

    def advance(self, state: TimedState, context: TimedState) -> TimedState:
        answers = self.answers.advance(state.answers, context.answers)
        return TimedState(answers, self.clock.advance(state.clock, context.clock), state.is_first_slot)

    def read(self, state: TimedState) -> Float[Tensor, "r t v"]:
        return self.combine_logits(self.answers.read(state.answers), self.clock.read(state.clock), state.is_first_slot)

    def answer_state(self, state: TimedState) -> Any:
        return self.answers.answer_state(state.answers)

    def combine_logits(
        self, answers: Float[Tensor, "*n v"], clock: Float[Tensor, "*n 2"], is_first_slot: Bool[Tensor, "*n"]
    ) -> Float[Tensor, "*n v"]:
        """Combine the logits of both models; ``is_first_slot`` is the mask that ``build_clock_mask`` returns."""
        halts = clock.log_softmax(-1)
        ends = torch.arange(answers.shape[-1], device=answers.device) == self.end_id
        symbols = answers.masked_fill(ends, -torch.inf).log_softmax(-1) + halts[..., DONE, None]
        return torch.where(is_first_slot[..., None], torch.where(ends, halts[..., WAITS, None], symbols), answers)
