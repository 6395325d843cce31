"""A recipe: the full configuration of a training run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from torch import nn

from lengthwise.base import fields, rng
from lengthwise.base.formatting import format_html_table, format_listing
from lengthwise.base.ranges import Amount, Count, Decay, Fraction, Name, OneLine, Pattern, Positive, Seed, Size, Whole
from lengthwise.base.results import AnySize, RunOutline
from lengthwise.base.types import UsageError
from lengthwise.experiment.layout import Layout
from lengthwise.experiment.lengths import Growing, Lengths, Natural
from lengthwise.experiment.loops import Loops
from lengthwise.experiment.optim import AdamW, Optimizer, Schedule
from lengthwise.experiment.source import Finite, Fresh, Source
from lengthwise.experiment.stopping import Oracle, Stopping
from lengthwise.models import Model, ModelSpec
from lengthwise.models.single_pass import SinglePass
from lengthwise.objectives import Objective
from lengthwise.registry import import_folder, sources
from lengthwise.tasks import Task
from lengthwise.tasks.family import choose_families


@dataclass(frozen=True)
class Watch(fields.Config):
    """Measurements taken every ``every`` training steps: exact match on ``count`` fresh problems of each size, the loss
    on ``validation`` problems from the training distribution, and the right answer's perplexity for each prompt in
    ``probes``.

    With ``keep="best"`` exact match also chooses the weights, so sizes should stay near the training lengths; measure
    much larger sizes only to report them.
    """

    every: Whole = 0  # steps between measurements; 0: never
    sizes: tuple[Size, ...] = ()  # sizes at which exact match is measured
    count: Size = 200  # fresh problems per size
    probes: tuple[str, ...] = ()  # prompts whose right answer's perplexity is measured
    validation: Amount = 0  # problems of the validation loss; 0: none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every and not (self.sizes or self.validation):
            raise UsageError("watch.every is set, so watch.sizes must name a size, e.g. watch.sizes=(8,12)")


@dataclass(frozen=True)
class ChosenOn(fields.Config):
    """Sizes and sets of problems that were measured while a recipe was chosen. They apply to the recipe that states
    them, not to recipes derived from it that train other weights."""

    sizes: tuple[Size, ...] = ()  # sizes that were measured
    problems: tuple[str, ...] = ("uniform",)  # sets of problems that were measured


@dataclass(frozen=True)
class Parent(fields.Config):
    """A run from which a new run continues, and what the new run takes from it."""

    digest: Annotated[str, Pattern("[0-9a-f]{16}", "16 hexadecimal digits")]  # hash of the parent's training state
    step: Whole  # the step from which training continues
    state: bool = False  # take the optimizer's state too, not only the weights
    run: OneLine = field(default="", metadata={"identity": False})  # name or folder of the parent


@dataclass(frozen=True, repr=False)
class Recipe(fields.Config):
    """The configuration of one training run. Vary it with ``dataclasses.replace`` or ``change``."""

    name: Name  # the recipe's name; the run's folder begins with it
    task: Task  # the problems
    layout: Layout  # how a problem is written as a row of tokens
    lengths: Lengths  # sizes of the training problems
    loops: Loops  # how often each row passes through the model
    model: ModelSpec  # what one loop computes
    objective: Objective  # the loss
    steps: Count  # optimizer steps, including those of the run that this one continues
    batch: Size = 64  # rows per step
    optimizer: Optimizer = AdamW()  # minimizes the loss
    schedule: Schedule = Schedule()  # the learning rate over the run
    clip: Positive | None = 1.0  # maximum norm of the gradient; none: no clipping
    ema: Decay = 0.0  # decay of the weights' moving average, which is then evaluated; 0: none
    ema_start: Whole = 0  # the step from which ``ema`` averages
    source: Source = Fresh()  # new problems in every batch, or a fixed set
    hard: Fraction = 0.0  # fraction of every training batch drawn from the task's harder set
    families: Fraction = 0.0  # fraction of every training batch drawn from the task's families of structured problems
    family_names: tuple[str, ...] = ()  # names of the families to draw from; none: all
    stopping: Stopping = Oracle()  # the rule that chooses the answer's loop, unless another is requested
    watch: Watch = Watch()  # what is measured while training
    # Which weights to keep: those of the last step or, among those that `watch` measured, those with the best exact
    # match (the mean over its sizes) or the lowest validation loss.
    keep: Literal["last", "best", "lowest-loss"] = "last"
    patience: Whole = 0  # training ends after this many measurements without improvement; 0: never early
    accumulate: Size = 1  # number of parts of a batch, which are run one after the other to save memory
    parent: Parent | None = None  # the run that this one continues; none: training starts from initial weights
    seed: Seed = 0  # seed of initial weights, dropout and loops
    data_seed: Seed = 0  # seed of the problems
    # What the recipe was chosen on; not part of its id, since it does not change training. A recipe derived from this
    # one keeps it only if it trains the same weights from another seed.
    chosen_on: ChosenOn = field(default=ChosenOn(), metadata={"identity": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = {"best": "sizes", "lowest-loss": "validation"}.get(self.keep)
        if needed and not (self.watch.every and getattr(self.watch, needed)):
            raise UsageError(f"keep={self.keep} needs watch.every and watch.{needed}, to know which weights are best")
        if self.patience and self.keep == "last":
            raise UsageError("patience needs keep=best or keep=lowest-loss, to know which weights are better")
        if self.accumulate > self.batch:
            raise UsageError(f"accumulate={self.accumulate}: a batch has at most {self.batch} parts")
        if self.accumulate > 1 and self.objective.takes_several_steps:
            kind = type(self.objective).__name__
            raise UsageError(f"accumulate={self.accumulate}: {kind} takes several steps on a batch: omit accumulate")
        if self.start >= self.steps:
            includes = f"steps={self.steps} must include the {self.start} steps of the run that this one continues"
            raise UsageError(f"{includes}: write e.g. steps={2 * self.start} to add {self.start} steps")
        self._check_problems()
        for probe in self.watch.probes:
            self.task.parse(probe)
        check_stopping(self.layout, self.stopping)
        _check_end_symbol(self.layout, self.objective)
        # ``chosen_on`` holds for the recipe that stated it: for the fields that decide its weights, except the seeds.
        ignored = {"name", "model", "stopping", "watch", "seed", "data_seed", "chosen_on"}
        names = [own.name for own in dataclasses.fields(self) if own.name not in ignored]
        training = self.model.spec_without_seed, *(getattr(self, name) for name in names)
        stated_by = vars(self.chosen_on).get("_stated_by", training)
        # A copy, since several recipes may state one object.
        chosen_on = replace(self.chosen_on) if stated_by == training else ChosenOn()
        object.__setattr__(chosen_on, "_stated_by", training)
        object.__setattr__(self, "chosen_on", chosen_on)

    def _check_problems(self) -> None:
        """Raise UsageError if the layout, lengths, source, ``hard`` or ``families`` do not fit the task or each
        other."""
        if isinstance(self.lengths, Natural) and self.hard:
            raise UsageError("hard must be 0 with Natural lengths: a task's own distribution has no harder set")
        fixed = self.source if isinstance(self.source, Finite) else None
        if fixed and (isinstance(self.lengths, Growing) or self.hard or self.families):
            raise UsageError("source: with a fixed set, lengths must not grow, and hard and families must be 0")
        if fixed and fixed.rows < self.batch:
            raise UsageError(f"source: a set of {fixed.rows} rows is smaller than a batch of {self.batch}: raise rows")
        self.layout.check(self.task)
        if self.task.listed_sizes is None and (bottom := self.lengths.bottom) < self.task.smallest:
            advice = f"write lengths.bottom={self.task.smallest}"
            start = f"start at {self.task.smallest}, not at {bottom}"
            raise UsageError(f"lengths: sizes of {self.task.name} {start}: {advice}")
        if self.hard and not self.task.has_harder_set:
            raise UsageError(f"{self.task.name} has no harder set of problems: leave hard at 0")
        if self.families + self.hard > 1:
            raise UsageError(f"families={self.families} and hard={self.hard} must add up to 1 at most")
        try:
            families = choose_families(self.task.families, self.family_names, f"family_names: {self.task.name}")
        except UsageError as error:
            raise UsageError(f"{error}; family_names=() draws from all") from None
        smallest, top = min((family.smallest for family in families), default=0), self.tops[0]
        if smallest > top:
            raise UsageError(f"family_names: sizes start at {smallest}, above lengths.top={top}: name other families")
        if self.families and not self.task.families:
            raise UsageError(f"{self.task.name} has no families of problems: leave `families` at 0")

    @property
    def start(self) -> int:
        """The first training step: 0, or the step from which the run continues its parent."""
        return self.parent.step if self.parent else 0

    def rate_at(self, step: int) -> float:
        """Return the learning rate at a step."""
        return self.optimizer.rate * float(self.schedule.factor(step - self.start, self.steps - self.start))

    @property
    def has_fixed_problems(self) -> bool:
        """True if training or test problems come from a fixed set, so that further draws repeat problems."""
        return isinstance(self.source, Finite) or self.task.is_collection

    @property
    def id(self) -> str:
        """Ten hexadecimal digits that identify the recipe. Fields at their defaults are left out, so a field added by a
        later version does not change existing ids."""
        return hashlib.blake2b(json.dumps(fields.identity_fields(self)).encode(), digest_size=5).hexdigest()

    @property
    def seedless_id(self) -> str:
        """The id of the recipe with both seeds 0, the same for all recipes that differ only in their seeds."""
        return replace(self.with_seed(0), model=self.model.spec_without_seed).id

    def with_seed(self, seed: int) -> Recipe:
        """Return a copy with this ``seed`` and ``data_seed``."""
        return replace(self, seed=seed, data_seed=seed)

    def __str__(self) -> str:
        """Format each field that is not at its default, as a user would type it."""
        return format_listing(f"Recipe {self.name} ({self.id})", fields.format_changed_fields(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return format_html_table(f"Recipe {self.name} ({self.id})", fields.format_changed_fields(self))

    def json(self) -> str:
        """Return all fields as JSON, which ``read`` reads. Raises UsageError if a field holds an invalid value."""
        tree = fields.encode(self)
        fields.decode(Recipe, tree)  # raises if the text could not be read back
        return json.dumps(tree, indent=1)

    @staticmethod
    def read(text: str) -> Recipe:
        """Read a recipe from JSON. Raises UsageError if the recipe is invalid."""
        try:
            tree = json.loads(fields.validate(str, text, "a recipe in JSON"))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"this is not a recipe in JSON: {error}") from None
        import_parts()
        return fields.decode(Recipe, tree)

    def change(self, changes: Iterable[str] = (), **values: Any) -> Recipe:
        """Return a copy with one or several ``name=value`` texts applied, then keyword values. Raises UsageError if a
        name, a type or a value is wrong; for common names of other libraries (``lr=…``) the error names the field.

        The copy keeps ``chosen_on`` only if it trains the same weights from another seed, or if the changes set it."""
        import_parts()
        changes = [changes] if isinstance(changes, str) else list(changes)
        if not changes and not values:
            return self
        names = {field.name for field in dataclasses.fields(self)}
        for change in changes:
            name, _, value = fields.validate(str, change, "a change").partition("=")
            if "." not in name and name not in names and (path := find_field_path(self, name)):
                advice = f"; write {path}={value}{fields.suggest(name, names)}"
                raise UsageError(f"{name}: a recipe has no such field{advice}")
        for name in values:
            if name not in names:
                raise UsageError(f"{name}: a recipe has no such field{fields.suggest(name, names)}")
        states_chosen_on = any(re.match(r"chosen_on\b", change) for change in (*changes, *values))
        # `override` builds a new ``chosen_on``, which no recipe stated.
        chosen_on = {} if states_chosen_on else {"chosen_on": self.chosen_on}
        return replace(fields.override(self, changes), **values, **chosen_on)

    @property
    def tops(self) -> tuple[int, ...]:
        """The training length on each of the task's axes."""
        return self.lengths.tops(len(self.task.axes))

    def sizes(self, size: AnySize) -> tuple[int, ...]:
        """Return the size on each axis. A single number is the size on every axis, limited by
        ``lengths.max_per_axis``."""
        if isinstance(size, tuple):
            return size
        top = self.lengths.top
        return tuple(min(size, cap) if cap < top else size for cap in self.tops)

    @property
    def examined_sizes(self) -> tuple[int, ...]:
        """Sizes that may have influenced the recipe or its weights: those in ``chosen_on``, and those that ``watch``
        measures by the last step."""
        watched = self.watch.sizes if 0 < self.watch.every <= self.steps else ()
        return tuple(sorted({*self.chosen_on.sizes, *watched}))

    def build(self) -> Model:
        """Return a new model with its initial weights, on the CPU, and restore the state of global generators."""
        reads, writes = self.layout.vocabs(self.task)
        with rng.preserve_generators():
            rng.seed_torch(rng.derive_seed(self.seed, "weights"))
            module = self.model.build(reads, writes, causal=self.layout.causal)
        if not isinstance(module, nn.Module):
            raise UsageError(f"model: {type(self.model).__name__}.build must return a torch module, not {module!r}")
        return module if isinstance(module, Model) else SinglePass(module)


def find_field_path(recipe: Recipe, name: str) -> str | None:
    """Return the path of the recipe's field that other libraries call ``name`` (``optimizer.rate`` for ``lr``);
    None if the recipe has no such field."""
    tree = fields.encode(recipe)
    inside = [f"{part}.{field}" for part, value in tree.items() if isinstance(value, dict) for field in value]
    return sources.find_field_path(name, {*tree, *inside})


def index_recipes(recipes: Iterable[Recipe]) -> dict[str, Recipe]:
    """Return the recipes in a dictionary by name, as a function that defines several recipes must return them."""
    return {recipe.name: recipe for recipe in recipes}


def change_recipe(recipe: Recipe, changes: Mapping[str, str]) -> Recipe:
    """Return the recipe with a sweep's changes, values by path. Raises UsageError if they change the task or the
    training length."""
    texts = [f"{path}={value}" for path, value in changes.items()]
    changed, top = recipe.change(texts), recipe.lengths.top
    if (changed.task, changed.lengths.top) != (recipe.task, top):
        raise UsageError(f"{', '.join(texts)}: keep the task and the training length, {top}, to compare recipes")
    return changed


def largest_size_for_choosing(recipe: Recipe) -> int:
    """Return the largest size at which recipes may be compared to choose one: 1.3 times the training length."""
    return max(recipe.lengths.top + 1, int(1.3 * recipe.lengths.top))


def check_sweep_sizes(recipe: Recipe, sizes: Iterable[AnySize]) -> None:
    """Raise UsageError for a size above ``largest_size_for_choosing``: larger sizes are kept for testing."""
    limit = largest_size_for_choosing(recipe)
    for size in sizes:
        if max(recipe.sizes(size)) > limit:
            raise UsageError(f"to choose a recipe, measure sizes up to {limit}; size {size} is kept for testing")


def import_parts() -> None:
    """Import every shipped task, position, mixer, model and objective, so that recipes can name their classes."""
    for name in ("tasks", "nn", "nn.mixers", "models", "objectives"):
        import_folder(name)


def check_stopping(layout: Layout, stopping: Stopping) -> None:
    """Raise UsageError if a rule reads the model's answers but the layout's inputs hold the right answers. Also raise
    it if a rule waits for a nonempty answer but the layout's answers are never empty."""
    _check_end_symbol(layout, stopping)
    if layout.decodes and stopping.reads_output:
        names = f"{type(stopping).__name__} looks at the model's own answer, which {type(layout).__name__}"
        raise UsageError(f"{names} replaces by the right one: use Oracle or After")


def _check_end_symbol(layout: Layout, part: Objective | Stopping) -> None:
    """Raise UsageError if a part needs an end symbol but the layout writes none."""
    if part.needs_end and not layout.ends:
        kind, rows = type(part).__name__, type(layout).__name__
        raise UsageError(f"{kind} needs an end symbol, which {rows} does not write: use FullOutput")


def build_outline(recipe: Recipe) -> RunOutline:
    """Return the facts about a recipe that a report shows, as plain values, so that reports need no torch."""
    return RunOutline(
        id=recipe.id,
        seedless_id=recipe.seedless_id,
        name=recipe.name,
        seed=recipe.seed,
        data_seed=recipe.data_seed,
        task=recipe.task.name,
        axes=tuple(recipe.task.axes),
        top=recipe.lengths.top,
        tops=recipe.tops,
        steps=recipe.steps,
        stopping=recipe.stopping.name,
        model=type(recipe.model).__name__,
        looked_at=recipe.examined_sizes,
    )


def is_shipped_recipe(name: str) -> bool:
    """Return whether the package has a recipe of this name."""
    return name in sources.list_recipe_names()
