"""Read the rows of results folders, and format cells of tables."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from lengthwise.base.results import RunOutline
from lengthwise.base.score_rows import Row, format_share, format_size, select_reported_rows, select_training_length_rows
from lengthwise.report import describe_misfit
from lengthwise.report.publish import identify_run
from lengthwise.report.results_folder import PublishedRun, read_published_runs

ROOT = Path(__file__).parents[2]
MAX_CHOICE_MULTIPLE = 1.3  # a recipe may be chosen on sizes up to this multiple of its training length


def describe_unfitted(folder: str) -> dict[str, str]:
    """Return, by recipe name, a note for each recipe that has not learned its training length. Recipes are judged on
    all problems of that length if these were measured, else on a sample."""
    runs: dict[tuple[str, str], list[Row]] = defaultdict(list)
    tops = {}
    for row, recipe in read_own_rule_scores(folder, None):
        if parse_sizes(row["sizes"]) == find_training_sizes(recipe["lengths"], row["sizes"]):
            runs[row["recipe_name"], row["train_seed"]].append(row | {"sizes": parse_sizes(row["sizes"])})
            tops[row["recipe_name"]] = max(parse_sizes(row["sizes"]))
    shares: dict[str, list[float]] = defaultdict(list)
    for (name, _), rows in runs.items():
        shares[name] += [float(row["exact"]) for row in select_training_length_rows(rows, rows[0]["sizes"])]
    shares = {name: found for name, found in shares.items() if found}
    said = {name: describe_misfit(statistics.fmean(found), tops[name]) for name, found in shares.items()}
    return {name: f" ({text})" for name, text in said.items() if text}


def read_own_rule_scores(folder: str, problems: str | None = "uniform") -> Iterator[tuple[Row, dict]]:
    """Yield each score by the recipe's own stopping rule on the problem set ``problems`` (None: all sets), with its
    recipe."""
    recipes = read_recipes(folder)
    for row in read_scores(folder):
        if problems in (None, row["problems"]) and row["stopping"] == row["own_rule"]:
            yield row, recipes[row["recipe_name"]]


def read_recipes(folder: str) -> dict[str, dict]:
    """Return the recipes of a folder's runs as JSON objects, by name."""
    return {run["recipe_name"]: run["recipe"] for run in json.loads((ROOT / folder / "runs.json").read_text())}


@cache
def read_outlines(folder: str) -> dict[str, RunOutline]:
    """Return the outlines of a folder's runs, by recipe name."""
    return {run.outline.name: run.outline for run in read_runs(folder)}


@cache
def read_runs(folder: str) -> Sequence[PublishedRun]:
    """Return the published runs of a folder."""
    return read_published_runs(ROOT / folder)


@cache  # pages ask for the same folders some hundred times
def read_scores(folder: str) -> Sequence[Row]:
    """Return the scores of a folder, with only the valid one of repeated measurements."""
    return [
        identify_run(run) | row | {"own_rule": run.outline.stopping, "sizes": format_size(row["sizes"])}
        for run in read_runs(folder)
        for row in select_reported_rows(run.rows("scores"))
    ]


def describe_problems(folder: str, count: str) -> str:
    """Describe the problems on which a folder's seeds were measured: how many, and whether all seeds share them."""
    seeds: dict[str, set[str]] = defaultdict(set)
    for row in read_scores(folder):
        seeds[row["recipe_name"]].add(row["train_seed"])
    sealed = {bool(row.get("sealed")) for row in read_scores(folder) if row["problems"] == "uniform"}
    if max(map(len, seeds.values()), default=0) < 2:
        return f"{count} problems"
    if sealed == {True}:
        return f"each on {count} problems of its own"
    return f"on the same {count} problems" + (" (sealed ones differ)" if True in sealed else "")


@cache
def read_maps(folder: str) -> dict[tuple[str, str, str], dict[tuple[int, ...], float]]:
    """Return exact match on uniform problems by size, for each recipe, stopping rule and seed."""
    found: dict[tuple[str, str, str], dict[tuple[int, ...], float]] = defaultdict(dict)
    for row in read_scores(folder):
        if row["problems"] == "uniform":
            of_seed = found[row["recipe_name"], row["stopping"], row["train_seed"]]
            of_seed[parse_sizes(row["sizes"])] = float(row["exact"])
    return found


def read_exact_match(folder: str, recipe: str, sizes: str) -> list[float]:
    """Return a recipe's exact match on uniform problems of these sizes, for each seed."""
    rows = [row for row, _ in read_own_rule_scores(folder) if (row["recipe_name"], row["sizes"]) == (recipe, sizes)]
    return list({row["train_seed"]: float(row["exact"]) for row in rows}.values())


def parse_sizes(sizes: str) -> tuple[int, ...]:
    """Parse sizes written like 2x15."""
    return tuple(map(int, sizes.split("x")))


def find_training_sizes(lengths: dict, sizes: str) -> tuple[int, ...]:
    """Return the longest training sizes of a recipe with these lengths, on as many axes as ``sizes`` has."""
    top = lengths["top"] if "top" in lengths else max(lengths["sizes"])
    per_axis = lengths.get("max_per_axis") or lengths.get("most")  # the field's present and former name
    return tuple(min(top, short) for short in per_axis or [top] * len(sizes.split("x")))


def merge_equal_sizes(sizes: str) -> str:
    """Return one number for equal sizes (8x8 → 8), else the sizes."""
    each = set(sizes.split("x"))
    return sizes if len(each) > 1 else each.pop()


def format_median(values: list[float]) -> str:
    """Format the median over seeds, with the lowest and the highest if they differ."""
    low, high = min(values), max(values)
    spread = "" if low == high else f" ({format_share(low, 3)}–{format_share(high, 3)})"
    return f"{format_share(statistics.median(values), 3)}{spread}"


def format_range(values: set[int]) -> str:
    """Format a set of whole numbers: the only one, or the lowest and the highest."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def format_table(cells: Iterable[Iterable[str]]) -> str:
    """Return rows of cells as a Markdown table; the row below the heading must contain only dashes."""
    lines = [list(line) for line in cells]
    bars = ["|" if {*line} <= {"---", "---:"} else " | " for line in lines]
    return "".join(f"{bar.lstrip()}{bar.join(line)}{bar.rstrip()}\n" for bar, line in zip(bars, lines, strict=True))
