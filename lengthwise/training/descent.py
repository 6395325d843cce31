"""Gradients and the weight update: gradient clipping, the optimizer's step, the moving average.

On a GPU the update (of all models of a stack) is captured as one CUDA graph, because launching its operations takes
longer than computing them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lengthwise.base.errors import UsageError
from lengthwise.base.types import Loss
from lengthwise.runners.cuda import capture
from lengthwise.training.arithmetic import Matmul, step_precision

Logs = list[dict[str, Tensor]]  # the values to log, by name: a dictionary per model


def compute_gradients(losses: Iterator[Loss], matmul: Matmul) -> Iterator[Loss]:
    """Yield each loss after its backward pass; matrix products have the precision ``matmul``."""
    while True:
        with step_precision(matmul):
            if (loss := next(losses, None)) is None:
                return
            if not loss.value.requires_grad:
                raise UsageError("the loss depends on no trainable weight: remove detach() or torch.no_grad()")
            loss.value.backward()
        yield loss


class EMA(AveragedModel):
    """A moving average of weights: after the first update a copy, then ``decay`` · average + (1 − ``decay``) · weights.

    Torch's class copies the number of updates to the model's device each time, which makes the host wait for a GPU.
    Here the number stays on the CPU, as an exponential average does not need it.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.move = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def move_towards(self, model: nn.Module) -> None:
        """Update the average, but not ``n_averaged``, the number of updates. Buffers and integers are copied."""
        started = bool(self.n_averaged)
        moving: list[tuple[Tensor, Tensor]] = []
        own_tensors = chain(self.module.parameters(), self.module.buffers())
        for own, new in zip(own_tensors, chain(model.parameters(), model.buffers()), strict=True):
            if started and isinstance(own, nn.Parameter) and (own.is_floating_point() or own.is_complex()):
                moving.append((own, new))
            else:
                own.copy_(new)
        if moving:
            own, new = zip(*moving, strict=True)
            self.move(own, new, int(self.n_averaged))


class Descent:
    """One model's weight update: gradient clipping, the optimizer's step, and the moving average."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None) -> None:
        self.optimizer, self.clip = optimizer, clip
        self.model, self.weights = model, [*model.parameters()]

    def __call__(self, rate: float | Tensor, average: EMA | None) -> dict[str, Tensor]:
        """Take a step at the learning rate ``rate``, update the average, if any, and return the values to log."""
        norm = {"gradient_norm": clip_grad_norm_(self.weights, self.clip)} if self.clip else {}
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if average:
            average.move_towards(self.model)
        return norm


class ReplayedUpdate:
    """The weight updates of one or several models, captured together once for each set of weights that have gradients,
    and then replayed.

    The learning rate is a tensor; gradients are in the same memory at every step (``runners.graphs``). The
    first steps of an optimizer and of an average are not captured, because they allocate memory; nor are optimizers
    whose operations depend on the step's number. (AdamW counts steps in a tensor; LAMB, as used here, does not count.)
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.rate = device, torch.zeros((), device=device)
        self.captured: dict[tuple[bool, ...], tuple[Callable[[], None], Logs]] = {}

    def __call__(
        self, descents: Sequence[Descent], rate: float, averages: Sequence[EMA | None], gradients: Collection[Tensor]
    ) -> Logs:
        """Take a step of each descent, and update its average, if there is one; return the values to log. ``gradients``
        are the gradients that keep their memory addresses in all steps."""
        fixed_addresses = {id(gradient) for gradient in gradients}
        started = all(average is None or average.n_averaged for average in averages)
        for descent in descents:
            state = descent.optimizer.state
            changing = (weight for weight in descent.weights if weight.grad is not None)
            started = started and all(weight in state and id(weight.grad) in fixed_addresses for weight in changing)
        if not started or not _is_repeatable(descents[0].optimizer):
            return [descent(rate, average) for descent, average in zip(descents, averages, strict=True)]
        self.rate.fill_(rate)
        groups = [group for descent in descents for group in descent.optimizer.param_groups]
        has_gradient = (weight.grad is not None for descent in descents for weight in descent.weights)
        key = (averages[0] is not None, *has_gradient)
        if key not in self.captured:
            on_gpu, logs = self.device.type == "cuda", Logs({} for _ in descents)

            def descend() -> None:
                settings = [{name: group[name] for name in ("capturable", "step") if name in group} for group in groups]
                for group in groups:
                    group |= {"capturable": on_gpu} if "capturable" in group else {}
                for descent, average, log in zip(descents, averages, logs, strict=True):
                    log.update(descent(self.rate, average))
                for group, saved in zip(groups, settings, strict=True):
                    group |= saved

            self.captured[key] = (capture(descend) if on_gpu else descend), logs
        replay, logs = self.captured[key]
        replay()
        for group in groups:
            group |= {"lr": rate, **({"step": group["step"] + 1} if "step" in group else {})}
        return logs


def _is_repeatable(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer's operations are the same at every step."""
    groups = optimizer.param_groups
    if type(optimizer).__name__ == "Lamb":
        return all(group.get("adam_debias") for group in groups)
    return isinstance(optimizer, torch.optim.AdamW) and all(group.get("fused") for group in groups)
