"""Custom parts of a training run: sizes, loops, held-out problems, an optimizer and its learning rates."""

from dataclasses import dataclass

import torch

import lengthwise as lw


@dataclass(frozen=True)
class MostlyShort(lw.SampledLengths):
    """Sizes 1 to ``top``; each is 0.9 times as frequent as the one before."""

    top: int = 8

    def draw(self, step, rows, axes, generator):
        weights = (0.9 ** torch.arange(self.top)).expand(rows, -1)
        return 1 + torch.multinomial(weights, axes, replacement=True, generator=generator)


@dataclass(frozen=True)
class AtLeastThree(lw.Loops):
    """T(n) loops, but at least three."""

    def planned(self, rounds):
        return rounds.clamp(min=3)


@dataclass(frozen=True)
class TwoOfThree(lw.Source):
    """Tests on prompts with two ones among the first three symbols, and trains on the others."""

    def mask_part(self, purpose, problems):
        tested = (problems.prompt[:, :3] == 1).sum(1) == 2
        return ~tested if purpose == "train" else tested


@dataclass(frozen=True)
class NAdam(lw.Optimizer):
    """Adam with Nesterov momentum (Dozat 2016)."""

    rate: float = 0.002

    def build(self, parameters):
        return torch.optim.NAdam(parameters, lr=self.rate)


@dataclass(frozen=True)
class Falling(lw.Schedule):
    """Lowers the learning rate from its peak to 0, ever faster."""

    def factor(self, step, steps):
        return 1 - (step / steps) ** 2


def two_of_three_parity() -> lw.Recipe:
    """Parity on up to 8 bits, with all parts of this file."""
    changes = "name=two-of-three-parity lengths=MostlyShort loops=AtLeastThree source=TwoOfThree optimizer=NAdam"
    return lw.find("looped-parity", *changes.split(), "schedule=Falling", "steps=1500", "watch.every=0")


if __name__ == "__main__":
    for score in lw.evaluate(lw.train(two_of_three_parity()), [8, 12, 20]):
        print(f"{score.sizes[0]} bits, held-out starts: {score.exact:.2f}")
