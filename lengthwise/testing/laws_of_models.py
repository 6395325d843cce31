"""Laws of models: logits do not depend on padding, on other rows or on the order of rows, and causal models do not look
ahead. Positional encodings and mixers are checked in a small transformer.

Models are checked on random symbols or, if a part's class sets ``checked_on = (task, layout)``, on problems of this
task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.base.fields import iterate_parts
from lengthwise.base.rng import preserve_generators, seed_torch, stream
from lengthwise.base.types import END, EQUALS, Inputs, UsageError, Vocab
from lengthwise.experiment.layout import Layout
from lengthwise.models import Model, ModelSpec
from lengthwise.models.single_pass import SinglePass, are_probabilities
from lengthwise.models.transformer import Transformer
from lengthwise.nn.mixer import MixerSpec
from lengthwise.nn.position import Position
from lengthwise.runners import Runner
from lengthwise.runners.cpu import choose_decoder
from lengthwise.runners.plain import Plain
from lengthwise.tasks import Task
from lengthwise.testing.laws_of_parts import Broken

READS, WRITES = Vocab((*"01234", EQUALS)), Vocab((*"xy", END))
DIGIT_VOCAB = Vocab(tuple("012345"))
LENGTHS, LOOPS = (5, 9, 2), (2, 1, 3)  # lengths and loops of the rows in a check
SMALL_MODEL = Transformer(width=8, heads=2, layers=1)
LONG_WIDTH = 200  # positions of a row far longer than in training
CHUNKED_WIDTH = 136  # positions of a row with several chunks, in models that compute in chunks of at most 64
CUT_COUNT = 8  # number of positions of a row of ``CHUNKED_WIDTH`` after which, one at a time, all tokens are changed
MAX_SIZE_ABOVE = 12  # largest size above a task's smallest, in rows of `checked_on` problems
NOISE_STD = 0.4  # standard deviation of the noise added to initial weights
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}  # allowed difference of logits
MIN_EFFECT = {torch.float32: 1e-4, torch.float64: 1e-12}  # larger differences of logits count as a token's effect


# This law is checked first, since a model with random outputs also breaks most other laws.
def evaluation_is_deterministic(runner: Runner) -> None:
    """In evaluation, computing a row twice gives the same logits."""
    inputs = _draw_checked_rows(runner)
    if not torch.equal(compute_logits(runner, inputs), compute_logits(runner, inputs)):
        raise Broken("a second evaluation of the same rows gave different logits: use random numbers in training only")


def outputs_are_logits(runner: Runner) -> None:
    """The model returns logits, not probabilities."""
    inputs = _draw_checked_rows(runner)
    if are_probabilities(compute_logits(runner, inputs)[inputs.padding_mask]):
        raise Broken("the model returns probabilities: return logits, from before the softmax")


def logits_do_not_depend_on_other_rows(runner: Runner) -> None:
    """A row gets the same logits alone and in a batch with longer rows and other numbers of loops."""
    _compare_with_single_rows(runner, _draw_checked_rows(runner, width=10), LOOPS)
    with suppress(UsageError):  # the model may have fewer positions
        _compare_with_single_rows(runner, _draw_checked_rows(runner, (CHUNKED_WIDTH // 3, CHUNKED_WIDTH, 5)), (1, 1, 1))


def padding_is_ignored(runner: Runner) -> None:
    """Tokens after a row's end change no logits."""
    inputs = _draw_checked_rows(runner, width=10)
    other = (inputs.tokens + 1) % (int(inputs.tokens.max()) + 1)
    changed = replace(inputs, tokens=inputs.tokens.where(inputs.padding_mask, other))
    if not torch.equal(compute_logits(runner, inputs), compute_logits(runner, changed)):
        raise Broken("changing the tokens after a row's end changes its logits")


def the_order_of_rows_does_not_matter(runner: Runner) -> None:
    """Rows in a different order get the same logits."""
    inputs, order = _draw_checked_rows(runner), torch.tensor([2, 0, 1])
    for loops in (LOOPS, (2, 2, 2)):
        permuted = compute_logits(runner, inputs.take(order), [loops[i] for i in order])
        if logits_differ(compute_logits(runner, inputs, loops)[order], permuted):
            raise Broken("the same rows in a different order get different logits")


def causal_models_do_not_look_ahead(spec: ModelSpec) -> None:
    """In a causal layout each position depends on its own token and on no later one, for any number of loops."""
    for model in build_models(spec, [True]):
        runner = _CheckedRunner(model, spec)
        check_causality(runner)
        with suppress(UsageError), torch.no_grad():  # the model may have fewer positions
            # A mistake at the border of two chunks does not show in short rows.
            row = _draw_checked_rows(runner, [CHUNKED_WIDTH])
            width, symbols = row.tokens.shape[1], int(row.tokens.max()) + 1
            cuts = torch.linspace(0, width - 2, CUT_COUNT).round().long()
            later = torch.arange(width) > cuts[:, None]
            copies = row.take(torch.zeros(CUT_COUNT, dtype=torch.long))  # in equal batches, rounding errors are equal
            changed = replace(copies, tokens=row.tokens.where(~later, (row.tokens + 1) % symbols))
            before, after = (compute_logits(runner, part, [1] * CUT_COUNT) for part in (copies, changed))
            moved = ((after - before).abs().amax(-1) > MIN_EFFECT[after.dtype]) & ~later
            if moved.any():
                number, position = moved.nonzero()[0].tolist()
                change = f"tokens after position {cuts[number]} change the logits at position {position}"
                raise Broken(f"in a row of {width} positions, {change}")


def carried_states_continue_a_run(runner: Runner) -> None:
    """Loops that continue from a carried state give the same logits and gradients as one run of all loops."""
    inputs, model = _draw_checked_rows(runner), runner.model
    positions = inputs.padding_mask
    for loops in (torch.tensor(LOOPS), torch.tensor((2, 2, 2))):
        model.zero_grad()
        try:
            _, state = runner.carry(inputs, loops, positions)
            halves, _ = runner.carry(inputs, torch.full_like(loops, 2), positions, state)
        except UsageError:
            continue  # the model's states cannot be carried, and its error says so
        halves.square().sum().backward()
        gradients = [weight.grad for weight in model.parameters()]
        model.zero_grad()
        whole = runner.last(inputs, loops + 2, positions)
        whole.square().sum().backward()
        if logits_differ(whole, halves):
            raise Broken("loops that continue from a state give different logits: the state must hold all loops' data")
        for gradient, (name, weight) in zip(gradients, model.named_parameters(), strict=True):
            if gradient is not None and weight.grad is not None and logits_differ(weight.grad, gradient):
                raise Broken(f"{name} has a different gradient if loops continue from a carried state")
        model.zero_grad()


def every_parameter_affects_logits(runner: Runner) -> None:
    """Each parameter affects some logit: its gradient is not all zero."""
    compute_logits(runner, _draw_checked_rows(runner)).square().sum().backward()
    for name, parameter in runner.model.named_parameters():
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any()):
            raise Broken(f"{name} has no effect on any logit")


def weights_come_from_the_seed(spec: ModelSpec) -> None:
    """A model that is built twice with one seed gets the same weights."""
    problems = find_task_and_layout(spec)
    for causal in (problems[1].causal,) if problems else (False, True):
        try:
            weights, again = (_build_seeded(spec, causal).state_dict() for _ in range(2))
        except UsageError:
            continue
        for name, weight in weights.items():
            if not torch.equal(weight, again[name]):
                raise Broken(f"{name} differs between two builds with the same seed: initialize it with torch.nn.init")


def long_rows_have_finite_logits(runner: Runner) -> None:
    """Rows far longer than in training get finite logits or raise a UsageError."""
    with suppress(UsageError):
        if not compute_logits(runner, _draw_checked_rows(runner, [LONG_WIDTH]), [1]).isfinite().all():
            raise Broken(f"a row of {LONG_WIDTH} positions gets logits that are not finite")


def decoding_in_pieces_gives_the_same_logits(spec: ModelSpec) -> None:
    """Decoding a row piece by piece gives the same logits as reading it whole."""
    for model in build_models(spec, [True]):
        inputs, loops = build_rows([9, 9]), 2
        if (decoder := choose_decoder(model, inputs)) is None:
            continue
        whole, start = compute_logits(Plain(model), inputs, [loops] * 2), 0
        for stop in (4, 5, 6, 9):
            with torch.no_grad():
                piece = decoder.compute_next_logits(inputs.columns(start, stop), loops)
            if logits_differ(whole[:, start:stop], piece):
                raise Broken(f"positions {start} to {stop - 1} get different logits when decoded separately")
            start = stop


def apply_to_models(law: Callable[[Runner], None]) -> Callable[[ModelSpec], None]:
    """Convert a law of runners to a law of model specifications, which holds if the law holds for the plain runner of
    each model that the specification builds."""

    @wraps(law)
    def check(spec: ModelSpec) -> None:
        for model in build_models(spec):
            law(_CheckedRunner(model, spec))

    return check


def _compare_with_single_rows(runner: Runner, inputs: Inputs, loops: Sequence[int]) -> None:
    """Raise Broken if a row's logits in the batch differ from those of the row alone, without padding. Long rows are
    left out if their logits change with the batch size alone, since rounding errors can grow in recurrent models."""
    together = compute_logits(runner, inputs, loops)
    for i, length in enumerate(inputs.padding_mask.sum(1).tolist()):
        row = inputs.take(slice(i, i + 1)).columns(0, length)
        alone = compute_logits(runner, row, [loops[i]])
        if logits_differ(together[i, :length], alone[0]):
            copies = row.take(torch.zeros(len(inputs), dtype=torch.long))
            beside = compute_logits(runner, copies, [loops[i]] * len(inputs))[:1]
            if length > max(LENGTHS) and logits_differ(beside, alone):
                continue
            raise Broken(f"the logits of a row of {length} tokens change when longer rows are in the batch")


def check_causality(runner: Runner, loop_counts: Sequence[int] = (1, 2)) -> None:
    """Raise Broken if, after any of ``loop_counts``, the logits of a position depend on a later token, or do not depend
    on the position's own token."""
    for loops in loop_counts:
        reached = find_influences(runner, _draw_checked_rows(runner, [10]), loops)
        if (later := reached & ~reached.tril()).any():
            position, token = later.nonzero()[0].tolist()
            raise Broken(f"after {loops} loops, token {token} changes the logits at position {position}")
        if not reached.diagonal().all():
            raise Broken(f"the logits at position {int(reached.diagonal().long().argmin())} ignore the token there")


def find_influences(runner: Runner, inputs: Inputs, loops: int) -> Bool[Tensor, "t t"]:
    """Return a mask [t, s], True if the token at position s affects the logits at position t after ``loops`` loops.
    ``inputs`` is a batch of one row."""
    width = inputs.tokens.shape[1]
    several = inputs.take(torch.zeros(width + 1, dtype=torch.long))
    changed = several.tokens + torch.eye(width + 1, width, dtype=torch.long)  # the last row is unchanged
    symbols = runner.symbols if isinstance(runner, _CheckedRunner) else len(READS)
    with torch.no_grad():
        logits = compute_logits(runner, replace(several, tokens=changed % symbols), [loops] * (width + 1))
    return ((logits[:-1] - logits[-1]).abs().amax(-1) > MIN_EFFECT[logits.dtype]).T


# Models, rows, logits


class _CheckedRunner(Plain):
    """The plain runner of a model, which also draws the rows on which the model is checked."""

    def __init__(self, model: Model, spec: ModelSpec) -> None:
        super().__init__(model)
        self.problems = find_task_and_layout(spec)
        self.symbols = len(choose_vocabs(spec)[0])

    def draw_rows(self, lengths: Sequence[int] = LENGTHS, width: int | None = None) -> Inputs:
        """Return random rows of these lengths or, with ``checked_on``, problems whose sizes grow with the lengths."""
        if self.problems is None:
            return build_rows(lengths, width)
        task, layout = self.problems
        smallest = torch.tensor(task.list_smallest_sizes(MAX_SIZE_ABOVE + 1))
        sizes = smallest[torch.tensor([length // 3 for length in lengths]).clamp(max=len(smallest) - 1)]
        drawn = task.sample(sizes[:, None].repeat(1, len(task.axes)), stream(0, "rows"))
        return layout.write(drawn, task).inputs


def _draw_checked_rows(runner: Runner, lengths: Sequence[int] = LENGTHS, width: int | None = None) -> Inputs:
    return runner.draw_rows(lengths, width) if isinstance(runner, _CheckedRunner) else build_rows(lengths, width)


def find_task_and_layout(spec: ModelSpec) -> tuple[Task, Layout] | None:
    """Return the first ``checked_on`` (task, layout) of a model specification and its parts, or None if there is
    none."""
    return next((pair for part in iterate_parts(spec) if (pair := getattr(part, "checked_on", None))), None)


def choose_vocabs(spec: ModelSpec) -> tuple[Vocab, Vocab]:
    """Return the input and output vocabularies for checking a model."""
    problems = find_task_and_layout(spec)
    return problems[1].vocabs(problems[0]) if problems else (choose_input_vocab(spec), WRITES)


def build_small_spec(part: Position | MixerSpec) -> ModelSpec:
    """Return the specification of a small transformer with the positional encoding or mixer ``part``."""
    is_mixer = isinstance(part, MixerSpec)
    return replace(SMALL_MODEL, positions=(), mixer=part) if is_mixer else replace(SMALL_MODEL, positions=(part,))


def build_models(spec: ModelSpec, causal_options: Sequence[bool] = (False, True)) -> Iterator[Model]:
    """Yield the non-causal and the causal model of a specification, with noise added to the weights. Raises the last
    UsageError if neither can be built."""
    errors = []
    if problems := find_task_and_layout(spec):
        causal_options = [causal for causal in causal_options if causal == problems[1].causal]
    for causal in causal_options:
        try:
            model = _build_seeded(spec, causal)
        except UsageError as error:
            errors.append(error)
        else:
            yield add_noise(model)
    if len(errors) > 1 or (problems and errors):
        raise errors[-1]


def _build_seeded(spec: ModelSpec, causal: bool) -> Model:
    with preserve_generators():
        seed_torch(0)
        model = spec.build(*choose_vocabs(spec), causal=causal)
    return model if isinstance(model, Model) else SinglePass(model)


def choose_input_vocab(spec: ModelSpec) -> Vocab:
    """Return the input vocabulary for random rows; it has only digits if the model reads symbols as numbers."""
    return DIGIT_VOCAB if getattr(spec, "read_in", "table") == "numbers" else READS


def add_noise(model: Model) -> Model:
    """Add noise to a model's weights and return the model. With small initial weights and zero biases, many effects
    would be too small to detect."""
    generator = stream(0, "more")
    for parameter in model.eval().parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        parameter.data += NOISE_STD * noise.to(parameter.dtype)
    return model


def build_rows(lengths: Sequence[int] = LENGTHS, width: int | None = None, seed: int = 0) -> Inputs:
    """Return rows of random tokens. The padding mask is True for the first ``lengths[i]`` tokens of row i. Digit
    positions repeat 0, 1, 2: a sign and two digits."""
    width = width or max(lengths)
    tokens = torch.randint(len(READS), (len(lengths), max(40, width)), generator=stream(seed, "tokens"))[:, :width]
    position = torch.arange(width).expand(len(lengths), -1)
    return Inputs(tokens, position, position % 3, position < torch.tensor(lengths)[:, None])


def compute_logits(
    runner: Runner,
    inputs: Inputs,
    loops: Sequence[int] = LOOPS,
    positions: Bool[Tensor, "b t"] | None = None,
    *,
    no_grad_loops: int = 0,
) -> Float[Tensor, "b t v"]:
    """Return each row's logits after its number of loops, and zeros outside ``positions`` (default: the padding
    mask)."""
    positions = inputs.padding_mask if positions is None else positions
    logits = runner.last(inputs, torch.tensor(loops), positions, no_grad_loops=no_grad_loops)
    return logits.new_zeros(*positions.shape, logits.shape[-1]).index_put(positions.nonzero(as_tuple=True), logits)


def logits_differ(first: Tensor, second: Tensor) -> bool:
    """Return whether logits differ by more than ``TOLERANCE``, which in float32 is relative to 1 + the largest
    logit."""
    scale = 1 + first.abs().max() if first.dtype == torch.float32 else 1.0
    return bool(((first - second).abs() > TOLERANCE[first.dtype] * scale).any())
