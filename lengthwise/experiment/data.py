"""Training and test problems: batch i is a pure function of the recipe, i and, with ``Mastery``, the exams passed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.fields import suggest
from lengthwise.base.quantities import spans
from lengthwise.base.results import AnySize
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Kind, Problems, Purpose, UsageError
from lengthwise.experiment.lengths import Lengths
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.source import FRESH, Finite, Source, hash_prompts
from lengthwise.tasks import Task
from lengthwise.tasks.family import Sampler, choose_families, draw_mixture

CHUNK = 65_536  # problems of a fixed set that are drawn at a time


class NoProblemsLeft(UsageError):
    """A fixed set of problems leaves hardly any of this size and kind to test with."""


def batch(recipe: Recipe, step: int, *, passed: int | None = None) -> tuple[Batch, Int[Tensor, " b"]]:
    """Training batch ``step`` with its rows' loops. ``passed`` counts exams passed (``Mastery``); None: all."""
    fixed = isinstance(recipe.source, Finite)
    problems = _from_set(recipe, step) if fixed else _of_step(recipe, step, recipe.lengths.clock(step, passed))
    written = recipe.layout.write_training(problems, recipe.task)
    if recipe.layout.causal:
        written = written.trimmed()
    varied = recipe.model.vary(written.inputs, stream(recipe.seed, "positions", step))
    written = replace(written, inputs=varied)
    return written, recipe.loops.draw(written.rounds, stream(recipe.seed, "loops", step))


def _of_step(recipe: Recipe, step: int, clock: int) -> Problems:
    seed = recipe.data_seed
    return _draw_problems(recipe, clock, recipe.batch, stream(seed, "train", step), stream(seed, "families", step))


def _draw_problems(
    recipe: Recipe, clock: int, count: int, draw: Generator, structured: Generator, purpose: Purpose = "train"
) -> Problems:
    """So many problems, of which ``structured`` draws the recipe's fraction of families, and ``draw`` all others."""
    of_families, task = round(recipe.families * count), recipe.task.part(purpose)
    rows, hard = count - of_families, round(recipe.hard * count)
    parts = [_draw_structured(recipe, clock, of_families, structured)] if of_families else []
    if rows:
        parts.insert(0, recipe.lengths.problems(task, clock, rows, draw, hard=min(hard, rows)))
    return Problems.join(parts)


def _draw_structured(recipe: Recipe, clock: int, rows: int, draw: Generator) -> Problems:
    """The rows of a batch that are of the task's families, of sizes as the others have them."""
    sizes = recipe.lengths.problems(recipe.task, clock, rows, draw).sizes
    return draw_mixture(choose_families(recipe.task.families, recipe.family_names, recipe.task.name), sizes, draw)


def _from_set(recipe: Recipe, step: int) -> Problems:
    assert isinstance(recipe.source, Finite)
    whole = fixed_set(recipe.task, recipe.lengths, recipe.source)
    epoch, number = divmod(step, recipe.source.rows // recipe.batch)
    order = _order(recipe.source.rows, recipe.data_seed, epoch)
    return whole.take(order[number * recipe.batch : (number + 1) * recipe.batch])


# Of each set and seed the order in its newest epoch, with that epoch: one of millions of rows takes 20 MB.
_LATEST_ORDERS: dict[tuple[int, int], tuple[int, Int[Tensor, " n"]]] = {}


def _order(rows: int, seed: int, epoch: int) -> Int[Tensor, " n"]:
    known = _LATEST_ORDERS.get((rows, seed))  # looked up once: threads may draw at the same time
    if known is None or known[0] != epoch:
        known = _LATEST_ORDERS[rows, seed] = epoch, torch.randperm(rows, generator=stream(seed, "epoch", epoch))
    return known[1]


@lru_cache(maxsize=2)
def fixed_set(task: Task, lengths: Lengths, source: Finite) -> Problems:
    """The set of a Finite source, in small integers: the first ``rows`` different problems for training that its seed
    gives. UsageError where a task does not have as many."""
    found: list[Problems] = []
    kept = count = 0
    while kept < source.rows:
        before, chunks = kept, max(1, count)  # as many again: so few sorts are enough
        for _ in range(chunks):
            drawn = lengths.problems(task.part("train"), 0, CHUNK, stream(source.seed, "set", task.name, count))
            drawn = drawn.take(source_of(task, source).of("train", drawn))
            found.append(drawn.narrowed(len(task.symbols)))
            count += 1
        found = [_distinct(Problems.join(found))]
        kept = len(found[0])
        if kept - before < chunks * CHUNK // 10_000:
            raise UsageError(f"source: {task.name} has hardly more than {kept} different problems: ask for fewer rows")
    return found[0].take(slice(source.rows))


def _distinct(problems: Problems) -> Problems:
    """Those that no earlier one equals, in their order."""
    order = hash_prompts(problems).sort(stable=True)
    first = torch.ones(len(problems), dtype=torch.bool)
    first[1:] = order.values[1:] != order.values[:-1]
    return problems.take(order.indices[first].sort().values)


def validation_problems(recipe: Recipe, count: int) -> Problems:
    """Problems as those of training at its end, at an address of their own: for a loss that nothing was trained on."""
    clock, seed = recipe.lengths.clock(recipe.steps, None), recipe.data_seed
    draws = {"draw": stream(seed, "validation"), "structured": stream(seed, "families", "validation")}
    more = partial(_draw_problems, recipe, clock, purpose="validation", **draws)
    return _draw_part("validation", source_of(recipe.task, recipe.source), more, count)


def source_of(task: Task, source: Source) -> Source:
    """What assigns problems to parts: the source, unless the task itself keeps its parts apart."""
    return source if task.listed_sizes is None else FRESH


def check_size(task: Task, size: Sequence[int], kind: Kind = "uniform") -> None:
    """UsageError where a task has no such size."""
    if len(size) != len(task.axes):
        raise UsageError(f"{task.name} has sizes on {len(task.axes)} axes ({', '.join(task.axes)}), not {len(size)}")
    if kind != "natural" and task.listed_sizes is not None and size[0] not in task.listed_sizes:
        raise NoProblemsLeft(
            f"{task.name} has no problems of size {size[0]} left to measure; it has {spans(task.listed_sizes)}"
        )
    if min(size) < task.smallest:
        raise UsageError(f"sizes start at {task.smallest}, not {min(size)}")
    smallest = next((family.smallest for family in task.families if family.name == kind), 0)
    if size[0] < smallest:
        raise UsageError(f"{task.name}: problems called {kind} start at size {smallest}, not {size[0]}")


def fresh_problems(
    task: Task,
    size: Sequence[int],
    count: int,
    *,
    seed: int,
    step: int | None = None,
    kind: Kind = "uniform",
    bottom: int = 1,
    source: Source = FRESH,
) -> Problems:
    """Fresh problems of one size, drawn at an address of their own, which no training batch shares: to test with or,
    if a ``step`` is named, to watch a training by at that step. With a fixed set none of them is in it. ``natural``
    ones are of the task's own distribution over sizes, from ``bottom`` up to this one; other kinds are a family's name.
    Raises NoProblemsLeft if a fixed set leaves none."""
    if count < 1:
        raise UsageError(f"one problem or more is asked for, not {count}")
    purpose: Purpose = "test" if step is None else "validation"
    task, source = task.part(purpose), source_of(task, source)
    check_size(task, size, kind)
    if kind == "natural" and len(set(size)) > 1:
        raise UsageError(f"natural problems are as long on every axis: {max(size)}, not {'x'.join(map(str, size))}")
    sample = sampler(task, kind)
    address = "hard" if kind == task.harder else kind  # one set of problems, which has two names
    draw = stream(seed, "test", task.name, address, *size, -1 if step is None else step)

    def more(rows: int) -> Problems:
        if kind == "natural":
            return task.pool(rows, max(bottom, task.smallest), max(size), draw)
        return sample(torch.tensor([list(size)]).repeat(rows, 1), draw)

    return _draw_part(purpose, source, more, count)


def sampler(task: Task, kind: Kind) -> Sampler:
    """What draws problems of a kind. UsageError where the task has no such kind."""
    if kind in ("uniform", "natural"):
        return task.sample
    if kind == "hard":
        return task.sample_hard
    known = {family.name: family for family in task.families}
    if kind not in known:
        kinds = ["uniform", "natural", *(["hard"] if task.has_harder else []), *known]
        raise UsageError(f"{task.name} has no problems called {kind!r}{suggest(kind, kinds)}: {', '.join(kinds)}")
    return known[kind].sample


def evaluation_problems(
    recipe: Recipe, size: AnySize, count: int, *, seed: int, step: int | None = None, kind: Kind = "uniform"
) -> Problems:
    """Fresh problems for a model of this recipe. A bare number is taken on all of the task's axes (see
    ``Recipe.sizes``). ``natural`` ones start where training does or, up to a size that it does not reach, where it
    ends: so neither stands for the other."""
    sizes = recipe.sizes(size)
    where = {"bottom": natural_bottom(sizes, recipe.lengths.bottom, recipe.lengths.top), "source": recipe.source}
    return fresh_problems(recipe.task, sizes, count, seed=seed, step=step, kind=kind, **where)


def nearest_size(recipe: Recipe, size: int, purpose: Purpose = "test") -> tuple[int, ...]:
    """The largest size up to this one of which there are problems for a purpose, else the smallest there is; the size
    itself, on all axes, where a task has all sizes."""
    there = recipe.task.part(purpose).listed_sizes
    if there is None:
        return recipe.sizes(size)
    return (max((one for one in there if one <= size), default=there[0]),)


def default_sizes(recipe: Recipe) -> Sequence[int]:
    """The training length, and 1.5, 2, 3 and 5 times it, as far as the task goes."""
    top, largest = recipe.lengths.top, recipe.task.largest
    sizes = {int(top * times) for times in (1, 1.5, 2, 3, 5)}
    if recipe.task.listed_sizes is not None:
        return sorted({size for wanted in sizes for size in nearest_size(recipe, wanted)})
    return sorted(sizes if largest is None else {min(size, largest) for size in sizes})


def check_training(recipe: Recipe) -> None:
    """Draw what a training step may not find, hours later: problems of the sizes that it watches, problems beside a
    fixed set, and positions of the longest. UsageError where there are none."""
    watch, seed = recipe.watch, recipe.data_seed
    if isinstance(recipe.source, Finite):
        fixed_set(recipe.task, recipe.lengths, recipe.source)
    if recipe.has_fixed_problems and watch.every:
        for size in watch.sizes:
            evaluation_problems(recipe, size, watch.count, seed=seed, step=0)
        if watch.validation:
            validation_problems(recipe, watch.validation)
    longest = evaluation_problems(replace(recipe, source=FRESH), nearest_size(recipe, recipe.lengths.top), 1, seed=seed)
    inputs = recipe.layout.write_training(longest, recipe.task).inputs
    recipe.model.vary(inputs, stream(recipe.seed, "rehearsal"))


def check_problems(recipe: Recipe, sizes: Iterable[AnySize], kind: Kind = "uniform") -> None:
    """UsageError where there are no such problems of one of these sizes to measure a model of this recipe on."""
    for size in sizes:
        evaluation_problems(recipe, size, 1, seed=0, kind=kind)


def natural_bottom(sizes: tuple[int, ...], bottom: int, top: int | None) -> int:
    """The shortest of natural problems up to these sizes, where training is from ``bottom`` to ``top``, or, where that
    is None, nobody is trained."""
    return top + 1 if top is not None and max(sizes) > top else bottom


def _draw_part(part: Purpose, source: Source, more: Callable[[int], Problems], count: int) -> Problems:
    """So many problems for this part. NoProblemsLeft where there are none to be found."""
    found: list[Problems] = []
    kept, tried = 0, 0
    while kept < count:
        drawn = more(count)
        found.append(drawn.take(source.of(part, drawn)))
        kept, tried = kept + len(found[-1]), tried + count
        if tried > 10_000 and tried > 1000 * (kept + 1):
            raise NoProblemsLeft(f"hardly any problem of this size is left for the {part} part: ask for a larger one")
    return Problems.join(found).take(slice(count))
