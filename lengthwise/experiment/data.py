"""Training and test problems. Training batch i depends only on the recipe, on i and, with ``Mastery``, on the number of
exams passed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.fields import format_part, suggest
from lengthwise.base.formatting import format_ranges
from lengthwise.base.results import AnySize
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Kind, Problems, Purpose, UsageError
from lengthwise.experiment.lengths import Lengths
from lengthwise.experiment.own_code import wrap_user_errors
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.source import FRESH, Finite, Source, hash_prompts
from lengthwise.experiment.stopping import check_loops, describe_value
from lengthwise.tasks import Task
from lengthwise.tasks.family import Sampler, choose_families, draw_mixture

PROBLEMS_PER_CHUNK = 65_536  # problems of a fixed set drawn in one call


class NoProblemsLeft(UsageError):
    """Raised if a fixed set or a file has too few problems of a size and kind for validation or test."""


def draw_batch(recipe: Recipe, step: int, *, exams_passed: int | None = None) -> tuple[Batch, Int[Tensor, " b"]]:
    """Return training batch ``step``, and the number of loops of each of its rows. ``exams_passed`` is the number of
    exams passed (``Mastery``), None if all are."""
    if isinstance(recipe.source, Finite):
        problem_set, rows = draw_fixed_set(recipe.task, recipe.lengths, recipe.source), recipe.source.rows
        epoch, number = divmod(step, rows // recipe.batch)
        order = _draw_epoch_order(rows, recipe.data_seed, epoch)
        problems = problem_set.take(order[number * recipe.batch : (number + 1) * recipe.batch])
    else:
        problems = _draw_step_problems(recipe, step, recipe.lengths.curriculum_step(step, exams_passed))
    written = recipe.layout.write_training(problems, recipe.task)
    if recipe.layout.causal:
        written = written.cut_unsupervised()
    varied = recipe.model.vary(written.inputs, stream(recipe.seed, "positions", step))
    loops = recipe.loops.draw(written.rounds, stream(recipe.seed, "loops", step))
    check_loops(recipe.loops, "draw", loops, len(written))
    return replace(written, inputs=varied), loops


def _draw_step_problems(recipe: Recipe, step: int, curriculum_step: int) -> Problems:
    """Draw the problems of training batch ``step``, of the sizes at ``curriculum_step``."""
    seed, source = recipe.data_seed, choose_source(recipe.task, recipe.source)
    draws = {"generator": stream(seed, "train", step), "family_generator": stream(seed, "families", step)}
    draw_more = partial(_draw_problems, recipe, curriculum_step, **draws)
    return _draw_subset("train", source, draw_more, recipe.batch, keep_proportions=recipe.families + recipe.hard > 0)


def _draw_problems(
    recipe: Recipe,
    curriculum_step: int,
    count: int,
    generator: Generator,
    family_generator: Generator,
    purpose: Purpose = "train",
) -> Problems:
    """Draw ``count`` problems of the sizes at ``curriculum_step``. The recipe's fraction of problems from families is
    drawn with ``family_generator``, the others with ``generator``."""
    family_count, task = round(recipe.families * count), recipe.task.select_part(purpose)
    rows, hard = count - family_count, round(recipe.hard * count)
    parts = [recipe.lengths.problems(task, curriculum_step, rows, generator, hard=min(hard, rows))] if rows else []
    if family_count:  # their sizes have the same distribution as the others'
        sizes = recipe.lengths.problems(task, curriculum_step, family_count, family_generator).sizes
        families = choose_families(task.families, recipe.family_names, task.name)
        parts.append(draw_mixture(families, sizes, family_generator))
    return Problems.join(parts)


# For each number of rows and seed, the latest epoch and its order of rows; millions of rows take 20 MB.
_LATEST_ORDERS: dict[tuple[int, int], tuple[int, Int[Tensor, " n"]]] = {}


def _draw_epoch_order(rows: int, seed: int, epoch: int) -> Int[Tensor, " n"]:
    """Return the order of a fixed set's problems in an epoch: a random permutation of ``rows`` indices."""
    latest = _LATEST_ORDERS.get((rows, seed))  # looked up once, because other threads may change it
    if latest is None or latest[0] != epoch:
        latest = _LATEST_ORDERS[rows, seed] = epoch, torch.randperm(rows, generator=stream(seed, "epoch", epoch))
    return latest[1]


@lru_cache(maxsize=2)
def draw_fixed_set(task: Task, lengths: Lengths, source: Finite) -> Problems:
    """Return the fixed set of a Finite source: the first ``source.rows`` different training problems that its seed
    draws. Raises UsageError if the task has too few different problems."""
    problem_sets: list[Problems] = []
    different = count = 0
    while different < source.rows:
        earlier, chunks = different, max(1, count)  # double the number drawn each time, since all are sorted each time
        for _ in range(chunks):
            draw = stream(source.seed, "set", task.name, count)
            drawn = lengths.problems(task.select_part("train"), 0, PROBLEMS_PER_CHUNK, draw)
            drawn = select_part(choose_source(task, source), "train", drawn)
            problem_sets.append(drawn.to_smallest_type(len(task.symbols)))
            count += 1
        # Drop repetitions: keep the first problem of each hash, in the order of drawing.
        joined = Problems.join(problem_sets)
        order = hash_prompts(joined).sort(stable=True)
        first = torch.ones(len(joined), dtype=torch.bool)
        first[1:] = order.values[1:] != order.values[:-1]
        problem_sets = [joined.take(order.indices[first].sort().values)]
        different = len(problem_sets[0])
        if different - earlier < chunks * PROBLEMS_PER_CHUNK // 10_000:
            raise UsageError(f"source: {task.name} has only about {different} different problems: reduce rows")
    return problem_sets[0].take(slice(source.rows))


def draw_validation_problems(recipe: Recipe, count: int) -> Problems:
    """Draw ``count`` validation problems, which are distributed as training problems at the end of training."""
    curriculum_step, seed = recipe.lengths.curriculum_step(recipe.steps, None), recipe.data_seed
    draws = {"generator": stream(seed, "validation"), "family_generator": stream(seed, "families", "validation")}
    draw_more = partial(_draw_problems, recipe, curriculum_step, purpose="validation", **draws)
    source = choose_source(recipe.task, recipe.source)
    return _draw_subset("validation", source, draw_more, count, keep_proportions=recipe.families + recipe.hard > 0)


def choose_source(task: Task, source: Source) -> Source:
    """Return the source that assigns problems to training, validation and test: ``source``, or ``FRESH``, which assigns
    none, if the task is a collection that is already divided."""
    return FRESH if task.is_collection else source


def select_part(source: Source, purpose: Purpose, problems: Problems) -> Problems:
    """Return the problems that a source assigns to a purpose. Raises UsageError if its mask is invalid."""
    with wrap_user_errors(source):
        mask = source.mask_part(purpose, problems)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (len(problems),):
        error, expected = f"{format_part(source)}: mask_part must return", f"torch.bool of {(len(problems),)}"
        raise UsageError(f"{error} {expected}, not {describe_value(mask)}")
    return problems.take(mask)


def check_size(task: Task, size: Sequence[int], kind: Kind = "uniform") -> None:
    """Raise UsageError if the task has no problems of this size and kind."""
    if len(size) != len(task.axes):
        axes = f"{len(task.axes)} {'axis' if len(task.axes) == 1 else 'axes'} ({', '.join(task.axes)})"
        raise UsageError(f"{task.name} has sizes on {axes}, not {len(size)}")
    listed = task.listed_sizes
    if kind != "natural" and listed is not None and (missing := [value for value in size if value not in listed]):
        error = f"{task.name} has no problems of size {missing[0]}{' left to measure' * task.is_collection}"
        raise NoProblemsLeft(f"{error}; it has {format_ranges(listed)}")
    if min(size) < task.smallest:
        raise UsageError(f"sizes start at {task.smallest}, not {min(size)}")
    smallest = next((family.smallest for family in task.families if family.name == kind), 0)
    if size[0] < smallest:
        raise UsageError(f"{task.name}: its {kind} problems start at size {smallest}, not {size[0]}")


def draw_fresh_problems(
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
    """Draw problems of one size from a random stream that no training batch uses, for testing or, with a ``step``, for
    validation during training. Problems of a fixed training set of ``source`` are excluded. The kind ``natural`` is the
    task's own distribution over sizes from ``bottom`` to this size; ``hard`` is its harder set; other kinds are names
    of families. Raises NoProblemsLeft if the fixed set leaves no problems."""
    if count < 1:
        raise UsageError(f"count must be 1 or more, not {count}")
    purpose: Purpose = "test" if step is None else "validation"
    task, source = task.select_part(purpose), choose_source(task, source)
    check_size(task, size, kind)
    if kind == "natural" and len(set(size)) > 1:
        raise UsageError(f"natural problems have one size for all axes: {max(size)}, not {'x'.join(map(str, size))}")
    sample = get_sampler(task, kind)
    address = "hard" if kind == task.harder else kind  # the harder set is also a family with a name of its own
    draw = stream(seed, "test", task.name, address, *size, -1 if step is None else step)

    def draw_more(rows: int) -> Problems:
        if kind == "natural":
            return task.sample_natural(rows, max(bottom, task.smallest), max(size), draw)
        return sample(torch.tensor([list(size)]).repeat(rows, 1), draw)

    with wrap_user_errors(task):
        problems = _draw_subset(purpose, source, draw_more, count)
    _check_ids(task, problems)
    return problems


def _check_ids(task: Task, problems: Problems) -> None:
    """Raise UsageError if a prompt or an answer has an id without a symbol."""
    top = len(task.symbols) - 1
    for name, ids in (("a prompt", problems.prompt), ("an answer", problems.answer)):
        if (wrong := (ids < 0) | (ids > top)).any():
            raise UsageError(f"{task.name}: {name} has symbol id {int(ids[wrong][0])}; ids must be 0 to {top}")


def get_sampler(task: Task, kind: Kind) -> Sampler:
    """Return the task's function that draws problems of a kind, given their sizes and a generator. Raises UsageError if
    the task has no such kind."""
    if kind in ("uniform", "natural"):
        return task.sample
    if kind == "hard":
        return task.sample_hard
    families = {family.name: family for family in task.families}
    if kind not in families:
        kinds = ["uniform", "natural", *(["hard"] if task.has_harder_set else []), *families]
        raise UsageError(f"{task.name} has no problems called {kind!r}{suggest(kind, kinds)}: {', '.join(kinds)}")
    return families[kind].sample


def draw_recipe_problems(
    recipe: Recipe, size: AnySize, count: int, *, seed: int, step: int | None = None, kind: Kind = "uniform"
) -> Problems:
    """Draw fresh problems of one size for a model of this recipe (see ``draw_fresh_problems``, ``Recipe.sizes``).
    Sizes of ``natural`` problems start at the smallest training size or, if ``size`` is beyond the training length,
    just above that length, so that they include no training size."""
    sizes, source = recipe.sizes(size), recipe.source
    bottom = find_smallest_natural_size(sizes, recipe.lengths.bottom, recipe.lengths.top)
    return draw_fresh_problems(recipe.task, sizes, count, seed=seed, step=step, kind=kind, bottom=bottom, source=source)


def find_nearest_size(recipe: Recipe, size: int, purpose: Purpose = "test") -> tuple[int, ...]:
    """Return a size on each axis: the largest up to ``size`` at which the task has problems for a purpose or, if there
    is none, the smallest size with such problems."""
    return recipe.sizes(recipe.task.select_part(purpose).round_to_valid_size(size))


def choose_default_sizes(recipe: Recipe) -> Sequence[int]:
    """Return the training length, and 1.5, 2, 3 and 5 times it, up to the task's largest size."""
    top, largest = recipe.lengths.top, recipe.task.largest
    sizes = {int(top * times) for times in (1, 1.5, 2, 3, 5)}
    if recipe.task.listed_sizes is not None:
        return sorted({size for multiple in sizes for size in find_nearest_size(recipe, multiple)})
    return sorted(sizes if largest is None else {min(size, largest) for size in sizes})


def check_training_problems(recipe: Recipe, sizes: Iterable[AnySize] = ()) -> None:
    """Raise UsageError if the task lacks problems that training will need: the fixed set, validation problems, or a
    problem of the largest size. Also call two functions that may raise: ``model.vary`` for the largest problem, and the
    task's ``answer_slots`` for ``sizes`` that will be measured later."""
    watch, seed = recipe.watch, recipe.data_seed
    for size in map(recipe.sizes, sizes):
        if len(size) == len(recipe.task.axes):  # other sizes are refused later, by name
            recipe.task.answer_slots(torch.tensor([size]))
    if isinstance(recipe.source, Finite):
        draw_fixed_set(recipe.task, recipe.lengths, recipe.source)
    if recipe.has_fixed_problems and watch.every:
        for size in watch.sizes:
            draw_recipe_problems(recipe, find_nearest_size(recipe, size, "validation"), watch.count, seed=seed, step=0)
        if watch.validation:
            draw_validation_problems(recipe, watch.validation)
    largest = find_nearest_size(recipe, recipe.lengths.top)
    longest = draw_recipe_problems(replace(recipe, source=FRESH), largest, 1, seed=seed)
    inputs = recipe.layout.write_training(longest, recipe.task).inputs
    recipe.model.vary(inputs, stream(recipe.seed, "rehearsal"))


def check_test_problems(recipe: Recipe, sizes: Iterable[AnySize], kind: Kind = "uniform") -> None:
    """Raise UsageError if the recipe's task has no test problems of this kind at one of ``sizes``."""
    for size in sizes:
        draw_recipe_problems(recipe, size, 1, seed=0, kind=kind)


def find_smallest_natural_size(sizes: tuple[int, ...], bottom: int, top: int | None) -> int:
    """Return the smallest size of natural test problems up to ``sizes``: ``top`` + 1 if these are beyond the training
    sizes, which are ``bottom`` to ``top``, else ``bottom``. ``top`` is None if there is no training."""
    return top + 1 if top is not None and max(sizes) > top else bottom


def _draw_subset(
    purpose: Purpose,
    source: Source,
    draw_more: Callable[[int], Problems],
    count: int,
    *,
    keep_proportions: bool = False,
) -> Problems:
    """Draw ``count`` problems that a source assigns to a purpose. ``draw_more`` returns one kind of problems after
    another; with ``keep_proportions``, the result has the same proportions of kinds. Raises NoProblemsLeft if there are
    too few problems."""
    if source == FRESH:
        return draw_more(count)
    parts: list[Problems] = []
    drawn_count, tried = 0, 0
    while drawn_count < count:
        drawn = draw_more(count)
        parts.append(select_part(source, purpose, drawn))
        drawn_count, tried = drawn_count + len(parts[-1]), tried + count
        if tried > 10_000 and tried > 1000 * (drawn_count + 1):
            error = f"{format_part(source)} leaves almost no problem of this size for the {purpose} part"
            raise NoProblemsLeft(f"{error}: use another size")
    kept = torch.arange(count)
    return Problems.join(parts).take(kept * drawn_count // count if keep_proportions else kept)
