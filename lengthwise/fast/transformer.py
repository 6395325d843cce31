"""Transformers on a CPU: rows without padding, rows and positions that leave when they are done, and kernels for small
models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.base.types import Inputs
from lengthwise.depth import Runner
from lengthwise.fast import claims, one_step, small
from lengthwise.fast.dropout import dropout
from lengthwise.fast.gelu import gelu
from lengthwise.fast.groups import by_length, in_order
from lengthwise.fast.pattern import Band, Pattern, attention_of, dropped, looks, mixed, pattern_of
from lengthwise.fast.ragged import Packed, Ragged, picked
from lengthwise.models import Model
from lengthwise.models.transformer import InputInjection, TransformerModel
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.block import MLP, Block
from lengthwise.nn.readout import Scaled

TOGETHER = 4096  # positions, padding counted, that are computed quickest at a time, about: they fit the cache
# Of positions that still matter: where more do, leaving out the others saves less than it costs.
DENSE = 0.9

PARTS = claims.known([TransformerModel, InputInjection, Block, MLP, SoftmaxAttention, Scaled, nn.ReLU, nn.GELU])


class PackedTransformer(Runner):
    """For transformers of the package's own parts."""

    model: TransformerModel

    @staticmethod
    def meant(model: Model) -> bool:
        """Is this a model of the kind?"""
        return isinstance(model, TransformerModel)

    @staticmethod
    def declines(model: Model) -> str | None:
        """Why it is not claimed; None where it is."""
        return claims.declined(model, PARTS)

    def last(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"], *, untracked: int = 0
    ) -> Float[Tensor, "n v"]:
        rows, logits = [], []
        for group in by_length(inputs, TOGETHER):
            part, wanted = inputs.take(group).narrow(), at[group]
            order, state = _settled(self.model, part, loops[group], wanted[:, : part.tokens.shape[1]], untracked)
            rows.append(group[order])
            logits.append(self.model.readout(state))
        return in_order(torch.cat(logits), torch.cat(rows), at)

    def each(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"]
    ) -> Iterator[tuple[int, Int[Tensor, " r"], Float[Tensor, "n v"]]]:
        for k, rows, state in _run(self.model, _Course.of(self.model, inputs, loops), 0, None):
            yield k, rows, self.model.readout(state[at[rows]])


class _Course(NamedTuple):
    """A batch before its first loop: rows that take the most loops first, and of these the longest."""

    rows: Int[Tensor, " b"]  # their numbers in the batch
    loops: Int[Tensor, " b"]
    running: list[int]  # rows in each loop
    inputs: Inputs
    embedded: Packed
    pattern: Pattern

    @staticmethod
    def of(model: TransformerModel, inputs: Inputs, loops: Int[Tensor, " b"]) -> _Course:
        rows = (loops * (inputs.tokens.shape[1] + 1) + inputs.padding_mask.sum(1)).argsort(descending=True, stable=True)
        running = (loops[:, None] > torch.arange(int(loops.max()))).sum(0).tolist()
        inputs = inputs.take(rows)
        ragged, embedded = Ragged.of(inputs.padding_mask), model.embedded(inputs.tokens, model.vectors(inputs))
        pattern = pattern_of(list(model.encodings), inputs, model.causal, attention_of(model.blocks[0]))
        return _Course(rows, loops[rows], running, inputs, Packed(ragged.pack(embedded), ragged), pattern)


def _settled(
    model: TransformerModel, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"], untracked: int
) -> tuple[Int[Tensor, " b"], Float[Tensor, "n d"]]:
    """Rows in the order of finishing, and their states at these positions after their last loop, row by row."""
    course = _Course.of(model, inputs, loops)
    at = at[course.rows]
    if not untracked and torch.is_grad_enabled() and (found := _in_one_step(model, course, at)) is not None:
        finished = course.loops.argsort(stable=True)
        return course.rows[finished], found
    left = torch.bincount(loops, minlength=int(loops.max()) + 1).tolist()
    ids, states = [], []
    for k, rows, state in _run(model, course, untracked, at):
        if left[k]:
            done = slice(len(rows) - left[k], None)
            ids.append(rows[done])
            wanted = at[len(rows) - left[k] : len(rows)]
            state = state if left[k] == len(rows) else state.take(done)
            states.append(state[wanted])
    return torch.cat(ids), states[0] if len(states) == 1 else torch.cat(states)


def _run(
    model: TransformerModel, course: _Course, untracked: int, at: Bool[Tensor, "b t"] | None
) -> Iterator[tuple[int, Int[Tensor, " r"], Packed]]:
    """All loops, as ``depth.plain.unroll`` has them. With ``at``, a row's state is right at these positions, in the
    course's order, after its last loop, and need not be anywhere else."""
    rows, loops, running, _, x, pattern = course
    state = Packed(model.start_from(x.value), x.ragged)
    reach = len(model.blocks) * (pattern.bias.value.shape[-1] // 2) if isinstance(pattern, Band) else None
    until = None if at is None else Packed(x.ragged.pack(_matters(at, loops, reach)), x.ragged)
    for k, count in enumerate(running, 1):
        if count < len(rows):
            some = slice(count)
            rows, state, x, pattern = rows[some], state.take(some), x.take(some), pattern.take(some)
            until = None if until is None else until.take(some)
        wanted = None
        if until is not None and reach and isinstance(pattern, Band):
            kept = (until.value >= k - 1).nonzero()[:, 0]
            if len(kept) < DENSE * len(until.value):
                state, x, until, pattern = state.keep(kept), x.keep(kept), until.keep(kept), pattern.keep(kept)
        elif until is not None:
            wanted = (until.value >= k).nonzero()[:, 0]
            wanted = wanted if len(wanted) < DENSE * len(until.value) else None
        with torch.set_grad_enabled(torch.is_grad_enabled() and k > untracked):
            value = _advance(model, state.value, x.value, pattern, wanted)
        state = Packed(value, state.ragged if wanted is None else state.ragged.keep(wanted))
        yield k, rows, state


def _matters(at: Bool[Tensor, "b t"], loops: Int[Tensor, " b"], reach: int | None) -> Int[Tensor, "b t"]:
    """Up to after which loop a position's state is of use to those wanted: it gets ``reach`` positions nearer in each,
    or to all of its row."""
    if not reach:
        return loops[:, None] - (~at).long()
    position = torch.arange(at.shape[1])
    gap = (position - position[:, None]).abs().where(at[:, None], len(position) * int(loops.max()) * reach).amin(2)
    return loops[:, None] + -gap // reach


def _in_one_step(model: TransformerModel, course: _Course, at: Bool[Tensor, "b t"]) -> Float[Tensor, "m d"] | None:
    """The states of all wanted positions after their rows' last loops, in the order of finishing, in one step of
    autograd; None where that is not possible, or not quicker."""
    _, loops, running, inputs, x, pattern = course
    block, ends = model.blocks[0], x.ragged.ends
    attention = attention_of(block)
    plain = model.injection in ("add", "once") and not (model.noise and model.training) and one_step.possible(block)
    shape = len(ends), x.ragged.width, attention.heads, attention.out.in_features // attention.heads
    if not plain or not small.pays(shape, dropped(attention), small.ONE_STEP):
        return None
    each = []
    for rows in running:
        pattern = pattern.take(slice(rows))
        if (found := looks(attention, x.value, pattern)) is None:
            return None
        each.append(found)
    which = one_step.distinct(x.value, inputs.tokens, ends, each[0]) if model.causal else None
    until = x.ragged.pack(loops[:, None] - (~at).long())
    plan = one_step.plan(each, ends, running, until, which)
    norm = model.norm if isinstance(model.norm, nn.LayerNorm) else None
    return one_step.run(x.value, which, plan, list(model.blocks), norm, again=model.injection == "add")


def _advance(
    model: TransformerModel, state: Float[Tensor, "n d"], x: Float[Tensor, "n d"], pattern: Pattern, at: Tensor | None
) -> Float[Tensor, "m d"]:
    """One loop; what comes out at these positions only."""
    state = model.inject(state, x)
    last = model.blocks[-1]
    for block in model.blocks:
        if model.injection == "layers":
            state = state + x
        read = x if model.injection == "reads" else None
        state = _through(block, state, pattern, read, at if block is last else None)
    return model.norm(state)


def _through(
    block: Block, x: Float[Tensor, "n d"], pattern: Pattern, read: Tensor | None, at: Int[Tensor, " m"] | None
) -> Float[Tensor, "m d"]:
    """A block; after its attention only these positions."""
    attention, probability = attention_of(block), block.drop.p if block.drop.training else 0.0
    seen = _plus(x if block.post else block.norm_mixer(x), read)
    projected = attention.project(seen).unflatten(-1, (3, attention.heads, -1))
    found = mixed(attention, projected, pattern).flatten(1)
    if at is not None:
        found, x, read = picked(found, at), picked(x, at), None if read is None else picked(read, at)
    x = x + dropout(attention.out(found), probability)
    if block.post:
        x = block.norm_mixer(x)
        return block.norm_mlp(x + dropout(_mlp(block.mlp, _plus(x, read)), probability))
    return x + dropout(_mlp(block.mlp, _plus(block.norm_mlp(x), read)), probability)


def _mlp(mlp: MLP, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    act = gelu if isinstance(mlp.act, nn.GELU) else mlp.act
    wide = mlp.widen(x)
    if mlp.gated:
        wide, gate = wide.chunk(2, -1)
        return mlp.narrow(wide * act(gate))
    return mlp.narrow(act(wide))


def _plus(x: Float[Tensor, "n d"], read: Float[Tensor, "n d"] | None) -> Float[Tensor, "n d"]:
    return x if read is None else x + read
