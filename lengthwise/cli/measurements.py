"""Plan the measurements that ``train`` makes after training, and run the measurements for which a run has no scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from lengthwise.api import Recipe, Stopping
from lengthwise.base.progress import Progress
from lengthwise.base.results import AnySize
from lengthwise.base.score_rows import KINDS_WITH_CURVE, is_within_training_sizes
from lengthwise.base.types import Kind
from lengthwise.cli import options
from lengthwise.cli.shared import PlanOptions
from lengthwise.evaluation import families
from lengthwise.experiment.data import choose_default_sizes
from lengthwise.runs.run import CODE_FILE, Run, Weights


class Measurement(NamedTuple):
    """A planned measurement: exact match at some sizes, by some stopping rules."""

    sizes: Sequence[AnySize]
    samples: int  # problems per size
    kind: Kind
    rules: Sequence[Stopping]
    families: bool = False  # all families of structured problems instead of ``kind``


def plan_measurements(args: PlanOptions, recipe: Recipe) -> list[Measurement]:
    """Return all measurements except those of families. Invalid options raise UsageError here."""
    rules = options.choose_rules(args, recipe)
    sizes = options.parse_sizes(args.lengths) if args.lengths else choose_default_sizes(recipe)
    kinds: list[Kind] = ["uniform", *options.list_extra_kinds(args, recipe.task)]
    plan = [Measurement(sizes, args.samples, kind, rules) for kind in kinds if args.samples]
    if args.curve:
        curve_rules = rules if args.curve_samples == args.samples else rules[:1]
        plan.append(Measurement(options.parse_sizes(args.curve), args.curve_samples, "uniform", curve_rules))
    return plan


def run_measurements(
    args: PlanOptions, run: Run, weights: Weights, plan: Sequence[Measurement], progress: Progress
) -> None:
    """Make the planned measurements for which a run has no scores yet, so that a repeated command resumes."""
    for missing in _list_missing_measurements(args, run, plan):
        label = f"{run.recipe.name}: {'families' if missing.families else f'exact match, {missing.kind}'}"
        settings: dict[str, Any] = {"families": True} if missing.families else {"kind": missing.kind}
        scores = families.evaluate_with_progress(
            weights, missing.sizes, missing.rules, progress, label=label, samples=missing.samples, **settings
        )
        for _, size_scores in groupby(scores, lambda score: score.sizes):  # saved per complete size
            run.append("scores", *(score.row() | {"seed": 0} for score in size_scores))


def has_all_results(args: PlanOptions, run: Run) -> bool:
    """Return whether ``train`` has nothing left to train or measure, and no failure to clear. Return False for runs of
    the user's own code, which may have changed."""
    if not run.done or (run.folder / CODE_FILE).exists() or run.failure_file.exists():
        return False
    return not any(_list_missing_measurements(args, run, plan_measurements(args, run.recipe)))


def _list_missing_measurements(args: PlanOptions, run: Run, plan: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yield the planned measurements that a run lacks, or has on fewer problems than planned."""
    for planned in plan:
        # Rules after the first, which may run many more loops, get at most 1000 problems.
        samples, rules = planned.samples, planned.rules
        for count, group in [(samples, rules)] if samples <= 1000 else [(samples, rules[:1]), (1000, rules[1:])]:
            yield from _select_unmeasured_parts(run, planned._replace(samples=count, rules=group))
    if args.families and args.samples:
        yield from _select_unmeasured_parts(run, _plan_families(args, run.recipe, plan[0]))


def _plan_families(args: PlanOptions, recipe: Recipe, uniform_plan: Measurement) -> Measurement:
    """Return the measurement of families at the shortest sizes and at the requested sizes up to twice the training
    length (with ``far_families``, at all requested sizes). More than eight pairs of sizes are left out, since they
    would dominate the cost."""
    count = families.count_family_samples(args.samples)
    single_sizes = [size for size in uniform_plan.sizes if isinstance(size, int)]
    requested = uniform_plan.sizes if len(uniform_plan.sizes) - len(single_sizes) <= 8 else single_sizes
    reach = [2 * top for top in recipe.tops]
    requested = [size for size in requested if args.far_families or is_within_training_sizes(recipe.sizes(size), reach)]
    rules = families.select_family_rules(list(dict.fromkeys([recipe.stopping, *uniform_plan.rules])))
    return Measurement([*families.find_short_sizes(recipe, count), *requested], count, "uniform", rules, families=True)


def _select_unmeasured_parts(run: Run, measurement: Measurement) -> Iterator[Measurement]:
    """Yield the parts of a measurement that a run lacks, or has on fewer problems than planned."""
    known_scores = set()
    for (sizes, problems, rule), count in run.count_measured_problems().items():
        is_of_kind = problems not in KINDS_WITH_CURVE if measurement.families else problems == measurement.kind
        if is_of_kind and (count >= measurement.samples or problems == "every"):
            known_scores.add((sizes, rule))
    sizes = dict.fromkeys(map(run.recipe.sizes, measurement.sizes))
    groups = families.find_unscored_sizes(run.recipe, sizes, measurement.rules, known_scores)
    for rules, missing_sizes in groups.items():
        yield measurement._replace(rules=rules, sizes=missing_sizes)
