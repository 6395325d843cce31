"""Custom tasks with an output at every position: running parity, and words of the group S3."""

from dataclasses import dataclass
from itertools import permutations

import torch

import lengthwise as lw


@dataclass(frozen=True)
class RunningParity(lw.SequenceTask):
    """Write, for each bit, 1 if the number of ones up to it is odd, and 0 if it is even."""

    symbols = ("0", "1")
    answers_each_symbol = True  # an answer has one symbol for each symbol of its prompt: lw.Tagged can write it
    next_state = ((0, 1), (1, 0))  # by state and symbol

    def from_rows(self, sizes, rows):  # rows of symbols, padded with zeros → problems; a loop over positions, not rows
        table, state, states = torch.tensor(self.next_state), torch.zeros(len(rows), dtype=torch.long), []
        for symbol in rows.long().T:
            states.append(state := table[state, symbol])
        answer = torch.stack(states, 1) * (torch.arange(rows.shape[1]) < sizes)  # padding is zero
        return lw.Problems(sizes, rows, sizes[:, 0], answer, sizes[:, 0], rounds=sizes[:, 0])

    def reference(self, prompt):  # the simplest algorithm, on text
        return "".join(str(prompt[: i + 1].count("1") % 2) for i in range(len(prompt)))

    def answer_slots(self, sizes):  # how many symbols an answer may take at these sizes
        return sizes[:, 0]


ORDERS = list(permutations((0, 1, 2)))  # the six elements of S3, as permutations of three things


@dataclass(frozen=True)
class S3Words(RunningParity):
    """Write, for each letter of a word over the group S3, the product of all letters up to this one."""

    symbols = tuple("abcdef")  # a changes nothing
    next_state = tuple(tuple(ORDERS.index(tuple(a[i] for i in b)) for b in ORDERS) for a in ORDERS)

    def reference(self, prompt):
        order, states = [0, 1, 2], ""
        for letter in prompt:
            order = [order[i] for i in ORDERS["abcdef".index(letter)]]
            states += "abcdef"[ORDERS.index(tuple(order))]
        return states


def lstm_s3_words() -> lw.Recipe:
    """Words of up to 40 letters, by an LSTM that is supervised at every position."""
    changes = "name=lstm-s3-words lengths=Uniform(top=40) loops=Constant ema=0.9 watch.every=0 steps=600"
    recipe = lw.find("looped-parity", *changes.split(), "model=LSTM(width=64,layers=2)", "optimizer.rate=0.005")
    return recipe.change(task=S3Words(), layout=lw.Tagged())


if __name__ == "__main__":
    for score in lw.evaluate(lw.train(lstm_s3_words()), (40, 64, 128, 256)):
        print(f"{score.sizes[0]}: exact {score.exact:.3f}, scaled {score.scaled:.3f}")
