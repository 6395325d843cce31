"""Training steps in several parts, for a device whose memory does not hold the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lengthwise.base.types import Inputs
from lengthwise.models import device_of
from lengthwise.runners import Logits, LoopLogits, RowLoops, Runner, Selected


class MicroBatches(Runner):
    """Runs the rows of a batch in parts, one after the other, and recomputes each part for its gradients.

    Memory then holds the activations of one part, and only logits of all parts. Objectives see the whole batch: losses
    and gradients equal those of the inner runner, up to the order of sums.
    """

    def __init__(self, runner: Runner, parts: int) -> None:
        super().__init__(runner.model)
        self.runner, self.parts = runner, parts

    def last(self, inputs: Inputs, loops: RowLoops, at: Selected, *, no_grad_loops: int = 0) -> Logits:
        def logits(rows: slice) -> Float[Tensor, "m v"]:
            return self.runner.last(inputs.take(rows), loops[rows], at[rows], no_grad_loops=no_grad_loops)

        return torch.cat([self._recompute(logits, rows) for rows in self._rows(len(loops))])

    def each(self, inputs: Inputs, loops: RowLoops, at: Selected) -> LoopLogits:
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for rows in self._rows(len(loops)):
            order: list[tuple[int, Tensor]] = []

            def logits(rows: slice = rows, order: list[tuple[int, Tensor]] = order) -> tuple[Tensor, ...]:
                steps = [*self.runner.each(inputs.take(rows), loops[rows], at[rows])]
                order[:] = [(k, ran + rows.start) for k, ran, _ in steps]
                return tuple(own for *_, own in steps)

            for own, (k, ran) in zip(self._recompute(logits), order, strict=True):
                found.setdefault(k, []).append((ran, own))
        for k, parts in found.items():
            rows, own = zip(*parts, strict=True)
            yield k, torch.cat(rows), torch.cat(own)

    def _rows(self, count: int) -> Sequence[slice]:
        size = -(-count // self.parts)
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def _recompute(self, function: Callable[..., Any], *given: Any) -> Any:
        """Return the function's result without keeping anything else; it is called again for gradients."""
        # A tensor on the device: torch preserves the generators of its arguments' devices, for dropout.
        there = torch.empty(0, device=device_of(self.model))
        return checkpoint(lambda _, *rest: function(*rest), there, *given, use_reentrant=False)
