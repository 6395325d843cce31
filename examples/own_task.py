"""A task of one's own: write n digits backwards. Or: `lengthwise train looped-reverse --import own_task`."""

from dataclasses import dataclass

import torch

import lengthwise as lw


@dataclass(frozen=True)
class Reverse(lw.Task):
    symbols = tuple("0123456789")  # what prompts and answers are written in

    def sample(self, sizes, generator):  # a problem per row of sizes; no loop over rows
        length, position = sizes[:, :1], torch.arange(int(sizes.max()))
        row = torch.randint(10, (len(sizes), len(position)), generator=generator) * (position < length)
        back = row.gather(1, (length - 1 - position).clamp(min=0)) * (position < length)
        return lw.Problems(sizes, row, length[:, 0], back, length[:, 0], rounds=length[:, 0])

    def parse(self, text):  # what a person types
        row = self.vocab.encode(text)
        n = torch.tensor([len(row)])
        return lw.Problems(n[:, None], row[None], n, row.flip(0)[None], n, rounds=n)

    def reference(self, prompt):  # the plainest algorithm; tests hold `sample` to it
        return prompt[::-1]

    def answer_slots(self, sizes):  # places that an answer may take
        return sizes[:, 0]


def looped_reverse() -> lw.Recipe:
    changes = "name=looped-reverse lengths=Curriculum(top=5,every=100) model.positions=RoPE steps=1000 watch.every=0"
    return lw.find("looped-parity", *changes.split()).change(task=Reverse())


if __name__ == "__main__":
    run = lw.train(looped_reverse(), quiet=False)
    print(*(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, range(1, 9))))
