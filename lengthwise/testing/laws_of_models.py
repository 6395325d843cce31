"""Laws of every model: padding, neighbours and the order of rows change nothing, and causal means causal. A position's
or a mixer's are those of a small transformer that has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.base.rng import seed_torch, stream, undisturbed
from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import END, EQUALS, Vocab
from lengthwise.models import Model, ModelSpec, Once
from lengthwise.models.transformer import Transformer
from lengthwise.nn.mixer import MixerSpec
from lengthwise.nn.position import Position
from lengthwise.runners import Runner
from lengthwise.runners.plain import Plain
from lengthwise.testing.laws_of_parts import Broken

READS, WRITES = Vocab((*"01234", EQUALS)), Vocab((*"xy", END))
DIGITS = Vocab(tuple("012345"))
LENGTHS, LOOPS = (5, 9, 2), (2, 1, 3)  # of the rows that are looked at
SMALL = Transformer(width=8, heads=2, layers=1)
LONG = 200  # positions of a row that is far longer than those trained on
FAR = 0.4  # how far weights are moved from where they start
NEAR = {torch.float32: 1e-4, torch.float64: 1e-9}  # by what logits may differ
SEEN = {torch.float32: 1e-4, torch.float64: 1e-12}  # by what they differ where a token has an effect on them


# The first law: a model that is random breaks most of the others too, for this reason alone.
def at_test_nothing_is_random(spec: ModelSpec) -> None:
    """In evaluation the same row gets the same logits again."""
    for model in built(spec):
        if not torch.equal(logits_of(Plain(model), rows()), logits_of(Plain(model), rows())):
            raise Broken("the same rows got other logits in evaluation: random numbers are for training")


def a_row_is_what_it_is_alone(spec: ModelSpec) -> None:
    """A row alone gets the logits that it gets beside longer rows, each after loops of its own."""
    for model in built(spec):
        alone(Plain(model))


def padding_is_not_read(spec: ModelSpec) -> None:
    """What stands after a row's end changes nothing."""
    for model in built(spec):
        padded(Plain(model))


def the_order_of_rows_does_not_matter(spec: ModelSpec) -> None:
    """Rows in another order get the same logits."""
    for model in built(spec):
        ordered(Plain(model))


def causal_means_causal(spec: ModelSpec) -> None:
    """In a causal layout no position depends on a later one, however often the model is looped, and each on itself."""
    for model in built(spec, [True]):
        ahead(Plain(model))


def every_parameter_takes_part(spec: ModelSpec) -> None:
    """Each parameter has a gradient that is not 0 everywhere."""
    for model in built(spec):
        logits_of(Plain(model), rows()).square().sum().backward()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any()):
                raise Broken(f"{name} has no effect on any logit")


def weights_come_from_the_seed(spec: ModelSpec) -> None:
    """Built again with the same seed, its weights are the same."""
    for causal in (False, True):
        try:
            one, two = (_seeded(spec, causal).state_dict() for _ in range(2))
        except UsageError:
            continue
        for name, weight in one.items():
            if not torch.equal(weight, two[name]):
                raise Broken(f"{name} differs: draw it with torch's own generator, as torch.nn.init does")


def far_longer_rows_are_read(spec: ModelSpec) -> None:
    """Rows far longer than those trained on get finite logits, or are refused by a UsageError."""
    for model in built(spec):
        try:
            found = logits_of(Plain(model), rows([LONG]), [1])
        except UsageError:
            continue
        if not found.isfinite().all():
            raise Broken(f"a row of {LONG} positions gets logits that are no numbers")


# What may be asked of any runner of a model


def alone(runner: Runner) -> None:
    """Raise Broken if a row's logits change with its neighbours, padding or their loops."""
    inputs = rows(width=10)
    together = logits_of(runner, inputs)
    for i, length in enumerate(LENGTHS):
        row = inputs.take(slice(i, i + 1)).columns(0, length)
        if differ(together[i, :length], logits_of(runner, row, [LOOPS[i]])[0]):
            raise Broken(f"a row of {length} tokens gets other logits beside longer rows than alone")


def padded(runner: Runner) -> None:
    """Raise Broken if logits change with the tokens after a row's end."""
    inputs, rubbish = rows(width=10), rows(width=10, seed=1)
    changed = replace(inputs, tokens=inputs.tokens.where(inputs.padding_mask, rubbish.tokens))
    if not torch.equal(logits_of(runner, inputs), logits_of(runner, changed)):
        raise Broken("other tokens after a row's end change its logits")


def ordered(runner: Runner) -> None:
    """Raise Broken if logits change with the order of rows."""
    inputs, order = rows(), torch.tensor([2, 0, 1])
    for loops in (LOOPS, (2, 2, 2)):
        turned = logits_of(runner, inputs.take(order), [loops[i] for i in order])
        if differ(logits_of(runner, inputs, loops)[order], turned):
            raise Broken("the same rows in another order get other logits")


def ahead(runner: Runner) -> None:
    """Raise Broken if logits change with later tokens, or do not with a position's own."""
    for loops in (1, 2):
        reached = influence(runner, rows([10]), loops)
        if (later := reached & ~reached.tril()).any():
            at, token = later.nonzero()[0].tolist()
            raise Broken(f"after {loops} loops, the token at position {token} changes the logits at position {at}")
        if not reached.diagonal().all():
            raise Broken(f"position {int(reached.diagonal().long().argmin())} does not see its own token")


def influence(runner: Runner, inputs: Inputs, loops: int) -> Bool[Tensor, "t t"]:
    """reached[t, s]: do the logits at t after so many loops change when the token at s does? ``inputs`` is one row."""
    width = inputs.tokens.shape[1]
    several = inputs.take(torch.zeros(width + 1, dtype=torch.long))
    changed = several.tokens + torch.eye(width + 1, width, dtype=torch.long)  # the last row is as it was
    with torch.no_grad():
        found = logits_of(runner, replace(several, tokens=changed % len(READS)), [loops] * (width + 1))
    return ((found[:-1] - found[-1]).abs().amax(-1) > SEEN[found.dtype]).T


# Models, rows, logits


def small(part: Position | MixerSpec) -> ModelSpec:
    """A small transformer with this position, or this mixer."""
    if isinstance(part, MixerSpec):
        return replace(SMALL, positions=(), mixer=part)
    return replace(SMALL, positions=(part,))


def built(spec: ModelSpec, directions: Sequence[bool] = (False, True)) -> Iterator[Model]:
    """Its models, not causal and causal, with every weight away from where it starts. Raises the UsageError of the
    second where it has neither."""
    refused = []
    for causal in directions:
        try:
            model = _seeded(spec, causal)
        except UsageError as error:
            refused.append(error)
        else:
            yield away(model)
    if len(refused) > 1:
        raise refused[-1]


def _seeded(spec: ModelSpec, causal: bool) -> Model:
    with undisturbed():
        seed_torch(0)
        model = spec.build(reads_of(spec), WRITES, causal=causal)
    return model if isinstance(model, Model) else Once(model)


def reads_of(spec: ModelSpec) -> Vocab:
    """What a model reads here: digits alone if it reads symbols as numbers."""
    return DIGITS if getattr(spec, "read_in", "table") == "numbers" else READS


def away(model: Model) -> Model:
    """The same model, its weights moved: initial weights are small and initial biases 0, so that little depends on
    them."""
    draw = stream(0, "more")
    for parameter in model.eval().parameters():
        more = torch.randn(parameter.shape, generator=draw, dtype=torch.double)
        parameter.data += FAR * more.to(parameter.dtype)
    return model


def rows(lengths: Sequence[int] = LENGTHS, width: int | None = None, seed: int = 0) -> Inputs:
    """Rows of these lengths; after their ends stand other tokens. Digit positions are those of a sign, two digits, and
    so on."""
    width = width or max(lengths)
    tokens = torch.randint(len(READS), (len(lengths), max(40, width)), generator=stream(seed, "tokens"))[:, :width]
    position = torch.arange(width).expand(len(lengths), -1)
    return Inputs(tokens, position, position % 3, position < torch.tensor(lengths)[:, None])


def logits_of(
    runner: Runner,
    inputs: Inputs,
    loops: Sequence[int] = LOOPS,
    at: Bool[Tensor, "b t"] | None = None,
    *,
    untracked: int = 0,
) -> Float[Tensor, "b t v"]:
    """The logits of each row after its own loops; zeros where nothing is asked, by default at padding."""
    at = inputs.padding_mask if at is None else at
    found = runner.last(inputs, torch.tensor(loops), at, untracked=untracked)
    return found.new_zeros(*at.shape, found.shape[-1]).index_put(at.nonzero(as_tuple=True), found)


def differ(one: Tensor, two: Tensor) -> bool:
    """Whether logits differ by more than rounding, which in 32 bits grows with them."""
    scale = 1 + one.abs().max() if one.dtype == torch.float32 else 1.0
    return bool(((one - two).abs() > NEAR[one.dtype] * scale).any())
