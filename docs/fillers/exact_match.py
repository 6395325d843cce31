"""Fill in tables of exact match: by length, over maps, over methods and controls."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from itertools import product
from pathlib import Path

from fillers.results import (
    ROOT,
    describe_problems,
    describe_unfitted,
    format_median,
    format_range,
    format_table,
    merge_equal_sizes,
    parse_sizes,
    read_exact_match,
    read_maps,
    read_own_rule_scores,
    read_runs,
    read_scores,
)

from lengthwise.api import catalog
from lengthwise.base.results import MATRIX_LENGTH_FACTORS
from lengthwise.base.score_rows import Row, format_scaled, format_share, format_size
from lengthwise.recipes.looped import METHODS, Scale, build_variation
from lengthwise.report.matrix import SCORE_KEYS, build_matrix_rows, format_cell_foot
from lengthwise.studies.looped import TEST_LENGTHS, scale_test_length

UNFITTED_NOTE = " † not fitted: below .99 at training length."


def format_accuracy_table(folder: str, problem_sets: str, *sizes_and_recipes: str) -> str:
    """Write a table of exact match by each recipe's own stopping rule: the median over seeds (worst–best). Equal sizes
    on two axes are written as one number. ``folder`` is one folder, or several joined by +; ``problem_sets`` is one
    name, or several joined by commas. If ``sizes_and_recipes`` are given, only these are shown."""
    names = [word for word in sizes_and_recipes if not word[0].isdigit()]
    wanted = set(sizes_and_recipes) - set(names)
    folders, kinds = folder.split("+"), problem_sets.split(",")
    shares: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    counts = set()
    for one, kind in product(folders, kinds):
        for row, _ in read_own_rule_scores(one, kind):
            size = merge_equal_sizes(row["sizes"])
            if (not names or row["recipe_name"] in names) and (not wanted or size in wanted):
                shares[row["recipe_name"], kind][size].append(float(row["exact"]))
                counts.add(int(row["count"]))
    sizes = sorted({size for by_size in shares.values() for size in by_size}, key=parse_sizes)
    lines = [["", *sizes], ["---", *("---:" for _ in sizes)]]
    unfit = {name for one in folders for name in describe_unfitted(one)}
    for name, kind in [(name, kind) for name in names for kind in kinds] or shares:
        by_size = shares[name, kind]
        label = f"`{name}`" + f", {kind}" * (len(kinds) > 1) + " †" * (name in unfit)
        lines.append([label, *(format_median(by_size[size]) if size in by_size else "" for size in sizes)])
    seeds = {len(values) for by_size in shares.values() for values in by_size.values() if values}
    many = f"Median (worst–best) of {format_range(seeds)} seeds" if seeds != {1} else "One seed"
    note = f"{many}, {describe_problems(folders[0], format_range(counts))} per length."
    note += UNFITTED_NOTE * any(name in unfit for name, _ in shares)
    return f"{format_table(lines)}\n{note}\n"


def format_rule_table(folder: str, size: str, *problems: str) -> str:
    """Write a table of one recipe's exact match at a size, and of the mean number of loops that ran. It has a row for
    each stopping rule and a column for each set of problems."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read_scores(folder):
        if row["sizes"] == size and row["problems"] in problems:
            loops = row.get("ran") or row["loops"]
            cells[row["stopping"]][row["problems"]] = f"{format_share(row['exact'], 3)} ({loops:.0f})"
    lines = [["exact match (loops)", *problems], ["---", *("---:" for _ in problems)]]
    lines += [[f"`{rule}`", *(of_rule[kind] for kind in problems)] for rule, of_rule in cells.items()]
    return format_table(lines)


def format_map_table(*folders_and_sizes: str) -> str:
    """Summarize maps: the mean over all pairs of sizes up to a size (40) or in a range (21-40), and the worst cell. A
    diagonal cell measured beyond the map gets its own row. In the arguments, each folder is followed by its sizes. All
    maps of a folder have one stopping rule."""
    ranges: dict[str, list[str]] = {}
    for word in folders_and_sizes:
        if word[0].isdigit():
            ranges[next(reversed(ranges))].append(word)
        else:
            ranges[word] = []
    lines = [["", "digits", "cells", "mean", "worst cell"], ["---", "---:", "---:", "---:", "---"]]
    maps = ((wanted, *item) for one, wanted in ranges.items() for item in read_maps(one).items())
    for wanted, (name, _, _), found in maps:
        for low, high in map(_parse_range, wanted):
            inside = {sizes: share for sizes, share in found.items() if low <= min(sizes) and max(sizes) <= high}
            if len(inside) != (high - low + 1) ** 2:
                inside = {sizes: share for sizes, share in found.items() if sizes == (high, high)}
            if not inside:
                continue
            worst = min(inside, key=lambda sizes: inside[sizes])
            square = f"{low}–{high} × {low}–{high}" if len(inside) > 1 else f"{high} × {high}"
            mean = statistics.fmean(inside.values())
            where = f"{format_share(inside[worst])} at {worst[0]} × {worst[1]}"
            lines.append([f"`{name}`", square, f"{len(inside):,}", format_share(mean, 4), where])
    return format_table(lines)


def _parse_range(size_range: str) -> tuple[int, int]:
    """Parse a range of a map's sizes, such as 21-40; 40 stands for 1-40."""
    low, _, high = size_range.rpartition("-")
    return int(low or 1), int(high)


def format_loop_count_table(folder: str, *words: str) -> str:
    """Write the means of a folder's maps after the planned number of loops and after each other measured number. A mean
    is over all pairs of sizes up to a size (40) or in a range (21-40). ``words`` are sizes and, to show only some
    numbers of loops, ``loops=1,32``."""
    ranges = [_parse_range(word) for word in words if word[0].isdigit()]
    wanted = {count for word in words if not word[0].isdigit() for count in word.removeprefix("loops=").split(",")}
    maps = read_maps(folder)
    names, rules = (list(dict.fromkeys(key[part] for key in maps)) for part in (0, 1))
    shown = ["planned", *(re.sub(r"After\(loops=(\d+)\)", r"\1", rule) for rule in rules[1:])]
    if wanted:
        pairs = [pair for pair in zip(rules, shown, strict=True) if pair[1] in {"planned", *wanted}]
        rules, shown = zip(*pairs, strict=True)
    several = len(ranges) > 1
    lines = [["", *["digits"] * several, *shown], ["---", *["---:"] * several, *("---:" for _ in shown)]]
    for name in names:
        for low, high in ranges:
            inside = {
                key: [exact for at, exact in found.items() if low <= min(at) and max(at) <= high]
                for key, found in maps.items()
                if key[0] == name
            }
            pairs, means = max(map(len, inside.values())), defaultdict[str, list[float]](list)
            for (_, rule, _), found in inside.items():
                if len(found) == pairs:  # a rule that was measured at fewer has no mean over the map
                    means[rule].append(statistics.fmean(found))
            spreads = [format_median(means[rule]) if rule in means else "" for rule in rules]
            lines.append([f"`{name}`", *[f"{low}–{high} × {low}–{high}"] * several, *spreads])
    return format_table(lines)


def format_method_table(*folders: str) -> str:
    """Write the mean exact match over seeds of every method on every task (Fan et al. 2025) at the task's test length.
    ``folders`` has one entry per task of ``TEST_LENGTHS``, in order: a folder, or several joined by ``+``. Models in
    ``looped-half`` are trained on half the range. A missing folder counts as not measured."""
    scale: Scale = "half" if "looped-half" in folders[0] else "cpu"
    columns = [["", "---", *(f"`{method}`" for method in METHODS)]]
    count = 0
    for task, together in zip(TEST_LENGTHS, folders, strict=True):
        known = [folder for folder in together.split("+") if (ROOT / folder).exists()]
        sizes = format_size(build_variation(task, "fop", scale).sizes(scale_test_length(task, scale)))
        unfit = {name for folder in known for name in describe_unfitted(folder)}
        cells, seeds = [], set()
        for name in (build_variation(task, method, scale).name for method in METHODS):
            shares = [share for folder in known for share in read_exact_match(folder, name, sizes)]
            cells.append(f"{format_share(statistics.fmean(shares), 3)}{' †' * (name in unfit)}" if shares else "–")
            seeds |= {len(shares)} - {0}
        count += len(cells) - cells.count("–")
        many = f", {format_range(seeds)} seeds" if seeds - {1} else ""
        columns.append([f"{task} at {sizes.replace('x', ' × ')}{many}", "---:", *cells])
    note = f"{count} of {len(METHODS) * len(TEST_LENGTHS)} cells are measured.{UNFITTED_NOTE}"
    return f"{format_table(zip(*columns, strict=True))}\n{note}\n"


def format_control_table(*folders: str) -> str:
    """Compare exact match of models with a loop, a window, both or neither, at the training length and at twice the
    training length, on uniform problems and on each seed's worst family. Each folder has the name of its task."""
    names = ("both", "window", "loops", "neither")
    lines = [["", "problems", *names], ["---", "---", *("---:" for _ in names)]]
    seeds = set()
    for folder in folders:
        task, unfit = Path(folder).name, describe_unfitted(folder)
        recipe, shares_of = catalog.find_recipe(f"control-{task}-both"), _read_seed_scores(folder)
        for size in (recipe.lengths.top, 2 * recipe.lengths.top):
            sizes = format_size(recipe.sizes(size))
            rows: tuple[list[str], list[str]] = ([], [])
            for name in (f"control-{task}-{arm}" for arm in names):
                of_seeds = shares_of[name, sizes]
                seeds.add(len(of_seeds))
                for cells, shares in zip(rows, zip(*of_seeds, strict=True), strict=True):
                    cells.append(format_median(list(shares)) + " †" * (name in unfit))
            where = f"{task.replace('-', ' ')} at {sizes.replace('x', ' × ')}"
            lines += [[where, "uniform", *rows[0]], ["", "worst family", *rows[1]]]
    note = f"Median of {format_range(seeds)} seeds (worst–best).{UNFITTED_NOTE}"
    return f"{format_table(lines)}\n{note}\n"


def _read_seed_scores(folder: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return, for each recipe and size, each seed's exact match on uniform problems and on its lowest family, measured
    with the recipe's own stopping rule."""
    found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for row, _ in read_own_rule_scores(folder, None):
        found[row["recipe_name"], row["sizes"], row["train_seed"]][row["problems"]] = float(row["exact"])
    shares: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for (recipe, sizes, _), of_kinds in found.items():
        families = [share for kind, share in of_kinds.items() if kind != "uniform"]
        if "uniform" in of_kinds and families:
            shares[recipe, sizes].append((of_kinds["uniform"], min(families)))
    return shares


def format_matrix(folder: str) -> str:
    """Write a row for every cell of a matrix: exact match on uniform problems and on the worst family at each multiple
    of the training length. The last columns include the lowest family and the scaled score at the largest multiple, the
    cost of training, and the published score."""
    cells: dict[tuple[str, str], dict[float, Row]] = defaultdict(dict)
    for row in build_matrix_rows(read_runs(folder)):
        cells[row["architecture"], row["task"]][row["times"]] = row
    measured = [(kind, times) for kind in SCORE_KEYS for times in MATRIX_LENGTH_FACTORS]
    heads = ["architecture", "task", *(f"{kind} ×{times:g}" for kind, times in measured)]
    heads += ["lowest family", f"scaled ×{MATRIX_LENGTH_FACTORS[-1]:g}", "fitted", "seeds", "CPU s", "published"]
    lines = [heads, ["---", "---", *("---:" for _ in measured), "---", "---:", "---", "---:", "---:", "---"]]
    for labels, rows in cells.items():
        last = rows[max(rows)]
        shares = [rows[times][kind] if times in rows else None for kind, times in measured]
        score, seconds = format_cell_foot(last)
        line = [*labels, *("" if share is None else format_share(share) for share in shares), last["family"]]
        line += [format_scaled(last["scaled"]), "yes" if last["fitted"] else "no", str(last["seeds"])]
        lines.append([*line, seconds.removesuffix(" s"), f"{score} ({last['paper']})" if score else ""])
    return format_table(lines) + "\n†: scaled so that guessing is 0; *: second-hand\n"
