"""A custom objective: the answer must also be right several loops later."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch.nn import functional as F

import lengthwise as lw


@dataclass(frozen=True)
class StandStill(lw.Objective):
    """The mean of two losses: after each row's own loops, and after ``extra_loops`` more loops."""

    extra_loops: Annotated[int, lw.Range(1)] = 2

    def __call__(self, runner, batch, loops, generator):
        targets, losses = batch.targets[batch.loss_mask], []
        for depth in (loops, loops + self.extra_loops):
            logits = runner.last(batch.inputs, depth, batch.loss_mask)  # (answer tokens of all rows, vocabulary)
            losses.append(F.cross_entropy(logits, targets.to(logits.device)))
        value = torch.stack(losses).mean()
        return lw.Loss(value, {"loss": value.detach(), "later_loss": losses[1].detach()})  # logged


def still_parity() -> lw.Recipe:
    """Parity on up to 8 bits, whose answer has to stay for two more loops."""
    changes = "name=still-parity objective=StandStill lengths=Curriculum(top=8,every=60) steps=600 watch.every=0"
    return lw.find("looped-parity", *changes.split())


if __name__ == "__main__":
    run = lw.train(still_parity())
    for more in (0, 2, 6):
        scores = lw.evaluate(run, [8, 12], stopping=lw.Oracle(offset=more))
        print(f"{more} more loops:", *(f"{score.sizes[0]}: {score.exact:.2f}" for score in scores))
