"""The command ``reproduce``: train and measure the missing runs of a study, then publish the study."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

import torch

from lengthwise.api import Finite, Panel, Study, catalog
from lengthwise.base.csv_files import write_csv
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import Seed, Size
from lengthwise.base.score_rows import Row
from lengthwise.cli import options
from lengthwise.cli.console import err, print_files, show_elapsed
from lengthwise.cli.forecast import forecast
from lengthwise.cli.measurements import has_all_results
from lengthwise.cli.shared import Argument, PlanOptions, TrainingOptions
from lengthwise.evaluation.depth import measure_depths
from lengthwise.evaluation.families import count_family_samples, measure_sealed
from lengthwise.experiment.data import draw_fixed_set
from lengthwise.jobs.pool import JobPool, show_progress
from lengthwise.report import curves
from lengthwise.report.card import build_card_table, build_score_card
from lengthwise.report.matrix import build_matrix_rows, build_matrix_table, publish_matrix
from lengthwise.report.publish import publish, publish_depth, publish_distribution, publish_overview, publish_parameters
from lengthwise.report.results_folder import is_results_folder, read_published_runs
from lengthwise.report.tables import build_score_table, build_summary_rows, build_summary_table
from lengthwise.runs.folder import RunFolder
from lengthwise.runs.run import Run
from lengthwise.training.arithmetic import check_matmul, computation_settings
from lengthwise.training.cost import measure_operations, read_stored_costs
from lengthwise.training.stacked import check_seeds, try_stacked_training


@dataclass(kw_only=True)
class Options(TrainingOptions):
    """Train and evaluate a study, then write its table and figures."""

    study: Argument  # STUDY: e.g. pairs, or looped
    seed: Seed = 0  # N: first seed (default: 0); published runs of other seeds and recipes stay in the results
    stack: bool = False  # train a recipe's seeds together in one process, their weights stacked
    curve_samples: Size = 128  # N: problems per length of a curve (default: 128)
    out: str | None = None  # FOLDER: where tables and figures go
    tasks: str | None = None  # A,B: only these tasks of the study, or all
    methods: str | None = None  # A,B: only these methods of the study, or these classes of mixers
    sizes: str | None = None  # A,B: only these model sizes of the study, or all
    scale: str | None = None  # SCALE: cpu (default), half (of the range), paper, or long (formal only)
    samples: Size | None = None  # N: fresh problems per length (default: the study's)
    publish: bool = False  # also measure all runs on problems of a reserved seed, for the final tables


def run(args: Options) -> int:
    """Train and measure the missing runs of a study, then publish the study; with --dry-run, print its cost."""
    choices = {name: getattr(args, name) for name in ("tasks", "methods", "sizes", "scale")}
    study = catalog.find_study(args.study, **{name: value for name, value in choices.items() if value is not None})
    if args.dry_run:
        plan = [options.replicate_recipe(recipe, args.seed, args.seeds) for recipe in study.recipes]
        return forecast(args, plan, study.title, batch_size=4 if args.scale == "paper" else None)
    options.parse_launcher(args).check()
    device, matmul = options.local_device(args)
    check_matmul(matmul, device)
    if args.samples is None:
        args.samples = study.samples
    if args.stack:  # checked before anything is written
        for recipe in study.recipes:
            recipes = options.replicate_recipe(recipe, args.seed, args.seeds)
            check_seeds(recipes)
            if not all(Run.locate(replicate).done for replicate in recipes):
                try_stacked_training(recipes, torch.device("cpu"))
    folder = Path(args.out) if args.out else Path("results") / args.study
    runs, plans = dict[str, list[Run]](), dict[Path, PlanOptions]()
    for panel in study.panels:
        group = runs[panel.title] = list[Run]()
        for recipe in panel.recipes:
            group += map(Run.of, options.replicate_recipe(recipe, args.seed, args.seeds))
            further = (Run.locate(recipe.with_seed(seed)) for seed in count(args.seed + args.seeds))
            group += takewhile(lambda run: run.done, further)  # seeds that were trained earlier
        plans |= {run.folder: _build_plan_options(args, args.samples, panel, run) for run in group}
    all_runs = list(chain(*runs.values()))
    pending = [run for run in all_runs if not has_all_results(plans[run.folder], run)]
    if args.stack:  # a stack trains all seeds of a recipe
        recipes = {run.recipe.seedless_id for run in pending}
        pending = [run for run in all_runs if run.recipe.seedless_id in recipes]
    shared = options.list_training_options(args)
    words = {folder: [*shared, *options.format_option_words(plan, ())] for folder, plan in plans.items()}
    jobs, launcher = options.resolve_jobs(args.jobs), options.parse_launcher(args)
    with JobPool(pending, lambda run: words[run.folder], jobs=jobs, launcher=launcher, stack=args.stack) as pool:
        show_progress(pool, all_runs, err, quiet=args.quiet)
    for group in runs.values():
        group[:] = [run for run in group if run.folder not in pool.failed or run.diverged]  # divergence is a result too
    if not any(run.done for group in runs.values() for run in group):
        pool.raise_failures()
    if args.publish:
        _measure_sealed(args, study, runs)
    _publish(args, study, runs, folder)
    pool.raise_failures()  # reported last, since a failed run does not stop the others
    return 0


def _measure_sealed(args: Options, study: Study, runs: Mapping[str, Sequence[Run]]) -> None:
    """Measure every finished run once on problems of a sealed seed, which nothing else uses."""
    (device, _), samples = options.local_device(args), args.samples or study.samples
    for panel in study.panels:
        kinds = ["uniform", *(["hard"] if panel.hard else []), *(["natural"] if panel.natural else [])]
        for run in (run for run in runs[panel.title] if run.done):
            label = f"{run.recipe.name}: sealed problems"
            with computation_settings(1), show_elapsed(label, quiet=args.quiet), run.lock(wait=True):
                measurement = {"samples": samples, "rules": panel.rules(run.recipe), "kinds": kinds, "device": device}
                measure_sealed(run, panel.sizes, family_samples=count_family_samples(samples), **measurement)


def _build_plan_options(args: Options, samples: Size, panel: Panel, run: Run) -> PlanOptions:
    """Return the options of ``train`` for measuring a run on the problems of its panel."""
    sizes = [*map(str, panel.sizes), *(["x".join(f"1-{top}" for top in panel.grid)] if panel.grid else [])]
    return PlanOptions(
        lengths=",".join(sizes),
        samples=samples,
        curve=",".join(map(str, panel.curve)) or None,
        curve_samples=args.curve_samples,
        stopping=[rule.name for rule in panel.rules(run.recipe)],
        hard=panel.hard,
        natural=panel.natural,
        families=True,
        far_families=panel.far_families,
    )


# Publishing


def _publish(args: Options, study: Study, runs: Mapping[str, Sequence[Run]], folder: Path) -> int:
    all_runs = list(chain(*runs.values()))
    files: list[Path] = []
    rows: list[Row] = []
    matrix_runs: list[RunFolder] = []
    operations_per_step = {identity: cost["operations"] for identity, cost in read_stored_costs().items()}
    for panel in study.panels:
        group, panel_folder = runs[panel.title], folder / panel.name
        if not any(run.done for run in group):
            continue
        with Progress(quiet=args.quiet) as progress:
            operations_per_step |= measure_operations((run.recipe for run in group), progress)
        reported = _add_published_runs(panel_folder, group)
        matrix_runs += [run for run in reported if not isinstance(run, Run) or run.done]
        files += _publish_panel(args, panel, reported, panel_folder, operations_per_step)
        if panel.claims or panel.further_rules:
            summary = build_summary_rows(panel.title, curves(reported), panel.sizes, panel.claims)
            write_csv(panel_folder / "summary.csv", summary)
            files, rows = [*files, panel_folder / "summary.csv"], rows + summary
    if study.highlight:
        trained_panels = [panel.name for panel in study.panels if any(run.done for run in runs[panel.title])]
        files += publish_overview(trained_panels, folder, title=study.title, highlight=study.highlight)
    claims = dict.fromkeys(claim for panel in study.panels for claim in panel.claims)
    files += publish_parameters(all_runs, list(claims), folder)
    matrix_runs = [*_read_runs_of_other_tasks(folder, study), *matrix_runs] if study.matrix else matrix_runs
    cells = build_matrix_rows(matrix_runs) if study.matrix else []
    files += publish_matrix(cells, folder, title=study.title) if cells else []
    if rows:
        table = build_summary_table(rows)
    else:
        table = build_matrix_table(cells) if cells else build_score_table(curves(all_runs))
    cards = build_score_card(all_runs, operations_per_step)
    scores = [row for run in all_runs for row in run.rows("scores")]
    result: dict[str, Any] = {"summary": rows, "scores": scores, "cards": cards}
    result |= {"matrix": cells} if cells else {}
    return print_files(args, files, table, "", build_card_table(cards), study.notes, **result)


def _read_runs_of_other_tasks(folder: Path, study: Study) -> list[RunFolder]:
    """Return published runs of tasks that this study lacks, so that a matrix keeps their columns."""
    own_folders = {folder / panel.name for panel in study.panels}
    other_folders = filter(is_results_folder, sorted({*folder.glob("*")} - own_folders))
    return [run for place in other_folders for run in read_published_runs(place)]


def _add_published_runs(folder: Path, runs: Sequence[Run]) -> list[RunFolder]:
    """Return ``runs`` and the published runs to keep: runs of other recipes, and of other seeds of unchanged
    recipes. Recipes are in the folder's order, new ones last; seeds are in ascending order."""
    seeds = {(run.outline.seedless_id, run.outline.seed, run.outline.data_seed) for run in runs}  # ids may have changed
    recipes = {run.outline.name: run.outline.seedless_id for run in runs}
    published = read_published_runs(folder) if is_results_folder(folder) else []
    kept_runs: list[RunFolder] = [*runs]
    for other in published:
        is_unchanged = recipes.get(other.outline.name, other.outline.seedless_id) == other.outline.seedless_id
        is_replaced = (other.outline.seedless_id, other.outline.seed, other.outline.data_seed) in seeds
        kept_runs += [other] if is_unchanged and not is_replaced else []
    names = list(dict.fromkeys(other.outline.name for other in [*published, *runs]))
    return sorted(kept_runs, key=lambda other: (names.index(other.outline.name), other.outline.seed))


def _publish_panel(
    args: Options, panel: Panel, runs: Sequence[RunFolder], folder: Path, operations_per_step: Mapping[str, float]
) -> list[Path]:
    """Write the panel's files: scores, figures, accuracy of adaptive recipes against loops, a fixed set's lengths."""
    files = publish(runs, folder, title=panel.title, operations_per_step=operations_per_step, highlight=panel.highlight)
    rows: dict[str, list[Row]] = defaultdict(list)
    for one in sorted(runs, key=lambda run: run.outline.seed) if panel.further_rules else []:
        depth_rows = one.rows("depth")
        if isinstance(one, Run) and one.recipe.loops.adapts and one.done:
            with computation_settings(1), Progress(quiet=args.quiet) as progress, one.lock(wait=True):
                sizes = [one.recipe.lengths.top, *panel.sizes]
                # On 512 problems, the batch size of the published code.
                depth_rows = measure_depths(one, sizes, 512, progress, options.local_device(args)[0])
        rows[one.outline.name] += [{"train_seed": one.outline.seed} | row for row in depth_rows]
    for name in {run.outline.name for run in runs if isinstance(run, Run)}:
        files += publish_depth(rows[name], folder / f"stopping-{name}") if rows[name] else []
    recipe = panel.recipes[0]
    if panel.natural and isinstance(recipe.source, Finite):
        with show_elapsed(f"{recipe.name}: its set", quiet=args.quiet):
            sizes = draw_fixed_set(recipe.task, recipe.lengths, recipe.source).sizes.amax(1)
        counts = {size: count for size, count in enumerate(sizes.bincount().tolist()) if count}
        files += publish_distribution(counts, folder / "distribution")
    return files
