"""Schemas of the files in a run's folder; ``folder`` checks them when it reads.

Rows may have further fields. Optional fields are missing in files of some versions, or where they were not measured.
"""

# TypedDict knows which keys are required only where annotations are not postponed.
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from lengthwise.base.ranges import (
    Count,
    Fraction,
    Name,
    NotNegative,
    OneLine,
    Pattern,
    Range,
    Real,
    Seed,
    Size,
    Sizes,
    Whole,
)

SizeText = Annotated[str, Pattern(r"\d{1,7}(x\d{1,7})?", "a size, as 8 or 8x12")]  # as in tables


class Metrics(TypedDict):
    """A row of metrics.jsonl."""

    step: Whole
    loss: NotRequired[Real | None]  # nats
    exact: NotRequired[dict[SizeText, Fraction]]  # exact match, by size
    perplexity: NotRequired[dict[str, NotNegative | None]]  # by prompt
    validation_loss: NotRequired[Real | None]
    rate: NotRequired[Real]
    wall_s: NotRequired[NotNegative]
    cpu_s: NotRequired[NotNegative]


class Measured(TypedDict):
    """A row of scores.jsonl."""

    task: OneLine
    weights: OneLine
    stopping: OneLine
    problems: OneLine
    sizes: Sizes
    count: Count
    exact: Fraction
    whole_row: NotRequired[Fraction]
    token_accuracy: Fraction
    loops: NotNegative
    low: Fraction
    high: Fraction
    seed: NotRequired[Seed]
    sealed: NotRequired[OneLine]
    distinct: NotRequired[Count]  # number of different problems, where it is less than the count
    fixed_set: NotRequired[bool]  # drawn from a fixed set: the interval counts different problems
    family: NotRequired[Literal["alone"]]  # a family requested by name: the others may not be measured
    chance: NotRequired[Fraction]  # per-symbol accuracy of guessing
    scaled: NotRequired[Real]  # per-symbol accuracy, from guessing (0) to all correct (1)
    final: NotRequired[Fraction]  # exact match of the answer's final part alone
    ran: NotRequired[NotNegative]  # loops run to choose ``loops``
    at_limit: NotRequired[Fraction]  # fraction of problems that ran to the rule's limit
    together: NotRequired[Count]  # batch size of a rule that chooses one loop per batch


class Chosen(TypedDict):
    """Statistics of the loops that one stopping rule chose."""

    mean: NotNegative
    low: NotNegative
    high: NotNegative
    exact: Fraction


class ChosenBy(TypedDict):
    """Statistics of the loops that each stopping rule chose."""

    oracle: Chosen
    batch: Chosen
    example: Chosen
    own: NotRequired[Chosen]


class Depth(TypedDict):
    """A row of depth.jsonl."""

    task: OneLine
    sizes: Sizes
    count: Count
    seed: NotRequired[Seed]
    planned: Size
    exact: tuple[Fraction, ...]  # after each loop
    confidence: tuple[Real, ...]
    chosen: ChosenBy


class Ends(TypedDict):
    """Counts of wrong answers whose end is too early, too late or right."""

    early: Whole
    late: Whole
    right: Whole


class Group(TypedDict):
    """Problems with a similar value of a difficulty feature."""

    low: Real
    high: Real
    count: Count
    exact: Fraction


class Anatomy(TypedDict):
    """A row of anatomy.jsonl."""

    task: OneLine
    stopping: OneLine
    problems: OneLine
    sizes: Sizes
    count: Count
    seed: NotRequired[Seed]
    exact: Fraction
    ends: Ends
    first_wrong: dict[OneLine, Whole]
    by: dict[OneLine, tuple[Group, ...]]


class Reply(TypedDict):
    """A row of replies.jsonl."""

    prompt: str
    correct: bool
    prompt_tokens: Annotated[int, Range(0)]  # from the endpoint; ``ask.folder.token_counts`` bounds them
    completion_tokens: Annotated[int, Range(0)]
    answer: NotRequired[str | None]


class About(TypedDict):
    """about.json, without the recipe's outline."""

    parameters: Whole
    cpu_s: NotNegative
    wall_s: NotNegative
    steps: NotRequired[Whole]


class Published(TypedDict):
    """An entry of runs.json or inquiries.json in a folder of results."""

    recipe_name: OneLine
    id: OneLine
    parameters: NotRequired[Whole]  # these three: only for completed runs
    cpu_s: NotRequired[NotNegative]
    wall_s: NotRequired[NotNegative]


class Quoted(TypedDict):
    """A published result that a figure shows."""

    who: OneLine
    exact: Fraction


class Figures(TypedDict):
    """figures.json: texts of figures."""

    title: NotRequired[str | None]
    strong: NotRequired[str | None]
    panels: NotRequired[tuple[OneLine, ...]]
    claims: NotRequired[tuple[Quoted, ...]]


class Trained(TypedDict):
    """A row of parameters.csv."""

    recipe: OneLine
    id: NotRequired[Name]  # without seeds
    seed: Seed
    model: OneLine
    parameters: Count
    validation_loss: Real
    within: NotRequired[Fraction]
    beyond: NotRequired[Fraction]


Length = Annotated[str, Pattern(r"\d{1,7}", "a length")]
Distribution = dict[Length, Whole]  # distribution.json: number of problems of each length


class Checked(TypedDict):
    """A check of a verification."""

    name: OneLine
    verdict: Literal["passed", "exposed", "open"]
    told: OneLine


class Verified(TypedDict):
    """The subject of a verification."""

    name: OneLine
    task: OneLine
    trained_to: SizeText


class Record(TypedDict):
    """The record of a verification."""

    about: Verified
    checks: tuple[Checked, ...]
    longest: OneLine | None
    longest_uniform: OneLine | None
    left_out: tuple[OneLine, ...]
    scores: tuple[Measured, ...]
    digest: OneLine


ROWS: dict[str, Any] = {
    "metrics": Metrics,
    "scores": Measured,
    "depth": Depth,
    "anatomy": Anatomy,
    "replies": Reply,
}
