"""Verify weights from a third party: compare them with their claims, and measure answers to fresh problems.

``verify`` returns a record of checks. Each check has a verdict: ``passed``, ``exposed``, or ``open`` if it is
inconclusive. A digest of the record shows whether it was changed.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from lengthwise import __version__
from lengthwise.base.errors import Diverged, remove_controls
from lengthwise.base.fields import iterate_parts, validate
from lengthwise.base.files import format_json, read_json_object
from lengthwise.base.progress import Progress, ProgressLine
from lengthwise.base.ranges import Sizes
from lengthwise.base.results import AnySize
from lengthwise.base.rng import stream
from lengthwise.base.schemas import VerificationRecord
from lengthwise.base.score_rows import (
    SOLVED,
    Row,
    format_share,
    format_size,
    group_family_rows,
    is_within_training_sizes,
    select_uniform_rows,
)
from lengthwise.base.types import Problems, UsageError
from lengthwise.evaluation.attack import attack
from lengthwise.evaluation.causality import check_model
from lengthwise.evaluation.families import (
    compute_weights_digest,
    estimate_relative_cost,
    evaluate_families,
    find_short_sizes,
)
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment import data
from lengthwise.experiment.data import choose_default_sizes
from lengthwise.experiment.own_code import is_foreign
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.source import Fresh
from lengthwise.runners.plain import Plain
from lengthwise.runs.run import Weights
from lengthwise.training.cost import operation_counter
from lengthwise.training.loop import train
from lengthwise.verify.claims import Claims, find_contradictions, find_refuted_claims
from lengthwise.verify.perturbation import count_changed_answers, find_unused_parameters, measure_perturbed_weights

SAMPLES = 1000  # uniform problems per size
FAMILY_FRACTION = 0.4  # problems per family, relative to ``samples``: 400; a lower end of .99 needs 381
PERTURBED_PROBLEMS = 128  # number of problems that are answered again, and with perturbed weights
CHECKED_STEPS = 8  # training steps at which the sizes of problems are checked
RETRAINED_SAMPLES = 400  # problems per size on which retrained weights are measured


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    verdict: Literal["passed", "exposed", "open"]
    told: str  # the finding, in one line


def verify(
    weights: Weights,
    claims: Claims | None = None,
    sizes: Sequence[AnySize] | None = None,
    *,
    seed: int | None = None,
    samples: int = SAMPLES,
    seconds: float = 30.0,
    minutes: float = 6.0,
    files: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Row:
    """Check these weights, measure their scores, and return a record of plain values; ``sign_record`` adds the digest.
    ``sizes`` are by default those of ``evaluate``; ``seed`` is by default unpredictable. ``samples`` is the number of
    uniform problems per size, and ``seconds`` is the time of the attack. ``minutes`` limits the processor time for
    exact match: sizes that would exceed it are listed as ``left_out``. ``files`` maps the weights' file names to
    digests."""
    claims, seed = claims or Claims(), secrets.randbits(62) if seed is None else seed
    recipe = weights.recipe
    line = (progress or Progress(quiet=True)).add_line(f"{weights.name}: verification")
    requested_sizes = [recipe.sizes(size) for size in sizes or choose_default_sizes(recipe)]
    parameters = sum(value.numel() for value in weights.model.parameters())
    checks, rows, left_out = [*_check_weights(weights, claims, requested_sizes, parameters)], [], []
    attack_result, refused = {}, "its rule needs a batch of problems, but an attack tries single problems"
    # Fresh problems with the sizes of training.
    clock, draw = recipe.lengths.curriculum_step(recipe.steps, None), stream(seed, "verification")
    problems = recipe.lengths.problems(recipe.task, clock, PERTURBED_PROBLEMS, draw)
    checks += _check_repetition_and_context(weights, problems)
    if checks[-1].verdict == "passed":  # scores mean nothing if the model sees its answer
        line.update(0, "changing weights")
        checks += _check_behaviour(weights, problems, seed)
        rows, left_out = _measure_scores(weights, requested_sizes, seed, samples, minutes, line)
        line.update(0, "claimed scores")
        checks.append(_check_claims(claims, rows, weights, seed))
        if recipe.stopping.together == 1:
            line.update(0, "looking for failures")
            try:
                attack_result = attack(weights, seconds=seconds, seed=seed)
            except UsageError as error:  # e.g. problems longer than the position table
                refused = str(error)
        checks.append(_check_attack(attack_result, refused))
    measured_sizes = [size for size in requested_sizes if size not in left_out]
    longest = find_longest_solved_size(rows)
    uniform = find_longest_solved_size(row for row in rows if row["problems"] == "uniform")
    about = {"name": weights.name, "recipe": recipe.name, "id": recipe.id, "task": recipe.task.name}
    about |= {"trained_to": format_size(recipe.tops), "stopping": recipe.stopping.name}
    about |= {"tensors": compute_weights_digest(weights.model.state_dict()), "files": dict(files or {}), "seed": seed}
    about |= {"lengthwise": __version__, "torch": str(torch.__version__)}
    return {
        "about": about | {"time": datetime.now(UTC).isoformat(timespec="seconds")},
        "parameters": parameters,
        "operations": {format_size(size): count_operations(weights, size) for size in measured_sizes},
        "checks": [asdict(check) for check in checks],
        "longest": longest and format_size(longest),
        "longest_uniform": uniform and format_size(uniform),
        "left_out": [format_size(size) for size in left_out],
        "scores": rows,
        "attack": attack_result,
    }


# The record


def has_passed(record: Row) -> bool:
    """Return whether no check exposed a problem."""
    return all(check["verdict"] != "exposed" for check in record["checks"])


def sign_record(record: Row) -> Row:
    """Return the record with a digest of its content, as it is written to a file."""
    plain = json.loads(format_json({name: value for name, value in record.items() if name != "digest"}))
    return plain | {"digest": hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()}


def read_record(path: Path) -> Row:
    """Read a record from its file. Raises UsageError if the record is invalid or was changed after signing."""
    record = validate(VerificationRecord, read_json_object(path), str(path))
    if sign_record(record) != record:
        raise UsageError(f"{path} was changed after it was written: its digest does not match its content")
    return record


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Checks that need no answers


def _check_weights(
    weights: Weights, claims: Claims, sizes: Sequence[tuple[int, ...]], parameter_count: int
) -> Iterator[Check]:
    wrong = list(find_contradictions(claims, weights, parameter_count))
    yield Check("stated facts", "exposed" if wrong else "passed", "; ".join(wrong) or "as stated in its files")
    buffers = sum(value.numel() for value in weights.model.buffers())
    numbers = f"{parameter_count:,} counted" + (f", and {buffers:,} numbers in buffers" if buffers else "")
    yield Check("parameters", "exposed" if buffers > parameter_count else "passed", numbers)
    count = count_operations(weights, least := min(sizes, key=max))
    finding = f"{count:,} in matrix products for an answer of size {format_size(least)}"
    yield Check("operations", "passed" if count else "exposed", finding if count else "no matrix products")
    kinds = {type(part) for part in (*iterate_parts(weights.recipe), *weights.model.modules())}
    outside = ", ".join(sorted(f"{kind.__module__}.{kind.__name__}" for kind in kinds if is_foreign(kind)))
    finding = f"code outside the package: {outside}" if outside else "only parts of the package, no other code"
    yield Check("recipe track", "exposed" if outside else "passed", finding)
    yield _check_training(weights.recipe, sizes, claims)


def count_operations(weights: Weights, sizes: tuple[int, ...]) -> int:
    """Return the floating-point operations in matrix products for one answer after the planned loops, with the plain
    runner; a multiply–add counts as two."""
    recipe, model = weights.recipe, weights.model
    batch = recipe.layout.write(recipe.task.sample(torch.tensor([list(sizes)]), stream(0, "operations")), recipe.task)
    loops = recipe.loops.planned(batch.rounds)
    with torch.enable_grad(), operation_counter() as counter:  # the counter's hooks need gradients
        Plain(model.eval()).last(batch.inputs, loops, batch.answer_slots)
    return counter.get_total_flops()


def _check_training(recipe: Recipe, sizes: Sequence[tuple[int, ...]], claims: Claims) -> Check:
    """Check that training draws no problem beyond the recipe's training lengths, and that longer sizes have scores."""
    drawn, tops = replace(recipe, source=Fresh()), recipe.tops
    steps = {round(part * (recipe.steps - 1) / (CHECKED_STEPS - 1)) for part in range(CHECKED_STEPS)}
    largest_drawn = torch.stack([data.draw_batch(drawn, step)[0].sizes.amax(0) for step in steps]).amax(0).tolist()
    finding = f"drew problems of up to {format_size(largest_drawn)}; its recipe says {format_size(tops)}"
    within = is_within_training_sizes(largest_drawn, tops)
    all_sizes = [*sizes, *(row["sizes"] for row in claims.rows)]
    if within and all(is_within_training_sizes(size, tops) for size in all_sizes):
        within, finding = False, f"{finding}; no size beyond the training lengths was measured or claimed"
    return Check("training lengths", "passed" if within else "exposed", finding)


# Checks that need answers


def _check_repetition_and_context(weights: Weights, problems: Problems) -> Iterator[Check]:
    """Check that repeated problems get the same answers, then that the model neither reads padding nor looks ahead."""
    changed_count, context_count = count_changed_answers(weights, problems)
    count = len(problems)
    finding = f"{count} problems, answered three times"
    finding += f"; {context_count} differ in another order" if context_count else ""
    finding = f"{changed_count} of {count} answers differ when asked again" if changed_count else finding
    yield Check("deterministic", "exposed" if changed_count or context_count > 0.05 * count else "passed", finding)
    try:
        check_model(weights.model, weights.recipe)
        yield Check("no leaks", "passed", "reads neither padding nor, where forbidden, later tokens")
    except UsageError as error:
        yield Check("no leaks", "exposed", str(error))


def _check_behaviour(weights: Weights, problems: Problems, seed: int) -> Iterator[Check]:
    """Check that answers depend on the weights, and on nearly all of them, but not on rounding errors."""
    measured = measure_perturbed_weights(weights, problems, seed)
    answers = torch.cat([problems.answer_length[:, None], problems.answer], 1)
    chance = float(answers.unique(dim=0, return_counts=True)[1].max()) / len(problems)  # the most frequent answer
    unchanged, jittered = measured["unchanged"], measured["jittered"]
    worst = max((measured["shuffled"], measured["noisy"]), key=lambda outcome: (outcome.exact, -outcome.loss))
    perturbation = "with shuffled or noisy weights"
    if unchanged.exact - chance >= 0.2:
        verdict = "passed" if worst.exact - chance <= (unchanged.exact - chance) / 2 else "exposed"
        shares = f"{format_share(unchanged.exact)}, {format_share(worst.exact)}"
        finding = f"exact match {shares} {perturbation} (chance {format_share(chance)})"
    else:  # too few answers are right to detect a collapse: the loss must grow
        verdict = "passed" if worst.loss >= 1.25 * unchanged.loss else "open"
        finding = f"loss {unchanged.loss:.2f}, {worst.loss:.2f} {perturbation}; few answers are right"
    yield Check("depends on its weights", verdict, finding)
    is_continuous = abs(jittered.exact - unchanged.exact) <= 0.05 and jittered.loss <= unchanged.loss + 0.05
    shares = f"exact match {format_share(jittered.exact)} and loss {jittered.loss:.3f}"
    finding = f"{shares} with weights changed by a millionth"
    yield Check("robust to rounding", "passed" if is_continuous else "exposed", finding)
    counts = {name: value.numel() for name, value in weights.model.named_parameters()}
    idle = find_unused_parameters(weights, problems.take(slice(PERTURBED_PROBLEMS // 4)), seed)
    unused, total = sum(counts[name] for name in idle), sum(counts.values())
    finding = f"{unused:,} of {total:,} parameters change no answer" + (f": {', '.join(idle)}" if idle else "")
    is_bad = unused > 0.02 * total or not counts  # some never have an effect, such as a bias of keys
    yield Check("uses its parameters", "exposed" if is_bad else "passed", finding if counts else "it has no parameters")


def _measure_scores(
    weights: Weights, sizes: Sequence[tuple[int, ...]], seed: int, samples: int, minutes: float, line: ProgressLine
) -> tuple[list[Row], list[tuple[int, ...]]]:
    """Return score rows on fresh problems, and the sizes that would take too long. Families are measured only up to the
    first size that is not solved, since beyond it they cannot change the longest solved size."""
    recipe, clock = weights.recipe, time.process_time
    end, rate = clock() + 60 * minutes, 0.0
    samples_per_family, names = max(1, round(FAMILY_FRACTION * samples)), len(recipe.task.families)
    line.update(0, "exact match on short problems")
    short = find_short_sizes(recipe, samples_per_family)
    rows = [score.row() for score in evaluate_families(weights, short, samples=samples_per_family, seed=seed)]
    ordered = sorted(dict.fromkeys(sizes), key=lambda size: (max(size), size))
    for number, size in enumerate(ordered):
        solving = find_longest_solved_size(rows) == (ordered[number - 1] if number else find_longest_solved_size(rows))
        problem_count = samples + samples_per_family * names * solving
        if rate * problem_count * estimate_relative_cost(recipe, size) > end - clock():
            return rows, ordered[number:]
        line.update(0, f"exact match at {format_size(size)}")
        start = clock()
        rows += [score.row() for score in evaluate(weights, [size], samples=samples, seed=seed)]
        if solving:
            rows += [score.row() for score in evaluate_families(weights, [size], samples=samples_per_family, seed=seed)]
        rate = (clock() - start) / (problem_count * estimate_relative_cost(recipe, size))
    return rows, []


def find_longest_solved_size(rows: Iterable[Row]) -> Sizes | None:
    """Return the largest size that is solved together with all smaller sizes. A size is solved if the lower ends of the
    95 % intervals of exact match, on uniform problems and on each family, are at least .99; if all problems of a size
    were measured, exact match itself counts. A score card, with fewer problems of each family, is less strict."""
    rows, longest = list(rows), None
    structured, uniform = group_family_rows(rows), select_uniform_rows(rows)
    for size in sorted({*uniform, *structured}, key=lambda size: (max(size), size)):
        parts = [*structured.get(size, []), *([uniform[size]] if size in uniform else [])]
        if any(row["exact" if row["problems"] == "every" else "low"] < SOLVED for row in parts):
            break
        longest = size if size in uniform else longest
    return longest


def _check_claims(claims: Claims, rows: Sequence[Row], weights: Weights, seed: int) -> Check:
    (wrong, count), number = find_refuted_claims(claims, rows, weights, seed), len(claims.rows)
    if not count:
        finding = f"none of {number} claims could be tested" if number else "no scores are claimed"
        return Check("claimed scores", "open", finding)
    finding = f"{count} of {number} claims tested: {f'{len(wrong)} refuted' if wrong else 'all hold'}"
    text = "; ".join([finding, *wrong[:3]])
    return Check("claimed scores", "exposed" if wrong else "passed", text)


def _check_attack(outcome: Row, skip_reason: str) -> Check:
    if not outcome:
        return Check("attack", "open", f"not run: {skip_reason}")
    if not outcome["failed"]:
        return Check("attack", "passed", f"no failure in {outcome['tries']:,} problems")
    shortest = outcome["shortest"][0]
    finding = f"{outcome['failed']:,} of {outcome['tries']:,} problems fail; the shortest: {shortest['prompt']}"
    return Check("attack", "open", remove_controls(finding))


# Training again


def retrain_and_compare(
    weights: Weights, rows: Sequence[dict[str, Any]], seed: int, progress: Progress | None = None, **options: Any
) -> Check:
    """Train the recipe of these weights again and compare. The check passes if the new weights are equal or, since
    another processor may change the last bits, if they refute no score on uniform problems in ``rows``."""
    name = "retraining"
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = train(weights.recipe, Path(folder) / "run", progress=progress, **options)
            retrained = replace(run.weights(weights.device), name=weights.name)
        except Diverged as error:
            return Check(name, "exposed", f"training its recipe failed: {error}")
    if compute_weights_digest(retrained.model.state_dict()) == compute_weights_digest(weights.model.state_dict()):
        return Check(name, "passed", "its recipe reproduces these weights, bit for bit")
    uniform = [row for row in rows if row["problems"] == "uniform"]
    scores = evaluate(retrained, [tuple(row["sizes"]) for row in uniform], samples=RETRAINED_SAMPLES, seed=seed)
    wrong, count = find_refuted_claims(Claims(uniform), [score.row() for score in scores], retrained, seed)
    summary = f"different weights; retrained ones score worse at {len(wrong)} of {count} sizes"
    return Check(name, "exposed" if wrong else "passed", "; ".join([summary, *wrong[:3]]))
