"""The moving average of the weights of a model in training."""

from __future__ import annotations

import torch
from torch import nn
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
        pairs = list(zip(self.module.parameters(), model.parameters(), strict=True))
        moving = [(own, new) for own, new in pairs if own.is_floating_point()] if self.n_averaged else []
        if moving:
            own, new = zip(*moving, strict=True)
            get_ema_multi_avg_fn(self.decay)(own, new, int(self.n_averaged))
        for own, new in [*(() if moving else pairs), *zip(self.module.buffers(), model.buffers(), strict=True)]:
            own.copy_(new)
        self.n_averaged += 1
