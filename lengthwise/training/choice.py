"""The choice of the runner for a training's steps."""

from __future__ import annotations

from collections.abc import Sequence

from lengthwise.models import Model
from lengthwise.runners import Runner, cpu
from lengthwise.runners.graphs import Graphs
from lengthwise.training.arithmetic import Bf16, Matmul
from lengthwise.training.micro_batches import MicroBatches
from lengthwise.training.processes import Divided, Processes


class RunnerChoice:
    """Chooses a runner at every step: hooks may have been set, and memory may require smaller parts."""

    def __init__(
        self, model: Model, processes: Processes, *, matmul: Matmul, compile: bool, graphs: bool, stacked: bool = False
    ) -> None:
        self.model, self.processes, self.matmul, self.compile = model, processes, matmul, compile
        self.stacked_by = "Stacked" if stacked else None  # what runs the steps of a stack
        self.graphs = Graphs(self._unrecorded(), bf16=matmul == "bf16") if graphs else None

    def choose(self, parts: int) -> Runner:
        """Return the runner of a step whose batch runs in ``parts``."""
        if graphs := self.replaying(parts):
            graphs.begin()
            return graphs
        runner = self._unrecorded()
        runner = MicroBatches(runner, parts) if parts > 1 else runner
        return Divided(runner, self.processes) if self.processes.divides else runner

    def replaying(self, parts: int) -> Graphs | None:
        """Return the runner of recorded steps; None if steps are not recorded."""
        if self.graphs is None or parts > 1 or self.processes.divides or cpu.only_plain():
            return None
        return None if self.graphs.declines() else self.graphs

    def describe(self, parts: int) -> str:
        """Return the runner's name and, for the plain runner, the reason."""
        if self.stacked_by:
            return self.stacked_by
        name = "Graphs" if self.replaying(parts) else cpu.describe_choice(self.model, self._kinds())
        return name if self.matmul != "bf16" else f"Bf16, {name}" if name in ("Compiled", "Graphs") else "Bf16"

    @property
    def compiles(self) -> bool:
        """Return whether a compiled runner is requested and claims the model."""
        return self.compile and cpu.why_not_compiled(self.model) is None

    def _unrecorded(self) -> Runner:
        runner = cpu.choose(self.model, self._kinds())
        return Bf16(runner) if self.matmul == "bf16" else runner

    def _kinds(self) -> Sequence[cpu.RunnerType]:
        """Return the runners that may be chosen; the faster CPU runners do not support bfloat16."""
        return (cpu.Compiled,) * self.compile + (() if self.matmul == "bf16" else cpu.RUNNERS)
