"""A custom task: write n digits backwards."""

from dataclasses import dataclass

import torch

import lengthwise as lw


@dataclass(frozen=True)
class Backwards(lw.SequenceTask):  # n symbols in a row, each drawn uniformly; lw.Task for any other kind of problem
    """Write the digits backwards."""

    symbols = tuple("0123456789")  # the symbols of prompts and answers

    def from_rows(self, sizes, rows):  # rows of symbols, padded with zeros → problems; no Python loop over rows
        length, position = sizes[:, :1], torch.arange(rows.shape[1])
        answer = rows.gather(1, (length - 1 - position).clamp(min=0)) * (position < length)
        return lw.Problems(sizes, rows, length[:, 0], answer, length[:, 0], rounds=length[:, 0])

    def reference(self, prompt):  # the simplest algorithm, on text; tests compare `from_rows` with it
        return prompt[::-1]

    def answer_slots(self, sizes):  # how many symbols an answer may take at these sizes
        return sizes[:, 0]


def looped_backwards() -> lw.Recipe:
    """Backwards on up to 5 digits, n loops for n digits."""
    changes = "name=looped-backwards lengths=Curriculum(top=5,every=100) model.positions=RoPE steps=1000 watch.every=0"
    return lw.find("looped-parity", *changes.split()).change(task=Backwards())


if __name__ == "__main__":
    run = lw.train(looped_backwards())
    print(*(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, range(1, 9))))
