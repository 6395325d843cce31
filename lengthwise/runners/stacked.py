"""Compute several models of the same structure at once, by torch.func on their stacked weights. Results equal the plain
runner's.

Each model has its own rows. Rows are padded to the widest, and every model runs for the largest number of loops of all
rows; finished rows keep their state. Neither padding nor further loops change a logit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lengthwise.base.types import CopiedInputs, Inputs, UsageError, to_device
from lengthwise.models import Model, get_device
from lengthwise.runners import Logits, LoopLogits, Mask, RowLoops, Runner
from lengthwise.runners.plain import choose_rows, detach, select_rows, take_values

Answer = Any  # the result of ``last`` or ``at_depths``, or a list of what ``each`` yields


@dataclass(frozen=True)
class Query:
    """The arguments of one call of a runner."""

    inputs: Inputs
    loops: Int[Tensor, " b"]
    positions: Bool[Tensor, "b t"]
    no_grad_loops: int = 0
    all_loops: bool = False  # logits after every loop, not only after the last
    depths: tuple[int, ...] = ()  # depths of ``at_depths``

    def equals(self, other: Query) -> bool:
        """Return whether both queries have the same answer if their inputs are equal."""
        if (self.no_grad_loops, self.all_loops, self.depths) != (other.no_grad_loops, other.all_loops, other.depths):
            return False
        return torch.equal(self.loops, other.loops) and torch.equal(self.positions, other.positions)

    @property
    def shared_properties(self) -> tuple[bool, int]:
        """The properties that must be equal in the queries of all models: ``all_loops``, and the number of depths."""
        return self.all_loops, len(self.depths)


class _QueryRunner(Runner):
    """Turns each call of a runner into a query."""

    @abstractmethod
    def answer(self, query: Query) -> Answer:
        """Return the answer to a query: the result of ``last`` or ``at_depths``, or a list of what ``each`` yields."""

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        return self.answer(Query(inputs, loops, positions, no_grad_loops))

    def at_depths(self, inputs: Inputs, loops: RowLoops, depths: Sequence[int], positions: Mask) -> list[Logits]:
        return self.answer(Query(inputs, loops, positions, depths=tuple(depths)))

    def each(self, inputs: Inputs, loops: RowLoops, positions: Mask) -> LoopLogits:
        yield from self.answer(Query(inputs, loops, positions, all_loops=True))


class QueryRecorder(_QueryRunner):
    """Records queries, and answers them with zeros as the logits of ``symbol_count`` symbols."""

    def __init__(self, model: Model, symbol_count: int) -> None:
        super().__init__(model)
        self.symbol_count, self.queries = symbol_count, list[Query]()

    def answer(self, query: Query) -> Answer:
        self.queries.append(query)
        positions, symbols = query.positions, self.symbol_count
        if query.all_loops:
            ran = [(query.loops >= k).nonzero()[:, 0] for k in range(1, int(query.loops.max()) + 1)]
            return [(k, rows, torch.zeros(int(positions[rows].sum()), symbols)) for k, rows in enumerate(ran, 1)]
        zeros = [torch.zeros(int(positions.sum()), symbols) for _ in range(len(query.depths) or 1)]
        return zeros if query.depths else zeros[0]


class QueryReplayer(_QueryRunner):
    """Returns the answers to the queries that a ``QueryRecorder`` recorded. Raises UsageError for any other call: if an
    objective's calls depend on logits, they cannot be recorded before the logits are computed."""

    def __init__(self, model: Model, queries: Sequence[Query], answers: Sequence[Answer]) -> None:
        super().__init__(model)
        self.recorded = iter([*zip(queries, answers, strict=True)])

    def answer(self, query: Query) -> Answer:
        recorded_query, answer = next(self.recorded, (None, None))
        if recorded_query is None or not recorded_query.equals(query):
            raise UsageError("the objective's calls of its runner depend on earlier logits")
        return answer


def compute_answers(models: Sequence[Model], queries: Sequence[Query]) -> list[Answer]:
    """Return each model's answer to its query, computed for all models together and equal to the plain runner's.

    All models must have the same structure, and all queries must have equal ``shared_properties`` and numbers of rows.
    Raises RuntimeError, as torch.func does, for a model that draws random numbers or branches on its inputs, and
    UsageError for a model that changes its buffers.
    """
    if count := len(queries[0].depths):
        answers = []
        for number in range(count):
            loops = [query.loops.clamp(max=query.depths[number]) for query in queries]
            shorter = [replace(query, loops=own, depths=()) for query, own in zip(queries, loops, strict=True)]
            answers.append(compute_answers(models, shorter))
        return [list(model_answers) for model_answers in zip(*answers, strict=True)]
    plan, device = _Plan(queries), get_device(models[0])
    tensors = [dict([*model.named_parameters(), *model.named_buffers()]) for model in models]
    weights = {f"model.{name}": torch.stack([own[name] for own in tensors]) for name in tensors[0]}
    versions = [weight._version for weight in weights.values()]
    batch = {name: to_device(value, device) for name, value in plan.tensors.items()}
    unrolled = _UnrolledModel(models[0], plan)
    # Fused attention kernels have no stacked form: torch would call them for one model after the other.
    with sdpa_kernel(SDPBackend.MATH):
        answers = vmap(lambda weights, batch: functional_call(unrolled, weights, (batch,)))(weights, batch)
    if versions != [weight._version for weight in weights.values()]:
        raise UsageError("the model changes its buffers in its forward pass: train its seeds one by one")
    return plan.select_logits_per_loop(answers) if plan.all_loops else plan.select_last_logits(answers)


class _UnrolledModel(nn.Module):
    """The loop over depth of one model of the stack, as a module for torch.func."""

    def __init__(self, model: Model, plan: _Plan) -> None:
        super().__init__()
        self.model, self.plan = model, plan

    def forward(self, batch: dict[str, Tensor]) -> tuple[Float[Tensor, "r t v"], ...]:
        model, plan = self.model, self.plan
        running, has_gradient = batch["running"], batch["has_gradient"]
        inputs = {field.name: batch[field.name] for field in fields(Inputs)}
        context = model.embed(CopiedInputs(**inputs, original=plan.host))
        state, logits = model.start(context), []
        for k, count in enumerate(plan.max_running):
            if count < len(running):
                state, context, running = select_rows((state, context, running), slice(count))
            previous = state
            with torch.set_grad_enabled(torch.is_grad_enabled() and k >= min(plan.no_grad_loops)):
                state = model.advance(previous, context)
            if min(plan.counts[k]) < count:
                state = choose_rows(running[:, k], state, detach(previous))
            if min(plan.no_grad_loops) <= k < max(plan.no_grad_loops):
                state = choose_rows(has_gradient[k], state, detach(state))
            if plan.first_read[k] < count:
                logits.append(model.read(state)[plan.first_read[k] :])
        return tuple(logits)


class _Plan:
    """The plan of a stack's loops: the rows that run in each loop, and the rows whose logits are then read. Each
    model's rows are sorted by loops, most first. All tensors are on the CPU."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self.queries, self.all_loops = queries, queries[0].all_loops
        self.no_grad_loops = [query.no_grad_loops for query in queries]
        self.loops = torch.stack([query.loops for query in queries])
        self.order = self.loops.argsort(dim=1, descending=True, stable=True)
        running = self.loops.gather(1, self.order)[..., None] > torch.arange(int(self.loops.max()))  # s b k
        counts = running.sum(1)  # number of running rows, s k
        self.counts, self.max_running = counts.T.tolist(), counts.amax(0).tolist()
        # First row whose logits are read: rows that end in this loop in some model, or all that run.
        staying = F.pad(counts[:, 1:], (0, 1)).amin(0)
        self.first_read = (torch.zeros_like(staying) if self.all_loops else staying).tolist()
        has_gradient = torch.arange(len(self.max_running)) >= torch.tensor(self.no_grad_loops)[:, None]  # s k
        self.host = join_inputs([query.inputs.take(order) for query, order in zip(queries, self.order, strict=True)])
        inputs = {f.name: getattr(self.host, f.name).unflatten(0, (len(queries), -1)) for f in fields(Inputs)}
        self.tensors = {"running": running, "has_gradient": has_gradient, **inputs}

    def select_last_logits(self, logits: Sequence[Float[Tensor, "s r t v"]]) -> list[Answer]:
        """Return the logits at the selected positions after each row's last loop."""
        read = torch.tensor(self.max_running) - torch.tensor(self.first_read)
        offset = read.cumsum(0) - torch.tensor(self.max_running)  # row number + offset = index among all rows read
        order = offset[self.loops - 1] + self.order.argsort(dim=1)
        selected = [query.positions.nonzero(as_tuple=True) for query in self.queries]
        index = [(model_order[row], position) for model_order, (row, position) in zip(order, selected, strict=True)]
        return _select_logits(torch.cat([*logits], 1), index)

    def select_logits_per_loop(self, logits_per_loop: Sequence[Float[Tensor, "s r t v"]]) -> list[Answer]:
        """Return, for each model, a list with an entry per loop: the loop, the rows that ran, and their logits."""
        answers: list[Answer] = [[] for _ in self.queries]
        for k, logits in enumerate(logits_per_loop):
            ran = [order[:count] for order, count in zip(self.order, self.counts[k], strict=True)]
            pairs = zip(self.queries, ran, strict=True)
            index = [query.positions[rows].nonzero(as_tuple=True) for query, rows in pairs]
            for answer, rows, model_logits in zip(answers, ran, _select_logits(logits, index), strict=True):
                answer += [(k + 1, rows, model_logits)] if len(rows) else []
        return answers


def join_inputs(parts: Sequence[Inputs]) -> Inputs:
    """Join the rows of all models into one batch, "(s b) t"."""
    names = [field.name for field in fields(Inputs)]
    return Inputs(**{name: pad_and_join([getattr(part, name) for part in parts]) for name in names})


def pad_and_join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate rows, padded with zeros to the widest. Copying rows into zeros is faster than padding each part."""
    width = max(part.shape[1] for part in parts)
    joined = parts[0].new_zeros(len(parts), len(parts[0]), width)
    for target, part in zip(joined.unbind(), parts, strict=True):
        target[:, : part.shape[1]] = part
    return joined.flatten(0, 1)


def _select_logits(logits: Float[Tensor, "s r t v"], index: Sequence[tuple[Tensor, ...]]) -> list[Float[Tensor, "n v"]]:
    """Return each model's logits at its rows and positions, which are a pair in ``index``."""
    counts = [len(row) for row, _ in index]
    model = torch.arange(len(index)).repeat_interleave(torch.tensor(counts))
    row, position = (torch.cat(parts) for parts in zip(*index, strict=True))
    # Losses are computed in 32 bits at least, even if products were not.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return [*take_values(logits, model, row, position).to(dtype).split(counts)]
