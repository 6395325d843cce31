"""What stands in the files of a run's folder, a schema each; ``folder`` checks them where it reads.

Rows may have further fields. What is not required here is left out by some versions, or where it was not measured.
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

SizeText = Annotated[str, Pattern(r"\d{1,7}(x\d{1,7})?", "a size, as 8 or 8x12")]  # as tables name it


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
    fixed_set: NotRequired[bool]  # they are a fixed set's, so that the interval counts those that differ
    family: NotRequired[Literal["alone"]]  # a family that was asked for by name: the others may not be measured
    chance: NotRequired[Fraction]  # accuracy per symbol of guessing
    scaled: NotRequired[Real]  # accuracy per symbol, from guessing (0) to all right (1)
    ran: NotRequired[NotNegative]  # loops that were run to choose ``loops``
    at_limit: NotRequired[Fraction]  # of the problems, which the rule did not stop before its limit
    together: NotRequired[Count]  # problems of a batch for which the rule chose one loop


class Chosen(TypedDict):
    """The loops that a stopping rule chose."""

    mean: NotNegative
    low: NotNegative
    high: NotNegative
    exact: Fraction


class ChosenBy(TypedDict):
    """The loops that each rule chose."""

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
    """Wrong answers, by where they end."""

    early: Whole
    late: Whole
    right: Whole


class Group(TypedDict):
    """Problems alike in a trait."""

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
    prompt_tokens: Annotated[int, Range(0)]  # as the endpoint says; ``ask.folder.token_counts`` bounds them
    completion_tokens: Annotated[int, Range(0)]
    answer: NotRequired[str | None]


class About(TypedDict):
    """about.json, apart from the recipe's outline."""

    parameters: Whole
    cpu_s: NotNegative
    wall_s: NotNegative
    steps: NotRequired[Whole]


class Published(TypedDict):
    """An entry of a folder of results' runs.json or inquiries.json."""

    recipe_name: OneLine
    id: OneLine
    parameters: NotRequired[Whole]  # these three only of runs that were trained to the end
    cpu_s: NotRequired[NotNegative]
    wall_s: NotRequired[NotNegative]


class Quoted(TypedDict):
    """A figure's quoted result of somebody else."""

    who: OneLine
    exact: Fraction


class Figures(TypedDict):
    """figures.json: what figures say beyond their rows."""

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
Distribution = dict[Length, Whole]  # distribution.json: how many problems there are of each length


class Checked(TypedDict):
    """A check of a verification."""

    name: OneLine
    verdict: Literal["passed", "exposed", "open"]
    told: OneLine


class Verified(TypedDict):
    """What was verified."""

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
