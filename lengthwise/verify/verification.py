"""Somebody else's weights, measured: what is claimed is counted, and answers are asked for that nobody has seen.

``verify`` returns a record of checks. Each check has a verdict: ``passed``, ``exposed``, or ``open`` where nothing can
be told. The record ends with a digest of itself, so that a change to it shows.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lengthwise.base.errors import clean
from lengthwise.base.fields import conform, parts_in
from lengthwise.base.files import json_text, read_tree
from lengthwise.base.origin import foreign
from lengthwise.base.progress import Line, Progress
from lengthwise.base.ranges import Sizes
from lengthwise.base.results import AnySize
from lengthwise.base.rng import stream
from lengthwise.base.schemas import Record
from lengthwise.base.score_rows import SOLVED, Row, families_in, share_text, size_text, trained_on, uniform_in
from lengthwise.base.types import Problems, UsageError
from lengthwise.evaluation.attack import attack
from lengthwise.evaluation.causality import check as check_sight
from lengthwise.evaluation.curves import work
from lengthwise.evaluation.families import evaluate_families, short_sizes
from lengthwise.evaluation.scores import evaluate
from lengthwise.evaluation.sealed import digest
from lengthwise.experiment import data
from lengthwise.experiment.data import default_sizes
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.source import Fresh
from lengthwise.run import Weights
from lengthwise.runners.plain import Plain
from lengthwise.verify.claims import Claims, contradictions, find_refuted
from lengthwise.verify.perturbation import Answered, chance, find_unused_parameters, measure_perturbed, unsteady

SAMPLES = 1000  # uniform problems per size
STRUCTURED = 0.4  # of each family so many times as many: 381, all right, are surely .99
PERTURBED = 128  # problems whose answers are compared
LEAST = 0.2  # exact match above chance from which a collapse can be seen
WORSE = 1.25  # else the loss grows at least as many times
UNUSED = 0.02  # of all parameters: some vectors have no effect by nature, e.g. a bias of keys
MOMENTS = 8  # of training at which its problems are looked at

Verdict = Literal["passed", "exposed", "open"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    told: str  # one line: what was found


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
    """A record of what these weights are and do, as plain values; ``sign`` closes it.

    ``sizes`` are by default those of ``evaluate``. ``seed`` chooses all problems; by default nobody knows it before.
    ``samples`` are uniform problems per size, ``seconds`` the time of the attack, ``minutes`` of processor time what
    exact match may take: larger sizes are left out, and the record says so. ``files`` are digests of the files that the
    weights are from.
    """
    claims, seed = claims or Claims(), secrets.randbits(62) if seed is None else seed
    recipe = weights.recipe
    line = (progress or Progress(quiet=True)).line(f"{weights.name}: verification")
    asked = [recipe.sizes(size) for size in sizes or default_sizes(recipe)]
    parameters = sum(value.numel() for value in weights.model.parameters())
    checks, rows, left_out = [*_static(weights, claims, asked, parameters)], [], []
    found, refused = {}, "its rule looks at many problems at once, an attack at one"
    problems = _as_trained(recipe, seed)
    checks += [_steady(weights, problems), sight := _sight(weights)]
    if sight.verdict == "passed":  # what sees its answer need not be measured
        line.show(0, "changing weights")
        checks += _behaviour(weights, problems, seed)
        rows, left_out = _scores(weights, asked, seed, samples, minutes, line)
        checks.append(_claims(claims, rows, weights, seed))
        if recipe.stopping.together == 1:
            line.show(0, "looking for failures")
            found, refused = _attack(weights, seconds, seed)
        checks.append(_check_attack(found, refused))
    return {
        "about": _about(weights, seed, files or {}),
        "parameters": parameters,
        "operations": {size_text(at): operations(weights, at) for at in asked if at not in left_out},
        "checks": [asdict(check) for check in checks],
        "longest": _text(surely_longest(rows)),
        "longest_uniform": _text(surely_longest(row for row in rows if row["problems"] == "uniform")),
        "left_out": [size_text(at) for at in left_out],
        "scores": rows,
        "attack": found,
    }


def _about(weights: Weights, seed: int, files: Mapping[str, str]) -> Row:
    """What was verified, when, and with what."""
    from lengthwise import __version__

    recipe = weights.recipe
    return {
        "name": weights.name,
        "recipe": recipe.name,
        "id": recipe.id,
        "task": recipe.task.name,
        "trained_to": size_text(recipe.tops),
        "stopping": recipe.stopping.name,
        "tensors": digest(weights.model.state_dict()),
        "files": dict(files),
        "seed": seed,
        "lengthwise": __version__,
        "torch": str(torch.__version__),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _text(sizes: tuple[int, ...] | None) -> str | None:
    return None if sizes is None else size_text(sizes)


# The record


def has_passed(record: Row) -> bool:
    """Was nothing exposed?"""
    return all(check["verdict"] != "exposed" for check in record["checks"])


def sign(record: Row) -> Row:
    """The record as it is written, with a digest of all that stands in it."""
    plain = json.loads(json_text({name: value for name, value in record.items() if name != "digest"}))
    return plain | {"digest": hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()}


def read(path: Path) -> Row:
    """A record from its file. Raises UsageError if it is not as it was signed, or none at all."""
    record = conform(Record, read_tree(path), str(path))
    if sign(record) != record:
        raise UsageError(f"{path}: changed after it was written: its digest is not that of its content")
    return record


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Checks without answers


def _static(weights: Weights, claims: Claims, asked: Sequence[tuple[int, ...]], parameters: int) -> Iterator[Check]:
    wrong = list(contradictions(claims, weights, parameters))
    yield Check("claims about it", "exposed" if wrong else "passed", "; ".join(wrong) or "as its files say")
    kept = sum(value.numel() for value in weights.model.buffers())
    numbers = f"{parameters:,} counted" + (f", and {kept:,} numbers that are no parameters" if kept else "")
    yield Check("parameters", "exposed" if kept > parameters else "passed", numbers)
    count = operations(weights, least := min(asked, key=max))
    done = f"{count:,} in matrix products for an answer of size {size_text(least)}"
    yield Check("operations", "passed" if count else "exposed", done if count else "there is no matrix product in it")
    foreign = sorted(_foreign(weights))
    told = f"code of its own: {', '.join(foreign)}" if foreign else "a recipe of the package's parts, no code"
    yield Check("recipe track", "exposed" if foreign else "passed", told)
    yield _training(weights.recipe, asked, claims)


def operations(weights: Weights, sizes: tuple[int, ...]) -> int:
    """Floating-point operations in matrix products for one answer after the planned loops, by the plain runner; a
    multiply–add counts as two."""
    recipe, model = weights.recipe, weights.model
    batch = recipe.layout.write(recipe.task.sample(torch.tensor([list(sizes)]), stream(0, "operations")), recipe.task)
    loops = recipe.loops.planned(batch.rounds)
    # By formulas that every device has: what torch counts of fused attention depends on the device. Its hooks look for
    # gradients.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        Plain(model.eval()).last(batch.inputs, loops, batch.answer_slots)
    return counter.get_total_flops()


def _foreign(weights: Weights) -> set[str]:
    """Classes of the recipe and of the model that are neither the package's nor torch's."""
    kinds = {type(part) for part in (*parts_in(weights.recipe), *weights.model.modules())}
    return {f"{kind.__module__}.{kind.__name__}" for kind in kinds if foreign(kind)}


def _training(recipe: Recipe, asked: Sequence[tuple[int, ...]], claims: Claims) -> Check:
    """The largest problem that training draws, on each axis, against those that are asked for and claimed."""
    drawn, tops = replace(recipe, source=Fresh()), recipe.tops
    steps = {round(part * (recipe.steps - 1) / (MOMENTS - 1)) for part in range(MOMENTS)}
    most = torch.stack([data.batch(drawn, step)[0].sizes.amax(0) for step in steps]).amax(0).tolist()
    said = f"drew problems of up to {size_text(most)}; its recipe says {size_text(tops)}"
    if not trained_on(most, tops):
        return Check("training lengths", "exposed", said)
    if all(trained_on(at, tops) for at in [*asked, *(row["sizes"] for row in claims.rows)]):
        return Check("training lengths", "exposed", f"{said}; nothing beyond was asked or claimed")
    return Check("training lengths", "passed", said)


# Checks of what it answers


def _as_trained(recipe: Recipe, seed: int) -> Problems:
    """Fresh problems, of sizes as in training."""
    draw = stream(seed, "verification")
    return recipe.lengths.problems(recipe.task, recipe.lengths.clock(recipe.steps, None), PERTURBED, draw)


def _steady(weights: Weights, problems: Problems) -> Check:
    again, apart = unsteady(weights, problems)
    count = len(problems)
    if again:
        return Check("always the same", "exposed", f"{again} of {count} answers differ when asked again")
    told = f"{count} answers, three times" + (f"; {apart} differ in another order" if apart else "")
    return Check("always the same", "exposed" if apart > 0.05 * count else "passed", told)


def _sight(weights: Weights) -> Check:
    try:
        check_sight(weights.model, weights.recipe)
    except UsageError as error:
        return Check("sees what it may", "exposed", str(error))
    return Check("sees what it may", "passed", "neither padding nor, where that is forbidden, what follows")


def _behaviour(weights: Weights, problems: Problems, seed: int) -> Iterator[Check]:
    """Is it the weights that answer, and all of them?"""
    yield from _collapse(measure_perturbed(weights, problems, seed), problems)
    few = problems.take(slice(PERTURBED // 4))
    yield _check_parameters_used(
        {name: value.numel() for name, value in weights.model.named_parameters()},
        find_unused_parameters(weights, few, seed),
    )


def _collapse(found: Mapping[str, Answered], problems: Problems) -> Iterator[Check]:
    whole, luck = found["as it is"], chance(problems)
    worst = max((found["shuffled"], found["noisy"]), key=lambda one: (one.exact, -one.loss))
    how = "with shuffled or noisy weights"
    if whole.exact - luck >= LEAST:
        verdict = "passed" if worst.exact - luck <= (whole.exact - luck) / 2 else "exposed"
        told = f"exact match {share_text(whole.exact)}, {share_text(worst.exact)} {how} (chance {share_text(luck)})"
    else:
        verdict = "passed" if worst.loss >= WORSE * whole.loss else "open"
        told = f"loss {whole.loss:.2f}, {worst.loss:.2f} {how}; few answers are right"
    yield Check("answers by its weights", verdict, told)
    near = found["jittered"]
    same = abs(near.exact - whole.exact) <= 0.05 and near.loss <= whole.loss + 0.05
    told = f"exact match {share_text(near.exact)} and loss {near.loss:.3f} with weights changed by a millionth"
    yield Check("tolerates rounding", "passed" if same else "exposed", told)


def _check_parameters_used(counts: Mapping[str, int], idle: Sequence[str]) -> Check:
    if not counts:
        return Check("uses its parameters", "exposed", "it has none")
    without = sum(counts[name] for name in idle)
    told = f"{without:,} of {sum(counts.values()):,} change no answer" + (f": {', '.join(idle)}" if idle else "")
    return Check("uses its parameters", "exposed" if without > UNUSED * sum(counts.values()) else "passed", told)


def _scores(
    weights: Weights, asked: Sequence[tuple[int, ...]], seed: int, samples: int, minutes: float, line: Line
) -> tuple[list[Row], list[tuple[int, ...]]]:
    """Exact match on fresh problems, size by size; and the sizes that would take too long. From the first size that is
    not solved on, families are not measured: they cannot help any more."""
    recipe, clock = weights.recipe, time.process_time
    end, rate = clock() + 60 * minutes, 0.0
    few, names = max(1, round(STRUCTURED * samples)), len(recipe.task.families)
    rows = [score.row() for score in evaluate_families(weights, short_sizes(recipe, few), samples=few, seed=seed)]
    ordered = sorted(dict.fromkeys(asked), key=lambda at: (max(at), at))
    for number, at in enumerate(ordered):
        solving = surely_longest(rows) == (ordered[number - 1] if number else surely_longest(rows))
        due = samples + few * names * solving
        if rate * due * work(recipe, at) > end - clock():
            return rows, ordered[number:]
        line.show(0, f"exact match at {size_text(at)}")
        start = clock()
        rows += [score.row() for score in evaluate(weights, [at], samples=samples, seed=seed)]
        if solving:
            rows += [score.row() for score in evaluate_families(weights, [at], samples=few, seed=seed)]
        rate = (clock() - start) / (due * work(recipe, at))
    return rows, []


def surely_longest(rows: Iterable[Row]) -> Sizes | None:
    """The score: the largest size that is surely solved, as all smaller ones are: if the lower ends of the 95 %
    intervals of exact match on uniform problems, and on each family, are at least .99; where all problems of a size
    were measured, exact match itself.

    Stricter than a score card's longest size, which asks families for .99 of what was measured, and lets a size within
    training's range be unsure: there a hundred problems of each family are measured, here as many as this takes.
    """
    rows = list(rows)
    structured = families_in(rows)
    uniform = uniform_in(rows)
    found = None
    for at in sorted({*uniform, *structured}, key=lambda at: (max(at), at)):
        parts = [*structured.get(at, []), *([uniform[at]] if at in uniform else [])]
        if any(row["exact" if row["problems"] == "every" else "low"] < SOLVED for row in parts):
            break
        found = at if at in uniform else found
    return found


def _claims(claims: Claims, rows: Sequence[Row], weights: Weights, seed: int) -> Check:
    wrong, count = find_refuted(claims, rows, weights, seed)
    if not count:
        told = f"of {len(claims.rows)} claims none could be looked at" if claims.rows else "none are claimed"
        return Check("claimed scores", "open", told)
    told = f"{len(wrong)} of {count} claims looked at are refuted" if wrong else f"{count} looked at hold"
    said = f"{told}, of {len(claims.rows)}"
    return Check("claimed scores", "exposed" if wrong else "passed", "; ".join([said, *wrong[:3]]))


def _attack(weights: Weights, seconds: float, seed: int) -> tuple[Row, str]:
    """What a search for failures has found; or nothing, and why there can be none."""
    try:
        return attack(weights, seconds=seconds, seed=seed), ""
    except UsageError as error:  # such as problems longer than its table of positions
        return {}, str(error)


def _check_attack(found: Row, refused: str) -> Check:
    if not found:
        return Check("attack", "open", f"none: {refused}")
    if not found["failed"]:
        return Check("attack", "passed", f"no failure in {found['tries']:,} problems")
    shortest = found["shortest"][0]
    told = f"{found['failed']:,} of {found['tries']:,} problems fail; the shortest: {shortest['prompt']}"
    return Check("attack", "open", clean(told))
