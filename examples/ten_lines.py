"""A custom GRU, three seeds, two shipped baselines: one figure and one table."""

from torch import nn

import lengthwise as lw


class MyGRU(nn.Module):  # any torch module that maps tokens to logits
    def __init__(self, symbol_count):
        super().__init__()
        self.embed, self.read = nn.Embedding(symbol_count, 64), nn.Linear(64, symbol_count)
        self.gru = nn.GRU(64, 64, batch_first=True)

    def forward(self, tokens):
        return self.read(self.gru(self.embed(tokens))[0])


if __name__ == "__main__":
    net = MyGRU(symbol_count=len(lw.NextToken().vocabs(lw.Parity())[0]))
    runs = lw.train(net, task="parity", lengths=20, steps=800, seeds=3)
    for run in runs:
        lw.evaluate(run, [20, 40, 60], families=True, save=True)
    result = lw.compare(runs, "looped-parity", "halting-parity")  # seeds of a recipe are pooled
    print(result)
    result.savefig("parity.pdf")
    print(result.to_latex())
