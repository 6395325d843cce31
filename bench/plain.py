"""A baseline: the package's looped transformer, written straightforwardly, with the same weights. The attention bias
comes from the model, once per batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.types import Batch, Inputs
from lengthwise.models.transformer import TransformerModel
from lengthwise.nn.block import Block
from lengthwise.nn.mixer import AttentionContext
from lengthwise.runners.cpu.pattern import get_attention


def compute_plain_loss(model: TransformerModel, batch: Batch, loops: Tensor) -> Tensor:
    """Return the loss after each row's own number of loops. Every row runs for the batch's largest number of loops,
    logits are computed at all positions after each loop, and each row's own loop is selected at the end."""
    logits_by_loop = torch.stack(compute_logits_by_loop(model, batch.inputs, int(loops.max())))
    logits = logits_by_loop[loops - 1, torch.arange(len(loops))]
    return F.cross_entropy(logits[batch.loss_mask], batch.targets[batch.loss_mask])


def compute_logits_by_loop(model: TransformerModel, inputs: Inputs, loops: int) -> list[Tensor]:
    """Return the logits "b t v" at all positions after each loop."""
    x, mask = model.embed_tokens(inputs.tokens, model.compute_position_vectors(inputs)), build_mask(model, inputs)
    state, found = model.init_state(x), []
    for _ in range(loops):
        state = model.inject(state, x)
        for block in model.blocks:
            state = apply_block(block, state, mask)
        state = model.norm(state)
        found.append(model.readout(state))
    return found


def apply_block(block: Block, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output of a pre-norm block: attention by torch's fused kernel, then the MLP."""
    attention = get_attention(block)
    projected = attention.project(block.norm_mixer(x)).unflatten(-1, (3, attention.heads, -1))
    query, key, value = (part.transpose(1, 2) for part in projected.unbind(2))
    # Padding is at a row's end, so a causal row without windows never sees it.
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    x = x + attention.out(mixed.transpose(1, 2).flatten(2))
    mlp = block.mlp
    wide = mlp.widen(block.norm_mlp(x))
    return x + mlp.narrow(wide.relu() if isinstance(mlp.act, nn.ReLU) else F.gelu(wide, approximate="tanh"))


def build_mask(model: TransformerModel, inputs: Inputs) -> Tensor | None:
    """Return the attention bias, including windows; None for causal rows without windows."""
    bias = AttentionContext.build(model.encodings, inputs, causal=model.causal).bias
    return None if bias is None else bias.to(model.embedding.weight.dtype)
