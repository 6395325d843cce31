"""Compare the claims in a folder of weights with measurements: scores, number of parameters, training lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from lengthwise.base.csv_files import read_csv
from lengthwise.base.errors import UsageError
from lengthwise.base.results import RunOutline, count_effective_trials, wilson_interval
from lengthwise.base.rng import derive_seed
from lengthwise.base.schemas import ScoreRow, validate_row
from lengthwise.base.score_rows import Row, format_share, format_size, select_reported_rows
from lengthwise.evaluation.families import compute_weights_digest
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.recipe import build_outline
from lengthwise.experiment.resources import estimate_evaluation
from lengthwise.runs.folder import RunFolder
from lengthwise.runs.run import Weights

CLAIM_QUANTILE = 3.29  # normal quantile of 99.9 % intervals: a claim is refuted if its interval is above the measured
MAX_CLAIMS = 8  # maximum number of claims that are measured because no other score has their size and problems
PROBLEMS_PER_CLAIM = 200  # problems for each of these claims
MAX_CLAIM_SECONDS = 1.25  # estimated seconds; claims that would take longer are skipped


@dataclass(frozen=True)
class Claims:
    """Claims about weights, from the files in their folder."""

    rows: Sequence[Row] = ()  # scores
    parameter_count: int | None = None  # None if not claimed
    outline: RunOutline | None = None  # facts about the recipe; None if not claimed


def read_claims(folder: Path) -> Claims:
    """Read the claims in a folder's files. Raises UsageError if one of them is damaged."""
    run, table = RunFolder(folder), folder / "scores.csv"
    listed = [validate_row(ScoreRow, row, f"{table}: a row") for row in read_csv(table)]
    rows = select_reported_rows([*run.rows("scores"), *listed])
    if not (folder / "about.json").exists():
        return Claims(rows)
    return Claims(rows, run.about().get("parameters"), run.outline)


def find_contradictions(claims: Claims, weights: Weights, parameter_count: int) -> Iterator[str]:
    """Yield a message for each claim that contradicts the weights or their recipe."""
    if claims.parameter_count is not None and claims.parameter_count != parameter_count:
        yield f"{claims.parameter_count:,} parameters are claimed, but there are {parameter_count:,}"
    if claims.outline is not None:
        claimed, actual = asdict(claims.outline), asdict(build_outline(weights.recipe))
        for name in ("id", "name", "seed", "data_seed", "task", "top", "tops", "steps", "stopping"):
            if claimed[name] != actual[name]:  # the recipe determines them
                yield f"{name} {claimed[name]} is claimed, but the recipe says {actual[name]}"
    own_digest = compute_weights_digest(weights.model.state_dict())
    other_digests = {row["sealed"] for row in claims.rows if row.get("sealed", own_digest) != own_digest}
    if other_digests:
        yield f"scores are of other weights ({', '.join(sorted(other_digests))}; these are {own_digest})"


def find_refuted_claims(
    claims: Claims, measured_rows: Iterable[Row], weights: Weights, seed: int
) -> tuple[list[str], int]:
    """Return a message for each claim that is significantly better than the measured score, and the number of claims
    compared. Of claims without a row in ``measured_rows``, up to ``MAX_CLAIMS`` random ones are measured here."""
    recipe = weights.recipe
    own_rows = [row for row in claims.rows if row["stopping"] == recipe.stopping.name]
    claimed = {(tuple(row["sizes"]), row["problems"]): row for row in own_rows}
    scores = {(tuple(row["sizes"]), row["problems"]): row for row in measured_rows}
    unknown = [key for key in claimed if key not in scores]
    for sizes, problems in Random(derive_seed(seed, "claims")).sample(unknown, min(MAX_CLAIMS, len(unknown))):
        with suppress(UsageError):  # there are no such problems
            if estimate_evaluation(recipe, [sizes], PROBLEMS_PER_CLAIM, [recipe.stopping]).seconds <= MAX_CLAIM_SECONDS:
                (score,) = evaluate(weights, [sizes], samples=PROBLEMS_PER_CLAIM, kind=problems, seed=seed)
                scores[sizes, problems] = score.row()
    refuted, compared = [], [key for key in claimed if key in scores]
    for sizes, problems in compared:
        claim, score = claimed[sizes, problems], scores[sizes, problems]
        low, _ = wilson_interval(claim["exact"], count_effective_trials(claim), CLAIM_QUANTILE)
        _, high = wilson_interval(score["exact"], count_effective_trials(score), CLAIM_QUANTILE)
        if low > high:
            shares = f"{format_share(claim['exact'], 3)} is claimed, {format_share(score['exact'], 3)} was measured"
            refuted.append(f"{problems} at {format_size(sizes)}: {shares} on {score['count']:,} problems")
    return refuted, len(compared)
