"""A custom model: any torch module from tokens to logits, here a GRU, on a shipped task.

On the command line: `lengthwise train gru-parity --import own_model`.
"""

from dataclasses import dataclass

from torch import nn

import lengthwise as lw


class GRU(nn.Module):
    """A module that maps tokens to logits with a gated recurrent unit (Cho et al. 2014)."""

    def __init__(self, reads, writes, width):
        super().__init__()
        self.embedding = nn.Embedding(reads, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, writes)

    def forward(self, tokens):  # (rows, positions) → (rows, positions, vocabulary)
        return self.head(self.recurrent(self.embedding(tokens))[0])


@dataclass(frozen=True)
class Recurrent(lw.ModelSpec):
    """The configuration of ``GRU``."""

    width: int = 64

    def build(self, reads, writes, *, causal):
        return GRU(len(reads), len(writes), self.width)


def gru_parity() -> lw.Recipe:
    """Parity by a GRU, which has to remember only one bit."""
    return lw.find("looped-parity", "name=gru-parity", "loops=Constant").change(model=Recurrent())


if __name__ == "__main__":
    run = lw.train(gru_parity())
    print(*(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, [20, 40, 60])))
