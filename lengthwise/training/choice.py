"""The choice of a training's runner, which may compute in bfloat16, or run a batch in several parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lengthwise.base.types import Inputs
from lengthwise.models import Model, State, get_device
from lengthwise.runners import Logits, LoopLogits, RowLoops, Runner, Selected, cpu
from lengthwise.runners.graphs import Graphs
from lengthwise.training.arithmetic import Matmul, autocast
from lengthwise.training.processes import Processes, ShardedRunner


class RunnerChoice:
    """Chooses the runner anew for every step, as hooks may have been set and memory may require smaller parts."""

    def __init__(
        self, model: Model, processes: Processes, *, matmul: Matmul, compile: bool, graphs: bool, stacked: bool = False
    ) -> None:
        self.model, self.processes, self.matmul, self.compile = model, processes, matmul, compile
        self.stacked_by = "Stacked" if stacked else None  # name of the runner of a stack's steps
        self.graphs = Graphs(self._choose_unrecorded(), bf16=matmul == "bf16") if graphs else None

    def choose(self, parts: int) -> Runner:
        """Return the runner for a step whose batch is run in ``parts`` parts."""
        if graphs := self.choose_graphs(parts):
            graphs.begin_step()
            return graphs
        runner = self._choose_unrecorded()
        runner = MicroBatches(runner, parts) if parts > 1 else runner
        return ShardedRunner(runner, self.processes) if self.processes.splits_batches else runner

    def choose_graphs(self, parts: int) -> Graphs | None:
        """Return the runner that records and replays steps; None if steps are not recorded."""
        if self.graphs is None or parts > 1 or self.processes.splits_batches or cpu.needs_plain_runner():
            return None
        return None if self.graphs.declines() else self.graphs

    def describe(self, parts: int) -> str:
        """Return the runner's name and, for the plain runner, the reason."""
        if self.stacked_by:
            return self.stacked_by
        name = "Graphs" if self.choose_graphs(parts) else cpu.describe_choice(self.model, self._runner_types())
        return name if self.matmul != "bf16" else f"Bf16, {name}" if name in ("Compiled", "Graphs") else "Bf16"

    @property
    def compiles(self) -> bool:
        """Return whether a compiled runner is requested and claims the model."""
        return self.compile and cpu.why_not_compiled(self.model) is None

    def _choose_unrecorded(self) -> Runner:
        runner = cpu.choose_runner(self.model, self._runner_types())
        return Bf16(runner) if self.matmul == "bf16" else runner

    def _runner_types(self) -> Sequence[cpu.RunnerType]:
        """Return the runners that may be chosen; the faster CPU runners do not support bfloat16."""
        return (cpu.Compiled,) * self.compile + (() if self.matmul == "bf16" else cpu.RUNNERS)


class Bf16(Runner):
    """A runner with matrix products in bfloat16 (torch.autocast). Weights, logits and losses stay in 32 bits."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.model)
        self.runner = runner

    def last(self, inputs: Inputs, loops: RowLoops, at: Selected, *, no_grad_loops: int = 0) -> Logits:
        with autocast(get_device(self.model), "bf16"):
            return self.runner.last(inputs, loops, at, no_grad_loops=no_grad_loops).float()

    def carry(self, inputs: Inputs, loops: RowLoops, at: Selected, state: State | None = None) -> tuple[Logits, State]:
        with autocast(get_device(self.model), "bf16"):
            logits, state = self.runner.carry(inputs, loops, at, state)
        return logits.float(), state

    def each(self, inputs: Inputs, loops: RowLoops, at: Selected) -> LoopLogits:
        steps = self.runner.each(inputs, loops, at)
        while True:
            with autocast(get_device(self.model), "bf16"):  # but not while the caller uses the logits
                found = next(steps, None)
            if found is None:
                return
            k, rows, logits = found
            yield k, rows, logits.float()


class MicroBatches(Runner):
    """Runs the rows of a batch in parts, one after the other, and recomputes each part for its gradients.

    Memory then holds the activations of a single part, and the logits of all. Objectives see the whole batch: losses
    and gradients equal those of the inner runner, up to rounding.
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

    def _recompute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the function's result without keeping its activations; the backward pass calls the function again."""
        # A tensor on the device: torch preserves the generators of its arguments' devices, for dropout.
        there = torch.empty(0, device=get_device(self.model))
        return checkpoint(lambda _, *rest: function(*rest), there, *args, use_reentrant=False)
