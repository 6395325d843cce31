"""The transformer, standard and looped: the same blocks, advanced once or many times.

With x the embedded input:

- standard (Vaswani et al. 2017, pre-norm as in GPT-2): h_1 = norm(blocks(x));
- looped with input injection (Fan et al. 2025, section 4): h_0 = 0 and h_{k+1} = norm(blocks(h_k + x)); the final norm
  is inside the loop;
- looped without input injection: h_0 = x and h_{k+1} = norm(blocks(h_k)).

``Transformer`` describes further ways to inject x. Its remaining fields are for the decoders of McLeish et al. 2024
(``recipes/abacus.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from lengthwise.base.ranges import Amount, Decay, NotNegative, Positive, Size
from lengthwise.base.types import Inputs, UsageError, Vocab
from lengthwise.models import Model, ModelSpec
from lengthwise.nn.attention import Attention
from lengthwise.nn.block import MLP, Activation, Block
from lengthwise.nn.input_output import DigitReadin, ScaledReadout
from lengthwise.nn.mixer import AttentionContext, MixerSpec, build_mixer
from lengthwise.nn.position import Encoding, NoPE, Position, Randomized
from lengthwise.nn.window import find_neighbouring_cells

Injection = Literal["add", "concat", "gate", "layers", "reads", "once"]


@dataclass(frozen=True)
class Transformer(ModelSpec):
    """A transformer of ``layers`` blocks.

    ``injection`` is how the embedded input x enters the state h in every loop:

    - ``add``: h + x, as published; h_0 = 0.
    - ``concat``: W [h; x], initialized to h + x; h_0 = 0.
    - ``gate``: h + g(h, x) · x, with a gate per coordinate, initialized to 0.9; h_0 = 0.
    - ``layers``: x is added to the state before every block; h_0 = 0.
    - ``reads``: x is added to the inputs of mixer and MLP in every block, not to the state; h_0 = x.
    - ``once``: no injection; h_0 = x. With a single loop, this equals ``add``.

    ``noise`` is the standard deviation of h_0 in training, for injections whose h_0 is 0. ``final_norm`` places the
    last norm inside the loop, before the readout, or nowhere. The readout ``mlp`` is an MLP as in the blocks, the norm
    and two linear layers. The readout ``scaled`` is a linear layer without bias whose weights are initialized from N(0,
    init_std²) and whose logits are divided by √width. ``init`` selects the output layers whose initial weights are
    divided by √(2 · layers): those of mixer and MLP (``all``), or only the mixer's (``attention``).

    Raises UsageError if ``width`` is not a multiple of ``heads``. The model raises UsageError at the first batch if
    two encodings rotate queries, or two have a blank.
    """

    width: Size = 64  # numbers per position; a multiple of heads
    layers: Size = 1  # blocks that one loop applies
    heads: Size = 4  # attention heads per block
    mlp: Amount = 4  # the hidden width of the MLP, in multiples of width; 0: no MLP
    activation: Activation = "gelu"  # gelu is the tanh form; relu takes a sixth off a small training step on a CPU
    gated: bool = False  # use a gated MLP (GEGLU)
    norm: Literal["pre", "post"] = "pre"  # before each part of a block, or after its residual connection
    # The last norm: inside the loop, before the readout, or nowhere.
    final_norm: Literal["loop", "readout", "none"] = "loop"
    # From symbol to vector: a table, or a linear layer on the symbol's digits as real numbers (for Pairs).
    read_in: Literal["table", "numbers"] = "table"
    embedding_norm: bool = False  # normalize the embedded input
    eps: Positive = 1e-5  # ε of the norms
    biases: bool = True  # whether linear layers have biases
    # From state to logits: a linear layer; an MLP and two linear layers; or a linear layer divided by √width.
    readout: Literal["linear", "mlp", "scaled"] = "linear"
    positions: tuple[Position, ...] = (NoPE(),)  # positional encodings; see `lengthwise list positions`
    mixer: MixerSpec = Attention()  # how a block combines positions
    mixers: tuple[MixerSpec, ...] = ()  # mixers of the layers in turn, repeated; (): all layers use ``mixer``
    injection: Injection = "add"  # how the embedded input enters the state in every loop; once: not at all
    noise: NotNegative = 0.0  # standard deviation of the initial state in training
    dropout: Decay = 0.0  # probability of dropping a value in training
    init_std: NotNegative = 0.02  # std of the blocks' initial weights; small widths learn faster with a larger one
    init: Literal["all", "attention"] = "all"  # output layers whose weights are divided by √(2 · layers)
    embedding_std: NotNegative = 1.0  # std of the initial embedding

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise UsageError(f"width must be a multiple of the number of heads ({self.heads}), not {self.width}")
        if sum(p.indexed for p in self.positions) > 1 and any(isinstance(p, Randomized) for p in self.positions):
            advice = "use no other encoding of positions with it"
            raise UsageError(f"Randomized(encoding=…) renumbers the positions of all encodings: {advice}")
        if self.readout == "mlp" and not self.mlp:
            raise UsageError("readout=mlp uses an MLP as in the blocks, but mlp=0 means no MLP: use readout=linear")

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        for position in self.positions:
            inputs = position.vary(inputs, generator)
        return inputs

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        return TransformerModel(self, reads, len(writes), causal=causal)


class TransformerContext(NamedTuple):
    """The context of a transformer, which is the same in every loop."""

    embedded_input: Float[Tensor, "b t d"]
    attention: AttentionContext
    cache: Any = None  # a key–value cache, in decoding


class TransformerModel(Model):
    """The model of ``Transformer``. The state is "r t d"."""

    def __init__(self, spec: Transformer, reads: Vocab, output_symbol_count: int, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.injection = causal, spec.injection
        self.start_noise = 0.0 if spec.injection in ("once", "reads") else spec.noise
        numbers = spec.read_in == "numbers"
        self.embedding = DigitReadin(reads, spec.width) if numbers else nn.Embedding(len(reads), spec.width)
        nn.init.normal_(self.embedding.weight, std=spec.embedding_std)
        encodings = [position.build(spec.width, spec.heads) for position in spec.positions]
        self.encodings: Iterable[Encoding] = nn.ModuleList(encodings)  # type: ignore[assignment]
        self.norm_embedding = nn.LayerNorm(spec.width, spec.eps) if spec.embedding_norm else nn.Identity()
        self.inject = InputInjection(spec.injection, spec.width)
        mixers, blocks = spec.mixers or (spec.mixer,), []
        for layer in range(spec.layers):
            chosen = mixers[layer % len(mixers)]
            options = {"causal": causal, "layer": layer, "dropout": spec.dropout, "biases": spec.biases}
            mixer = build_mixer(chosen, spec.width, spec.heads, **options)
            mlp = _build_mlp(spec) if spec.mlp else None
            block = Block(mixer, mlp, spec.width, post=spec.norm == "post", eps=spec.eps, dropout=spec.dropout)
            block.initialise(spec.init_std, spec.layers, scale_mlp=spec.init == "all")
            # After the weights are initialized: an encoding may make a head's keys equal to its queries.
            for encoding in encodings:
                if (tied := encoding.tied_heads()) is not None:
                    mixer.tie_query_key(tied)
            blocks.append(block)
        self.blocks: Sequence[Block] = nn.ModuleList(blocks)  # type: ignore[assignment]
        for position, encoding in zip(spec.positions, encodings, strict=True):
            if encoding.attends and not any(block.mixer.attends for block in blocks):
                names = ", ".join(dict.fromkeys(type(mixer).__name__ for mixer in mixers))
                advice = "use model.positions=NoPE"
                raise UsageError(f"{type(position).__name__} needs a mixer with attention, not {names}: {advice}")
        self.norm = nn.LayerNorm(spec.width, spec.eps) if spec.final_norm == "loop" else nn.Identity()
        self.readout = _build_readout(spec, output_symbol_count)

    def embed(self, inputs: Inputs) -> TransformerContext:
        attention = AttentionContext(inputs.padding_mask, self.causal)
        # The bias, whose size is the square of a row's length, is computed only for attention.
        if any(block.mixer.attends for block in self.blocks):
            attention = AttentionContext.build(self.encodings, inputs, causal=self.causal)
        if any(block.mixer.needs_neighbour_index for block in self.blocks):
            attention = attention._replace(neighbour_index=find_neighbouring_cells(inputs, causal=self.causal))
        return TransformerContext(self.embed_tokens(inputs.tokens, self.compute_position_vectors(inputs)), attention)

    def compute_position_vectors(self, inputs: Inputs) -> list[Float[Tensor, "b t d"]]:
        """Return the vectors that positional encodings add to the embedded tokens."""
        vectors = (encoding.vectors(inputs) for encoding in self.encodings)
        return [vector for vector in vectors if vector is not None]

    def embed_tokens(self, tokens: Int[Tensor, "b t"], vectors: list[Float[Tensor, "b t d"]]) -> Float[Tensor, "b t d"]:
        return self.norm_embedding(sum(vectors, self.embedding(tokens)))

    def start(self, context: TransformerContext) -> Float[Tensor, "r t d"]:
        return self.init_state(context.embedded_input)

    def init_state(self, x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
        """Return h_0 for the embedded input x."""
        if self.injection in ("once", "reads"):
            return x
        noisy = self.start_noise and self.training
        return torch.randn_like(x) * self.start_noise if noisy else torch.zeros_like(x)

    def advance(self, state: Float[Tensor, "r t d"], context: TransformerContext) -> Float[Tensor, "r t d"]:
        x, attention, cache = context
        state = self.inject(state, x)
        for block in self.blocks:
            if self.injection == "layers":
                state = state + x
            state = block(state, attention, x if self.injection == "reads" else None, cache)
        return self.norm(state)

    def read(self, state: Float[Tensor, "r t d"]) -> Float[Tensor, "r t v"]:
        return self.readout(state)


def _build_mlp(spec: Transformer) -> MLP:
    return MLP(spec.width, spec.mlp * spec.width, spec.activation, gated=spec.gated, biases=spec.biases)


def _build_readout(spec: Transformer, output_symbol_count: int) -> nn.Module:
    norm = [nn.LayerNorm(spec.width, spec.eps)] if spec.final_norm == "readout" else []
    if spec.readout == "scaled":
        scaled = ScaledReadout(spec.width, output_symbol_count)
        nn.init.normal_(scaled.weight, std=spec.init_std)
        return nn.Sequential(*norm, scaled)
    linear = nn.Linear(spec.width, output_symbol_count, bias=spec.biases)
    if spec.readout == "mlp":
        return nn.Sequential(_build_mlp(spec), *norm, nn.Linear(spec.width, spec.width, bias=spec.biases), linear)
    return nn.Sequential(*norm, linear) if norm else linear


class InputInjection(nn.Module):
    """Combines the state with the embedded input x at the start of a loop; see ``Transformer``."""

    def __init__(self, injection: Injection, width: int) -> None:
        super().__init__()
        self.injection = injection
        if injection == "concat":
            self.join = nn.Linear(2 * width, width)
            with torch.no_grad():
                self.join.weight.copy_(torch.eye(width).repeat(1, 2))
                self.join.bias.zero_()
        if injection == "gate":
            self.gate = nn.Linear(2 * width, width)
            nn.init.zeros_(self.gate.weight)
            nn.init.constant_(self.gate.bias, math.log(9))  # σ(log 9) = 0.9

    def forward(self, state: Float[Tensor, "*r d"], x: Float[Tensor, "*r d"]) -> Float[Tensor, "*r d"]:
        if self.injection == "concat":
            return self.join(torch.cat([state, x], -1))
        if self.injection == "gate":
            return state + self.gate(torch.cat([state, x], -1)).sigmoid() * x
        return state + x if self.injection == "add" else state
