"""Fill in sizes that recipes were chosen on, scores of weights, commands of figures, costs and code."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from fillers.results import ROOT, describe_unfitted

from lengthwise.base.results import select_worst_families
from lengthwise.base.score_rows import Row, format_share, format_size, select_reported_rows, select_uniform_rows
from lengthwise.experiment.recipe import Recipe
from lengthwise.report.card import format_card_cells
from lengthwise.runs.folder import SHIPPED_FOLDER, RunFolder, list_shipped_weights
from lengthwise.runs.run import Run, load

MAX_SHOWN_WORDS = 20  # the largest number of words of a command that a page shows in full
USUAL_ATTACK_OPTIONS = "--lengths 10,20 --seconds 600"  # options of most attacks, which the page states once


def format_code_block(path: str) -> str:
    """Return the text of a file as a Markdown block of Python."""
    return f"```python\n{(ROOT / path).read_text()}```\n"


def format_command(folder: str) -> str:
    """Write how a folder's figures were made, as described in results/README.md: a short description in full, or the
    first command of a long description with a link."""
    accounts = {}
    readme = (ROOT / "results" / "README.md").read_text()
    for names, how in re.findall(r"^\| (`[^|]*`) \| (.*) \|$", readme, re.MULTILINE):
        accounts |= dict.fromkeys(re.findall("`(.*?)`", names), how)
    inside = Path(folder).relative_to("results")
    how = next((accounts[str(one)] for one in (inside, *inside.parents) if str(one) in accounts), None)
    if how is None:
        raise SystemExit(f"results/README.md has no row for {folder}: add the commands that made it")
    if len(how.split()) > MAX_SHOWN_WORDS and (first := re.search("`(lengthwise [^`]*)`", how)):
        words = first[1].split()
        shown = first[1] if len(words) <= MAX_SHOWN_WORDS else f"{' '.join(words[:2])} …"
        how = f"`{shown}`; [in full](../results/README.md)"
    return f"Made by: {how}\n"


def format_cost_table(folder: str) -> str:
    """Write the number of training runs and the processor hours of each study in a results folder, then those of
    shipped weights that belong to no study."""
    found: dict[str, list[float]] = defaultdict(list)
    published = set()
    for page in sorted((ROOT / folder).rglob("runs.json")):
        study = page.relative_to(ROOT / folder).parts[0]
        for run in json.loads(page.read_text()):
            published.add(run["id"])
            found[study].append(run["cpu_s"] / 3600)
    shipped = (Run.open(SHIPPED_FOLDER / name) for name in list_shipped_weights())
    others = [run for run in shipped if run.recipe.id not in published]
    found["weights"] = [run.about()["cpu_s"] / 3600 for run in others]
    every = [hours for each in found.values() for hours in each]
    lines = ["| results | training runs | processor hours |\n|---|---:|---:|\n"]
    for study, hours in [*((f"`{study}`", hours) for study, hours in found.items()), ("in all", every)]:
        lines.append(f"| {study} | {len(hours)} | {sum(hours):.1f} |\n")
    return "".join(lines)


def format_selection_sizes(folder: str) -> str:
    """Write a table of the sizes and problem sets on which the recipes of shipped weights were chosen."""
    rows = ["| weights | trained to | lengths looked at | problem sets |", "|---|---:|---|---|"]
    for weights in sorted(path.name for path in (ROOT / folder).iterdir()):
        recipe = load(weights).recipe
        sizes = ", ".join(map(str, recipe.examined_sizes)) or "validation loss only"
        rows.append(f"| `{weights}` | {format_size(recipe.tops)} | {sizes} | {', '.join(recipe.chosen_on.problems)} |")
    return "\n".join(rows) + "\n"


def format_shipped_scores(folder: str) -> str:
    """Write scores of shipped weights on uniform problems and the lowest family, and the result of the longest attack.
    The scores are at the training length, and at the longest measured lengths up to 1.5 times and up to twice as
    long."""
    searches = json.loads((ROOT / "lengthwise/viewer/failures.json").read_text())
    rows = ["| weights | at the training length | up to 1.5 times | up to twice | wrong in attack |"]
    rows.append("|---|---|---|---|---|")
    for path in sorted((ROOT / folder).iterdir()):
        recipe = load(path.name).recipe
        own = [
            row
            for row in select_reported_rows(RunFolder(path).rows("scores"))
            if row["stopping"] == recipe.stopping.name
        ]
        cells = [_format_longest(own, recipe, below, up_to) for below, up_to in pairwise((0.0, 1.0, 1.5, 2.0))]
        search = searches.get(path.name)
        found = f"{search['failed']:,} of {search['tries']:,}" if search else "–"
        found += f" (`{search['options']}`)" if search and search["options"] != USUAL_ATTACK_OPTIONS else ""
        rows.append(f"| `{path.name}` | {' | '.join(cells)} | {found} |")
    return "\n".join(rows) + "\n"


def _format_longest(rows: list[Row], recipe: Recipe, min_multiple: float, max_multiple: float) -> str:
    """Format scores at the longest measured length above ``min_multiple`` and up to ``max_multiple`` times the training
    length."""
    top = recipe.lengths.top
    line = (recipe.sizes(size) for size in range(int(max_multiple * top), int(min_multiple * top), -1))
    uniform = select_uniform_rows(rows)
    sizes = next((size for size in line if size in uniform), None)
    if sizes is None:
        return "–"
    said = f"{format_size(sizes)}: {format_share(uniform[sizes]['exact'], 3)}"
    if not (lowest := select_worst_families(row for row in rows if tuple(row["sizes"]) == sizes)):
        return said
    (low,) = lowest
    return f"{said}" + (" ✓" if low["exact"] == 1 else f", {low['problems']} {format_share(low['exact'])}")


def format_run_costs(folder: str) -> str:
    """Write the cost of a folder's runs, from runs.json."""
    runs = json.loads((ROOT / folder / "runs.json").read_text())
    by_name = defaultdict(list)
    for run in runs:
        by_name[run["recipe_name"]].append(run)
    lines = ["| recipe | parameters | steps | processor time, median | commit |\n|---|---:|---:|---:|---|\n"]
    for name, group in by_name.items():
        seconds = statistics.median(run["cpu_s"] for run in group)
        commits = ", ".join(sorted({run["commit"] for run in group}))
        first = group[0]
        lines.append(f"| `{name}` | {first['parameters']:,} | {first['steps']:,} | {seconds:.0f} s | {commits} |\n")
    return "".join(lines)


def format_score_cards(*folders: str) -> str:
    """Return the score cards of several folders as one table."""
    lines = ["| recipe | trained to | chosen on | longest, per seed | longest, uniform | worst family "]
    lines[0] += "| seeds beyond | parameters | operations | CPU min |\n"
    lines.append("|---|---:|---:|---:|---:|---|---:|---:|---:|---:|\n")
    for folder in folders:
        unfit = describe_unfitted(folder)
        for row in json.loads((ROOT / folder / "card.json").read_text()):
            _, *cells = format_card_cells(row).values()
            lines.append(f"| `{row['recipe']}`{unfit.get(row['recipe'], '')} | {' | '.join(cells)} |\n")
    return "".join(lines)
