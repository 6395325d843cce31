"""A custom mixer: linear attention (Katharopoulos et al. 2020), inside the looped transformer."""

from dataclasses import dataclass

from torch import nn
from torch.nn import functional as F

import lengthwise as lw


@dataclass(frozen=True)
class LinearAttention(lw.MixerSpec):
    """Linear attention: φ(q) Σ φ(k)ᵀ v / φ(q) Σ φ(k), with φ(x) = 1 + elu(x) and sums over visible positions."""

    def build(self, width, heads, *, dropout, biases):
        return Linear(width, heads, biases)


class Linear(lw.Mixer):
    """The mixer of ``LinearAttention``."""

    def __init__(self, width, heads, biases):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width, bias=biases)
        self.out = nn.Linear(width, width, bias=biases)  # added to the residual stream

    def forward(self, x, context, cache=None):  # (rows, positions, width) → the same
        query, key, value = self.project(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        real = context.padding_mask[..., None, None].to(x.dtype)  # padding adds nothing
        query, key, value = 1 + F.elu(query), (1 + F.elu(key)) * real, value * real
        pairs, total = key[..., :, None] * value[..., None, :], key
        if context.causal:
            pairs, total = pairs.cumsum(1), total.cumsum(1)
        else:
            pairs, total = pairs.sum(1, keepdim=True), total.sum(1, keepdim=True)
        found = (query[..., None, :] @ pairs)[..., 0, :] / ((query * total).sum(-1, keepdim=True) + 1e-6)
        return self.out(found.flatten(2))


def linear_parity() -> lw.Recipe:
    """Parity on up to 8 bits, by linear attention."""
    changes = "name=linear-parity model.mixer=LinearAttention model.positions=NoPE model.heads=8"
    return lw.find(
        "looped-parity", *changes.split(), "lengths=Curriculum(top=8,every=100)", "steps=1000", "watch.every=0"
    )


if __name__ == "__main__":
    run = lw.train(linear_parity())
    print(*(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, range(1, 13))))
