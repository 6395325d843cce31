"""The score card: the longest length that each recipe solves, on how many seeds, and at what cost; and model cards
for the Hugging Face Hub."""

from __future__ import annotations

import importlib.metadata
import json
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from lengthwise.base.errors import remove_controls
from lengthwise.base.results import select_worst_families
from lengthwise.base.score_rows import (
    SOLVED,
    Row,
    Sizes,
    format_interval,
    format_problem_kind,
    format_share,
    format_size,
    group_family_rows,
    is_within_training_sizes,
    list_interval_notes,
    select_training_length_rows,
    select_uniform_rows,
    select_worst_row,
)
from lengthwise.report import by_recipe, describe_misfit, select_own_scores
from lengthwise.report.fitted_table import FittedTable
from lengthwise.runs.folder import DIVERGED, RunFolder

MIN_PROBLEMS = 381  # to solve a size: with fewer problems, the 95 % interval starts below SOLVED even if all are right


def build_score_card(runs: Sequence[RunFolder], operations_per_step: Mapping[str, float] | None = None) -> list[Row]:
    """Return a row per recipe, from seeds measured by its own stopping rule. ``longest``: for each seed the largest
    size it solves, or "diverged". A size is solved if two values are 0.99 or more: the lower end of the 95 % interval
    of exact match on uniform problems (which takes at least 381 problems), and exact match on every family measured. No
    shorter size beyond the training range may have an upper end below 0.99. ``longest_uniform`` ignores families.
    ``generalise``: the number of seeds that solve a size beyond the training range. ``worst``: the worst family within
    the training range; if none fails there, the worst of all sizes. ``chosen_on``: sizes that the recipe may have been
    selected on. ``fit``: exact match at the training length. ``operations``: the operations of the whole training, from
    the recipe's ``operations_per_step`` (keys are ids without seeds). ``cpu_s``: the median processor time of seeds."""
    rows = []
    for label, group in by_recipe(runs).items():
        first = group[0].outline
        diverged = [run for run in group if run.diverged]
        # Without scores on uniform problems, a seed's longest size is unknown.
        measured = [select_own_scores(run) for run in group if run not in diverged]
        own = [scores for scores in measured if select_uniform_rows(scores)]
        longest = [_find_longest_solved_size(rows, first.tops, families=True) for rows in own]
        longest_uniform = [_find_longest_solved_size(rows, first.tops, families=False) for rows in own]
        fits = [row["exact"] for rows in own for row in select_training_length_rows(rows, first.tops)]
        abouts = [about for run in group if (about := run.about())]
        beyond = [size is not None and not is_within_training_sizes(size, first.tops) for size in longest]
        per_step = (operations_per_step or {}).get(first.seedless_id)
        families = [row for rows in own for row in select_worst_families(rows)]
        within = [row for row in families if is_within_training_sizes(row["sizes"], first.tops)]
        low = select_worst_row([row for row in within if row["exact"] < SOLVED] or families) if families else None
        failed = [DIVERGED] * len(diverged)
        rows.append(
            {
                "recipe": label,
                "task": first.task,
                "trained_to": format_size(first.tops),
                "chosen_on": list(first.looked_at),
                "seeds": len(longest) + len(diverged),
                "generalise": sum(beyond),
                "longest": [size and format_size(size) for size in longest] + failed,
                "longest_uniform": [size and format_size(size) for size in longest_uniform] + failed,
                "worst": low and {"family": low["problems"], "size": format_size(low["sizes"]), "exact": low["exact"]},
                "fit": round(statistics.fmean(fits), 5) if fits else None,
                "parameters": abouts[0]["parameters"] if abouts else None,
                "operations": None if per_step is None else float(f"{per_step * first.steps:.3g}"),
                "cpu_s": round(statistics.median(about["cpu_s"] for about in abouts), 1) if abouts else None,
            }
        )
    return rows


def _find_longest_solved_size(scores: Sequence[Row], tops: Sizes, *, families: bool) -> Sizes | None:
    """Return the longest size solved on uniform problems and, with ``families``, on all families; None if none is."""
    lowest = {tuple(row["sizes"]): row for row in select_worst_families(scores)} if families else {}
    longest = None
    uniform = [row for row in scores if row["problems"] == "uniform"]
    for row in sorted(uniform, key=lambda row: (max(row["sizes"]), row["sizes"])):
        sizes = tuple(row["sizes"])
        low = lowest.get(sizes)
        if min(row["high"], low["high"] if low else 1) < SOLVED and not is_within_training_sizes(sizes, tops):
            break
        if lowest and low is None:
            continue  # families were not measured at this size
        if row["low"] >= SOLVED and (low is None or low["exact"] >= SOLVED):
            longest = sizes
    return longest


def build_card_table(rows: Sequence[Row]) -> Table:
    """Return the score card's ``rows``, of which there must be one or more, as a terminal table."""
    caption = (
        f"longest: the largest size solved, per seed: {SOLVED} or more at the lower end of the 95 % interval (which "
        f"takes at least {MIN_PROBLEMS} problems) and on every family; seeds beyond: those that solve a size longer "
        "than in training"
    )
    table = FittedTable(*format_card_cells(rows[0]), caption=caption)
    for row in rows:
        table.add_row(*format_card_cells(row).values())
    return table


def format_sizes(sizes: Iterable[Any]) -> str:
    """Return sizes as text, joined by commas; a missing size becomes a dash."""
    return ", ".join(str(size) if size else "–" for size in sizes) or "–"


def format_card_cells(row: Row) -> dict[str, str]:
    """Return the cells of a row of the score card, by heading; a dash stands for an unknown value."""
    unfit, low = describe_misfit(row.get("fit"), row["trained_to"]), row.get("worst")
    parameters, operations, seconds = row["parameters"], row["operations"], row["cpu_s"]
    worst = low and f"{format_problem_kind(low['family'])} {format_share(low['exact'])} at {low['size']}"
    return {
        "recipe": row["recipe"] + (f" ({unfit})" if unfit else ""),
        "trained to": row["trained_to"],
        "chosen on": format_sizes(row.get("chosen_on", [])),
        "longest": format_sizes(row["longest"]),
        "longest, uniform": format_sizes(row.get("longest_uniform", row["longest"])),
        "worst family": worst or "not measured",
        "seeds beyond": f"{row['generalise']} of {row['seeds']}" if row["seeds"] else "–",
        "parameters": "–" if parameters is None else f"{parameters:,}",
        "operations": "–" if operations is None else f"{operations:.1e}",
        "CPU min": "–" if seconds is None else f"{seconds / 60:.1f}",
    }


# On the Hub

PAPERS_BY_KIND = {  # papers, by the kind of part that they introduced
    "FullOutput": "Fan et al., Looped Transformers for Length Generalization, ICLR 2025, https://arxiv.org/abs/2409.15647",
    "Abacus": "McLeish et al., Transformers Can Do Arithmetic with the Right Embeddings, 2024, https://arxiv.org/abs/2405.17399",
    "ReTran": "Attention Ain't All (ReTran), ACL 2025",
    "RoPE": "Su et al., RoFormer, 2021, https://arxiv.org/abs/2104.09864",
    "ALiBi": "Press et al., Train Short, Test Long, 2021, https://arxiv.org/abs/2108.12409",
    "NoPE": "Kazemnejad et al., The Impact of Positional Encoding on Length Generalization, 2023, https://arxiv.org/abs/2305.19466",
    "LAMB": "You et al., Large Batch Optimization for Deep Learning, 2019, https://arxiv.org/abs/1904.00962",
}


def build_model_card(run: RunFolder, repository: str, *, license_: str, example: str, controls: list[RunFolder]) -> str:
    """Return the model card of a run's weights in ``repository``: Markdown with the Hub's metadata in front.
    ``example`` is a prompt; ``controls`` are other runs for comparison."""
    outline, rows, about = run.outline, select_own_scores(run), run.about()
    uniform = select_uniform_rows(rows)
    text = ["---", f"license: {license_}", "library_name: lengthwise"]
    text += [f"tags: [length-generalization, algorithmic-reasoning, {outline.task}]"]
    text += ["model-index:", f"- name: {outline.name}", "  results:"] * bool(uniform)
    for size, row in sorted(uniform.items()):
        text += [
            "  - task: {type: text-generation}",
            f"    dataset: {{name: '{outline.task}, size {format_size(size)}', type: lengthwise}}",
            f"    metrics: [{{type: exact_match, value: {row['exact']:.6g}}}]",
        ]
    size = f"{about['parameters']:,} parameters." if about.get("parameters") else ""
    text += [
        *("---", "", f"# {outline.name}", ""),
        f"Trained on `{outline.task}` with sizes of up to {format_size(outline.tops)}; measured beyond. {size}",
        *("", "```sh", f"pip install 'lengthwise[hub]=={importlib.metadata.version('lengthwise')}'"),
        f"lengthwise solve hf:{repository} '{example}'",
        f"lengthwise verify hf:{repository}",
        *("```", "", "## Exact match", ""),
        *(_write_score_lines(rows, outline.tops) if rows else ["Not measured."]),
        "",
    ]
    if controls:
        first, *others = map(format_card_cells, build_score_card([run, *controls]))
        table = [first, ["---"] * len(first), *(cells.values() for cells in (first, *others))]
        text += ["## Controls", "", *(f"| {' | '.join(cells)} |" for cells in table), ""]
    text += ["## Training", ""]
    text += [f"Recipe `{outline.name}` (`{outline.id}`), seed {outline.seed}, {outline.steps:,} steps."]
    if isinstance(parent := about.get("parent"), dict):
        name, step = (remove_controls(str(parent.get(key))) for key in ("run", "step"))
        text += [f"It continues `{name}` from step {step}."]
    looked = ", ".join(map(str, outline.looked_at)) or "unknown"
    text += [f"Sizes looked at while the recipe was chosen: {looked}."]
    if about:
        package, torch = (remove_controls(str(about.get(key, ""))) for key in ("lengthwise", "torch"))
        text += [f"{about['cpu_s'] / 60:.1f} minutes of processor time; Lengthwise {package}, torch {torch}."]
    text += ["The full recipe is in `config.json`; `lengthwise train config.json` trains it again.", ""]
    kinds = re.findall(r'"kind": "(\w+)"', json.dumps(run.config()))
    if papers := [f"- {paper}" for kind, paper in PAPERS_BY_KIND.items() if kind in kinds]:
        text += ["## Papers", "", "Parts of the recipe are from:", "", *papers]
    return "\n".join(text) + "\n"


def _write_score_lines(rows: Sequence[Row], tops: Sizes) -> Iterator[str]:
    """Yield lines of Markdown: a table of exact match by size (uniform problems and worst family), and notes."""
    uniform = select_uniform_rows(rows)
    structured = group_family_rows(rows)
    lowest = {tuple(row["sizes"]): row for row in select_worst_families(rows)}
    yield "| size | uniform problems | worst family | its name |"
    yield "| ---: | ---: | ---: | --- |"
    for size in sorted({*uniform, *lowest}):
        low = lowest.get(size)
        named = f"{low['problems']}, of {len(structured[size])}" if low else ""
        mark = " (trained)" if is_within_training_sizes(size, tops) else ""
        yield f"| {format_size(size)}{mark} | {_format_score(uniform.get(size))} | {_format_score(low)} | {named} |"
    yield ""
    yield "Exact match: the whole answer is right, end symbol included. In brackets: the 95 % Wilson interval (for the"
    yield "worst family: of the lowest of all families) and the number of fresh problems."
    yield f"Stopping rule: `{rows[0]['stopping']}`."
    yield from (f"Intervals: {note}." for note in list_interval_notes(rows))


def _format_score(row: Row | None) -> str:
    return f"{format_share(row['exact'], 3)} ({format_interval(row)}; {row['count']:,})" if row else "–"
