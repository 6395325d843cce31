"""A runner for transformers that uses ``torch.compile``, chosen only on request.

For a small model on a GPU, launching an operation takes longer than computing it, so one loop is compiled into few
kernels. Compiling takes 5 to 50 s per shape, so shapes must recur: rows are padded to a multiple of
``BUCKET_POSITIONS``, and all rows run for the batch's largest number of loops. Finished rows keep their state. Neither
padding nor other rows change a logit, so values and gradients equal those of the plain runner up to rounding. Where
launching is cheap, as on a CPU, computing padding and finished rows costs more than compilation saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.types import Inputs, to_device
from lengthwise.models import Model, get_device
from lengthwise.models.transformer import TransformerContext, TransformerModel
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.position import LearnedEncoding
from lengthwise.runners import Logits, LoopLogits, Mask, RowLoops
from lengthwise.runners.cpu import support
from lengthwise.runners.cpu.transformer import PART_TYPES
from lengthwise.runners.plain import take_values

BACKEND = "inductor"  # torch's compiler; tests use "eager", which traces but does not compile
BUCKET_POSITIONS = 16  # rows are padded to a multiple of this many positions
MAX_SHAPES = 1000  # largest number of compiled shapes; torch's default is 8


class Compiled(support.SpecializedRunner):
    """The compiled runner of ``TransformerModel``. It advances all rows at all positions, so that few shapes occur."""

    model: TransformerModel
    model_type, part_types, devices = TransformerModel, PART_TYPES, ("cpu", "cuda")

    @classmethod
    def find_obstacle(cls, model: Model) -> str | None:
        if (reason := super().find_obstacle(model)) is not None:
            return reason
        # Rows padded to another shape would draw other random numbers.
        if has_dropout(model):
            return "it has dropout"
        return "its initial state is random in training" if model.start_noise else None

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        *_, state = self._unroll(inputs, loops, no_grad_loops)
        return self.model.readout(take_values(state, *positions.nonzero(as_tuple=True)))

    def each(self, inputs: Inputs, loops: RowLoops, positions: Mask) -> LoopLogits:
        for k, state in enumerate(self._unroll(inputs, loops, 0), 1):
            rows = (loops >= k).nonzero()[:, 0]
            row, position = positions[rows].nonzero(as_tuple=True)
            yield k, rows, self.model.readout(take_values(state, rows[row], position))

    def _unroll(self, inputs: Inputs, loops: Int[Tensor, " b"], no_grad_loops: int) -> Iterator[Float[Tensor, "b t d"]]:
        """Yield the state of all rows after each loop; finished rows keep their last state."""
        model, device = self.model, get_device(self.model)
        running = to_device((loops > torch.arange(int(loops.max()))[:, None])[..., None, None], device)
        context = model.embed(pad_to_bucket(model, inputs, BUCKET_POSITIONS).to(device))
        advance = compile_function(advance_running, BACKEND)
        state = model.start(context)
        for k, runs in enumerate(running):
            with torch.set_grad_enabled(torch.is_grad_enabled() and k >= no_grad_loops):
                if torch.is_grad_enabled() and not state.requires_grad:
                    state = state.detach().requires_grad_()  # like later states, so that all share compiled code
                state = advance(model, state, context, runs)
            yield state


def has_dropout(model: Model) -> bool:
    """Return whether the model has dropout."""
    dropout = any(isinstance(part, nn.Dropout) and part.p for part in model.modules())
    return dropout or any(isinstance(part, SoftmaxAttention) and part.dropout for part in model.modules())


def pad_to_bucket(model: TransformerModel, inputs: Inputs, bucket: int) -> Inputs:
    """Pad the inputs to a multiple of ``bucket`` positions, but to no more than a learned position table holds."""
    width = inputs.tokens.shape[1]
    tables = [part.table.num_embeddings for part in model.modules() if isinstance(part, LearnedEncoding)]
    padding = max(0, min([-(-width // bucket) * bucket, *tables]) - width)
    return inputs._map(lambda value: F.pad(value, (0, padding)))


def advance_running(
    model: TransformerModel, state: Float[Tensor, "b t d"], context: TransformerContext, running: Bool[Tensor, "b 1 1"]
) -> Float[Tensor, "b t d"]:
    """Advance the ``running`` rows by one loop; other rows keep their state."""
    return torch.where(running, model.advance(state, context), state)


@cache
def compile_function(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Return ``function`` compiled by torch, once for each shape with which it is called."""
    from torch._dynamo import config  # imported here, because this takes seconds

    # The names in torch 2.6; in later versions they are aliases of ``recompile_limit``.
    config.cache_size_limit = config.accumulated_cache_size_limit = MAX_SHAPES
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
