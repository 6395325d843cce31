"""A custom looped model: a small convolution, applied once per bit."""

from dataclasses import dataclass

import torch
from torch import nn

import lengthwise as lw


@dataclass(frozen=True)
class LoopedConvolution(lw.ModelSpec):
    """A looped convolution: norm(z + W₂ relu(W₁ [z_left, z, z_right])) with z = h + x, without z_right if causal."""

    width: int = 64

    def build(self, reads, writes, *, causal):
        return Convolution(len(reads), len(writes), self.width, causal)


class Convolution(lw.Model):
    """The model of ``LoopedConvolution``, with states (rows, positions, width)."""

    def __init__(self, reads, writes, width, causal):
        super().__init__()
        self.causal = causal
        self.embedding = nn.Embedding(reads, width)
        self.mix = nn.Linear((2 if causal else 3) * width, 2 * width)
        self.out = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, writes)

    def embed(self, inputs):  # the context, which stays the same in every loop; rows first
        return self.embedding(inputs.tokens), inputs.padding_mask[..., None]

    def start(self, context):  # the state before the first loop
        return torch.zeros_like(context[0])

    def advance(self, state, context):  # one loop
        x, real = context
        z = (state + x) * real  # padding is zero, so that a neighbour cannot read it
        seen = [nn.functional.pad(z, (0, 0, 1, 0))[:, :-1], z, nn.functional.pad(z, (0, 0, 0, 1))[:, 1:]]
        return self.norm(z + self.out(torch.relu(self.mix(torch.cat(seen[:2] if self.causal else seen, -1)))))

    def read(self, state):  # the logits of every position
        return self.readout(state)


def convolution_parity() -> lw.Recipe:
    """Parity on up to 8 bits, by a convolution applied once per bit."""
    changes = "name=convolution-parity model=LoopedConvolution lengths=Curriculum(top=8,every=60) steps=600"
    return lw.find("looped-parity", *changes.split(), "watch.every=0")


if __name__ == "__main__":
    run = lw.train(convolution_parity())
    print(*(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, [4, 8, 12, 16, 24])))
