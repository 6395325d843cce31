"""Training steps of several models of the same structure, recorded together (see ``runners.graphs``).

The weights of all models are kept stacked: each parameter is a view of one tensor "s …" of all models, and so is its
gradient. A step therefore copies no weights, and torch.func computes all models by batched products. The rows of all
models are one batch "(s b)", the first model's rows first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from lengthwise.base.types import CopiedInputs, Inputs
from lengthwise.models import Model
from lengthwise.models.transformer import TransformerContext
from lengthwise.runners.compiled import compile_function
from lengthwise.runners.cuda import attend_by_products
from lengthwise.runners.graphs import BACKEND, Graphs, RecordingKey, UnrolledLoops, get_tensors, round_linear_weights
from lengthwise.runners.plain import Plain, take_values
from lengthwise.runners.stacked import Answer, Query, join_inputs, pad_and_join


class StackedGraphs(Graphs):
    """Computes the answers to queries of several models from recordings. Call ``begin_step`` before each step."""

    def __init__(self, models: Sequence[Model], *, bf16: bool = False) -> None:
        super().__init__(Plain(models[0]), bf16=bf16)
        self.models = models
        self.views: dict[int, list[Tensor]] = {}  # views of the gradients, by model
        self.weights, self.parameters = list[Tensor](), list[list[Tensor]]()
        self.compiles, self.uses_waves = self.compiles and not self.uses_waves, False
        # The models' parameters become views of stacked tensors; stacked parameters and buffers, by name.
        parts = [dict([*one.named_parameters(remove_duplicate=False), *one.named_buffers(remove_duplicate=False)])
                 for one in models]  # fmt: skip
        stacks: dict[int, Tensor] = {}  # by the first model's tensor: a model may have one parameter under two names
        for name, first in parts[0].items():
            if id(first) in stacks:
                continue
            tensors = [part[name] for part in parts]
            stacks[id(first)] = stacked = torch.stack([one.detach() for one in tensors])
            if isinstance(first, nn.Parameter):
                for one, view in zip(tensors, stacked.unbind(), strict=True):
                    one.data = view
            if first.requires_grad:
                self.weights.append(stacked.requires_grad_())
                self.parameters.append(tensors)
        self.stacked = {f"model.{name}": stacks[id(first)] for name, first in parts[0].items()}
        self.buffers = [one for one in self.stacked.values() if not one.requires_grad]
        self.own_buffers = [part for one in models for part in one.buffers()]
        self.memory_layout = self._read_memory_layout()

    def _read_memory_layout(self) -> list[tuple[int, int]]:
        """Return the parameters' addresses in memory, and the buffers' versions, which show whether the stacks are
        valid."""
        weights = [(one.data_ptr(), 0) for model_parameters in self.parameters for one in model_parameters]
        return weights + [(one.data_ptr(), one._version) for one in self.own_buffers]

    @property
    def is_valid(self) -> bool:
        """True if the models' parameters are still views of the stacks, and their buffers unchanged."""
        return self.memory_layout == self._read_memory_layout()

    def begin_step(self) -> None:
        super().begin_step()
        for weight in (one for own in self.parameters for one in own):
            weight.grad = None  # the next backward pass sets it

    @property
    def all_gradients(self) -> list[Tensor]:
        """The gradients of all models, whose memory stays the same in every step."""
        return [view for views in self.views.values() for view in views]

    def answer_queries(self, queries: Sequence[Query]) -> list[Answer] | None:
        """Return each model's answer to its query, as ``compute_answers`` does; None if the pass cannot be recorded."""
        if self.reason:
            return None
        depths = torch.tensor([query.depths for query in queries]).repeat_interleave(len(queries[0].loops), 0)
        rows, loops = [query.inputs for query in queries], torch.cat([query.loops for query in queries])
        inputs = join_inputs(rows)
        # Padding continues the positions of the widest rows, so that rows with equal positions still have them.
        widest = max((query.position[:1] for query in rows), key=lambda position: position.shape[1])
        for model_positions, query in zip(inputs.position.chunk(len(rows)), rows, strict=True):
            model_positions[:, query.position.shape[1] :] = widest[:, query.position.shape[1] :]
        if depths.numel():
            loops = loops.clamp(max=depths.amax(1))
        positions = pad_and_join([query.positions for query in queries])
        loop, first = torch.arange(int(loops.max()))[:, None], [query.no_grad_loops for query in queries]
        grad_mask = None
        if len({*first}) > 1:
            grad_mask = loop >= torch.tensor(first).repeat_interleave(len(queries[0].loops))
        all_loops, model_count = queries[0].all_loops or depths.numel() > 0, len(queries)
        logits = self.run(inputs, running := loops > loop, min(first), all_loops=all_loops, grad_mask=grad_mask)
        if logits is None:
            return None
        if depths.numel():
            by_depth = (_select_last_loop(logits, positions, model_count, loops.clamp(max=depth)) for depth in depths.T)
            return [list(model_logits) for model_logits in zip(*by_depth, strict=True)]
        if all_loops:
            return _select_all_loops(logits, running, positions, model_count)
        return _select_last_loop(logits, positions, model_count)

    def pair_with_gradients(self, weight_number: int) -> Iterable[tuple[Tensor, Tensor]]:
        if weight_number not in self.views:
            self.views[weight_number] = [*self.gradients[weight_number].unbind()]
        return zip(self.parameters[weight_number], self.views[weight_number], strict=True)

    def build_function(self, key: RecordingKey) -> Callable[[Inputs, Bool[Tensor, "k b"]], Tensor]:
        caller, model_count, compiles = _MethodCaller(self.models[0]), len(self.models), self.compiles
        whole = UnrolledLoops(self.models[0], key, compiles=False, uses_waves=False)
        stack = _CompiledStack(caller, model_count)
        compiled = _UnrolledStack(stack, key, compiles=True, uses_waves=False)  # type: ignore[arg-type]

        def compute(inputs: Inputs, running: Bool[Tensor, "k b"]) -> Tensor:
            def run_model(weights: dict[str, Tensor], tensors: dict[str, Tensor], running: Tensor) -> Tensor:
                rows = CopiedInputs(**tensors, original=inputs.host)
                return functional_call(whole, weights, (rows, running), tie_weights=False)  # type: ignore[no-any-return]

            stack.weights = self.stacked | (round_linear_weights(caller, self.stacked) if self.bf16 else {})
            # The fused kernels of attention have no stacked form on a CPU.
            with nullcontext() if self.device.type == "cuda" else attend_by_products():
                if compiles:
                    return compiled(inputs, running)  # type: ignore[no-any-return]
                tensors, axis = stack.split_inputs(inputs), int(key.all_loops)
                running = running.unflatten(1, (model_count, -1))
                output = vmap(run_model, (0, 0, 1), axis)(stack.weights, tensors, running)
                return output.flatten(axis, axis + 1)  # the rows of all models in one axis

        return compute


class _CompiledStack(nn.Module):
    """Several transformers as one model, whose batch holds the rows of all of them. Its loop is compiled (see
    ``runners.compiled``)."""

    weights: dict[str, Tensor]

    def __init__(self, caller: _MethodCaller, model_count: int) -> None:
        super().__init__()
        self.caller, self.model_count = caller, model_count

    def split_inputs(self, inputs: Inputs) -> dict[str, Tensor]:
        """Return the tensors of inputs by name, "s b t"."""
        return {name: value.unflatten(0, (self.model_count, -1)) for name, value in get_tensors(inputs).items()}

    def embed(self, inputs: Inputs) -> Any:
        """Return the context of all models, whose tensors have the shape "s b …"."""
        flattened: list[tuple[list[Any], Any]] = []

        def embed(weights: dict[str, Tensor], tensors: dict[str, Tensor]) -> list[Tensor]:
            rows = CopiedInputs(**tensors, original=inputs.host)
            flattened.append(tree_flatten(functional_call(self.caller, weights, ("embed", rows))))
            return [leaf for leaf in flattened[-1][0] if isinstance(leaf, Tensor)]

        stacked_leaves = iter(vmap(embed)(self.weights, self.split_inputs(inputs)))
        leaves, form = flattened[0]
        return tree_unflatten([next(stacked_leaves) if isinstance(leaf, Tensor) else leaf for leaf in leaves], form)

    def start(self, context: TransformerContext) -> Float[Tensor, "b t d"]:
        return self._vmap("start", context).flatten(0, 1)

    def read(self, state: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        return self._vmap("read", state.unflatten(0, (self.model_count, -1))).flatten(0, 1)

    def _vmap(self, method: str, argument: Any) -> Tensor:
        def run_model(weights: dict[str, Tensor], argument: Any) -> Tensor:
            return functional_call(self.caller, weights, (method, argument))  # type: ignore[no-any-return]

        return vmap(run_model, (0, find_vmap_axes(argument)))(self.weights, argument)  # type: ignore[no-any-return]


class _UnrolledStack(UnrolledLoops):
    def advance_compiled(self, state: Tensor, context: Any, running: Bool[Tensor, "b 1 1"]) -> Tensor:
        stack: Any = self.model
        state, running = (part.unflatten(0, (stack.model_count, -1)) for part in (state, running))
        advanced = compile_function(_advance_all, BACKEND)(stack.caller, stack.weights, state, context, running)
        return advanced.flatten(0, 1)  # type: ignore[no-any-return]


class _MethodCaller(nn.Module):
    """A module whose ``forward`` calls any method of a model: ``functional_call`` calls only ``forward``."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, method: str, *args: Any) -> Any:
        return getattr(self.model, method)(*args)


def _advance_all(
    caller: _MethodCaller, weights: dict[str, Tensor], state: Tensor, context: TransformerContext, running: Tensor
) -> Float[Tensor, "s b t d"]:
    """Advance the ``running`` rows of all models by one loop."""
    advance = vmap(
        lambda weights, state, context: functional_call(caller, weights, ("advance", state, context)),
        (0, 0, find_vmap_axes(context)),
    )
    return torch.where(running, advance(weights, state, context), state)


def find_vmap_axes(tree: Any) -> Any:
    """Return nested tuples of vmap axes: 0, the axis of the models, for tensors; None for other values."""
    return tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, tree)


def _select_last_loop(
    logits: Float[Tensor, "*k b t v"],
    positions: Bool[Tensor, "b t"],
    model_count: int,
    loops: Int[Tensor, " b"] | None = None,
) -> list[Answer]:
    """Return each model's logits at its selected positions; with ``loops``, after each row's number of loops."""
    row, position = positions.nonzero(as_tuple=True)
    counts = positions.unflatten(0, (model_count, -1)).sum((1, 2)).tolist()
    after = () if loops is None else (loops[row] - 1,)
    return [*take_values(logits, *after, row, position).split(counts)]


def _select_all_loops(
    logits: Float[Tensor, "k b t v"], running: Bool[Tensor, "k b"], positions: Bool[Tensor, "b t"], model_count: int
) -> list[Answer]:
    """Return, for each model, a list with an entry per loop: the loop, the rows that ran, and their logits."""
    selected = (running[..., None] & positions).nonzero(as_tuple=True)
    ran = running.unflatten(1, (model_count, -1))
    rows = ran.nonzero()[:, 2].split(ran.sum(2).flatten().tolist())
    counts = (ran * positions.sum(1).unflatten(0, (model_count, -1))).sum(2).flatten().tolist()
    logits_by_loop = take_values(logits, *selected).split(counts)
    answers: list[Answer] = [[] for _ in range(model_count)]
    for number, (model_rows, model_logits) in enumerate(zip(rows, logits_by_loop, strict=True)):
        if len(model_rows):
            answers[number % model_count].append((number // model_count + 1, model_rows, model_logits))
    return answers
