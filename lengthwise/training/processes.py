"""Several processes (torchrun) that train one model, each on some rows of the same batch.

Process r of n runs the rows r, r + n, r + 2 n, …, and all exchange their logits, so each computes the loss of the whole
batch, for any objective. A process computes the gradient through its own rows only; summed over processes, it equals
the gradient of the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from lengthwise.base.errors import UsageError
from lengthwise.base.types import Inputs, to_device
from lengthwise.models import State
from lengthwise.runners import Logits, LoopLogits, RowLoops, Runner, Selected
from lengthwise.runs.run import is_torchrun_process


class Processes:
    """The processes of a training, as seen by process ``rank`` of ``count``; by default a single process."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    @property
    def is_first(self) -> bool:
        """True for the process that measures scores and writes files."""
        return self.rank == 0

    @property
    def splits_batches(self) -> bool:
        """True if each process runs only some rows of a batch, also during the rehearsal, in the first process."""
        return self.count > 1 or process_count() > 1

    @property
    def rng_address(self) -> tuple[int, ...]:
        """The process's part of the address (see ``base.rng``) of random numbers; empty for the first process."""
        return (self.rank,) if self.rank else ()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, which have equal shapes."""
        if self.count == 1:
            return [tensor]
        found = [torch.empty_like(tensor) for _ in range(self.count)]
        with _report_lost_process():
            dist.all_gather(found, tensor.contiguous())
        return found

    def sum_in_place(self, tensor: Tensor) -> None:
        """Replace a tensor by the sum over processes, bit-identical in all of them."""
        with _report_lost_process():
            dist.all_reduce(tensor)

    def broadcast(self, value: Any) -> Any:
        """Return the first process's value."""
        if self.count == 1:
            return value
        box = [value]
        with _report_lost_process():
            dist.broadcast_object_list(box, device=torch.device("cpu"))
        return box[0]

    def combine_flags(self, *flags: bool) -> list[bool]:
        """Return, for each flag, whether any process has set it. Flags are exchanged between CPUs."""
        return torch.stack(self.gather(torch.tensor(flags))).any(0).tolist()

    def add_gradients(self, model: nn.Module) -> None:
        """Replace each parameter's gradient by the sum over processes. A parameter without a gradient in any process
        still has none."""
        if self.count == 1:
            return
        parameters = list(model.parameters())
        used = self.combine_flags(*(parameter.grad is not None for parameter in parameters))
        shared = [parameter for parameter, is_used in zip(parameters, used, strict=True) if is_used]
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in shared]
        together = torch.cat([part.flatten() for part in parts])
        self.sum_in_place(together)
        for parameter, part in zip(shared, together.split([one.numel() for one in shared]), strict=True):
            parameter.grad = part.view_as(parameter)


@contextmanager
def join_processes(device: torch.device) -> Iterator[Processes]:
    """Yield the processes that torchrun has started; without torchrun, a single process."""
    if process_count() == 1:
        yield Processes()
        return
    if device.type == "cuda":
        if device.index != int(os.environ["LOCAL_RANK"]):
            raise UsageError(f"each of torchrun's processes has its own GPU: write cuda, not {device}")
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def process_count() -> int:
    """Return the number of processes that torchrun has started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if is_torchrun_process() else 1


def is_follower() -> bool:
    """Return whether this is one of torchrun's processes other than the first."""
    return is_torchrun_process() and os.environ["RANK"] != "0"


@contextmanager
def _report_lost_process() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"another process of this training ended or cannot be reached ({reason}); train again"
        ) from None


class ShardedRunner(Runner):
    """Runs this process's rows with another runner, and returns the logits of all processes; logits of other processes
    have no gradients. Raises UsageError for fewer rows than processes, and if an objective uses ``model``, whose
    gradient would be added once per process."""

    def __init__(self, runner: Runner, processes: Processes) -> None:
        self.runner, self.processes = runner, processes

    @property
    def model(self) -> NoReturn:  # type: ignore[override]
        raise UsageError(
            "the objective uses runner.model, whose gradient torchrun's processes would add up once for each of them: "
            "use runner.last or runner.each alone, or train in one process"
        )

    def last(self, inputs: Inputs, loops: RowLoops, at: Selected, *, no_grad_loops: int = 0) -> Logits:
        mine = self._own_rows(loops)
        own = self.runner.last(inputs.take(mine), loops[mine], at[mine], no_grad_loops=no_grad_loops)
        return self._join_logits(own, torch.arange(len(loops)), at)

    def carry(self, inputs: Inputs, loops: RowLoops, at: Selected, state: State | None = None) -> tuple[Logits, State]:
        """See ``Runner.carry``. The state has only this process's rows."""
        mine = self._own_rows(loops)
        own, state = self.runner.carry(inputs.take(mine), loops[mine], at[mine], state)
        return self._join_logits(own, torch.arange(len(loops)), at), state

    def each(self, inputs: Inputs, loops: RowLoops, at: Selected) -> LoopLogits:
        mine = self._own_rows(loops)
        steps, own = self.runner.each(inputs.take(mine), loops[mine], at[mine]), torch.empty(0)
        for k in range(1, int(loops.max()) + 1):
            _, ran, own = next(steps, (k, mine[:0], own[:0]))
            order, counts = ran.argsort(), at[mine][ran].sum(1).tolist()
            parts = own.split(counts)
            rows = (loops >= k).nonzero()[:, 0]
            yield k, rows, self._join_logits(torch.cat([own[:0], *(parts[i] for i in order.tolist())]), rows, at[rows])

    def _own_rows(self, loops: Int[Tensor, " b"]) -> Int[Tensor, " r"]:
        if len(loops) < self.processes.count:
            raise UsageError(f"a batch of {len(loops)} rows is too few for {self.processes.count} processes")
        return torch.arange(self.processes.rank, len(loops), self.processes.count)

    def _join_logits(
        self, own_logits: Float[Tensor, "m v"], rows: Int[Tensor, " r"], at: Bool[Tensor, "r t"]
    ) -> Float[Tensor, "n v"]:
        """Return the logits at the positions ``at`` of these rows of the batch; ``own_logits`` are this process's."""
        owner = (rows % self.processes.count)[at.nonzero()[:, 0]]
        counts = owner.bincount(minlength=self.processes.count).tolist()
        padded = F.pad(own_logits.detach(), (0, 0, 0, max(counts) - len(own_logits)))
        parts = [part[:count] for part, count in zip(self.processes.gather(padded), counts, strict=True)]
        parts[self.processes.rank] = own_logits
        back = owner.argsort(stable=True).argsort()
        return torch.cat(parts)[to_device(back, own_logits.device)]
