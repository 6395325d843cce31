"""Models as a user would build them from other libraries: their blocks in a loop with input injection, every row run
for the longest row's loops; and stacks advanced once. Sizes equal the package's models; weights and details (positions
of norms, biases) differ, the amount of work does not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lengthwise.experiment.recipe import Recipe
from lengthwise.models.retran import LSTM
from lengthwise.models.transformer import Transformer


class Looped(nn.Module):
    """h ← norm(blocks(h + x)), from h = 0, for the longest row's loops."""

    def __init__(self, blocks: nn.Module, spec: Transformer, symbols: int, answers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, spec.width)
        self.blocks = blocks
        self.norm = nn.LayerNorm(spec.width)
        self.readout = nn.Linear(spec.width, answers)

    def forward(self, tokens: Tensor, loops: Tensor) -> Tensor:
        """Tokens "b t", loops "b" → logits "b t v"."""
        x = self.embedding(tokens)
        state, states = torch.zeros_like(x), []
        for _ in range(int(loops.max())):
            state = self.norm(self.blocks(state + x))
            states.append(state)
        return self.readout(torch.stack(states)[loops - 1, torch.arange(len(loops))])


class _Encoder(nn.Module):
    """``torch.nn.TransformerEncoder``, causal."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            spec.width, spec.heads, spec.mlp * spec.width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, spec.layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x, nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True)


class _GPT2(nn.Module):
    """The blocks of ``transformers``' GPT-2."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2Model

        config = GPT2Config(
            vocab_size=1, n_positions=1, n_embd=spec.width, n_layer=spec.layers, n_head=spec.heads,
            n_inner=spec.mlp * spec.width, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            attn_implementation="sdpa", use_cache=False, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        self.layers = GPT2Model(config).h

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            found = layer(x)
            x = found[0] if isinstance(found, tuple) else found
        return x


def _x_transformers(spec: Transformer) -> nn.Module:
    """``x_transformers.Decoder``, with its fused attention."""
    from x_transformers import Decoder

    return Decoder(
        dim=spec.width, depth=spec.layers, heads=spec.heads, attn_dim_head=spec.width // spec.heads,
        attn_flash=True, ff_mult=spec.mlp,
    )  # fmt: skip


LIBRARIES = {"torch.nn.TransformerEncoder": _Encoder, "transformers, GPT-2": _GPT2, "x-transformers": _x_transformers}


class Stack(nn.Module):
    """Embedding, layers, readout; advanced once."""

    def __init__(self, layers: nn.Module, width: int, recipe: Recipe) -> None:
        super().__init__()
        reads, writes = (len(vocab) for vocab in recipe.layout.vocabs(recipe.task))
        self.embedding, self.layers = nn.Embedding(reads, width), layers
        self.readout = nn.Linear(width, writes)


def run(model: Stack, tokens: Tensor) -> Tensor:
    """Tokens "b t" → the readout's input "b t d"."""
    found = model.layers(model.embedding(tokens))
    return found[0] if isinstance(found, tuple) else found


def lstm(recipe: Recipe) -> Stack:
    """``torch.nn.LSTM`` with its short state projected to the model's width."""
    spec = recipe.model
    assert isinstance(spec, LSTM)
    layers = nn.LSTM(spec.width, spec.hidden, spec.layers, batch_first=True, dropout=spec.dropout, proj_size=spec.width)
    return Stack(layers, spec.width, recipe)


def gpt(recipe: Recipe) -> Stack:
    """``torch.nn.TransformerEncoder``, without dropout, with which it is slow."""
    spec = recipe.model
    assert isinstance(spec, Transformer)
    return Stack(_Encoder(spec), spec.width, recipe)
