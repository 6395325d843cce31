"""The transformer, standard and looped: the same blocks, advanced once or many times.

Standard (Vaswani et al. 2017, pre-norm as GPT-2): no injection, advanced once. Looped (Fan et al. 2025, section 4):
h_0 = 0 and h_{k+1} = norm(blocks(h_k + x)), with x the embedded input: input injection, and the final norm inside the
loop. Looped without injection: h_0 = x and h_{k+1} = norm(blocks(h_k)). ``Injection`` has further ways to keep x.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn

from lengthwise.models import Model, ModelSpec
from lengthwise.nn.attention import Attention, Pattern, pattern
from lengthwise.nn.position import Encoding, NoPE, Position
from lengthwise.types import Inputs, UsageError
from lengthwise.vocab import Vocab

Injection = Literal["add", "concat", "gate", "once"]


@dataclass(frozen=True)
class Transformer(ModelSpec):
    """``layers`` pre-norm blocks.

    ``injection`` is how the embedded input x joins the state h where a loop starts: ``add``, h + x, as published;
    ``concat``, W[h; x], which starts as h + x; ``gate``, h + g(h, x) · x, with a gate g for every coordinate, which
    starts nine tenths open. With ``once``, x is where the loops start, and is not seen again. Advanced once, ``add``
    and ``once`` are the same model.
    """

    width: int = 64
    layers: int = 1
    heads: int = 4
    mlp: int = 4  # the hidden width of the MLP, in multiples of width
    activation: Literal["gelu", "relu"] = "gelu"  # gelu: its tanh form; relu takes a sixth off a small step on a CPU
    positions: tuple[Position, ...] = (NoPE(),)
    injection: Injection = "add"
    dropout: float = 0.0
    init_std: float = 0.02  # of the weights in the blocks at the start; small widths learn faster from more
    embedding_std: float = 1.0  # of the embedding at the start

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "mlp"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.width % self.heads:
            raise UsageError(f"width must be a multiple of heads, not {self.width} / {self.heads}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be at least 0 and below 1, not {self.dropout}")

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        for position in self.positions:
            inputs = position.vary(inputs, generator)
        return inputs

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        return TransformerModel(self, len(reads), len(writes), causal=causal)


class TransformerContext(NamedTuple):
    """What stays the same from loop to loop."""

    embedded: Float[Tensor, "b t d"]
    pattern: Pattern


class TransformerModel(Model):
    """See ``Transformer``. The state is "r t d"."""

    def __init__(self, spec: Transformer, reads: int, writes: int, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.injected = causal, spec.injection != "once"
        self.embedding = nn.Embedding(reads, spec.width)
        nn.init.normal_(self.embedding.weight, std=spec.embedding_std)
        encodings = [position.build(spec.width, spec.heads) for position in spec.positions]
        self.encodings: Iterable[Encoding] = nn.ModuleList(encodings)  # type: ignore[assignment]
        self.inject = INJECTIONS[spec.injection](spec.width)
        blocks = [Block(spec, causal=causal) for _ in range(spec.layers)]
        for encoding, block in product(encodings, blocks):
            if (heads := encoding.alike()) is not None:
                block.attention.start_alike(heads)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(spec.width)
        self.readout = nn.Linear(spec.width, writes)

    def embed(self, inputs: Inputs) -> TransformerContext:
        embedded = self.embedding(inputs.tokens)
        for encoding in self.encodings:
            embedded = encoding.embed(embedded, inputs)
        return TransformerContext(embedded, pattern(self.encodings, inputs, self.causal))

    def start(self, context: TransformerContext) -> Float[Tensor, "r t d"]:
        return torch.zeros_like(context.embedded) if self.injected else context.embedded

    def advance(self, state: Float[Tensor, "r t d"], context: TransformerContext) -> Float[Tensor, "r t d"]:
        state = self.inject(state, context.embedded)
        for block in self.blocks:
            state = block(state, context.pattern)
        return self.norm(state)

    def read(self, state: Float[Tensor, "r t d"], at: Bool[Tensor, "r t"]) -> Float[Tensor, "n v"]:
        return self.readout(state[at])


class _Add(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, state: Float[Tensor, "r t d"], x: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return state + x


class _Concat(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.join = nn.Linear(2 * width, width)
        with torch.no_grad():
            self.join.weight.copy_(torch.eye(width).repeat(1, 2))
            self.join.bias.zero_()

    def forward(self, state: Float[Tensor, "r t d"], x: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return self.join(torch.cat([state, x], -1))


class _Gate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * width, width)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, math.log(9))

    def forward(self, state: Float[Tensor, "r t d"], x: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return state + self.gate(torch.cat([state, x], -1)).sigmoid() * x


class _Nothing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, state: Float[Tensor, "r t d"], x: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return state


INJECTIONS: dict[Injection, type[nn.Module]] = {"add": _Add, "concat": _Concat, "gate": _Gate, "once": _Nothing}


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)). Weights start N(0, init_std), those of what is added to
    the residual stream N(0, init_std / √(2·layers)), biases 0; GPT-2's are 0.02 (Radford et al. 2019)."""

    def __init__(self, spec: Transformer, *, causal: bool) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(spec.width)
        self.attention = Attention(spec.width, spec.heads, causal=causal, dropout=spec.dropout)
        self.norm_mlp = nn.LayerNorm(spec.width)
        self.widen = nn.Linear(spec.width, spec.mlp * spec.width)
        self.act = nn.ReLU() if spec.activation == "relu" else nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(spec.mlp * spec.width, spec.width)
        self.drop = nn.Dropout(spec.dropout) if spec.dropout else nn.Identity()
        residual = spec.init_std / math.sqrt(2 * spec.layers)
        for linear in (self.attention.project, self.attention.out, self.widen, self.narrow):
            nn.init.normal_(
                linear.weight, std=residual if linear in (self.attention.out, self.narrow) else spec.init_std
            )
            nn.init.zeros_(linear.bias)

    def forward(self, x: Float[Tensor, "b t d"], pattern: Pattern) -> Float[Tensor, "b t d"]:
        x = x + self.drop(self.attention(self.norm_attention(x), pattern))
        return x + self.drop(self.narrow(self.act(self.widen(self.norm_mlp(x)))))
