"""A custom mixer on grids: the maximum over the four neighbours, inside the looped transformer."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import lengthwise as lw


@dataclass(frozen=True)
class NeighbourMaximum(lw.MixerSpec):
    """A linear layer, applied to a cell's state and to the coordinate-wise maximum of its neighbours' states."""

    sees_neighbours_only = True
    checked_on = lw.find("looped-maze").task, lw.Grid()  # the task and layout with which `lengthwise check` tests it

    def build(self, width, heads, *, biases):
        return Neighbours(width, biases)


class Neighbours(lw.Mixer):
    """The mixer of ``NeighbourMaximum``."""

    needs_neighbour_index = True  # the context then has `neighbour_index`

    def __init__(self, width, biases):
        super().__init__()
        self.out = nn.Linear(2 * width, width, bias=biases)

    def forward(self, x, context, cache=None):  # (rows, cells, width) → the same
        row = torch.arange(len(x), device=x.device)[:, None, None]
        padded = F.pad(x, (0, 0, 0, 1))  # zeros at index `cells`: beyond the edge
        near = padded[row, context.neighbour_index]  # rows × cells × 4 (above, below, left, right) × width
        return self.out(torch.cat([x, near.amax(2)], -1))


def maximum_maze() -> lw.Recipe:
    """Mazes of 2 to 4 cells per side, by a looped transformer with the mixer ``NeighbourMaximum``."""
    return lw.find("looped-maze", "name=maximum-maze", "model.mixer=NeighbourMaximum", "steps=600")


if __name__ == "__main__":
    run = lw.train(maximum_maze())
    print(*(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, [2, 4, 5], samples=100)))
