"""The choice of the runner for training, which may compute in bfloat16, run a batch in several parts, or divide it
among processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lengthwise.base.errors import UsageError
from lengthwise.base.types import Inputs, to_device
from lengthwise.models import Model, State, get_device
from lengthwise.runners import Logits, LogitsAndState, LoopLogits, Mask, RowLoops, Runner, cpu
from lengthwise.runners.graphs import Graphs
from lengthwise.training.arithmetic import Matmul, autocast
from lengthwise.training.processes import Processes


class RunnerChoice:
    """Chooses a runner before every step, since the model's hooks and the number of parts may have changed."""

    def __init__(
        self, model: Model, processes: Processes, *, matmul: Matmul, compile: bool, graphs: bool, stacked: bool = False
    ) -> None:
        self.model, self.processes, self.matmul, self.compile = model, processes, matmul, compile
        self.stack_runner_name = "Stacked" if stacked else None  # name of the runner of a stack's steps
        self.graphs = Graphs(self._choose_without_graphs(), bf16=matmul == "bf16") if graphs else None

    def choose(self, part_count: int) -> Runner:
        """Return the runner for a step whose batch is run in ``part_count`` parts."""
        if graphs := self.choose_graphs(part_count):
            graphs.begin_step()
            return graphs
        runner = self._choose_without_graphs()
        runner = MicroBatches(runner, part_count) if part_count > 1 else runner
        return ShardedRunner(runner, self.processes) if self.processes.splits_batches else runner

    def choose_graphs(self, part_count: int) -> Graphs | None:
        """Return the runner that records and replays steps; None if steps are not recorded."""
        if self.graphs is None or part_count > 1 or self.processes.splits_batches or cpu.needs_plain_runner():
            return None
        return None if self.graphs.find_obstacle() else self.graphs

    def describe(self, part_count: int) -> str:
        """Return the runner's name and, for the plain runner, the reason why no faster one was chosen."""
        if self.stack_runner_name:
            return self.stack_runner_name
        name = "Graphs" if self.choose_graphs(part_count) else cpu.describe_choice(self.model, self._runner_types())
        return name if self.matmul != "bf16" else f"Bf16, {name}" if name in ("Compiled", "Graphs") else "Bf16"

    @property
    def compiles(self) -> bool:
        """True if a compiled runner was requested and supports the model."""
        return self.compile and cpu.find_compile_obstacle(self.model) is None

    def _choose_without_graphs(self) -> Runner:
        runner = cpu.choose_runner(self.model, self._runner_types())
        return Bf16(runner) if self.matmul == "bf16" else runner

    def _runner_types(self) -> Sequence[cpu.RunnerType]:
        """Return the types of runner to choose from; the faster CPU runners do not support bfloat16."""
        return (cpu.Compiled,) * self.compile + (() if self.matmul == "bf16" else cpu.RUNNERS)


class Bf16(Runner):
    """A runner with matrix products in bfloat16 (torch.autocast). Weights, logits and losses stay in 32 bits."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.model)
        self.runner = runner

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        with _use_bf16(self.model):
            return self.runner.last(inputs, loops, positions, no_grad_loops=no_grad_loops).float()

    def carry(self, inputs: Inputs, loops: RowLoops, positions: Mask, state: State | None = None) -> LogitsAndState:
        with _use_bf16(self.model):
            logits, state = self.runner.carry(inputs, loops, positions, state)
        return logits.float(), state

    def each(self, inputs: Inputs, loops: RowLoops, positions: Mask) -> LoopLogits:
        steps = self.runner.each(inputs, loops, positions)
        while True:
            with _use_bf16(self.model):  # switched off while the caller uses the logits
                step = next(steps, None)
            if step is None:
                return
            k, rows, logits = step
            yield k, rows, logits.float()


@contextmanager
def _use_bf16(model: Model) -> Iterator[None]:
    """Compute matrix products in bfloat16. Raises UsageError if the CPU does not support this, e.g. for torch's LSTM on
    a CPU without AVX-512."""
    try:
        with autocast(get_device(model), "bf16"):
            yield
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        raise UsageError(f"matmul: this CPU cannot compute {type(model).__name__} in bfloat16; use fp32") from error


class MicroBatches(Runner):
    """Runs the rows of a batch in ``count`` parts, one after the other, and recomputes each part for its gradients.

    Memory then holds the activations of a single part, and the logits of all parts. Objectives see the whole batch:
    losses and gradients equal those of the inner runner, up to rounding.
    """

    def __init__(self, runner: Runner, count: int) -> None:
        super().__init__(runner.model)
        self.runner, self.count = runner, count

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        def compute_logits(rows: slice) -> Float[Tensor, "m v"]:
            return self.runner.last(inputs.take(rows), loops[rows], positions[rows], no_grad_loops=no_grad_loops)

        return torch.cat([self._recompute(compute_logits, rows) for rows in self._split_rows(len(loops))])

    def each(self, inputs: Inputs, loops: RowLoops, positions: Mask) -> LoopLogits:
        logits_by_loop: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for rows in self._split_rows(len(loops)):
            order: list[tuple[int, Tensor]] = []

            def compute_logits(rows: slice = rows, order: list[tuple[int, Tensor]] = order) -> tuple[Tensor, ...]:
                steps = [*self.runner.each(inputs.take(rows), loops[rows], positions[rows])]
                order[:] = [(k, ran + rows.start) for k, ran, _ in steps]
                return tuple(loop_logits for *_, loop_logits in steps)

            for loop_logits, (k, ran) in zip(self._recompute(compute_logits), order, strict=True):
                logits_by_loop.setdefault(k, []).append((ran, loop_logits))
        for k, parts in logits_by_loop.items():
            rows, loop_logits = zip(*parts, strict=True)
            yield k, torch.cat(rows), torch.cat(loop_logits)

    def _split_rows(self, row_count: int) -> Sequence[slice]:
        size = -(-row_count // self.count)
        return [slice(start, min(start + size, row_count)) for start in range(0, row_count, size)]

    def _recompute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the function's result without keeping its activations; the backward pass calls the function again."""
        # A tensor on the device: torch preserves the generators of its arguments' devices, for dropout.
        on_device = torch.empty(0, device=get_device(self.model))
        return checkpoint(lambda _, *inputs: function(*inputs), on_device, *args, use_reentrant=False)


class ShardedRunner(Runner):
    """A runner for one of several processes: it runs this process's rows with another runner, and returns the logits of
    all processes. Logits of other processes have no gradients. Raises UsageError if there are fewer rows than
    processes, or if an objective uses ``model``, whose gradient would be added once per process."""

    def __init__(self, runner: Runner, processes: Processes) -> None:
        self.runner, self.processes = runner, processes

    @property
    def model(self) -> NoReturn:  # type: ignore[override]
        fault = "the objective uses runner.model, whose gradient would be added once per process"
        raise UsageError(f"{fault}: use runner.last or runner.each alone, or train in one process")

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        own_rows = self._rows_of_process(loops)
        own = self.runner.last(inputs.take(own_rows), loops[own_rows], positions[own_rows], no_grad_loops=no_grad_loops)
        return self._join_logits(own, torch.arange(len(loops)), positions)

    def carry(self, inputs: Inputs, loops: RowLoops, positions: Mask, state: State | None = None) -> LogitsAndState:
        """See ``Runner.carry``. The state has only this process's rows."""
        own_rows = self._rows_of_process(loops)
        own, state = self.runner.carry(inputs.take(own_rows), loops[own_rows], positions[own_rows], state)
        return self._join_logits(own, torch.arange(len(loops)), positions), state

    def each(self, inputs: Inputs, loops: RowLoops, positions: Mask) -> LoopLogits:
        own_rows = self._rows_of_process(loops)
        steps, own = self.runner.each(inputs.take(own_rows), loops[own_rows], positions[own_rows]), torch.empty(0)
        for k in range(1, int(loops.max()) + 1):
            _, ran, own = next(steps, (k, own_rows[:0], own[:0]))
            order, counts = ran.argsort(), positions[own_rows][ran].sum(1).tolist()
            parts = own.split(counts)
            rows = (loops >= k).nonzero()[:, 0]
            in_order = torch.cat([own[:0], *(parts[i] for i in order.tolist())])
            yield k, rows, self._join_logits(in_order, rows, positions[rows])

    def _rows_of_process(self, loops: Int[Tensor, " b"]) -> Int[Tensor, " r"]:
        if len(loops) < self.processes.count:
            raise UsageError(f"batch must be {self.processes.count} or more, a row per process, not {len(loops)}")
        return torch.arange(self.processes.rank, len(loops), self.processes.count)

    def _join_logits(
        self, own_logits: Float[Tensor, "m v"], rows: Int[Tensor, " r"], positions: Bool[Tensor, "r t"]
    ) -> Float[Tensor, "n v"]:
        """Return all processes' logits at ``positions`` of these rows; ``own_logits`` are those of this process."""
        owner = (rows % self.processes.count)[positions.nonzero()[:, 0]]
        counts = owner.bincount(minlength=self.processes.count).tolist()
        padded = F.pad(own_logits.detach(), (0, 0, 0, max(counts) - len(own_logits)))
        parts = [part[:count] for part, count in zip(self.processes.gather(padded), counts, strict=True)]
        parts[self.processes.rank] = own_logits
        positions_in_order = owner.argsort(stable=True).argsort()
        return torch.cat(parts)[to_device(positions_in_order, own_logits.device)]
