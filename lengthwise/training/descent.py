"""The update of the weights by their gradients: clipping, the optimizer's step, the moving average.

On a GPU it is captured as one CUDA graph, because launching its operations takes longer than computing them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from lengthwise.runners.capture import capture
from lengthwise.runners.graphs import Graphs
from lengthwise.training.ema import EMA


class Descent:
    """Updates a model's weights. Calls return the values to log."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None) -> None:
        self.optimizer, self.clip = optimizer, clip
        self.model, self.weights = model, [*model.parameters()]

    def __call__(self, rate: float | Tensor, average: EMA | None) -> dict[str, Tensor]:
        """Take a step at a learning rate, and update the average, if there is one."""
        norm = {"gradient_norm": clip_grad_norm_(self.weights, self.clip)} if self.clip else {}
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if average:
            average.move_towards(self.model)
        return norm


class ReplayedDescent:
    """A descent that is captured when it first has the same weights with gradients, and replayed after that.

    The rate is in a tensor; gradients are in the same memory at every step (``runners.graphs``). The first steps of an
    optimizer and of an average, which allocate, are not captured, nor any step of an optimizer whose operations depend
    on the number of the step: AdamW counts in a tensor, and LAMB as we use it does not count.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.rate = device, torch.zeros((), device=device)
        self.captured: dict[tuple[bool, ...], tuple[Callable[[], None], dict[str, Tensor]]] = {}

    def __call__(self, descent: Descent, rate: float, average: EMA | None, graphs: Graphs) -> dict[str, Tensor]:
        """Take a step like ``descent``, with the gradients that ``graphs`` has computed."""
        changing = [weight for weight in descent.weights if weight.grad is not None]
        begun = all(weight in descent.optimizer.state for weight in changing)
        begun = begun and (average is None or bool(average.n_averaged))
        fixed = {id(gradient) for gradient in graphs.gradients.values()}
        if (
            not begun
            or not _is_repeatable(descent.optimizer)
            or any(id(weight.grad) not in fixed for weight in changing)
        ):
            return descent(rate, average)
        self.rate.fill_(rate)
        key = (average is not None, *(weight.grad is not None for weight in descent.weights))
        if key not in self.captured:
            self.captured[key] = self._capture(descent, average)
        replay, logs = self.captured[key]
        replay()
        for group in descent.optimizer.param_groups:
            group |= {"lr": rate, **({"step": group["step"] + 1} if "step" in group else {})}
        return logs

    def _capture(self, descent: Descent, average: EMA | None) -> tuple[Callable[[], None], dict[str, Tensor]]:
        logs: dict[str, Tensor] = {}
        on_gpu, groups = self.device.type == "cuda", descent.optimizer.param_groups

        def descend() -> None:
            kept = [{name: group[name] for name in ("capturable", "step") if name in group} for group in groups]
            for group in groups:
                group |= {"capturable": on_gpu} if "capturable" in group else {}
            logs.update(descent(self.rate, average))
            for group, before in zip(groups, kept, strict=True):
                group |= before

        return (capture(descend) if on_gpu else descend), logs


def _is_repeatable(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer's operations are the same at every step."""
    groups = optimizer.param_groups
    if type(optimizer).__name__ == "Lamb":
        return all(group.get("adam_debias") for group in groups)
    return isinstance(optimizer, torch.optim.AdamW) and all(group.get("fused") for group in groups)
