"""The plain runner's loops without gradients, recorded on a GPU as a CUDA graph, and replayed.

For a small model, the host takes longer to launch a loop's operations than the GPU to compute them. Here ``advance`` is
captured on a fixed buffer, and a replay launches a whole loop at once. All rows run; when half of them have finished,
the others are copied to a smaller buffer, and their loop is recorded. Embedding the inputs and reading logits are not
recorded.

Two replays must give the state that two calls of ``advance`` give. If they do not, or if a capture fails, the plain
runner computes the pass. On a CPU the same loops run on the same buffer without capture, and tests compare them
with the plain runner.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from lengthwise.base.types import Inputs, to_device
from lengthwise.models import Model, State, get_device
from lengthwise.runners import RowLoops
from lengthwise.runners.cuda import capture, use_side_stream
from lengthwise.runners.plain import LoopStates, Plain, select_rows, unroll

MIN_LOOPS = 16  # a capture takes about as long as a dozen loops
TOLERANCE = 1e-2  # relative to the largest number; a replay's kernels may differ from the model's in the last bits


class LoopGraphs(Plain):
    """Runs passes without gradients by replaying a recorded loop."""

    @staticmethod
    def is_worthwhile(model: Model) -> bool:
        """Return whether recording saves time now: only on the current GPU, without gradients and autocast."""
        device = get_device(model)
        if device.type != "cuda" or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
            return False
        return device.index in (None, torch.cuda.current_device())

    def unroll(
        self, inputs: Inputs, loops: RowLoops, *, no_grad_loops: int = 0, state: State | None = None
    ) -> LoopStates:
        model, device, first, k = self.model, get_device(self.model), state, 0
        rows, loop = loops.argsort(descending=True, stable=True), None
        if not torch.is_grad_enabled() and int(loops.max()) >= MIN_LOOPS:
            context = model.embed(inputs.take(rows).to(device))
            state = model.start(context) if state is None else select_rows(state, to_device(rows, device))
            loop = RecordedLoop(model, state, context)
        if loop is None or not loop.record():
            return (yield from unroll(model, inputs, loops, no_grad_loops=no_grad_loops, state=first))
        running = torch.ones(len(rows), dtype=torch.bool)
        while running.any():
            loop.run()
            k += 1
            ran = running.nonzero()[:, 0]
            stay = yield k, rows[ran], _copy_rows(loop.state, to_device(ran, device))
            running = running & (loops[rows] > k)
            if stay is not None:
                running[ran[~stay]] = False
            if 0 < 2 * int(running.sum()) <= len(rows):
                kept = running.nonzero()[:, 0]
                rows, (state, context) = rows[kept], select_rows((loop.state, loop.context), to_device(kept, device))
                running, loop = running[kept], RecordedLoop(model, state, context)
                if int(loops[rows].max()) - k >= MIN_LOOPS:
                    loop.record()


class RecordedLoop:
    """One loop of a model on a fixed buffer: ``run`` replaces the ``state`` by the state after one more loop."""

    def __init__(self, model: Model, state: State, context: Any) -> None:
        self.model, self.context = model, context
        self.state = tree_map_only(Tensor, Tensor.clone, state)
        self.run = self._advance

    def record(self) -> bool:
        """Capture the loop, and return whether its replays equal the model's results. The state stays the same."""
        on_gpu, first = get_device(self.model).type == "cuda", tree_map_only(Tensor, Tensor.clone, self.state)
        try:
            with use_side_stream() if on_gpu else nullcontext():
                self._advance()
                self._advance()
            wanted = tree_map_only(Tensor, Tensor.clone, self.state)
            self._write(first)
            replay = capture(self._advance) if on_gpu else self._advance
            replay()
            replay()
            same = all(map(_are_close, tree_leaves(self.state), tree_leaves(wanted)))
            self.run = replay if same else self._advance
        except Exception:  # an error of the model is raised again by the plain runner
            same = False
        self._write(first)
        return same

    def _advance(self) -> None:
        self._write(self.model.advance(self.state, self.context))

    def _write(self, state: State) -> None:
        """Copy a state into the buffer. Raises ValueError if the state does not fit."""
        for buffer, value in zip(tree_leaves(self.state), tree_leaves(state), strict=True):
            if not isinstance(buffer, Tensor):
                if buffer != value:
                    raise ValueError("a value of the model's state changes from loop to loop")
            elif (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
                raise ValueError("the size of the model's state changes from loop to loop")
            else:
                buffer.copy_(value)


def _copy_rows(tree: Any, rows: Int[Tensor, " r"]) -> Any:
    """Copy these rows of all tensors in nested tuples. A tensor of one row is copied whole."""
    return tree_map_only(Tensor, lambda part: part.clone() if len(part) == 1 else part[rows], tree)


def _are_close(first: Any, second: Any) -> bool:
    """Return whether two leaves of a state are equal up to rounding."""
    if not isinstance(first, Tensor) or not first.is_floating_point():
        return bool((first == second).all()) if isinstance(first, Tensor) else bool(first == second)
    return torch.allclose(first, second, rtol=0, atol=TOLERANCE * float(second.abs().max()), equal_nan=True)
