"""Models as a user would build them from other libraries: stacks of layers applied once, and blocks in a loop with
input injection, in which every row runs for the batch's largest number of loops. Their sizes and amount of work are
those of the package's models; weights and details (positions of norms, biases) differ."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lengthwise.experiment.recipe import Recipe
from lengthwise.models.retran import LSTM
from lengthwise.models.transformer import Transformer


class LoopedModel(nn.Module):
    """A looped model, h ← norm(blocks(h + x)) from h = 0; all rows run for the batch's largest number of loops."""

    def __init__(self, blocks: nn.Module, spec: Transformer, symbol_count: int, answer_count: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbol_count, spec.width)
        self.blocks = blocks
        self.norm = nn.LayerNorm(spec.width)
        self.readout = nn.Linear(spec.width, answer_count)

    def forward(self, tokens: Tensor, loops: Tensor) -> Tensor:
        """Return the logits "b t v" for tokens "b t", each row after its own number of loops ("b")."""
        x = self.embedding(tokens)
        state, states = torch.zeros_like(x), []
        for _ in range(int(loops.max())):
            state = self.norm(self.blocks(state + x))
            states.append(state)
        return self.readout(torch.stack(states)[loops - 1, torch.arange(len(loops))])


class _Encoder(nn.Module):
    """A causal ``torch.nn.TransformerEncoder``."""

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


def _build_x_transformers(spec: Transformer) -> nn.Module:
    """Return ``x_transformers.Decoder`` with its fused attention."""
    from x_transformers import Decoder

    return Decoder(
        dim=spec.width, depth=spec.layers, heads=spec.heads, attn_dim_head=spec.width // spec.heads,
        attn_flash=True, ff_mult=spec.mlp,
    )  # fmt: skip


LIBRARIES = {
    "torch.nn.TransformerEncoder": _Encoder,
    "transformers, GPT-2": _GPT2,
    "x-transformers": _build_x_transformers,
}


class LayersModel(nn.Module):
    """A model of an embedding, layers applied once, and a readout."""

    def __init__(self, layers: nn.Module, width: int, recipe: Recipe) -> None:
        super().__init__()
        reads, writes = (len(vocab) for vocab in recipe.layout.vocabs(recipe.task))
        self.embedding, self.layers = nn.Embedding(reads, width), layers
        self.readout = nn.Linear(width, writes)


def apply_layers(model: LayersModel, tokens: Tensor) -> Tensor:
    """Return the readout's input "b t d" for tokens "b t"."""
    found = model.layers(model.embedding(tokens))
    return found[0] if isinstance(found, tuple) else found


def build_lstm(recipe: Recipe) -> LayersModel:
    """Return a model of ``torch.nn.LSTM``, with its hidden state projected to the model's width."""
    spec = recipe.model
    assert isinstance(spec, LSTM)
    layers = nn.LSTM(spec.width, spec.hidden, spec.layers, batch_first=True, dropout=spec.dropout, proj_size=spec.width)
    return LayersModel(layers, spec.width, recipe)


def build_gpt(recipe: Recipe) -> LayersModel:
    """Return a model of ``torch.nn.TransformerEncoder``, without dropout, which would make it slow."""
    spec = recipe.model
    assert isinstance(spec, Transformer)
    return LayersModel(_Encoder(spec), spec.width, recipe)
