"""The runner of models with a clock, for a CPU: it runs both transformers packed, and joins their logits."""

from __future__ import annotations

from collections.abc import Iterator

from lengthwise.base.types import Inputs
from lengthwise.models import Model
from lengthwise.models.timed import TimedModel
from lengthwise.models.transformer import TransformerModel
from lengthwise.runners import Logits, RowLoops, Selected, Step, Steps
from lengthwise.runners.cpu import claims
from lengthwise.runners.cpu.transformer import PARTS, PackedTransformer, find_injection_conflict


class Twice(claims.Claiming):
    """The runner of ``TimedModel`` of two transformers."""

    model: TimedModel
    kind, parts = TimedModel, {**PARTS, **claims.register_types({TimedModel: {}})}

    @classmethod
    def declines(cls, model: Model) -> str | None:
        if not isinstance(model, TimedModel):
            return "it has no clock"
        known = all(type(one) is TransformerModel for one in (model.answers, model.clock))
        return (super().declines(model) or find_injection_conflict(model)) if known else "its parts are no transformers"

    def __init__(self, model: TimedModel) -> None:
        super().__init__(model)
        self.answers, self.clock = PackedTransformer(model.answers), PackedTransformer(model.clock)

    def _answer_and_clock(self, inputs: Inputs) -> Iterator[tuple[PackedTransformer, Inputs]]:
        """Yield each of the two runners, with its inputs."""
        yield self.answers, inputs
        yield self.clock, self.model.clock_inputs(inputs)

    def last(self, inputs: Inputs, loops: RowLoops, at: Selected, *, no_grad_loops: int = 0) -> Logits:
        answers, clock = (
            one.last(read, loops, at, no_grad_loops=no_grad_loops) for one, read in self._answer_and_clock(inputs)
        )
        return self.model.join_logits(answers, clock, self.model.clock_positions(inputs)[at])

    def steps(self, inputs: Inputs, loops: RowLoops, at: Selected, *, movement: bool = False) -> Steps:
        first, ((one, read), (other, timed)) = self.model.clock_positions(inputs), self._answer_and_clock(inputs)
        # Both run in the same order of rows; what moves is the state that answers.
        answers, clock, stay = one.steps(read, loops, at, movement=movement), other.steps(timed, loops, at), None
        while True:
            try:
                k, rows, answered, moved = answers.send(stay)
                _, _, done, _ = clock.send(stay)
            except StopIteration:
                return
            stay = yield Step(k, rows, self.model.join_logits(answered, done, first[rows][at[rows]]), moved)
