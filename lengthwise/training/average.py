"""The moving average of the weights of a model in training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Average(AveragedModel):
    """An exponential moving average: after the first update a copy, then ``decay`` of itself and the rest of the model.

    Torch's own sends the number of updates to the model's device at each one, for which a GPU makes the host wait. An
    exponential average does not depend on it, so it stays on the CPU.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.decay = decay

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Take one more state of the model into the average; its buffers are copied."""
        own: tuple[Tensor, ...] = tuple(self.module.parameters())
        new: tuple[Tensor, ...] = tuple(model.parameters())
        if self.n_averaged:
            get_ema_multi_avg_fn(self.decay)(own, new, int(self.n_averaged))
        else:
            _copy(own, new)
        _copy(self.module.buffers(), model.buffers())
        self.n_averaged += 1


def _copy(into: Iterable[Tensor], of: Iterable[Tensor]) -> None:
    for place, value in zip(into, of, strict=True):
        place.copy_(value)
