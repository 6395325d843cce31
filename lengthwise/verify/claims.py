"""What a folder of weights claims, beside what is measured: scores, number of parameters, training lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from lengthwise.base import fields
from lengthwise.base.errors import UsageError
from lengthwise.base.results import RunOutline, trials, wilson
from lengthwise.base.rng import address
from lengthwise.base.schemas import Measured
from lengthwise.base.score_rows import Row, latest, share_text, size_text
from lengthwise.evaluation.scores import evaluate
from lengthwise.evaluation.sealed import digest
from lengthwise.experiment.outline import outline
from lengthwise.experiment.resources import of_measuring
from lengthwise.report.published import read_csv
from lengthwise.run import Weights
from lengthwise.runs.folder import RunFolder

SURE = 3.29  # the normal quantile of a 99.9 % interval: a claim is refuted if two of these do not meet
DRAWN = 8  # claims that nothing else measures, of which so many are measured too
PROBLEMS = 200  # problems for each of them
LONG = 5.0  # seconds after which a claim is left alone
FOLLOWS = ("id", "name", "seed", "data_seed", "task", "top", "tops", "steps", "stopping")  # from the recipe alone


@dataclass(frozen=True)
class Claims:
    """What stands beside weights."""

    rows: Sequence[Row] = ()  # of exact match
    parameters: int | None = None
    outline: RunOutline | None = None


def claims_of(folder: Path) -> Claims:
    """What a folder's scores.jsonl, scores.csv and about.json say. Raises UsageError if one of them is damaged."""
    run, table = RunFolder(folder), folder / "scores.csv"
    listed = [fields.conform(Measured, row, f"{table}: a row") for row in read_csv(table)]
    told = (folder / "about.json").exists()
    return Claims(
        latest([*run.rows("scores"), *listed]),
        run.about().get("parameters") if told else None,
        run.outline if told else None,
    )


def contradictions(claims: Claims, weights: Weights, parameters: int) -> Iterator[str]:
    """Where what is said beside the weights does not follow from them and their recipe."""
    if claims.parameters is not None and claims.parameters != parameters:
        yield f"{claims.parameters:,} parameters are claimed, there are {parameters:,}"
    if claims.outline is not None:
        told, true = asdict(claims.outline), asdict(outline(weights.recipe))
        for name in FOLLOWS:
            if told[name] != true[name]:
                yield f"{name} {told[name]} is claimed, the recipe says {true[name]}"
    own = digest(weights.model.state_dict())
    others = {row["sealed"] for row in claims.rows if row.get("sealed", own) != own}
    if others:
        yield f"scores are of other weights ({', '.join(sorted(others))}; these are {own})"


def find_refuted(claims: Claims, measured: Iterable[Row], weights: Weights, seed: int) -> tuple[list[str], int]:
    """Claims that are surely better than what was measured, and how many claims were looked at. Of those that nobody
    has measured yet, a few are drawn and measured here."""
    own = [row for row in claims.rows if row["stopping"] == weights.recipe.stopping.name]
    found = {(tuple(row["sizes"]), row["problems"]): row for row in measured}
    unknown = [row for row in own if _key(row) not in found]
    drawn = Random(address(seed, "claims")).sample(unknown, min(DRAWN, len(unknown)))
    for row in drawn:
        if score := _measure_again(weights, row, seed):
            found[_key(row)] = score
    looked_at = [row for row in own if _key(row) in found]
    return [said for row in looked_at if (said := _refutation(row, found[_key(row)]))], len(looked_at)


def _key(row: Row) -> tuple[tuple[int, ...], str]:
    return tuple(row["sizes"]), row["problems"]


def _measure_again(weights: Weights, row: Row, seed: int) -> Row | None:
    """A claim's problems measured anew; none where there are no such problems, or it would take too long."""
    recipe, size = weights.recipe, tuple(row["sizes"])
    try:
        if of_measuring(recipe, [size], PROBLEMS, [recipe.stopping]).seconds > LONG:
            return None
        (score,) = evaluate(weights, [size], samples=PROBLEMS, kind=row["problems"], seed=seed)
    except UsageError:
        return None
    return score.row()


def _refutation(claim: Row, row: Row) -> str:
    low, _ = wilson(claim["exact"], trials(claim), SURE)
    _, high = wilson(row["exact"], trials(row), SURE)
    if low <= high:
        return ""
    where = f"{claim['problems']} at {size_text(claim['sizes'])}"
    shares = f"{share_text(claim['exact'], 3)} is claimed, {share_text(row['exact'], 3)} was measured"
    return f"{where}: {shares} on {row['count']:,} problems"
