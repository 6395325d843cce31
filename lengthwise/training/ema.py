"""The exponential moving average of a model's weights during training."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class EMA(AveragedModel):
    """After the first update a copy, then ``decay`` of itself plus the rest of the model.

    Torch's class copies the number of updates to the model's device each time, which makes the host wait for a GPU. An
    exponential average does not need it, so it stays on the CPU.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.move = get_ema_multi_avg_fn(decay)

    def update_parameters(self, model: nn.Module) -> None:
        """Update the average; buffers and integers are copied."""
        self.move_towards(model)
        self.n_averaged += 1

    @torch.no_grad()
    def move_towards(self, model: nn.Module) -> None:
        """Update the average without counting the update."""
        begun = bool(self.n_averaged)
        moving: list[tuple[Tensor, Tensor]] = []
        for own, new in _pair_tensors(self.module, model):
            if begun and isinstance(own, nn.Parameter) and (own.is_floating_point() or own.is_complex()):
                moving.append((own, new))
            else:
                own.copy_(new)
        if moving:
            own, new = zip(*moving, strict=True)
            self.move(own, new, int(self.n_averaged))


def _pair_tensors(average: nn.Module, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter and buffer of the average, with the model's own."""
    yield from zip(average.parameters(), model.parameters(), strict=True)
    yield from zip(average.buffers(), model.buffers(), strict=True)
