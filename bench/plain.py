"""Opponents: the same mathematics, written straightforwardly, on the same weights; who may look at whom is asked of the
model, too, once per batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.types import Batch, Inputs
from lengthwise.fast.pattern import attention_of
from lengthwise.models.transformer import TransformerModel
from lengthwise.nn.block import Block
from lengthwise.nn.mixer import Sight


def final_loss(model: TransformerModel, batch: Batch, loops: Tensor) -> Tensor:
    """Step-dependent supervision: every row is run to the longest row's loops, every place is read out after each of
    them, and then each row's own loop is picked out."""
    logits = torch.stack(run(model, batch.inputs, int(loops.max())))[loops - 1, torch.arange(len(loops))]
    return F.cross_entropy(logits[batch.loss_mask], batch.targets[batch.loss_mask])


def run(model: TransformerModel, inputs: Inputs, loops: int) -> list[Tensor]:
    """The logits "b t v" of all places after each loop."""
    x, mask = model.embedding(inputs.tokens), allowed(model, inputs)
    state, found = torch.zeros_like(x), []
    for _ in range(loops):
        state = state + x
        for block in model.blocks:
            state = through(block, state, mask)
        state = model.norm(state)
        found.append(model.readout(state))
    return found


def through(block: Block, x: Tensor, mask: Tensor | None) -> Tensor:
    """One pre-norm block: attention by the library's fused kernel, then the MLP, by its activations."""
    attention = attention_of(block)
    projected = attention.project(block.norm_mixer(x)).unflatten(-1, (3, attention.heads, -1))
    query, key, value = (part.transpose(1, 2) for part in projected.unbind(2))
    # Absent places stand at a row's end: a causal row without windows never sees them.
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    x = x + attention.out(mixed.transpose(1, 2).flatten(2))
    mlp = block.mlp
    wide = mlp.widen(block.norm_mlp(x))
    return x + mlp.narrow(wide.relu() if isinstance(mlp.act, nn.ReLU) else F.gelu(wide, approximate="tanh"))


def allowed(model: TransformerModel, inputs: Inputs) -> Tensor | None:
    """What is added to the scores of all pairs of positions, windows too. None for a causal row without."""
    bias = Sight.of(model.encodings, inputs, causal=model.causal).bias
    return None if bias is None else bias.to(model.embedding.weight.dtype)
