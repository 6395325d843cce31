"""Models, and the only loop over depth.

A model is one loop of computation: ``embed`` what stays the same, ``start`` a state, ``advance`` it, ``read`` it. How
often it is advanced is nobody's business here: a standard model is advanced once, a looped one T(n) times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.nn.packed import Packed, Ragged
from lengthwise.nn.pattern import keep, take

Context = Any  # a tensor, packed or not, or a tuple of tensors, rows first; see nn.pattern.take
State = Any  # likewise
# Of places that are present, or still matter: where more are, leaving out the others saves less than it costs.
DENSE = 0.9


class Model(nn.Module, ABC):
    """One loop of a computation that may be repeated. It has no randomness but dropout."""

    together: ClassVar[int] = 4096  # places, padding counted, that a CPU computes quickest at a time, about

    packs: ClassVar[bool] = False  # can it leave out padding? See ``embed_packed``

    @abstractmethod
    def embed(self, inputs: Inputs) -> Context:
        """All that stays the same from loop to loop, masks and biases too."""

    def embed_packed(self, inputs: Inputs) -> Context:
        """The same for rows without their padding, of a model that ``packs``: its states are then packed too. Rows come
        in the order in which they leave, last first, and among equals the longest first."""
        raise NotImplementedError

    def reach(self, context: Context) -> int | None:
        """How many places to either side a place of packed rows sees in one loop. None: the whole row, or who sees whom
        is not found among the places as they stand."""
        return None

    @abstractmethod
    def start(self, context: Context) -> State:
        """The state before the first loop, h_0."""

    @abstractmethod
    def advance(self, state: State, context: Context) -> State:
        """One loop."""

    def finish(self, state: State, context: Context, wanted: Bool[Tensor, "*r"]) -> State:
        """One loop, of which only some of the state's places are wanted: those of rows that go on, and of rows that end
        now those that will be read. The new state may have these places only, packed."""
        return self.advance(state, context)

    def whole(
        self, inputs: Inputs, context: Context, running: list[int], until: Int[Tensor, " n"]
    ) -> Float[Tensor, "m d"] | None:
        """All loops of a batch at once: the states of all places after their last loop, in the order of finishing. Of
        the rows the first ``running[k]`` take part in loop k, counted from 0; ``until`` says of each place after which
        loop its state is wanted last, counted from 1: the last one of its row, or the one before. None where a model
        cannot, or is not quicker so; then it is advanced loop by loop."""
        return None

    @abstractmethod
    def read(self, state: State, at: Bool[Tensor, "r t"]) -> Float[Tensor, "n v"]:
        """Logits at the places where ``at`` is True, row by row."""

    def piecewise(self, inputs: Inputs) -> Model | None:
        """The same model for rows that are known piece by piece: its ``embed`` takes the inputs' next columns each
        time, and it remembers what it needs of those before, once per loop. Of ``inputs`` all but the tokens has to be
        right. All rows take the same loops. None where a model cannot; then the whole row is run again."""
        return None


class ModelSpec(ABC):
    """The configuration of a model. Subclasses are frozen dataclasses."""

    @abstractmethod
    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model | nn.Module:
        """A new model, initialised with torch's global generator. A plain module, tokens → logits, will be wrapped."""

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        """What a model is shown of a batch in training, where that is to differ from test."""
        return inputs


class Once(Model):
    """Any module of tokens → logits, as a model advanced once."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def embed(self, inputs: Inputs) -> Context:
        return inputs.tokens

    def start(self, context: Context) -> State:
        return context

    def advance(self, state: State, context: Context) -> State:
        logits = self.module(context)
        if logits.dim() != 3 or logits.shape[:2] != context.shape:
            raise UsageError(
                f"a module takes tokens {tuple(context.shape)} to logits (rows, positions, vocabulary), "
                f"but {type(self.module).__name__} gave {tuple(logits.shape)}"
            )
        return logits

    def read(self, state: State, at: Bool[Tensor, "r t"]) -> Float[Tensor, "n v"]:
        return state[at]


def unroll(
    model: Model,
    inputs: Inputs,
    loops: Int[Tensor, " b"],
    *,
    untracked: int = 0,
    loss_mask: Bool[Tensor, "b t"] | None = None,
) -> Iterator[tuple[int, Int[Tensor, " r"], State]]:
    """Advance each row its own number of loops; yield, after each loop k = 1, 2, …, the rows still running and their
    state.

    ``loops`` (on the CPU, each at least 1) says how many. Rows leave when they are done, so the cost is their sum, not
    the longest row's: rows are sorted by loops, most first, and those running are always the first r. The yielded ids
    are the rows' places in ``inputs``. The first ``untracked`` loops are run without gradients.

    With ``asked``, a row's state is right at these places after its last loop, and need not be anywhere else: of a
    model that sees a few neighbours, the places that can matter become fewer with every loop, and the others leave.
    """
    yield from _run(model, _Course.of(model, inputs, loops), untracked, loss_mask)


class _Course(NamedTuple):
    """A batch before its first loop, rows that take the most loops first."""

    rows: Int[Tensor, " b"]  # their places in the batch
    loops: Int[Tensor, " b"]
    running: list[int]  # rows in each loop
    inputs: Inputs
    context: Context
    packed: bool

    @staticmethod
    def of(model: Model, inputs: Inputs, loops: Int[Tensor, " b"]) -> _Course:
        packed = model.packs and _padded(inputs.padding_mask)
        first = loops * (inputs.padding_mask.shape[1] + 1) + inputs.padding_mask.sum(1) if packed else loops
        order = first.argsort(descending=True, stable=True)
        running = (loops[:, None] > torch.arange(int(loops.max()))).sum(0).tolist()
        rows = order.to(inputs.tokens.device)
        # Equal loops need no sorting, and a copy of the inputs is not free in a small model.
        if packed or running[-1] < len(loops):
            inputs = inputs.take(rows)
        context = model.embed_packed(inputs) if packed else model.embed(inputs)
        return _Course(rows, loops[order], running, inputs, context, packed)


def _run(
    model: Model, course: _Course, untracked: int, loss_mask: Bool[Tensor, "b t"] | None
) -> Iterator[tuple[int, Int[Tensor, " r"], State]]:
    rows, loops, running, _, context, packed = course
    state = model.start(context)
    reach = model.reach(context) if packed else None
    until = None
    if packed and loss_mask is not None:
        until = state.like(state.ragged.pack(_matters(loss_mask[rows], loops, reach)))
    for k, count in enumerate(running, 1):
        if count < len(rows):
            rows, state, context, until = take((rows, state, context, until), slice(count))
        wanted = None
        if until is not None and reach:
            if len(kept := (until.value >= k - 1).nonzero()[:, 0]) < DENSE * len(until.value):
                state, context, until = keep((state, context, until), kept)
        elif until is not None:
            wanted = until.value >= k
        elif loss_mask is not None and k == len(running) and count == len(loops):
            wanted = loss_mask[rows]
        with torch.set_grad_enabled(torch.is_grad_enabled() and k > untracked):
            if wanted is None or _dense(wanted):
                state = model.advance(state, context)
            else:
                state = model.finish(state, context, wanted)
        yield k, rows, state


def _matters(loss_mask: Bool[Tensor, "b t"], loops: Int[Tensor, " b"], reach: int | None) -> Int[Tensor, "b t"]:
    """Up to after which loop a place's state is of use to those asked: it gets ``reach`` places nearer in each, or to
    all of its row."""
    if not reach:
        return loops[:, None] - (~loss_mask).long()
    position = torch.arange(loss_mask.shape[1])
    gap = (
        (position - position[:, None]).abs().where(loss_mask[:, None], len(position) * int(loops.max()) * reach).amin(2)
    )
    return loops[:, None] + -gap // reach


def _dense(wanted: Bool[Tensor, "*r"]) -> bool:
    """Are so many places wanted that leaving out the others saves less than it costs? A GPU is left alone."""
    return wanted.device.type != "cpu" or int(wanted.sum()) >= DENSE * wanted.numel()


def _padded(padding_mask: Bool[Tensor, "b t"]) -> bool:
    """Is there much that needs no computing? A GPU is left alone: counting would make it wait."""
    return padding_mask.device.type == "cpu" and int(padding_mask.sum()) < DENSE * padding_mask.numel()


def settle(
    model: Model,
    inputs: Inputs,
    loops: Int[Tensor, " b"],
    *,
    untracked: int = 0,
    loss_mask: Bool[Tensor, "b t"] | None = None,
) -> tuple[Int[Tensor, " b"], State]:
    """Each row's state after its own number of loops, with the rows' ids: they come in the order of finishing. With
    ``asked``, it may be read at these places only."""
    course = _Course.of(model, inputs, loops)
    if not untracked and torch.is_grad_enabled() and (found := _whole(model, course, loss_mask)) is not None:
        return found
    left = torch.bincount(loops, minlength=int(loops.max()) + 1).tolist()
    ids, states = [], []
    for k, rows, state in _run(model, course, untracked, loss_mask):
        if left[k]:
            done = slice(len(rows) - left[k], None)
            ids.append(rows[done])
            states.append(state if left[k] == len(rows) else take(state, done))
    return torch.cat(ids), _concatenate(states)


def _whole(
    model: Model, course: _Course, loss_mask: Bool[Tensor, "b t"] | None
) -> tuple[Int[Tensor, " b"], Packed] | None:
    """The same where a model can run all loops at once. A GPU would have to wait for what is counted here."""
    rows, loops, running, inputs, context, packed = course
    if not model.packs or rows.device.type != "cpu":
        return None
    there = inputs.padding_mask if packed else torch.ones_like(inputs.padding_mask)
    wanted = there if loss_mask is None else loss_mask[rows]
    state = model.whole(inputs, context, running, (loops[:, None] - (~wanted).long())[there])
    finished = loops.argsort(stable=True)
    return None if state is None else (rows[finished], Packed(state, Ragged.of(wanted[finished])))


def _concatenate(states: list[State]) -> State:
    if len(states) == 1:
        return states[0]
    if isinstance(states[0], Tensor):
        return torch.cat(states)
    if isinstance(states[0], Packed):
        return Packed.join(states)
    return tuple(_concatenate(list(parts)) for parts in zip(*states, strict=True))
