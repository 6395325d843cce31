"""Decode with a cache, so that each position is computed once, not again for every new token.

Causal models with a method ``step`` and causal transformers whose mixers can decode are supported. A causal model's
states do not depend on later positions, so the cache does not change results. For each loop, the cache keeps a
transformer's keys and values, and the states of recurrent models and mixers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.base.types import Inputs
from lengthwise.models import Model
from lengthwise.models.transformer import TransformerContext, TransformerModel
from lengthwise.nn.block import Block
from lengthwise.nn.mixer import AttentionContext, Mixer
from lengthwise.runners.cpu import support


class IncrementalDecoder(ABC):
    """Computes the logits of a batch's next positions, and remembers what later positions need. All rows run the same
    number of loops."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @abstractmethod
    def compute_next_logits(self, inputs: Inputs, loops: int) -> Float[Tensor, "b t v"]:
        """Return the logits of the next positions after ``loops`` loops; ``inputs`` holds only these positions."""


class Cache:
    """A cache of the mixers' memory, with an entry per layer and loop: keys and values of attention, or the state of
    another mixer. Mixers are called in the same order for all positions, so a call's number identifies its entry."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.next_call = 0  # number of the next call; set to 0 before each group of new positions

    def extend(self, key: Float[Tensor, "b h t e"], value: Float[Tensor, "b h t e"]) -> tuple[Tensor, Tensor]:
        """Append new keys and values to this call's entry; return all its keys and values."""
        if (earlier := self.get_current_entry()) is not None:
            key, value = torch.cat([earlier[0], key], 2), torch.cat([earlier[1], value], 2)
        self._store((key, value))
        return key, value

    def step(self, mixer: Mixer, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Run a mixer's ``step`` on the new positions, and store its new state; return its outputs."""
        mixed, state = mixer.step(x, self.get_current_entry())
        self._store(state)
        return mixed

    def get_current_entry(self) -> Any:
        """Return the entry of the current call; None if no positions are stored yet."""
        return self.entries[self.next_call] if self.next_call < len(self.entries) else None

    def _store(self, value: Any) -> None:
        self.entries[self.next_call : self.next_call + 1] = [value]
        self.next_call += 1


class CachedTransformer(IncrementalDecoder):
    """A decoder for causal transformers. Positional terms and the attention bias are computed once, for whole rows."""

    model: TransformerModel

    def __init__(self, model: TransformerModel, inputs: Inputs) -> None:
        super().__init__(model)
        self.attention = AttentionContext.build(model.encodings, inputs, causal=True)
        self.vectors, self.cache, self.read_count = model.compute_position_vectors(inputs), Cache(), 0

    def compute_next_logits(self, inputs: Inputs, loops: int) -> Float[Tensor, "b t v"]:
        model, start = self.model, self.read_count
        self.read_count = stop = start + inputs.tokens.shape[1]
        self.cache.next_call = 0
        embedded = model.embed_tokens(inputs.tokens, [vectors[:, start:stop] for vectors in self.vectors])
        context = TransformerContext(embedded, _slice_context(self.attention, start, stop), self.cache)
        state = model.start(context)
        for _ in range(loops):
            state = model.advance(state, context)
        return model.read(state)


def _slice_context(context: AttentionContext, start: int, stop: int) -> AttentionContext:
    """Return the context of queries at positions ``start`` to ``stop`` − 1 and keys at positions 0 to ``stop`` − 1."""
    angles, keys = (None if part is None else part[:, start:stop] for part in (context.angles, context.keys))
    device = context.padding_mask.device
    key_index = torch.arange(stop, device=device)
    if context.bias is None:
        bias = torch.zeros(1, 1, stop - start, stop, device=device)
        bias = bias.masked_fill(key_index > key_index[start:, None], -torch.inf)
    else:
        if context.bias.shape[-1] > context.bias.shape[-2]:  # the blank is the last column
            key_index = torch.cat([key_index, key_index.new_tensor([context.bias.shape[-1] - 1])])
        bias = context.bias[..., start:stop, :][..., key_index]
    return AttentionContext(context.padding_mask[:, start:stop], True, bias, angles, keys)


class StepwiseDecoder(IncrementalDecoder):
    """A decoder for causal models with a method ``step``. It keeps the memory that ``step`` returns in each loop."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.memory: dict[int, Any] = {}

    def compute_next_logits(self, inputs: Inputs, loops: int) -> Float[Tensor, "b t v"]:
        state = self.model.start(self.model.embed(inputs))
        for loop in range(loops):
            state, self.memory[loop] = self.model.step(state, self.memory.get(loop))
        return self.model.read(state)


def build_decoder(model: Model, inputs: Inputs) -> IncrementalDecoder | None:
    """Return a decoder for a model; None if the model does not support one. ``inputs`` must be complete except for the
    answer's tokens."""
    if any(getattr(module, hook) for module in model.modules() for hook in support.HOOKS):
        return None
    if type(model).step is not Model.step:
        return StepwiseDecoder(model)
    # Otherwise only causal transformers of the package's blocks are supported, if all their mixers can decode.
    if type(model) is not TransformerModel or not model.causal or not model.blocks:
        return None
    for block in model.blocks:
        if type(block) is not Block or not (block.mixer.caches or type(block.mixer).step is not Mixer.step):
            return None
    return CachedTransformer(model, inputs)
