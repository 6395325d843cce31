"""The runner of transformers with softmax attention, for a CPU.

It skips padding (``packing``), finished rows, and positions whose state neither a later loop nor the loss reads. It
chooses the fastest form of attention (``pattern``), and runs all loops as one autograd function if that is faster
(``fused_loops``). Results equal the plain runner's up to rounding, or in distribution with dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.base.types import Inputs
from lengthwise.models import Model
from lengthwise.models.timed import TimedModel
from lengthwise.models.transformer import InputInjection, TransformerModel
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.block import MLP, Block, add_injection
from lengthwise.nn.input_output import DigitReadin, ScaledReadout
from lengthwise.runners import Logits, Mask, RowLoops, Step, Steps
from lengthwise.runners.cpu import fused_loops, small_heads, support
from lengthwise.runners.cpu.elementwise import dropout, gelu
from lengthwise.runners.cpu.packing import PackedTensor, Ragged, group_by_length, restore_order, select_unique
from lengthwise.runners.cpu.pattern import (
    Band,
    PaddedGroups,
    Pattern,
    build_pattern,
    get_attention,
    get_dropout_probability,
    mix_values,
)
from lengthwise.runners.plain import PERIOD_COUNT, measure_movement

GROUP_POSITIONS = 4096  # about the fastest group size, in positions with padding: it fits in the cache
MAX_NEEDED_FRACTION = 0.9  # if a larger fraction of positions is needed, skipping the others costs more than it saves

LINEAR, NORM, ATTENTION = (nn.Linear,), (nn.LayerNorm,), (SoftmaxAttention,)
PART_TYPES = support.register_types(
    {
        TransformerModel: {
            "embedding": (nn.Embedding, DigitReadin),
            "norm_embedding": (nn.LayerNorm, nn.Identity),
            "inject": (InputInjection,),
            "blocks": [Block],
            "norm": (nn.LayerNorm, nn.Identity),
            "readout": (nn.Linear, ScaledReadout, nn.Sequential),
        },
        InputInjection: {"join": LINEAR, "gate": LINEAR},
        Block: {"norm_mixer": NORM, "mixer": ATTENTION, "norm_mlp": NORM, "mlp": (MLP,), "drop": (nn.Dropout,)},
        MLP: {"widen": LINEAR, "act": (nn.ReLU, nn.GELU), "narrow": LINEAR},
        SoftmaxAttention: {"project": LINEAR, "out": LINEAR},
        **{kind: {} for kind in (DigitReadin, ScaledReadout, nn.ReLU, nn.GELU)},
    }
)


class PackedTransformer(support.SpecializedRunner):
    """The runner of ``TransformerModel``."""

    model: TransformerModel
    model_type, part_types = TransformerModel, PART_TYPES

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        rows, logits = [], []
        for group in group_by_length(inputs, GROUP_POSITIONS):
            part, wanted = inputs.take(group).cut_padding(), positions[group]
            wanted = wanted[:, : part.tokens.shape[1]]
            order, state = _compute_final_states(self.model, part, loops[group], wanted, no_grad_loops)
            rows.append(group[order])
            logits.append(self.model.readout(state))
        return restore_order(torch.cat(logits), torch.cat(rows), positions)

    def steps(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, movement: bool = False) -> Steps:
        # The latest states, newest first: packed during a call of ``_run_loops``, padded between two calls.
        states, padded, done, ids = list[PackedTensor](), list[Tensor](), 0, torch.arange(len(loops))
        while len(ids):
            prepared_batch, stay = _PreparedBatch.build(self.model, inputs.take(ids), loops[ids] - done), None
            ragged = prepared_batch.embedded.ragged
            states = [PackedTensor(ragged.pack(packed[prepared_batch.rows]), ragged) for packed in padded]
            # Movement needs all positions; without it, only those on which answers depend are computed.
            needed = None if movement or torch.is_grad_enabled() else positions[ids[prepared_batch.rows]]
            for k, local, state in _run_loops(self.model, prepared_batch, 0, needed, states[0] if states else None):
                rows, moved = ids[local], None
                if movement:
                    states = [packed.take(slice(len(rows))) for packed in states]
                    # Packed positions are treated as rows of one position each.
                    real = torch.ones(len(state.value), 1, dtype=torch.bool)
                    moved = measure_movement(state.value[:, None], [packed.value[:, None] for packed in states], real)
                    moved = state.ragged.unpack(moved[:, 0])
                states = [state, *states][: PERIOD_COUNT if movement else 1]
                stay = yield Step(done + k, rows, self.model.readout(state[positions[rows]]), moved)
                if stay is not None:
                    break
            else:
                return
            done += k
            staying = (stay & (loops[rows] > done)).nonzero()[:, 0]
            ids, padded = rows[staying], [packed.ragged.unpack(packed.value)[staying] for packed in states]


class Twice(support.SpecializedRunner):
    """The runner of ``TimedModel``: it runs its two transformers packed, and combines their logits."""

    model: TimedModel
    model_type, part_types = TimedModel, {**PART_TYPES, **support.register_types({TimedModel: {}})}

    @classmethod
    def find_obstacle(cls, model: Model) -> str | None:
        if not isinstance(model, TimedModel):
            return "it has no clock"
        known = all(type(part) is TransformerModel for part in (model.answers, model.clock))
        return super().find_obstacle(model) if known else "its parts are not Transformers"

    def __init__(self, model: TimedModel) -> None:
        super().__init__(model)
        self.answers, self.clock = PackedTransformer(model.answers), PackedTransformer(model.clock)

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        answers = self.answers.last(inputs, loops, positions, no_grad_loops=no_grad_loops)
        clock = self.clock.last(self.model.build_clock_inputs(inputs), loops, positions, no_grad_loops=no_grad_loops)
        return self.model.combine_logits(answers, clock, self.model.build_clock_mask(inputs)[positions])

    def steps(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, movement: bool = False) -> Steps:
        # Both models run rows in the same order. Only the movement of the answering state is returned.
        answers = self.answers.steps(inputs, loops, positions, movement=movement)
        clock = self.clock.steps(self.model.build_clock_inputs(inputs), loops, positions)
        first, stay = self.model.build_clock_mask(inputs), None
        while True:
            try:
                k, rows, answered, moved = answers.send(stay)
                _, _, done, _ = clock.send(stay)
            except StopIteration:
                return
            stay = yield Step(k, rows, self.model.combine_logits(answered, done, first[rows][positions[rows]]), moved)


class _PreparedBatch(NamedTuple):
    """A batch before its first loop, with rows sorted by loops, then by length, most and longest first."""

    rows: Int[Tensor, " b"]  # the rows' indices in the batch
    loops: Int[Tensor, " b"]
    running_counts: list[int]  # number of rows in each loop
    inputs: Inputs
    embedded: PackedTensor
    pattern: Pattern

    @staticmethod
    def build(model: TransformerModel, inputs: Inputs, loops: Int[Tensor, " b"]) -> _PreparedBatch:
        rows = (loops * (inputs.tokens.shape[1] + 1) + inputs.padding_mask.sum(1)).argsort(descending=True, stable=True)
        running = (loops[:, None] > torch.arange(int(loops.max()))).sum(0).tolist()
        inputs = inputs.take(rows)
        ragged = Ragged.from_mask(inputs.padding_mask)
        embedded = model.embed_tokens(inputs.tokens, model.compute_position_vectors(inputs))
        pattern = build_pattern(list(model.encodings), inputs, model.causal, get_attention(model.blocks[0]))
        return _PreparedBatch(rows, loops[rows], running, inputs, PackedTensor(ragged.pack(embedded), ragged), pattern)


def _compute_final_states(
    model: TransformerModel, inputs: Inputs, loops: RowLoops, positions: Mask, no_grad_loops: int
) -> tuple[Int[Tensor, " b"], Float[Tensor, "n d"]]:
    """Return row indices in the order of halting, and the states at ``positions`` after each row's last loop."""
    mask, digits = inputs.padding_mask, inputs.digit_position
    reads_padding = any(encoding.reads_padding for encoding in model.encodings)
    if model.causal and not reads_padding and int(mask.sum()) >= MAX_NEEDED_FRACTION * mask.numel():
        # Nearly all positions are real: treat padding as real too, so that no position has to be moved. Real tokens do
        # not see later padding. The digit positions of padding may lie beyond an encoding's table.
        digits = digits.clamp(max=int(digits.where(mask, 0).amax()))
        inputs = replace(inputs, padding_mask=torch.ones_like(mask), digit_position=digits)
    prepared_batch = _PreparedBatch.build(model, inputs, loops)
    positions = positions[prepared_batch.rows]
    fuses = torch.is_grad_enabled() and not no_grad_loops
    if fuses and (fused := _run_fused(model, prepared_batch, positions)) is not None:
        return prepared_batch.rows[prepared_batch.loops.argsort(stable=True)], fused
    ending = torch.bincount(loops, minlength=int(loops.max()) + 1).tolist()
    ids, states = [], []
    for k, rows, state in _run_loops(model, prepared_batch, no_grad_loops, positions):
        if ending[k]:
            done = slice(len(rows) - ending[k], len(rows))
            ids.append(rows[done])
            state = state if ending[k] == len(rows) else state.take(done)
            states.append(state[positions[done]])
    return torch.cat(ids), states[0] if len(states) == 1 else torch.cat(states)


def _run_loops(
    model: TransformerModel,
    prepared_batch: _PreparedBatch,
    no_grad_loops: int,
    positions: Bool[Tensor, "b t"] | None,
    state: PackedTensor | None = None,
) -> Iterator[tuple[int, Int[Tensor, " r"], PackedTensor]]:
    """Run all loops, as ``plain.unroll`` does. With ``positions`` (in the order of ``prepared_batch``), compute only
    the states at these positions after a row's last loop, and all states that they depend on. ``state`` replaces the
    model's state before the first loop."""
    rows, loops, running, _, x, pattern = prepared_batch
    state = PackedTensor(model.init_state(x.value), x.ragged) if state is None else state
    radius = len(model.blocks) * (pattern.value.shape[-1] // 2) if isinstance(pattern, Band) else None
    last_needed = None
    if positions is not None:
        last_needed = PackedTensor(x.ragged.pack(_find_last_needed_loop(positions, loops, radius)), x.ragged)
    for k, count in enumerate(running, 1):
        if count < len(rows):
            first_rows = slice(count)
            rows, state, x = rows[first_rows], state.take(first_rows), x.take(first_rows)
            pattern, last_needed = pattern.take(first_rows), last_needed and last_needed.take(first_rows)
        wanted = None
        # With a local window, a position that is no longer needed can be dropped from all later loops. Otherwise it
        # stays a key in this loop, and only the part of the last block after attention skips it.
        if last_needed is not None and radius and isinstance(pattern, Band):
            needed = (last_needed.value >= k - 1).nonzero()[:, 0]
            if len(needed) < MAX_NEEDED_FRACTION * len(last_needed.value):
                state, x = state.select(needed), x.select(needed)
                last_needed, pattern = last_needed.select(needed), pattern.select(needed)
        elif last_needed is not None:
            wanted = (last_needed.value >= k).nonzero()[:, 0]
            wanted = wanted if len(wanted) < MAX_NEEDED_FRACTION * len(last_needed.value) else None
        with torch.set_grad_enabled(torch.is_grad_enabled() and k > no_grad_loops):
            value = model.inject(state.value, x.value)
            injected = x.value if model.injection == "reads" else None
            for block in model.blocks:
                value = value + x.value if model.injection == "layers" else value
                value = _run_block(block, value, pattern, injected, wanted if block is model.blocks[-1] else None)
            value = model.norm(value)
        state = PackedTensor(value, state.ragged if wanted is None else state.ragged.select(wanted))
        yield k, rows, state


def _find_last_needed_loop(positions: Mask, loops: RowLoops, radius: int | None) -> Int[Tensor, "b t"]:
    """Return the last loop after which each position's state is needed.

    A selected position needs, one loop earlier, all positions within ``radius``, the receptive field of a loop (None
    or 0: its whole row).
    """
    if not radius:
        return loops[:, None] - (~positions).long()
    position = torch.arange(positions.shape[1])
    far = len(position) * int(loops.max()) * radius  # out of reach, for rows without a selected position
    previous_selected = position.where(positions, -far).cummax(1).values
    next_selected = position.where(positions, 2 * far).flip(1).cummin(1).values.flip(1)
    # The distance to the nearest selected position.
    gap = torch.minimum(position - previous_selected, next_selected - position)
    return loops[:, None] + -gap // radius


def _run_fused(model: TransformerModel, prepared_batch: _PreparedBatch, positions: Mask) -> Float[Tensor, "m d"] | None:
    """Return the states at ``positions`` after each row's last loop, in the order of halting, by
    ``fused_loops``; None if it does not support the model or is not faster."""
    _, loops, running, inputs, x, pattern = prepared_batch
    blocks, ends = list(model.blocks), x.ragged.ends
    attention = get_attention(blocks[0])
    norm = model.norm if isinstance(model.norm, nn.LayerNorm) else None
    is_noisy = model.start_noise and model.training
    is_supported = model.injection == model.inject.injection in ("add", "once") and not is_noisy
    shape = len(ends), x.ragged.width, attention.heads, attention.out.in_features // attention.heads
    worthwhile = small_heads.is_worthwhile(shape, get_dropout_probability(attention), small_heads.MIN_FUSED_HEADS)
    possible = is_supported and worthwhile and isinstance(pattern, PaddedGroups) and fused_loops.can_fuse(blocks, norm)
    # Rotations, added keys, a learned bias and a blank are not supported.
    if not possible or any(
        context.angles is not None
        or context.keys is not None
        or (context.bias is not None and (context.bias.requires_grad or context.bias.shape[-1] > ragged.width))
        for ragged, context in pattern.groups
    ):
        return None
    plans = []
    for rows in running:
        pattern = pattern.take(slice(rows))
        plans.append([small_heads.AttentionPlan.build(x.value, attention.heads, *group) for group in pattern.groups])
    state_numbers = fused_loops.find_distinct_states(x.value, inputs.tokens, ends, plans[0]) if model.causal else None
    # Attention may read all positions, so all states of a row are needed before its last loop.
    last_needed = x.ragged.pack(loops[:, None] - (~positions).long())
    plan = fused_loops.plan_loops(plans, ends, running, last_needed, state_numbers)
    return fused_loops.run_loops(x.value, state_numbers, plan, blocks, norm, inject_again=model.injection == "add")


def _run_block(
    block: Block,
    x: Float[Tensor, "n d"],
    pattern: Pattern,
    injected: Tensor | None,
    positions: Int[Tensor, " m"] | None,
) -> Float[Tensor, "m d"]:
    """Return the states after one block. The operations after attention are computed at ``positions`` only."""
    attention, probability = get_attention(block), block.drop.p if block.drop.training else 0.0
    attention_input = add_injection(x if block.post else block.norm_mixer(x), injected)
    projected = attention.project(attention_input).unflatten(-1, (3, attention.heads, -1))
    attention_output = mix_values(attention, projected, pattern).flatten(1)
    if positions is not None:
        attention_output, x = select_unique(attention_output, positions), select_unique(x, positions)
        injected = None if injected is None else select_unique(injected, positions)
    x = x + dropout(attention.out(attention_output), probability)
    if block.post:
        x = block.norm_mixer(x)
        return block.norm_mlp(x + dropout(_run_mlp(block.mlp, add_injection(x, injected)), probability))
    return x + dropout(_run_mlp(block.mlp, add_injection(block.norm_mlp(x), injected)), probability)


def _run_mlp(mlp: MLP, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    act = gelu if isinstance(mlp.act, nn.GELU) else mlp.act
    wide = mlp.widen(x)
    if mlp.gated:
        wide, gate = wide.chunk(2, -1)
        return mlp.narrow(wide * act(gate))
    return mlp.narrow(act(wide))
