"""The base of runners for recurrent models (LSTM, ReTran), for a CPU.

It skips padding, position by position (``packing``), and splits large batches into groups of rows of about equal
length. Models with several loops use the plain runner's loop over depth, each loop computed fast. Results are equal up
to rounding; with dropout, in distribution.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lengthwise.base.types import Inputs
from lengthwise.models import Model
from lengthwise.runners import Logits, RowLoops, Selected, Steps
from lengthwise.runners.cpu import claims
from lengthwise.runners.cpu.packing import Packing
from lengthwise.runners.cpu.ragged import group_by_length, restore_order, select_unique
from lengthwise.runners.plain import Plain

CELL = dict.fromkeys(("input", "recurrent", "short", "out"), (nn.Linear,))  # the parts of a cell
# Linear layers of cells and of ReTran's layers, and whether they have biases.
BIASED = dict.fromkeys(("input", "short", "out", "query", "key", "value", "mix"), True) | {"recurrent": False}
GROUP_POSITIONS = 32_768  # the fastest size of a group, about, in positions with padding


class Sequential(claims.Claiming):
    """A runner for models whose state is "r t d" and starts as the embedded input."""

    model: Any

    @classmethod
    def declines(cls, model: Model) -> str | None:
        return super().declines(model) or next(filter(None, map(_find_unexpected_bias, model.modules())), None)

    @abstractmethod
    def run_packed(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        """Compute one loop at all real tokens; the result is packed."""

    def last(self, inputs: Inputs, loops: RowLoops, at: Selected, *, no_grad_loops: int = 0) -> Logits:
        # Several loops need states in the batch's order, padded; one loop can stay packed up to the logits.
        if no_grad_loops or int(loops.max()) > 1:
            return Plain(_FastLoops(self)).last(inputs, loops, at, no_grad_loops=no_grad_loops)
        rows, logits = group_by_length(inputs, GROUP_POSITIONS), []
        for group in rows:
            part = inputs.take(group).narrow()
            packing, wanted = Packing.of(part.padding_mask), at[group, : part.tokens.shape[1]]
            found = self.run_packed(self.model.embed(part), packing)
            logits.append(self.model.readout(select_unique(found, packing.find(wanted))))
        return restore_order(torch.cat(logits), torch.cat(rows), at)

    def steps(self, inputs: Inputs, loops: RowLoops, at: Selected, *, movement: bool = False) -> Steps:
        return Plain(_FastLoops(self)).steps(inputs, loops, at, movement=movement)


class _FastLoops(Model):
    """The model with its loops computed by the fast runner, for use with the plain runner."""

    def __init__(self, runner: Sequential) -> None:
        super().__init__()
        self.runner = runner

    def embed(self, inputs: Inputs) -> tuple[Float[Tensor, "b t d"], Bool[Tensor, "b t"]]:
        return self.runner.model.embed(inputs), inputs.padding_mask

    def start(self, context: Any) -> Float[Tensor, "r t d"]:
        return context[0]

    def advance(self, state: Float[Tensor, "r t d"], context: Any) -> Float[Tensor, "r t d"]:
        packing = Packing.of(context[1])
        return packing.unpack(self.runner.run_packed(state, packing), state.shape[1])

    def read(self, state: Float[Tensor, "r t d"]) -> Float[Tensor, "r t v"]:
        return self.runner.model.read(state)


def _find_unexpected_bias(module: nn.Module) -> str | None:
    """Return the linear layer of a cell or layer that has a bias that the formulas lack, or lacks one; None if none
    does."""
    for name, part in module.named_children():
        if type(part) is nn.Linear and name in BIASED and (part.bias is None) == BIASED[name]:
            return f"a linear layer, {name}, is {'without' if BIASED[name] else 'with'} biases"
    return None
