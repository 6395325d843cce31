"""A learned parallel scan: a looped model that looks back twice as far in each loop as in the previous one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.base.ranges import NotNegative, Size
from lengthwise.base.types import Inputs, Vocab
from lengthwise.models import Model, ModelSpec

State = tuple[Float[Tensor, "r t d"], int]  # the state, and the number of loops that computed it


@dataclass(frozen=True)
class Scan(ModelSpec):
    """The parallel scan of Hillis and Steele (1986) with a learned operator. Loop k combines each position i with
    position i − 2^(k−1):

        h_i ← norm(W₂ relu(W₁ [h_j; h_i])), j = i − 2^(k−1)

    A position with j < 0 keeps its state, so ⌈log₂ n⌉ loops combine all n symbols and later loops change nothing. In
    training, ``noise`` is added to the states that a loop reads: states then cluster around a few points, and errors do
    not grow with the number of loops. Positions see only earlier positions.
    """

    width: Size = 32  # numbers per position
    mlp: Size = 4  # the hidden width of the operator, in multiples of width
    noise: NotNegative = 0.3  # standard deviation of noise added to states in training

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        return ScanModel(self, len(reads), len(writes))


class ScanModel(Model):
    """The model of ``Scan``. The context is the embedded input, "r t d"."""

    def __init__(self, spec: Scan, input_symbol_count: int, output_symbol_count: int) -> None:
        super().__init__()
        self.noise = spec.noise
        self.embedding = nn.Embedding(input_symbol_count, spec.width)
        self.widen = nn.Linear(2 * spec.width, spec.mlp * spec.width)
        self.narrow = nn.Linear(spec.mlp * spec.width, spec.width)
        self.norm = nn.LayerNorm(spec.width)
        self.readout = nn.Linear(spec.width, output_symbol_count)

    def embed(self, inputs: Inputs) -> Float[Tensor, "r t d"]:
        return self.norm(self.embedding(inputs.tokens))

    def start(self, context: Float[Tensor, "r t d"]) -> State:
        return context, 0

    def answer_state(self, state: State) -> Float[Tensor, "r t d"]:
        return state[0]

    def advance(self, state: State, context: Float[Tensor, "r t d"]) -> State:
        h, loops = state
        distance = 1 << min(loops, 40)  # 2⁴⁰ is longer than any row
        if distance >= h.shape[1]:
            return h, loops + 1
        read = h + self.noise * torch.randn_like(h) if self.training and self.noise else h
        pair = torch.cat([read[:, :-distance], read[:, distance:]], -1)
        combined = self.norm(self.narrow(self.widen(pair).relu()))
        return torch.cat([h[:, :distance], combined], 1), loops + 1

    def read(self, state: State) -> Float[Tensor, "r t v"]:
        return self.readout(state[0])
