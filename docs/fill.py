"""Fill what the pages quote — code and figures — from where it stands: `make docs`. Nothing is copied by hand.

<!-- fill: code examples/own_task.py -->      a file of the repository
<!-- fill: table results/pairs uniform -->    exact match from a study's scores.csv, on one of its sets of problems
<!-- fill: table results/… uniform 10 20 -->  the same of some of the sizes
<!-- fill: table results/… uniform 10 RECIPE … -->  and of some of the recipes, in this order
<!-- fill: time results/pairs -->             its runs' parameters and training times, from runs.json
<!-- fill: summary results/looped/parity -->  a panel's summary.csv: ours beside what has been published
<!-- fill: card results/… results/… -->      score cards: how far each recipe carries, how surely, at what cost
<!-- fill: map results/abacus/addition 20 40 -->  exact match over all pairs of sizes up to each of these: mean, worst
<!-- fill: kept results/abacus/splits 6 12 --> the mean of such a map after each number of loops that was asked for
<!-- fill: families addition parity -->      what families of structured problems tasks have
<!-- fill: loops results/…/stopping-….json --> exact match some loops before and after the planned one, and by each rule
<!-- fill: chosen lengthwise/weights -->      what was looked at while the recipes of shipped weights were chosen
<!-- fill: claims docs/claims.toml -->        what the sources claim, beside what was measured here
<!-- fill: stops results/looped -->           exact match where each rule stops, recipe by recipe
<!-- fill: rules results/halting-parity … --> what rules that are not told T(n) lose, recipe by recipe
<!-- fill: grid results/looped/parity … -->   every method on every task, each task's rows in a folder
<!-- fill: arms results/controls/parity … --> loop, window, both, neither on every task, each task's rows in a folder
<!-- fill: command results/looped/parity --> how a folder's figures were made, from results/README.md
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from lengthwise import catalog
from lengthwise.base import fields, listing
from lengthwise.base.rng import stream
from lengthwise.base.score_rows import Row, latest, size_text
from lengthwise.recipes.looped import METHODS, Scale, variation
from lengthwise.report import not_fitted
from lengthwise.report.card import card_cells
from lengthwise.report.publish import run_of
from lengthwise.report.published import published
from lengthwise.run import load
from lengthwise.studies.looped import TESTED, tested_at
from lengthwise.tasks import Task

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "results" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SPOT = re.compile(r"(<!-- fill: (\w+) ([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with every spot filled anew."""
    return SPOT.sub(lambda spot: spot[1] + FILLERS[spot[2]](*spot[3].split()) + spot[4], text)


def unfitted(folder: str) -> dict[str, str]:
    """What is said of recipes that have not learned their training length, by their names."""
    shares: dict[str, list[float]] = defaultdict(list)
    tops = {}
    for row, recipe in _own(folder):
        if _numbers(row["sizes"]) == _trained_to(recipe["lengths"], row["sizes"]):
            shares[row["recipe_name"]].append(float(row["exact"]))
            tops[row["recipe_name"]] = recipe["lengths"]["top"]
    said = {name: not_fitted(statistics.fmean(found), tops[name]) for name, found in shares.items()}
    return {name: f" ({text})" for name, text in said.items() if text}


def _own(folder: str, problems: str = "uniform") -> Iterator[tuple[Row, dict]]:
    """Scores on a set of problems where a recipe's own rule stops, each with the recipe."""
    recipes = _recipes(folder)
    for row in _rows(folder):
        recipe = recipes[row["recipe_name"]]
        if row["problems"] == problems and row["stopping"].partition("(")[0] == recipe["stopping"]["kind"]:
            yield row, recipe


def _recipes(folder: str) -> dict[str, dict]:
    return {run["recipe_name"]: run["recipe"] for run in json.loads((ROOT / folder / "runs.json").read_text())}


def _rows(folder: str) -> Iterator[Row]:
    """The scores of a folder; of what was measured more than once, the one that counts."""
    for run in published(ROOT / folder):
        yield from (run_of(run) | row | {"sizes": size_text(row["sizes"])} for row in latest(run.rows("scores")))


def _maps(folder: str) -> dict[tuple[str, str, str], dict[tuple[int, ...], float]]:
    """Exact match of uniform problems by their sizes, of each recipe, rule and seed."""
    found: dict[tuple[str, str, str], dict[tuple[int, ...], float]] = defaultdict(dict)
    for row in _rows(folder):
        if row["problems"] == "uniform":
            of_seed = found[row["recipe_name"], row["stopping"], row["train_seed"]]
            of_seed[_numbers(row["sizes"])] = float(row["exact"])
    return found


def _numbers(sizes: str) -> tuple[int, ...]:
    return tuple(map(int, sizes.split("x")))


def _trained_to(lengths: dict, sizes: str) -> tuple[int, ...]:
    most = lengths.get("most") or [lengths["top"]] * len(sizes.split("x"))
    return tuple(min(lengths["top"], short) for short in most)


def code(name: str) -> str:
    """A file, as a block of Python."""
    return f"```python\n{(ROOT / name).read_text()}```\n"


def table(folder: str, problems: str, *only: str) -> str:
    """Median over seeds of what a recipe's own rule has, worst and best beside it. A size on two axes alike
    is named by its number. ``only``: sizes, which are numbers, and names of recipes."""
    names = [word for word in only if not word[0].isdigit()]
    wanted = set(only) - set(names)
    shares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    counts = set()
    for row, _ in _own(folder, problems):
        size = _alike(row["sizes"])
        if (not names or row["recipe_name"] in names) and (not wanted or size in wanted):
            shares[row["recipe_name"]][size].append(float(row["exact"]))
            counts.add(int(row["count"]))
    sizes = sorted({size for by_size in shares.values() for size in by_size}, key=lambda size: int(size.split("x")[0]))
    lines = [["", *sizes], ["---", *("---:" for _ in sizes)]]
    unfit = unfitted(folder)
    for name in names or shares:
        by_size = shares[name]
        lines.append(
            [f"`{name}`{unfit.get(name, '')}", *(_spread(by_size[size]) if size in by_size else "" for size in sizes)]
        )
    seeds = {len(values) for by_size in shares.values() for values in by_size.values() if values}
    many = f"Median of {_range(seeds)} seeds (worst–best)" if seeds != {1} else "One seed"
    note = f"{many}, {_range(counts)} fresh problems per length and seed.\n"
    return f"{_lines(lines)}\n{note}"


def _alike(sizes: str) -> str:
    each = set(sizes.split("x"))
    return sizes if len(each) > 1 else each.pop()


def _spread(values: list[float]) -> str:
    low, high = min(values), max(values)
    spread = "" if low == high else f" ({low:.3f}–{high:.3f})"
    return f"{statistics.median(values):.3f}{spread}"


def _range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def summary(folder: str) -> str:
    """Mean over seeds ± standard error, how many seeds solve it, and what has been published."""
    lines = ["| | stopping | at | exact match | seeds ≥ 0.99 | |\n| --- | --- | ---: | ---: | ---: | --- |\n"]
    unfit = unfitted(folder)
    with (ROOT / folder / "summary.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["published"]:
                lines.append(f"| *{row['who']}* | | {row['size']} | {row['published']} | | *{row['standing']}* |\n")
                continue
            error = f" ± {float(row['error']):.3f}" if row["error"] else ""
            exact = f"{float(row['exact']):.3f}{error}"
            kind = "" if row.get("problems", "uniform") == "uniform" else f"{row['problems']} "
            solved, note = f"{row['solved']} of {row['seeds']}", f"{int(row['count']):,} {kind}problems per seed"
            who = f"`{row['who']}`{unfit.get(row['who'], '')}"
            lines.append(f"| {who} | {row['stopping']} | {row['size']} | {exact} | {solved} | {note} |\n")
    return "".join(lines)


def squares(folder: str, *tops: str) -> str:
    """A map in numbers: the mean over all pairs of sizes up to each of these, and the worst cell. Diagonals that were
    measured beyond the map stand for themselves."""
    lines = ["| | stopping | digits | cells | mean | worst cell |\n| --- | --- | ---: | ---: | ---: | --- |\n"]
    for (name, stopping, _), found in _maps(folder).items():
        for top in map(int, tops):
            inside = {sizes: share for sizes, share in found.items() if max(sizes) <= top}
            if len(inside) != top * top:
                inside = {sizes: share for sizes, share in found.items() if sizes == (top, top)}
            if not inside:
                continue
            worst = min(inside, key=lambda sizes: inside[sizes])
            square = f"1–{top} × 1–{top}" if len(inside) > 1 else f"{top} × {top}"
            mean = statistics.fmean(inside.values())
            where = f"{inside[worst]:.2f} at {worst[0]} × {worst[1]}"
            lines.append(f"| `{name}` | {stopping} | {square} | {len(inside):,} | {mean:.4f} | {where} |\n")
    return "".join(lines)


def kept(folder: str, *tops: str) -> str:
    """How much of a map is kept when loops stop elsewhere: its mean over all pairs of sizes up to each of these, after
    the planned number of loops and after each other that was asked for."""
    maps = _maps(folder)
    names, rules = (list(dict.fromkeys(key[part] for key in maps)) for part in (0, 1))
    shown = ["planned", *(re.sub(r"After\(loops=(\d+)\)", r"\1", rule) for rule in rules[1:])]
    lines = [["", "digits", *shown], ["---", "---:", *("---:" for _ in shown)]]
    for name in names:
        for top in map(int, tops):
            means: dict[str, list[float]] = defaultdict(list)
            for (recipe, rule, _), found in maps.items():
                if recipe == name:
                    means[rule].append(statistics.fmean(exact for at, exact in found.items() if max(at) <= top))
            spreads = [_spread(means[rule]) if rule in means else "" for rule in rules]
            lines.append([f"`{name}`", f"1–{top} × 1–{top}", *spreads])
    return _lines(lines)


def loops(name: str) -> str:
    """Where the answer is right, among loops: exact match around T(n), and by each stopping rule."""
    shown = {"T−1": -1, "T": 0, "T+1": 1, "T+5": 5, "T+20": 20}
    heading = ["length", "T(n)", *(f"after {text}" for text in shown), "most confident, per example", "per batch"]
    lines = [heading, ["---:"] * len(heading)]
    rows = json.loads((ROOT / name).read_text())
    for row in rows:
        planned = row["planned"]
        around = [row["exact"][planned - 1 + more] for more in shown.values()]
        rules = [row["chosen"][rule] for rule in ("example", "batch")]
        stops = [f"{rule['exact']:.3f} (after {rule['mean']:.1f} loops)" for rule in rules]
        size = size_text(row["sizes"])
        lines.append([size, str(planned), *(f"{share:.3f}" for share in around), *stops])
    return f"{_lines(lines)}\n{rows[0]['count']} fresh problems per length.\n"


def stops(folder: str) -> str:
    """Exact match where each rule stops, of all recipes whose loops were looked at."""
    rules = {"oracle": "T(n) known", "batch": "published: one loop per batch", "example": "per example"}
    rows = {path: json.loads(path.read_text()) for path in sorted((ROOT / folder).rglob("stopping-*.json"))}
    if any("own" in row["chosen"] for found in rows.values() for row in found):
        rules["own"] = "its own rule"
    lines = [["recipe", "length", *rules.values()], ["---", "---:", *["---:"] * len(rules)]]
    for path, found in rows.items():
        for row in found:
            shares = [f"{row['chosen'][rule]['exact']:.3f}" if rule in row["chosen"] else "" for rule in rules]
            lines.append([f"`{path.stem.removeprefix('stopping-')}`", size_text(row["sizes"]), *shares])
    return _lines(lines)


def rules(*folders: str) -> str:
    """What recipes' own rules, which are not told T(n), have and lose, over all seeds, up to twice the training length.

    A rule that stops after T(n) loops has what the oracle has; where it does not and the oracle was not measured, it
    loses no more than what it lacks.
    """
    lines = [["recipe", "its own rule", "at", "seeds", "uniform", "the worst family", "loses at most"]]
    lines.append(["---", "---", "---:", "---:", "---:", "---:", "---:"])
    for folder in folders:
        for (recipe, rule, sizes), rows in sorted(_stopped(folder).items(), key=lambda item: _numbers(item[0][2])):
            uniform = [row for row in rows if row["problems"] == "uniform"]
            low = min((row for row in rows if row["problems"] != "uniform"), key=lambda row: row["exact"], default=None)
            seeds = len({row["train_seed"] for row in rows})
            named = f"{low['exact']:.2f} (`{low['problems']}`)" if low else "–"
            lost = max(row["lost"] for row in rows)
            spread = _spread([row["exact"] for row in uniform])
            lines.append([f"`{recipe}`", f"`{rule}`", _alike(sizes), str(seeds), spread, named, f"{lost:.3f}"])
    return _lines(lines)


def _stopped(folder: str) -> dict[tuple[str, str, str], list[Row]]:
    """Rows of recipes' own rules by recipe, rule and sizes, each with what it loses at most against T(n) known."""
    recipes = _recipes(folder)
    own: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    oracle = {}
    for row in _rows(folder):
        at, top = _numbers(row["sizes"]), _trained_to(recipes[row["recipe_name"]]["lengths"], row["sizes"])
        if row["stopping"] == "Oracle":
            oracle[row["recipe_name"], row["train_seed"], row["sizes"], row["problems"]] = float(row["exact"])
        elif all(low <= size for low, size in zip(top, at, strict=True)) and max(at) <= 2 * max(top):
            own[row["recipe_name"], row["stopping"], row["sizes"]].append(row | {"exact": float(row["exact"])})
    for (name, _, sizes), rows in own.items():
        task = fields.decode(Task, recipes[name]["task"], "task")
        rounds = int(task.sample(torch.tensor([_numbers(sizes)]), stream(0, "page")).rounds)
        for row in rows:
            known = oracle.get((name, row["train_seed"], sizes, row["problems"]))
            as_known = row["exact"] if float(row["loops"]) == rounds else 1.0
            row["lost"] = max(0.0, (as_known if known is None else known) - row["exact"])
    return own


def time(folder: str) -> str:
    """What the runs cost, from runs.json."""
    runs = json.loads((ROOT / folder / "runs.json").read_text())
    by_name = defaultdict(list)
    for run in runs:
        by_name[run["recipe_name"]].append(run)
    lines = ["| recipe | parameters | steps | processor time, median | commit |\n| --- | ---: | ---: | ---: | --- |\n"]
    for name, group in by_name.items():
        seconds = statistics.median(run["cpu_s"] for run in group)
        commits = ", ".join(sorted({run["commit"] for run in group}))
        first = group[0]
        lines.append(f"| `{name}` | {first['parameters']:,} | {first['steps']:,} | {seconds:.0f} s | {commits} |\n")
    return "".join(lines)


def command(folder: str) -> str:
    """How a folder's figures were made: what results/README.md says of it, or of the folder that it is in."""
    told = {}
    for names, how in re.findall(
        r"^\| (`[^|]*`) \| (.*) \|$", (ROOT / "results" / "README.md").read_text(), re.MULTILINE
    ):
        told |= dict.fromkeys(re.findall("`(.*?)`", names), how)
    inside = Path(folder).relative_to("results")
    how = next((told[str(one)] for one in (inside, *inside.parents) if str(one) in told), None)
    if how is None:
        raise SystemExit(f"results/README.md does not say how {folder} was made")
    return f"Made by: {how}\n"


def card(*folders: str) -> str:
    """The score cards of several folders, one below the other."""
    lines = ["| recipe | trained to | chosen on | longest, per seed | of uniform ones | worst family "]
    lines[0] += "| seeds beyond | parameters | operations | CPU min |\n"
    lines.append("| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |\n")
    for folder in folders:
        unfit = unfitted(folder)
        for row in json.loads((ROOT / folder / "card.json").read_text()):
            _, *cells = card_cells(row)
            lines.append(f"| `{row['recipe']}`{unfit.get(row['recipe'], '')} | {' | '.join(cells)} |\n")
    return "".join(lines)


def families(*tasks: str) -> str:
    """A table for each task: its families, and a problem of each."""
    parts = []
    for name in tasks:
        task = catalog.task(name)
        lines = [f"### `{name}`\n\n| family | what it is | for example |\n| --- | --- | --- |\n"]
        for family in task.families:
            drawn = family.sample(torch.tensor([[5] * len(task.axes)]), stream(0, "page", family.name))
            shown = task.typed(drawn.prompt[0, : int(drawn.prompt_length)]).replace("|", "\\|")
            lines.append(f"| `{family.name}` | {family.about} | `{shown}` |\n")
        parts.append("".join(lines))
    return "\n".join(parts)


def chosen(folder: str) -> str:
    """By shipped weights, what may have chosen their recipe: scores there are no surprise."""
    rows = ["| weights | trained to | lengths looked at | of problems |", "| --- | ---: | --- | --- |"]
    for weights in sorted(path.name for path in (ROOT / folder).iterdir()):
        recipe = load(weights).recipe
        sizes = ", ".join(map(str, recipe.looked_at)) or "validation loss only"
        rows.append(f"| `{weights}` | {recipe.lengths.top} | {sizes} | {', '.join(recipe.chosen_on.problems)} |")
    return "\n".join(rows) + "\n"


def claims(name: str) -> str:
    """Each claim of the sources, with its figure here: the mean over seeds, and what it says of the claim."""
    lines = [["source", "claim", "recipe", "at", "here", "seeds", "verdict"]]
    lines.append(["---", "---", "---", "---:", "---:", "---:", "---"])
    for claim in tomllib.loads((ROOT / name).read_text())["claim"]:
        shares = _figures(claim, claim["recipe"])
        others = {other: _figures(claim, other) for other in claim["agrees"].split()[1:] if other[0].isalpha()}
        here = f"{statistics.fmean(shares):.3f}" if shares else "–"
        if others:
            here += f" against {', '.join(f'{statistics.fmean(found):.3f}' for found in others.values())}"
        at = claim["sizes"].replace("-", "–").replace("x", " × ") + (f", {claim['stop']}" if "stop" in claim else "")
        verdict = _compared(claim, shares, others) if others else _verdict(claim, shares)
        lines.append([claim["source"], claim["says"], f"`{claim['recipe']}`", at, here, str(len(shares)), verdict])
    return _lines(lines)


def _figures(claim: dict[str, str], recipe: str) -> list[float]:
    """Exact match of each seed where a claim is about it: at a size, over a map of them; where it is to stop."""
    folder, sizes, stop = claim["folder"], claim["sizes"], claim.get("stop", "")
    if "-" in sizes:
        rule, top = re.sub(r"(\d+) loops?", r"After(loops=\1)", stop) or "Oracle", int(sizes.rpartition("-")[2])
        maps = [found for key, found in _maps(folder).items() if key[:2] == (recipe, rule)]
        return [statistics.fmean(exact for at, exact in found.items() if max(at) <= top) for found in maps]
    if not stop:
        return _measured(folder, recipe, sizes)
    rows = json.loads((ROOT / folder / f"stopping-{recipe}.json").read_text())
    (row,) = (row for row in rows if size_text(row["sizes"]) == sizes)
    if stop == "per batch":
        return [row["chosen"]["batch"]["exact"]]
    return [row["exact"][row["planned"] - 1 + int(stop.removeprefix("T(n)").replace(" ", ""))]]


def grid(*folders: str) -> str:
    """Every method on every task (Fan et al. 2025) at the length that the task is tested at: the mean over seeds. The
    folders are those of ``TESTED``, in its order; of ``looped-half``, those on half the range. One that is not there
    yet is not measured."""
    scale: Scale = "half" if "looped-half" in folders[0] else "cpu"
    columns = [["", "---", *(f"`{method}`" for method in METHODS)]]
    count = 0
    for task, folder in zip(TESTED, folders, strict=True):
        known = (ROOT / folder).exists()
        sizes = size_text(variation(task, "fop", scale).sizes(tested_at(task, scale)))
        unfit = unfitted(folder) if known else {}
        columns.append([f"{task} at {sizes.replace('x', ' × ')}", "---:"])
        for name in (variation(task, method, scale).name for method in METHODS):
            shares = _measured(folder, name, sizes) if known else []
            seeds = f" ({len(shares)} seeds)" if len(shares) > 1 else ""
            columns[-1].append(f"{statistics.fmean(shares):.3f}{' †' * (name in unfit)}{seeds}" if shares else "–")
            count += bool(shares)
    note = f"{count} of {len(METHODS) * len(TESTED)} are measured. † not fitted: below 0.99 at its own training length."
    return f"{_lines(zip(*columns, strict=True))}\n{note}\n"


def arms(*folders: str) -> str:
    """Loop, window, both or neither at the training length and at twice that: uniform problems, and each seed's worst
    family. The folders are named as their tasks."""
    names = ("both", "window", "loops", "neither")
    lines = [["", "problems", *names], ["---", "---", *("---:" for _ in names)]]
    seeds = set()
    for folder in folders:
        task, unfit = Path(folder).name, unfitted(folder)
        recipe, shares_of = catalog.recipe(f"control-{task}-both"), _by_seed(folder)
        for size in (recipe.lengths.top, 2 * recipe.lengths.top):
            sizes = size_text(recipe.sizes(size))
            rows: tuple[list[str], list[str]] = ([], [])
            for name in (f"control-{task}-{arm}" for arm in names):
                of_seeds = shares_of[name, sizes]
                seeds.add(len(of_seeds))
                for cells, shares in zip(rows, zip(*of_seeds, strict=True), strict=True):
                    cells.append(_spread(list(shares)) + " †" * (name in unfit))
            where = f"{task.replace('-', ' ')} at {sizes.replace('x', ' × ')}"
            lines += [[where, "uniform", *rows[0]], ["", "worst family", *rows[1]]]
    note = f"Median of {_range(seeds)} seeds (worst–best). † not fitted: below 0.99 at its own training length."
    return f"{_lines(lines)}\n{note}\n"


def _by_seed(folder: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """By recipe and size, exact match of each seed: uniform problems, and the lowest of the families."""
    found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for row in _rows(folder):
        found[row["recipe_name"], row["sizes"], row["train_seed"]][row["problems"]] = float(row["exact"])
    shares: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for (recipe, sizes, _), of_kinds in found.items():
        families = [share for kind, share in of_kinds.items() if kind != "uniform"]
        if "uniform" in of_kinds and families:
            shares[recipe, sizes].append((of_kinds["uniform"], min(families)))
    return shares


def _lines(cells: Iterable[Iterable[str]]) -> str:
    """The lines of a table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _measured(folder: str, recipe: str, sizes: str) -> list[float]:
    """Exact match of each seed."""
    rows = [row for row, _ in _own(folder) if (row["recipe_name"], row["sizes"]) == (recipe, sizes)]
    return list({row["train_seed"]: float(row["exact"]) for row in rows}.values())


def _verdict(claim: dict[str, str], shares: list[float]) -> str:
    """A claim that a model succeeds is not contradicted by one that did not learn to the end, nor is one that it fails
    confirmed by it; seeds on both sides of its bound do not decide it, and one seed decides nothing."""
    if not shares:
        return "not measured"
    sign, bound = claim["agrees"].split()

    def reaches(share: float) -> bool:
        return share >= float(bound) if sign == ">=" else share <= float(bound)

    holds, agreeing = reaches(statistics.fmean(shares)), sum(map(reaches, shares))
    unfit = unfitted(claim["folder"]).get(claim["recipe"], "")
    if unfit and holds == (sign == "<="):
        return f"undecided{unfit}"
    if 0 < agreeing < len(shares):
        return f"undecided ({agreeing} of {len(shares)} seeds agree)"
    return ("agrees" if holds else "disagrees") + (", one seed" if len(shares) == 1 else "")


def _compared(claim: dict[str, str], shares: list[float], others: dict[str, list[float]]) -> str:
    """One recipe is better than others where its worst seed is better than the best seed of each."""
    if any(min(found) > max(shares) for found in others.values()):
        return "disagrees"
    if min(shares) <= max(max(found) for found in others.values()):
        return "undecided (seeds overlap)"
    compared, unfit = (claim["recipe"], *others), unfitted(claim["folder"])
    missing = sum(name in unfit for name in compared)
    return "agrees" + (f" ({missing} of the {len(compared)} not fitted)" if missing else "")


FILLERS = {
    "arms": arms,
    "card": card,
    "chosen": chosen,
    "claims": claims,
    "command": command,
    "code": code,
    "families": families,
    "grid": grid,
    "kept": kept,
    "loops": loops,
    "map": squares,
    "rules": rules,
    "stops": stops,
    "summary": summary,
    "table": table,
    "time": time,
}


def main() -> None:
    """Fill every page in place."""
    for page in PAGES:
        text = page.read_text()
        if (new := filled(text)) != text:
            page.write_text(new)
            print(f"filled {page.relative_to(ROOT)}", file=sys.stderr)
    listing.MEMBERS.write_text(members())


def members() -> str:
    """The names of all families' recipes, for `lengthwise list`, which cannot wait for the recipes to be built."""
    return json.dumps({"files": listing.fingerprints(), "families": catalog.members()}, indent=1) + "\n"


if __name__ == "__main__":
    main()
