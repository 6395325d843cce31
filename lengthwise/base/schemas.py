"""Schemas of the files in a run's folder; rows may have further fields. A file may lack an optional field if another
version wrote it, or if the quantity was not measured."""

# TypedDict knows which keys are required only if annotations are not postponed.
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from lengthwise.base import fields
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
from lengthwise.base.score_rows import Row, update_rule_name

SizeText = Annotated[str, Pattern(r"\d{1,7}(x\d{1,7})?", "a size, such as 8 or 8x12")]  # as tables show it


class MetricsRow(TypedDict):
    """A row of metrics.jsonl: the loss at a training step, or a measurement during training."""

    step: Whole
    loss: NotRequired[Real | None]  # nats
    exact: NotRequired[dict[SizeText, Fraction]]  # exact match, by size
    perplexity: NotRequired[dict[str, NotNegative | None]]  # of the right answer, by prompt
    validation_loss: NotRequired[Real | None]
    rate: NotRequired[Real]
    wall_s: NotRequired[NotNegative]
    cpu_s: NotRequired[NotNegative]


class ScoreRow(TypedDict):
    """A row of scores.jsonl: the accuracy on one kind of problems of one size, by one stopping rule."""

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
    family: NotRequired[Literal["alone"]]  # a family requested by name; other families may be missing
    chance: NotRequired[Fraction]  # per-symbol accuracy of guessing
    scaled: NotRequired[Real]  # per-symbol accuracy, from guessing (0) to all correct (1)
    final: NotRequired[Fraction]  # exact match of the answer's final part alone
    ran: NotRequired[NotNegative]  # loops run to choose ``loops``
    at_limit: NotRequired[Fraction]  # fraction of problems that ran to the rule's limit
    together: NotRequired[Count]  # batch size of a rule that chooses one loop per batch


class _ChosenLoops(TypedDict):  # the loops that one stopping rule chose
    mean: NotNegative
    low: NotNegative
    high: NotNegative
    exact: Fraction


class _ChosenLoopsByRule(TypedDict):
    oracle: _ChosenLoops
    batch: _ChosenLoops
    example: _ChosenLoops
    own: NotRequired[_ChosenLoops]


class DepthRow(TypedDict):
    """A row of depth.jsonl: the accuracy after each loop, at one size."""

    task: OneLine
    sizes: Sizes
    count: Count
    seed: NotRequired[Seed]
    train_seed: NotRequired[Seed]  # in results: the seed of the measured run
    planned: Size
    exact: tuple[Fraction, ...]  # exact match after each loop
    confidence: tuple[Real, ...]
    chosen: _ChosenLoopsByRule


class _AnswerEnds(TypedDict):  # the number of wrong answers that end too early, too late, or at the right position
    early: Whole
    late: Whole
    right: Whole


class _FeatureGroup(TypedDict):  # problems with a similar value of a difficulty feature
    low: Real
    high: Real
    count: Count
    exact: Fraction


class AnatomyRow(TypedDict):
    """A row of anatomy.jsonl: an analysis of the wrong answers at one size."""

    task: OneLine
    stopping: OneLine
    problems: OneLine
    sizes: Sizes
    count: Count
    seed: NotRequired[Seed]
    exact: Fraction
    ends: _AnswerEnds
    first_wrong: dict[OneLine, Whole]
    by: dict[OneLine, tuple[_FeatureGroup, ...]]


class ReplyRow(TypedDict):
    """A row of replies.jsonl: a language model's reply to one prompt."""

    prompt: str
    correct: bool
    prompt_tokens: Annotated[int, Range(0)]  # from the endpoint; ``ask.inquiry.read_token_counts`` bounds them
    completion_tokens: Annotated[int, Range(0)]
    answer: NotRequired[str | None]


class AboutFile(TypedDict):
    """The fields of about.json, except the recipe's outline."""

    parameters: Whole
    cpu_s: NotNegative
    wall_s: NotNegative
    steps: NotRequired[Whole]


class PublishedEntry(TypedDict):
    """An entry of runs.json or inquiries.json in a folder of results."""

    recipe_name: OneLine
    id: OneLine
    # Only completed runs have the following fields.
    parameters: NotRequired[Whole]
    cpu_s: NotRequired[NotNegative]
    wall_s: NotRequired[NotNegative]


class _QuotedResult(TypedDict):  # a published result that a figure shows
    who: OneLine
    exact: Fraction


class FiguresFile(TypedDict):
    """The contents of figures.json: the title, panels and published results of a folder's figures."""

    title: NotRequired[str | None]
    strong: NotRequired[str | None]
    panels: NotRequired[tuple[OneLine, ...]]
    claims: NotRequired[tuple[_QuotedResult, ...]]


class ParameterRow(TypedDict):
    """A row of parameters.csv: a run's number of parameters, validation loss and accuracy."""

    recipe: OneLine
    id: NotRequired[Name]  # the recipe's id without seeds
    seed: Seed
    model: OneLine
    parameters: Count
    validation_loss: Real
    within: NotRequired[Fraction]
    beyond: NotRequired[Fraction]


Length = Annotated[str, Pattern(r"\d{1,7}", "a length")]
Distribution = dict[Length, Whole]  # distribution.json: number of problems of each length


class _CheckRecord(TypedDict):
    name: OneLine
    verdict: Literal["passed", "exposed", "open"]
    told: OneLine


class _VerifiedWeights(TypedDict):
    name: OneLine
    task: OneLine
    trained_to: SizeText


class VerificationRecord(TypedDict):
    """The signed record that ``lengthwise verify`` writes."""

    about: _VerifiedWeights
    checks: tuple[_CheckRecord, ...]
    longest: OneLine | None
    longest_uniform: OneLine | None
    left_out: tuple[OneLine, ...]
    scores: tuple[ScoreRow, ...]
    digest: OneLine


ROW_SCHEMAS: dict[str, Any] = {
    "metrics": MetricsRow,
    "scores": ScoreRow,
    "depth": DepthRow,
    "anatomy": AnatomyRow,
    "replies": ReplyRow,
}


def validate_row(schema: Any, row: Any, path: str) -> Row:
    """Validate a stored row. The name of a stopping rule gets today's names of its fields."""
    row = fields.decode(schema, row, path)
    if "stopping" in row:
        row["stopping"] = update_rule_name(row["stopping"])
    return row
