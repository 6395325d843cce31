"""Training steps, recorded once per shape (on a GPU as CUDA graphs) and replayed.

For a small model, the host takes longer to launch operations than the GPU to compute them. A CUDA graph launches all
operations at once. It repeats the same operations on the same memory, so Python's control flow must not vary:

- Transformers' rows are padded to a multiple of ``BUCKET_POSITIONS``; other models keep the width of their batch.
- All rows run for the batch's largest number of loops; finished rows keep their state (``torch.where``).
- Inputs are copied into fixed buffers; gradients are added up in fixed buffers, which become ``parameter.grad``.
- Everything else that decides which operations run is part of the ``RecordingKey``, and is read from CPU tensors.

The forward pass is one graph, the backward pass another. The objective, which may be any function of the logits, runs
between them: a few operations, launched while the GPU computes. Random numbers come from torch's generators, which are
seeded before each step; if rows are padded, dropout and noise differ from the plain runner's.

On a CPU the same steps run on the same buffers without capture, and tests compare them with the plain runner.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from lengthwise.base.errors import UsageError, is_out_of_memory
from lengthwise.base.files import format_error
from lengthwise.base.types import CopiedInputs, Inputs
from lengthwise.models import Model, State, find_limited_encodings, get_device
from lengthwise.models.transformer import TransformerModel
from lengthwise.runners import Logits, LogitsAndState, LoopLogits, Mask, RowLoops, Runner, cpu, waves
from lengthwise.runners.compiled import BACKEND, Compiled, advance_running, compile_function, has_dropout, pad_to_bucket
from lengthwise.runners.cuda import capture, choose_attention, find_head_width, use_side_stream
from lengthwise.runners.plain import choose_rows, detach, take_values

BUCKET_POSITIONS = 8  # positions; products in bfloat16 are fastest at multiples of 8
MAX_RECORDINGS = 200  # the most recently used recordings are kept
MAX_STEPS_AHEAD = 3  # steps by which the host may be ahead of the GPU; each holds its batch in pinned memory
WARM_UP_PASSES = 3  # runs before a capture: they allocate, choose kernels and compile


class RecordingKey(NamedTuple):
    """The shapes, types and options that a recording fixes. Passes that agree in them share a recording."""

    pass_number: int  # number of the pass within its step, because passes of one step must not share memory
    loops: int
    no_grad_loops: int
    all_loops: bool  # whether logits are read after every loop, not only after the last
    has_grad_mask: bool  # whether rows differ in their loops without gradients; then ``grad_mask`` follows ``running``
    all_rows_run: bool  # whether all rows run all loops
    same_positions: bool  # whether all rows have the same positions: biases by distance then have one row
    tensors: tuple[tuple[torch.Size, torch.dtype], ...]  # sizes and types of the inputs


class Graphs(Runner):
    """Records training passes and replays them. If recording fails, ``plain`` runs all later passes (see ``reason``).

    Call ``begin_step`` before each step. After ``backward``, each ``parameter.grad`` is a buffer that is reused in
    every step.
    """

    def __init__(self, plain: Runner, *, bf16: bool = False) -> None:
        super().__init__(plain.model)
        self.plain, self.bf16, self.device = plain, bf16, get_device(plain.model)
        self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.gradients: dict[int, Tensor] = {}  # by the number of the weight
        self.recordings: dict[RecordingKey, Recording] = {}  # the most recently used is last
        # Memory pools, by the number of the call in a step: such passes never run at the same time.
        self.pools = defaultdict[int, Any](torch.cuda.graph_pool_handle)
        self.pass_count = 0
        self.uses_waves, self.buffers = waves.can_advance(self.model), [*self.model.buffers()]
        # One loop or wave is compiled if the compiled runner knows all its parts, and has no dropout.
        is_known = cpu.support.find_obstacle(self.model, Compiled.part_types, ("cuda",)) is None
        can_compile = self.uses_waves or (is_known and not has_dropout(self.model))
        self.compiles = self.device.type == "cuda" and can_compile
        kinds = {type(part).__module__ for part in self.model.modules()}
        self.has_user_code = not all(kind.startswith(("lengthwise.", "torch.nn.")) for kind in kinds)
        # True if all passes over equal inputs have equal states after each loop.
        self.is_deterministic = isinstance(self.model, TransformerModel) and Compiled.find_obstacle(self.model) is None
        self.step_events: deque[torch.cuda.Event] = deque()
        self.reason: str | None = None

    def begin_step(self) -> None:
        """Start a step: set all gradients to 0."""
        self.pass_count = 0
        if self.device.type == "cuda":
            self.step_events.append(torch.cuda.Event())
            self.step_events[-1].record()
            if len(self.step_events) > MAX_STEPS_AHEAD:
                self.step_events.popleft().synchronize()
        if self.gradients:
            torch._foreach_zero_([*self.gradients.values()])

    def release(self) -> None:
        """Free all recordings and their memory."""
        self.recordings.clear()
        self.pools.clear()

    def find_obstacle(self) -> str | None:
        """Return the reason why the model now runs without CUDA graphs; None if recordings are replayed."""
        if any(getattr(part, hook, None) for part in self.model.modules() for hook in cpu.support.HOOKS):
            return "it has hooks"
        return self.reason

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        logits = self._run_pass(inputs, loops, no_grad_loops, all_loops=False)
        if logits is None:
            return self.plain.last(inputs, loops, positions, no_grad_loops=no_grad_loops)
        return take_values(logits, *positions.nonzero(as_tuple=True))

    def at_depths(self, inputs: Inputs, loops: RowLoops, depths: Sequence[int], positions: Mask) -> list[Logits]:
        limited = loops.clamp(max=max(depths))
        logits = self._run_pass(inputs, limited, 0, all_loops=True) if self.is_deterministic else None
        if logits is None:
            return super().at_depths(inputs, loops, depths, positions)
        row, position = positions.nonzero(as_tuple=True)
        return [take_values(logits, loops.clamp(max=depth)[row] - 1, row, position) for depth in depths]

    def carry(self, inputs: Inputs, loops: RowLoops, positions: Mask, state: State | None = None) -> LogitsAndState:
        return self.plain.carry(inputs, loops, positions, state)

    def each(self, inputs: Inputs, loops: RowLoops, positions: Mask) -> LoopLogits:
        logits = self._run_pass(inputs, loops, 0, all_loops=True)
        if logits is None:
            yield from self.plain.each(inputs, loops, positions)
            return
        for k in range(1, int(loops.max()) + 1):
            rows = (loops >= k).nonzero()[:, 0]
            row, position = positions[rows].nonzero(as_tuple=True)
            yield k, rows, take_values(logits[k - 1], rows[row], position)

    def _run_pass(self, inputs: Inputs, loops: RowLoops, no_grad_loops: int, *, all_loops: bool) -> Tensor | None:
        """Return the logits of all positions, "b t v" after the last loop or "k b t v" after each; None if the plain
        runner must compute them."""
        if self.reason or not (torch.is_grad_enabled() and self.model.training):
            return None
        return self.run(inputs, loops > torch.arange(int(loops.max()))[:, None], no_grad_loops, all_loops=all_loops)

    def run(
        self,
        inputs: Inputs,
        running: Bool[Tensor, "k b"],
        no_grad_loops: int,
        *,
        all_loops: bool,
        grad_mask: Bool[Tensor, "k b"] | None = None,
    ) -> Tensor | None:
        """Return the output of a pass; None if it cannot be recorded. ``grad_mask`` is True where a row's loop
        has gradients (by default, in all rows); the first ``no_grad_loops`` loops have none."""
        for encoding in find_limited_encodings(self.model):  # a replay does not check whether rows fit
            encoding.check(inputs)
        inputs = (
            pad_to_bucket(self.model, inputs, BUCKET_POSITIONS) if isinstance(self.model, TransformerModel) else inputs
        )
        inputs = inputs._map(Tensor.contiguous)
        tensors = tuple((value.shape, value.dtype) for value in get_tensors(inputs).values())
        same_positions = bool((inputs.position == inputs.position[:1]).all())
        flags = all_loops, grad_mask is not None, bool(running.all()), same_positions
        key = RecordingKey(self.pass_count, len(running), no_grad_loops, *flags, tensors)
        running = running if grad_mask is None else torch.cat([running, grad_mask])
        self.pass_count += 1
        recording = self.recordings.pop(key, None) or self._record(key, inputs, running)
        if recording is None:
            return None
        self.recordings[key] = recording
        if len(self.recordings) > MAX_RECORDINGS:
            del self.recordings[next(iter(self.recordings))]
        recording.copy_batch(inputs, running)
        return _Replay.apply(torch.zeros((), requires_grad=True), recording)  # type: ignore[no-any-return]

    def _record(self, key: RecordingKey, inputs: Inputs, running: Bool[Tensor, "k b"]) -> Recording | None:
        """Return a new recording; if it fails, set ``reason`` and return None."""
        try:
            return Recording(self, key, inputs, running)
        except UsageError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if not self.compiles:
                self.reason = f"its step cannot be recorded ({format_error(error)})"
                self.release()
                return None
        self.compiles = False  # try again without torch's compiler, which may lack its tools here
        return self._record(key, inputs, running)

    def publish_gradients(self, weight_numbers: list[int]) -> None:
        """Set ``grad`` of these weights to the buffers; add any gradient that the objective itself has stored there."""
        for weight, gradient in (pair for number in weight_numbers for pair in self.pair_with_gradients(number)):
            if weight.grad is not None and weight.grad is not gradient:
                gradient.add_(weight.grad)
            weight.grad = gradient

    def pair_with_gradients(self, weight_number: int) -> Iterable[tuple[Tensor, Tensor]]:
        """Return pairs of a parameter and the buffer of its gradient, for the weight with this number."""
        return [(self.weights[weight_number], self.gradients[weight_number])]

    def build_function(self, key: RecordingKey) -> Callable[[Inputs, Bool[Tensor, "k b"]], Tensor]:
        """Return a function that computes a pass's output from its inputs and the rows that run in each loop."""
        unrolled = UnrolledLoops(self.model, key, compiles=self.compiles, uses_waves=self.uses_waves)

        def compute(inputs: Inputs, running: Bool[Tensor, "k b"]) -> Tensor:
            weights = dict(unrolled.named_parameters(remove_duplicate=False)) if self.bf16 else {}
            weights = round_linear_weights(unrolled, weights)
            return functional_call(unrolled, weights, (inputs, running), tie_weights=False)  # type: ignore[no-any-return]

        return compute


class Recording:
    """A recorded forward and backward pass. ``forward`` reads the buffers of inputs and writes ``output``; ``backward``
    reads ``output_gradient`` and adds to the weights' gradients."""

    output: Tensor
    output_gradient: Tensor | None = None
    weight_numbers: list[int]  # numbers of the weights that have gradients

    def __init__(self, owner: Graphs, key: RecordingKey, inputs: Inputs, running: Bool[Tensor, "k b"]) -> None:
        self.owner, self.key = owner, key
        buffers = {name: torch.empty_like(value, device=owner.device) for name, value in get_tensors(inputs).items()}
        self.inputs = (_GuardedInputs if owner.has_user_code else CopiedInputs)(**buffers, original=inputs)
        self.running = torch.empty_like(running, device=owner.device)
        self.copy_batch(inputs, running)
        self.compute = owner.build_function(key)
        self.forward, self.backward = self._forward, self._backward
        # Recording must not advance the generators: each replay draws from the seed of its own step.
        on_gpu = owner.device.type == "cuda"
        with torch.random.fork_rng([owner.device] if on_gpu else []):
            self._run_passes(WARM_UP_PASSES if on_gpu else 1)
            if on_gpu:
                pool = owner.pools[key.pass_number]
                self.forward, self.backward = capture(self._forward, pool), capture(self._backward, pool)
        torch._foreach_zero_([owner.gradients[number] for number in self.weight_numbers])

    def copy_batch(self, inputs: Inputs, running: Bool[Tensor, "k b"]) -> None:
        """Copy a batch, and the mask of rows that run in each loop, into the buffers, without waiting."""
        buffers = [*get_tensors(self.inputs).values(), self.running]
        for buffer, value in zip(buffers, [*get_tensors(inputs).values(), running], strict=True):
            buffer.copy_(value.pin_memory() if buffer.is_cuda else value, non_blocking=True)

    def _run_passes(self, count: int) -> None:
        """Run both passes ``count`` times. Raises ValueError for operations that a replay would not repeat."""
        buffers, drawn = self.owner.buffers, random.getstate()
        versions = [buffer._version for buffer in buffers]
        with use_side_stream() if self.owner.device.type == "cuda" else nullcontext():
            for _ in range(count):
                self._forward()
                self._backward()
        if versions != [buffer._version for buffer in buffers]:
            raise ValueError("the model changes its buffers while it computes")
        if self.owner.has_user_code and drawn != random.getstate():
            raise ValueError("the model draws numbers from Python's generator")

    def _forward(self) -> None:
        owner, positions = self.owner, self.inputs.tokens.shape[1]
        arithmetic = torch.autocast(owner.device.type, torch.bfloat16, enabled=owner.bf16, cache_enabled=False)
        kind = torch.bfloat16 if owner.bf16 else owner.weights[0].dtype
        attention = choose_attention(owner.device, kind, positions, find_head_width(owner.model))
        with torch.enable_grad(), arithmetic, attention:
            self.output = self.compute(self.inputs, self.running)

    def _backward(self) -> None:
        if self.output_gradient is None:
            self.output_gradient = torch.zeros_like(self.output)
        weights = self.owner.weights
        gradients_or_none = torch.autograd.grad(self.output, weights, self.output_gradient, allow_unused=True)
        self.output = self.output.detach()  # frees the memory that the backward pass needed
        self.weight_numbers = [number for number, gradient in enumerate(gradients_or_none) if gradient is not None]
        gradients = []
        for number in self.weight_numbers:
            if number not in self.owner.gradients:
                self.owner.gradients[number] = torch.zeros_like(weights[number])
            gradients.append(self.owner.gradients[number])
        torch._foreach_add_(gradients, [gradients_or_none[number] for number in self.weight_numbers])


class _Replay(torch.autograd.Function):
    """A recording as an autograd function. ``anchor`` has no effect but requires a gradient, so that torch calls
    ``backward``."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, recording: Recording) -> Tensor:
        ctx.recording = recording
        recording.forward()
        return recording.output.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        recording = ctx.recording
        recording.output_gradient.copy_(gradient)
        recording.backward()
        recording.owner.publish_gradients(recording.weight_numbers)
        return None, None


class UnrolledLoops(nn.Module):
    """A module that computes all loops of a pass at a fixed shape."""

    def __init__(self, model: Model, key: RecordingKey, *, compiles: bool, uses_waves: bool) -> None:
        super().__init__()
        self.model, self.key, self.compiles, self.uses_waves = model, key, compiles, uses_waves

    def forward(self, inputs: Inputs, running: Bool[Tensor, "k b"]) -> Tensor:
        """Return the logits "b t v" after the last loop, or "k b t v" after each."""
        model, key, read = self.model, self.key, []
        running, grad_mask = running.chunk(2) if key.has_grad_mask else (running, None)
        context = model.embed(inputs)
        state = model.start(context)
        for k, runs in enumerate(running.unbind()):
            with torch.set_grad_enabled(k >= key.no_grad_loops):
                state = self._advance_rows(state, context, runs)
            if grad_mask is not None and k >= key.no_grad_loops:
                state = choose_rows(grad_mask[k], state, detach(state))
            if key.all_loops:
                read.append(model.read(state))
        logits = torch.stack(read) if key.all_loops else model.read(state)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))  # losses are computed in 32 bits at least

    def _advance_rows(self, state: Any, context: Any, runs: Bool[Tensor, " b"]) -> Any:
        """Return the state after a loop of the rows in ``runs``; other rows keep their state."""
        if self.compiles and not self.uses_waves:
            if torch.is_grad_enabled() and not state.requires_grad:
                state = state.detach().requires_grad_()  # like later states, so that all share compiled code
            return self.advance_compiled(state, context, runs[:, None, None])
        if self.uses_waves:
            compiler = partial(compile_function, backend=BACKEND) if self.compiles else lambda step: step
            new = waves.advance(self.model, state, compiler)  # type: ignore[arg-type]
        else:
            new = self.model.advance(state, context)
        return new if self.key.all_rows_run else choose_rows(runs, new, state)

    def advance_compiled(self, state: Tensor, context: Any, running: Bool[Tensor, "b 1 1"]) -> Tensor:
        """Advance the running rows by one compiled loop."""
        return compile_function(advance_running, BACKEND)(self.model, state, context, running)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _GuardedInputs(CopiedInputs):
    """Inputs that raise ValueError if a user's model reads their values on the CPU. A recording repeats the same
    operations for other values, so a model must not choose operations by values."""

    @property
    def host(self) -> Inputs:
        raise ValueError("the model's control flow depends on values of its inputs")


def round_linear_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the model's linear layers in bfloat16, rounded once per pass (autocast rounds them in every
    loop)."""
    linear = {f"{name}.{own}" for name, part in model.named_modules() if isinstance(part, nn.Linear)
              for own, _ in part.named_parameters(recurse=False)}  # fmt: skip
    return {name: weight.to(torch.bfloat16) for name, weight in weights.items() if name in linear}


def is_worthwhile(device: torch.device) -> bool:
    """Return whether recording saves time on this device: only on CUDA, where a host launches the operations."""
    return device.type == "cuda"


def get_tensors(inputs: Inputs) -> dict[str, Tensor]:
    """Return the tensors of inputs, by field name."""
    return {field.name: getattr(inputs, field.name) for field in fields(Inputs)}
