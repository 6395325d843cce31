"""Several processes (torchrun) that train one model, each on some rows of the same batch.

Process r of n runs the rows r, r + n, r + 2 n, …, and all exchange their logits, so each computes the loss of the whole
batch, for any objective. A process computes the gradient through its own rows only; summed over processes, it equals
the gradient of the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from lengthwise.base.errors import UsageError
from lengthwise.runs.run import is_torchrun_process


class Processes:
    """The processes that train one model, as seen by process ``rank`` of ``count``; by default a single process."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self.is_first = rank == 0  # it measures scores and writes files
        # Whether a process runs only some rows of a batch; in ``try_training``, a single process runs all.
        self.splits_batches = count > 1 or count_processes() > 1
        # The process's part of the address (see ``base.rng``) of random numbers; empty for the first process.
        self.rng_address = (rank,) if rank else ()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, which have equal shapes."""
        if self.count == 1:
            return [tensor]
        tensors = [torch.empty_like(tensor) for _ in range(self.count)]
        with _report_lost_process():
            dist.all_gather(tensors, tensor.contiguous())
        return tensors

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

    def all_reduce_gradients(self, model: nn.Module) -> None:
        """Replace each parameter's gradient by the sum over processes. A parameter for which no process has a gradient
        gets none."""
        if self.count == 1:
            return
        parameters = list(model.parameters())
        used = self.combine_flags(*(parameter.grad is not None for parameter in parameters))
        shared = [parameter for parameter, is_used in zip(parameters, used, strict=True) if is_used]
        parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in shared]
        flat = torch.cat([part.flatten() for part in parts])
        self.sum_in_place(flat)
        for parameter, part in zip(shared, flat.split([weight.numel() for weight in shared]), strict=True):
            parameter.grad = part.view_as(parameter)


@contextmanager
def open_process_group(device: torch.device) -> Iterator[Processes]:
    """Yield the processes that torchrun has started; without torchrun, a single process."""
    if count_processes() == 1:
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


def count_processes() -> int:
    """Return the number of processes that torchrun has started; 1 without torchrun."""
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
        raise UsageError(f"another process of this training run ended ({reason}); train again") from None
