"""The command ``report``: write tables, figures and pages of runs, or accuracy and confidence against loops."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lengthwise.base import process
from lengthwise.base.errors import UsageError, quote_value
from lengthwise.base.files import check_writable, is_folder
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import Size
from lengthwise.cli.console import announce_duration, has_code_changed, print_files, save_page, show_elapsed, warn
from lengthwise.cli.shared import Arguments, OutputOptions, ProgressOptions
from lengthwise.report import build_all_curves, by_recipe, drop_repeated_folders
from lengthwise.report.card import build_card_table, build_score_card
from lengthwise.report.matrix import build_matrix_rows, build_matrix_table, publish_matrix
from lengthwise.report.pooled import PooledComparison
from lengthwise.report.publish import publish, publish_depth, redraw_figures
from lengthwise.report.results_folder import is_results_folder, read_figures_json, read_inquiries, read_published_runs
from lengthwise.report.style import KNOWN_FORMATS, PNG_ONLY
from lengthwise.report.tables import build_depth_rows, build_row_table, build_score_table
from lengthwise.runs.folder import (
    SHIPPED_FOLDER,
    InquiryFolder,
    RunFolder,
    check_is_run,
    find_inquiry,
    get_runs_folder,
    list_shipped_weights,
    read_operations,
    require_run,
)

if TYPE_CHECKING:  # modules that need torch are imported late, since a report of finished runs does not
    from lengthwise.runs.run import Run

STOPPING_SAMPLES = 512  # problems per length, with --stopping


@dataclass(kw_only=True)
class Options(OutputOptions, ProgressOptions):
    """Write tables, figures and CSV of runs."""

    runs: Arguments  # RUN: folders of runs or of `ask`; or folders of results, whose figures are drawn again
    out: str | None = None  # FOLDER: where tables and figures go
    width: Literal["column", "page"] | None = None  # width of figures: a column, or a page (default)
    formats: str | None = None  # A,B: formats of figures: png (default), svg, pdf, or several: png,svg
    table: Literal["latex"] | None = None  # print one table of all recipes, seeds pooled, as LaTeX
    # FILE: write one HTML page instead, with all results and models that run in it; missing folders are created
    html: str | None = None
    matrix: bool = False  # draw a matrix of architectures and tasks instead, of runs and published results
    stopping: bool = False  # draw accuracy and confidence against loops, a figure per run
    lengths: str | None = None  # SIZES: with --stopping: lengths (default: 1 and 2 times the training length)
    samples: Size | None = None  # N: with --stopping: problems per length (default: 512)
    device: str | None = None  # DEVICE: with --stopping: cpu, cuda, mps or auto (default)

    def __post_init__(self) -> None:
        given = [f"--{name}" for name in ("lengths", "samples", "device") if getattr(self, name) is not None]
        if given and not self.stopping:
            advice = "`lengthwise evaluate` measures further lengths, and more"
            raise UsageError(f"{' and '.join(given)} can only be used with --stopping; {advice}")
        if sum(map(bool, (self.html, self.matrix, self.stopping))) > 1:
            raise UsageError("--html, --matrix and --stopping exclude each other: give one of them")
        if self.html and (self.out or self.width or self.formats or self.table):
            raise UsageError("--html writes one page of existing scores: omit --out, --width, --formats and --table")


def run(args: Options) -> int:
    """Write tables and figures of runs; with --stopping, of their accuracy and confidence against loops."""
    _parse_figure_options(args)
    args.runs = _skip_other_folders(args.runs)
    folders = [Path(name) for name in args.runs if is_results_folder(Path(name))]
    if args.matrix:  # architectures × tasks, from run folders and from the runs in folders of results
        runs = [run for folder in folders for run in read_published_runs(folder)]
        runs += [_open_run(name) for name in args.runs if Path(name) not in folders]
        rows = build_matrix_rows(drop_repeated_folders(runs))
        with show_elapsed("the matrix", quiet=args.quiet):
            files = publish_matrix(rows, Path(args.out or "figures"), **_parse_figure_options(args))
        return print_files(args, files, build_matrix_table(rows), matrix=rows)
    if folders and args.html:
        if len(folders) < len(args.runs):
            raise UsageError("--html takes either folders of results or runs, not both")
        published = [run for folder in folders for run in read_published_runs(folder)]
        inquiries = [inquiry for folder in folders for inquiry in read_inquiries(folder)]
        if not published and not inquiries:
            raise UsageError(f"{folders[0]}: there are no runs in this folder of results")
        title = read_figures_json(folders[0]).get("title") if len(folders) == 1 else None
        return _write_page(args, args.html, published, inquiries, title=title)
    if folders:  # their figures are drawn again, in place or into one folder each below ``--out``
        if len(folders) < len(args.runs) or args.stopping:
            raise UsageError("the figures of folders of results are only redrawn: omit runs and --stopping")
        targets = [Path(args.out) / folder.name if args.out else folder for folder in folders]
        if len(set(targets)) < len(targets):
            raise UsageError("folders of results with the same name would overwrite each other: report one at a time")
        pairs = zip(folders, targets, strict=True)
        files = [file for pair in pairs for file in redraw_figures(*pair, **_parse_figure_options(args))]
        return print_files(args, files)
    paths = {name: find_inquiry(name) for name in args.runs}
    runs = drop_repeated_folders(_open_run(name) for name, path in paths.items() if path is None)
    inquiries: list[InquiryFolder] = []
    if any(paths.values()):
        from lengthwise.ask.inquiry import InquiryRun

        inquiries = drop_repeated_folders(InquiryRun.open(path) for path in paths.values() if path)
    if args.html:
        check_writable("--html", Path(args.html))
        return _write_page(
            args, args.html, _open_runs(runs), inquiries, operations_per_step=_find_operations_per_step(args, runs)
        )
    if args.stopping:
        if inquiries:
            raise UsageError(f"--stopping: {inquiries[0].folder}: a language model has no loops: omit this folder")
        return _report_stopping(args, _open_runs(runs))
    return _write_report(args, runs, inquiries)


def _parse_figure_options(args: Options) -> dict[str, Any]:
    """Return the width and formats of figures. Raises UsageError if a format is unknown."""
    formats = tuple(dict.fromkeys(args.formats.split(","))) if args.formats else PNG_ONLY
    if wrong := [name for name in formats if name not in KNOWN_FORMATS]:
        raise UsageError(f"--formats: {quote_value(wrong[0])} is not one of {', '.join(KNOWN_FORMATS)}")
    return {"width": args.width or "page", "formats": formats}


def _skip_other_folders(names: Sequence[str]) -> list[str]:
    """Return ``names`` without sweep folders and results of ``demo``, which ``runs/*`` includes; print a warning."""
    runs_path, paths = get_runs_folder().resolve(), {name: Path(name) for name in names}
    skipped = [name for name, path in paths.items() if (path / "sweep.json").exists()
             or (is_results_folder(path) and path.resolve().parent == runs_path)]  # fmt: skip
    if len(skipped) in (0, len(names)):
        return list(names)
    warn(f"skipped, not runs: {', '.join(skipped)}")
    return [name for name in names if name not in skipped]


def _open_run(name: str) -> RunFolder:
    """Return the folder of a run or of shipped weights. The recipe is not read, since that is slow."""
    path = SHIPPED_FOLDER / name if not is_folder(Path(name)) and name in list_shipped_weights() else require_run(name)
    check_is_run(path)
    return RunFolder(path)


def _open_runs(runs: Sequence[RunFolder]) -> list[Run]:
    from lengthwise.runs.run import Run

    return [Run.open(folder.folder) for folder in runs]


def _write_report(args: Options, runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder]) -> int:
    operations_per_step = _find_operations_per_step(args, runs)
    with show_elapsed("figures", quiet=args.quiet):
        options = _parse_figure_options(args) | {"inquiries": inquiries, "operations_per_step": operations_per_step}
        files = publish(runs, Path(args.out or "figures"), **options)
    scores, replied = ([row for source in group for row in source.rows("scores")] for group in (runs, inquiries))
    cards = build_score_card(runs, operations_per_step) if runs else []
    lines = build_all_curves(runs, inquiries)
    advice = next((run.measure_advice for run in runs), "`lengthwise evaluate RUN` measures a run")
    shown = [build_score_table(lines) if lines else f"no scores yet: {advice}"]
    shown += ["", build_card_table(cards)] if scores else []
    result: dict[str, Any] = {"scores": scores + replied, "cards": cards}
    if args.table:
        result["latex"] = latex = PooledComparison(runs).to_latex()
        if not args.json:  # written directly, since rich would wrap its lines
            process.get_result_stream().write(latex + "".join(f"% {file}\n" for file in files))
            return 0
    return print_files(args, files, *shown, **result)


def _find_operations_per_step(args: Options, runs: Sequence[RunFolder]) -> dict[str, float]:
    """Return the operations of a training step of each recipe, by its id without seeds. Unknown numbers are measured,
    and a note names recipes for which that fails."""
    # Grouping raises for runs that cannot be reported together, before any note is printed.
    first_runs = {group[0].outline.seedless_id: group[0] for group in (by_recipe(runs) if runs else {}).values()}
    operations = {key: steps for key, steps in read_operations().items() if key in first_runs}
    missing = [folder for key, folder in first_runs.items() if key not in operations]
    if not missing:
        return operations
    from lengthwise.training.cost import measure_operations

    with Progress(quiet=args.quiet) as progress:
        for folder in missing:
            folder.config()  # a damaged file is an error, not a note
            try:
                operations |= measure_operations([run.recipe for run in _open_runs([folder])], progress)
            except UsageError as error:
                progress.note(f"{folder.folder.name}: the card has no operations, which cannot be counted: {error}")
    return operations


def _write_page(
    args: Options, html: str, runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder], **options: Any
) -> int:
    """Write one HTML page of all results, in which the runs' models run in the browser, if the page supports them."""
    from lengthwise.viewer.report import build_report_page, load_exportable_weights

    command = shlex.join(["lengthwise", "report", *args.runs, "--html", html])
    with show_elapsed("a page: examples and an attack", quiet=args.quiet):
        page = build_report_page(runs, inquiries, command=command, models=load_exportable_weights(runs), **options)
    return save_page(args, html, page)


def _report_stopping(args: Options, runs: Sequence[Run]) -> int:
    from lengthwise.cli.options import parse_sizes
    from lengthwise.evaluation.depth import measure_depths
    from lengthwise.experiment.resources import estimate_evaluation
    from lengthwise.experiment.stopping import MaxConfidence
    from lengthwise.runs.run import choose_device
    from lengthwise.training.arithmetic import computation_settings

    if len({run.folder.name for run in runs}) < len(runs):
        raise UsageError("figures of runs with the same folder name would overwrite each other: report one at a time")
    files: list[Path] = []
    loop_rows: list[dict[str, Any]] = []
    for run in runs:
        top = run.recipe.lengths.top
        sizes = parse_sizes(args.lengths) if args.lengths else [top, 2 * top]
        samples = STOPPING_SAMPLES if args.samples is None else args.samples
        estimate = estimate_evaluation(run.recipe, sizes, samples, [MaxConfidence()])
        announce_duration(f"{run.recipe.name}: every loop", estimate)
        has_code_changed(run)
        lock = run.lock(wait=True) if run.is_run else nullcontext()
        with lock, computation_settings(1), Progress(quiet=args.quiet) as progress:
            rows = measure_depths(run, sizes, samples, progress, device=choose_device(args.device or "auto"))
        path = Path(args.out or "figures") / f"stopping-{run.folder.name}"
        files += publish_depth(rows, path, **_parse_figure_options(args))
        loop_rows += [{"recipe": run.recipe.name} | row for row in build_depth_rows(rows)]
    return print_files(args, files, build_row_table(loop_rows), loops=loop_rows)
