"""A custom positional encoding: a learned score for every octave of the distance (after Raffel et al. 2020)."""

from dataclasses import dataclass

import torch
from torch import nn

import lengthwise as lw


@dataclass(frozen=True)
class Octaves(lw.Position):
    """A learned score per head, side and one of ``count`` octaves of distance (0, 1, 2–3, …); the last is unbounded."""

    indexed = True  # it depends on a token's position in the row

    count: int = 8

    def build(self, width, heads):
        return OctaveScores(heads, self.count)


class OctaveScores(lw.Encoding):
    """The encoding of ``Octaves``."""

    def __init__(self, heads, count):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(heads, 2 * count + 1))

    def attention_bias(self, inputs):  # → (rows, heads, queries, keys), added to the attention scores
        distance = inputs.position[:, None, :] - inputs.position[:, :, None]
        count = self.scores.shape[1] // 2
        octave = distance.abs().double().frexp().exponent.clamp(max=count)
        return self.scores[:, count + distance.sign() * octave].transpose(0, 1)


def octave_parity() -> lw.Recipe:
    """Parity on up to 8 bits, with attention by octaves of the distance."""
    changes = "name=octave-parity model.positions=Octaves lengths=Curriculum(top=8,every=100) steps=1000 watch.every=0"
    return lw.find("fop-loop-adaptive-parity", *changes.split())


if __name__ == "__main__":
    run = lw.train(octave_parity())
    print(*(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, range(1, 13))))
