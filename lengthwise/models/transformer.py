"""The transformer, standard and looped: the same blocks, advanced once or many times.

Standard (Vaswani et al. 2017, pre-norm as GPT-2): no injection, advanced once. Looped (Fan et al. 2025, section 4):
h_0 = 0 and h_{k+1} = norm(blocks(h_k + x)), with x the embedded input: input injection, and the final norm inside the
loop. Looped without injection: h_0 = x and h_{k+1} = norm(blocks(h_k)). ``Injection`` has further ways to keep x;
decoders of McLeish et al. 2024 take the other fields too (recipes/abacus.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.models import Model, ModelSpec, State
from lengthwise.nn import small, whole
from lengthwise.nn.attention import Attention
from lengthwise.nn.block import MLP, Activation, Block
from lengthwise.nn.packed import Packed, Ragged
from lengthwise.nn.pattern import Memory, Pattern, packed_pattern, pattern, take
from lengthwise.nn.position import Encoding, NoPE, Position, Randomized
from lengthwise.nn.readout import Scaled

Injection = Literal["add", "concat", "gate", "layers", "reads", "once"]


@dataclass(frozen=True)
class Transformer(ModelSpec):
    """``layers`` blocks.

    ``injection`` is how the embedded input x joins the state h where a loop starts: ``add``, h + x, as published;
    ``concat``, W[h; x], which starts as h + x; ``gate``, h + g(h, x) · x, with a gate g for every coordinate, which
    starts nine tenths open. With ``layers`` x is added before every layer of a loop; with ``reads``, to what attention
    and MLP of every layer read, but never to the state itself. With ``once``, x is where the loops start, and is not
    seen again; with ``reads`` it is where they start, too. Advanced once, ``add`` and ``once`` are the same model.

    In training the loops may start from noise of standard deviation ``noise``; at test they start from its mean.
    ``final_norm`` is inside the loop, or where the answer is read out, or nowhere. The readout is linear; or an MLP as
    the blocks' and one more linear layer before that; or ``scaled``, without bias, the logits divided by √width, which
    starts N(0, init_std). ``init`` names the weights that start smaller by √(2·layers): those of all that is added to
    the residual stream, or attention's alone.
    """

    width: int = 64
    layers: int = 1
    heads: int = 4
    mlp: int = 4  # the hidden width of the MLP, in multiples of width
    activation: Activation = "gelu"  # gelu: its tanh form; relu takes a sixth off a small step on a CPU
    gated: bool = False  # the MLP
    norm: Literal["pre", "post"] = "pre"
    final_norm: Literal["loop", "readout", "none"] = "loop"
    embedding_norm: bool = False  # normalise the embedded input
    eps: float = 1e-5  # of the norms
    biases: bool = True  # of the linear layers
    readout: Literal["linear", "mlp", "scaled"] = "linear"
    positions: tuple[Position, ...] = (NoPE(),)
    injection: Injection = "add"
    noise: float = 0.0
    dropout: float = 0.0
    init_std: float = 0.02  # of the weights in the blocks at the start; small widths learn faster from more
    init: Literal["all", "attention"] = "all"
    embedding_std: float = 1.0  # of the embedding at the start

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "mlp"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.width % self.heads:
            raise UsageError(f"width must be a multiple of heads, not {self.width} / {self.heads}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if sum(p.indexed for p in self.positions) > 1 and any(isinstance(p, Randomized) for p in self.positions):
            raise UsageError("Randomized(of=…) changes the positions of all: no other encoding of them beside it")
        if self.eps <= 0 or self.noise < 0:
            raise UsageError(f"eps must be above 0 and noise 0 or more, not {self.eps} and {self.noise}")

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        for position in self.positions:
            inputs = position.vary(inputs, generator)
        return inputs

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        return TransformerModel(self, len(reads), len(writes), causal=causal)


class TransformerContext(NamedTuple):
    """What stays the same from loop to loop."""

    embedded: State  # "b t d", or packed
    pattern: Pattern


class TransformerModel(Model):
    """See ``Transformer``. The state is "r t d", or the same packed."""

    packs = True

    def __init__(self, spec: Transformer, reads: int, writes: int, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.heads, self.injection, self.noise = causal, spec.heads, spec.injection, spec.noise
        self.looks_up = not spec.dropout  # attention to few places has none
        self.embedding = nn.Embedding(reads, spec.width)
        nn.init.normal_(self.embedding.weight, std=spec.embedding_std)
        encodings = [position.build(spec.width, spec.heads) for position in spec.positions]
        self.encodings: Iterable[Encoding] = nn.ModuleList(encodings)  # type: ignore[assignment]
        self.norm_embedding = nn.LayerNorm(spec.width, spec.eps) if spec.embedding_norm else nn.Identity()
        self.inject = INJECTIONS.get(spec.injection, _Nothing)(spec.width)
        blocks = [_block(spec, causal) for _ in range(spec.layers)]
        for encoding, block in product(encodings, blocks):
            if (heads := encoding.alike()) is not None:
                block.attention.start_alike(heads)
        self.blocks: Sequence[Block] = nn.ModuleList(blocks)  # type: ignore[assignment]
        self.norm = nn.LayerNorm(spec.width, spec.eps) if spec.final_norm == "loop" else nn.Identity()
        self.readout = _readout(spec, writes)

    def embed(self, inputs: Inputs) -> TransformerContext:
        return TransformerContext(
            self.embedded(inputs.tokens, self.vectors(inputs)), pattern(self.encodings, inputs, self.causal)
        )

    def embed_packed(self, inputs: Inputs) -> TransformerContext:
        ragged, pattern = packed_pattern(self.encodings, inputs, self.causal, self.heads, self.looks_up)
        embedded = self.embedded(inputs.tokens, self.vectors(inputs))
        return TransformerContext(Packed(ragged.pack(embedded), ragged), pattern)

    def vectors(self, inputs: Inputs) -> list[Float[Tensor, "b t d"]]:
        """What positions add to the embedded input."""
        return [vectors for encoding in self.encodings if (vectors := encoding.vectors(inputs)) is not None]

    def embedded(self, tokens: Int[Tensor, "b t"], vectors: list[Float[Tensor, "b t d"]]) -> Float[Tensor, "b t d"]:
        return self.norm_embedding(sum(vectors, self.embedding(tokens)))

    def piecewise(self, inputs: Inputs) -> Model | None:
        pieces = _Piecewise(self, inputs)
        return None if not self.causal or pieces.pattern.band is not None else pieces

    def reach(self, context: TransformerContext) -> int | None:
        band = context.pattern.band
        return len(self.blocks) * (band.value.shape[-1] // 2) if isinstance(band, Packed) else None

    def start(self, context: TransformerContext) -> State:
        x = context.embedded
        return x.like(self._start(x.value)) if isinstance(x, Packed) else self._start(x)

    def _start(self, x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
        if self.injection in ("once", "reads"):
            return x
        if self.noise and self.training:
            return torch.randn_like(x) * self.noise
        return torch.zeros_like(x)

    def advance(self, state: State, context: TransformerContext) -> State:
        if isinstance(state, Packed):
            return state.like(self._advance(state.value, context.embedded.value, context.pattern))
        return self._advance(state, context.embedded, context.pattern)

    def finish(self, state: State, context: TransformerContext, wanted: Bool[Tensor, "*r"]) -> Packed:
        """After its attention the last block deals with the places that are wanted only."""
        if isinstance(state, Packed):
            at = wanted.nonzero()[:, 0]
            value, ragged, x = state.value, state.ragged.keep(at), context.embedded.value
        else:
            ragged = Ragged.of(wanted)
            value, at, x = state, ragged.at, context.embedded
        return Packed(self._advance(value, x, context.pattern, at), ragged)

    def whole(
        self, inputs: Inputs, context: TransformerContext, running: list[int], until: Int[Tensor, " n"]
    ) -> Float[Tensor, "m d"] | None:
        x, pattern = context.embedded, context.pattern
        if isinstance(x, Packed):
            x, ends, width = x.value, x.ragged.ends, x.ragged.width
        else:
            width, x = x.shape[1], x.flatten(0, 1)
            ends = range(width, len(x) + 1, width)
        block = self.blocks[0]
        plain = self.injection in ("add", "once") and not (self.noise and self.training) and whole.possible(block)
        if not plain or not block.attention.pays(x, len(ends), width, small.WHOLE):
            return None
        looks = []
        for rows in running:
            pattern = take(pattern, slice(rows))
            if (found := block.attention.looks(x, (rows, width), pattern)) is None:
                return None
            looks.append(found)
        which = whole.distinct(x, inputs.tokens, ends, looks[0]) if self.causal else None
        loops = whole.plan(looks, ends, running, until, which)
        norm = self.norm if isinstance(self.norm, nn.LayerNorm) else None
        return whole.run(x, which, loops, list(self.blocks), norm, again=self.injection == "add")

    def _advance(
        self, state: Float[Tensor, "*r d"], x: Float[Tensor, "*r d"], pattern: Pattern, at: Tensor | None = None
    ) -> Float[Tensor, "... d"]:
        state = self.inject(state, x)
        for block in self.blocks:
            if self.injection == "layers":
                state = state + x
            read = x if self.injection == "reads" else None
            state = block(state, pattern, read, at if block is self.blocks[-1] else None)
        return self.norm(state)

    def read(self, state: State, at: Bool[Tensor, "r t"]) -> Float[Tensor, "n v"]:
        return self.readout(state[at])


class _Piecewise(Model):
    """See ``Model.piecewise``: what positions say is known for the whole row, keys and values are remembered."""

    def __init__(self, model: TransformerModel, inputs: Inputs) -> None:
        super().__init__()
        self.model, self.seen = model, 0
        self.vectors = model.vectors(inputs)
        self.pattern = pattern(model.encodings, inputs, causal=True)
        self.memory = Memory()

    def embed(self, inputs: Inputs) -> TransformerContext:
        start, self.seen = self.seen, self.seen + inputs.tokens.shape[1]
        self.memory.rewind()
        embedded = self.model.embedded(inputs.tokens, [vectors[:, start : self.seen] for vectors in self.vectors])
        return TransformerContext(embedded, self.pattern.piece(start, self.seen, self.memory, embedded.device))

    def start(self, context: TransformerContext) -> Float[Tensor, "r t d"]:
        return self.model.start(context)

    def advance(self, state: Float[Tensor, "r t d"], context: TransformerContext) -> Float[Tensor, "r t d"]:
        return self.model.advance(state, context)

    def read(self, state: Float[Tensor, "r t d"], at: Bool[Tensor, "r t"]) -> Float[Tensor, "n v"]:
        return self.model.read(state, at)


def _block(spec: Transformer, causal: bool) -> Block:
    attention = Attention(spec.width, spec.heads, causal=causal, dropout=spec.dropout, biases=spec.biases)
    block = Block(attention, _mlp(spec), post=spec.norm == "post", eps=spec.eps, dropout=spec.dropout)
    block.initialise(spec.init_std, spec.layers, mlp_too=spec.init == "all")
    return block


def _mlp(spec: Transformer) -> MLP:
    return MLP(spec.width, spec.mlp * spec.width, spec.activation, gated=spec.gated, biases=spec.biases)


def _readout(spec: Transformer, writes: int) -> nn.Module:
    norm = [nn.LayerNorm(spec.width, spec.eps)] if spec.final_norm == "readout" else []
    if spec.readout == "scaled":
        scaled = Scaled(spec.width, writes)
        nn.init.normal_(scaled.weight, std=spec.init_std)
        return nn.Sequential(*norm, scaled)
    linear = nn.Linear(spec.width, writes, bias=spec.biases)
    if spec.readout == "mlp":
        return nn.Sequential(_mlp(spec), *norm, nn.Linear(spec.width, spec.width, bias=spec.biases), linear)
    return nn.Sequential(*norm, linear) if norm else linear


class _Add(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, state: Float[Tensor, "*r d"], x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
        return state + x


class _Concat(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.join = nn.Linear(2 * width, width)
        with torch.no_grad():
            self.join.weight.copy_(torch.eye(width).repeat(1, 2))
            self.join.bias.zero_()

    def forward(self, state: Float[Tensor, "*r d"], x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
        return self.join(torch.cat([state, x], -1))


class _Gate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * width, width)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, math.log(9))

    def forward(self, state: Float[Tensor, "*r d"], x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
        return state + self.gate(torch.cat([state, x], -1)).sigmoid() * x


class _Nothing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, state: Float[Tensor, "*r d"], x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
        return state


INJECTIONS: dict[Injection, type[nn.Module]] = {"add": _Add, "concat": _Concat, "gate": _Gate}
