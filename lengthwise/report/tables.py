"""Tables of scores for the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from lengthwise.base.errors import UsageError
from lengthwise.base.results import Claim
from lengthwise.base.score_rows import (
    SOLVED,
    Row,
    Sizes,
    format_interval,
    format_loops,
    format_scaled,
    format_share,
    format_size,
    group_by,
    group_family_rows,
    is_within_training_sizes,
    list_interval_notes,
    list_loop_notes,
    select_reported_rows,
    select_uniform_rows,
    select_worst_row,
)
from lengthwise.report import (
    TRAINED_MARK,
    WORST_FAMILY,
    Curve,
    Point,
    find_scores_at_training_length,
    format_training_warnings,
    name_curves,
)
from lengthwise.report.fitted_table import FittedTable

ROUNDING_TOLERANCE = 1e-9  # floating-point error of a fraction such as 0.07
MAX_NAMED_FAMILIES = 2  # number of families to name; others are only counted
MAX_BLOCKS_PER_SIDE = 8  # blocks per side of a map, so that it fits 80 characters
MAX_SIZE_COLUMNS = 7  # sizes in a table, so that it fits 80 characters with a name


def build_score_table(curves: Sequence[Curve]) -> Table:
    """Return a table of exact match, one row per curve and one column per size: the mean over seeds, with its band. If
    there are too many sizes, some are left out, first those not in ``Curve.diagonal``. Raises UsageError without
    curves."""
    if not curves:
        raise UsageError("there are no scores to tabulate: evaluate a run first")
    points = [{point.sizes: point for point in curve.points} for curve in curves]
    uniform = [row for curve, row in zip(curves, points, strict=True) if curve.problems != WORST_FAMILY]
    sizes = sorted(set().union(*(uniform or points)))
    # Values that all rows share go into the caption.
    row_headings = {
        "trained to": [format_size(curve.tops) if curve.top else "–" for curve in curves],
        "seeds": [_format_range({point.seed_count for point in row.values()}) for row in points],
    }
    row_headings = {heading: cells for heading, cells in row_headings.items() if len(set(cells)) > 1}
    diagonal_sizes = {point.sizes for curve in curves for point in curve.diagonal}
    max_columns = MAX_SIZE_COLUMNS - len(row_headings)
    shown = sizes if len(sizes) <= max_columns else [size for size in sizes if size in diagonal_sizes] or sizes
    if len(shown) > max_columns:
        # The smallest, the largest, the training lengths, and others evenly spaced.
        tops = {curve.top for curve in curves}
        chosen = {shown[0], shown[-1], *(size for size in shown if max(size) in tops)}
        unchosen, free = [size for size in shown if size not in chosen], max(0, max_columns - len(chosen))
        shown = sorted(chosen | {unchosen[(2 * i + 1) * len(unchosen) // (2 * free)] for i in range(free)})
    caption = _describe_curves(curves, [point for row in points for point in row.values()], len(shown), len(sizes))
    headings = ("exact match at", *row_headings, *map(format_size, shown))
    table = FittedTable(*headings, left_aligned=("exact match at",), caption=caption)
    for number, (curve, name) in enumerate(zip(curves, name_curves(curves), strict=True)):
        cells = [Text("–", "dim")] * len(shown)
        for column, size in enumerate(shown):
            if point := points[number].get(size):
                # Round the ends outwards, so that a band is never shown narrower than it is.
                low = math.floor(100 * point.low + ROUNDING_TOLERANCE) / 100
                high = math.ceil(100 * point.high - ROUNDING_TOLERANCE) / 100
                ends = [f"{end:.0f}" if end in (0, 1) else f"{end:.2f}".removeprefix("0") for end in (low, high)]
                band = f" {'–'.join(ends)}" if low < high else ""  # no band if all seeds agree
                mark, style = TRAINED_MARK * curve.is_trained_size(size), _choose_score_style(point.mean)
                cells[column] = Text.assemble((mark, "dim"), (format_share(point.mean), style), (band, "dim"))
        table.add_row(Text(name), *(column[number] for column in row_headings.values()), *cells)
    return table


def build_detail_table(rows: Iterable[Row], tops: Sizes | None = None) -> Table:
    """Return a table with a row per score; sizes in the training range, up to ``tops``, are marked. Raises UsageError
    without rows."""
    rows = list(rows)
    if not rows:
        raise UsageError("there are no scores to tabulate: evaluate a run first")
    # Values that all rows share go into the caption, so that the table fits 80 characters.
    varying = [name for name in ("problems", "stopping") if len({row[name] for row in rows}) > 1]
    optional_columns = {"final": "final part", "scaled": "scaled"}
    optional_columns = {name: heading for name, heading in optional_columns.items() if any(name in row for row in rows)}
    fixed = ["exact match", "95 % interval", "per token", *optional_columns.values(), "loops", "count"]
    notes = [f"{name}: {rows[0][name]}" for name in ("problems", "stopping") if name not in varying]
    notes += [f"{TRAINED_MARK} within the training range, up to {format_size(tops)}"] if tops is not None else []
    notes += ["scaled: accuracy per token, from guessing (0) to all right (1)"] * ("scaled" in optional_columns)
    notes += ["final part: exact match of the answer's final part alone"] * ("final" in optional_columns)
    notes += list_loop_notes(rows)
    notes += ["count: in brackets the number of different problems"] * any("distinct" in row for row in rows)
    early = sorted({row["precision"] for row in rows if "precision" in row})
    notes += [f"sampling ended once the 95 % interval was within ±{width:g} of its middle" for width in early]
    notes += list_interval_notes(rows)
    alignment = {"left_aligned": (*varying, ""), "no_wrap": ("size", "", *fixed), "optional_column": 1 + len(varying)}
    table = FittedTable("size", *varying, "", *fixed, caption="; ".join(notes), **alignment)
    for row in rows:
        size, *middle_cells, loops, count = _format_detail_cells(row, tops)
        cells = (format_scaled(row.get(name)) for name in optional_columns)
        table.add_row(size, *(row[name] for name in varying), *middle_cells, *cells, loops, count)
    return table


def build_map_table(rows: Sequence[Row], tops: Sizes) -> Table:
    """Return a table of exact match at pairs of sizes, averaged over blocks of neighbouring pairs, at most
    ``MAX_BLOCKS_PER_SIDE`` per side. All rows must have the same stopping rule."""
    cells = {tuple(row["sizes"]): row["exact"] for row in rows}
    sides: list[dict[str, list[int]]] = [{}, {}]  # blocks of sizes of equal count, by their span as text
    for axis, blocks in enumerate(sides):
        side = sorted({size[axis] for size in cells})
        step = -(-len(side) // MAX_BLOCKS_PER_SIDE)
        for block in (side[start : start + step] for start in range(0, len(side), step)):
            blocks["–".join(map(str, dict.fromkeys((block[0], block[-1]))))] = block
    downs, acrosses = sides
    worst = min(cells, key=cells.__getitem__)
    within = [share for size, share in cells.items() if is_within_training_sizes(size, tops)]
    notes = [f"mean {format_share(statistics.fmean(cells.values()), 4)} of {len(cells)} pairs"]
    if within:
        mean = format_share(statistics.fmean(within), 4)
        notes += [f"{mean} over the {len(within)} pairs in training, up to {format_size(tops)}"]
    notes += [f"worst {format_share(cells[worst], 3)} at {format_size(worst)}"]
    notes += [f"{rows[0]['count']} {rows[0]['problems']} problems each; {rows[0]['stopping']}"]
    headings = ["", *acrosses]
    table = FittedTable(*headings, left_aligned=(), no_wrap=headings, caption="\n".join(notes))
    for span, down in downs.items():
        shares = [[cells[i, j] for i in down for j in across if (i, j) in cells] for across in acrosses.values()]
        table.add_row(span, *(format_share(statistics.fmean(block)) if block else "" for block in shares))
    return table


def build_language_model_table(rows: Iterable[Row]) -> Table:
    """Return a table of a language model's scores, with a row per size."""
    rows = list(rows)
    headings = ("size", "", "exact match", "95 % interval", "lenient", "per token", "chatter", "count")
    caption = (
        f"{rows[0]['weights']}, {rows[0]['task']}, {rows[0]['problems']} problems; "
        "lenient: the reply ends in the right answer; chatter: replies with more than an answer"
    )
    table = FittedTable(*headings, left_aligned=("",), no_wrap=headings, optional_column=1, caption=caption)
    for row in rows:
        *cells, tokens, _, count_cell = _format_detail_cells(row, None)
        count_cell = count_cell if row["count"] == row["asked"] else Text(f"{row['count']} of {row['asked']}", "yellow")
        lenient = Text(format_share(row["lenient"], 3) if "lenient" in row else "–")
        table.add_row(*cells, lenient, tokens, str(row["chatter"]), count_cell)
    return table


def build_summary_rows(
    panel: str, curves: Sequence[Curve], sizes: Sequence[int], claims: Sequence[Claim] = ()
) -> list[Row]:
    """Return a row per curve and size, and a row per claim. A curve's row has mean and standard error over seeds, the
    number of seeds that solve the size, and ``fit``: exact match at the training length, None if not measured."""
    fits = find_scores_at_training_length(curves)
    rows: list[Row] = []
    for curve in curves:
        curve_columns = {"panel": panel, "who": curve.label, "stopping": curve.stopping, "problems": curve.problems}
        fit = round(fits[curve.label], 5) if curve.label in fits else None
        diverged = {"diverged": curve.diverged_seed_count} if curve.diverged_seed_count else {}
        trained = {"fit": fit, "trained_to": curve.top} | diverged
        for point in curve.points:
            if point.length in sizes:
                error = None if point.standard_error is None else round(point.standard_error, 5)
                score = {"size": format_size(point.sizes), "exact": round(point.mean, 5), "error": error}
                seeds = {"solved": point.solved_seed_count, "seeds": point.seed_count, "count": point.problem_count}
                rows.append(curve_columns | score | seeds | trained)
    for claim in claims:
        published = {"published": claim.reported, "standing": claim.standing}
        rows.append({"panel": panel, "who": claim.system, "size": claim.size} | published)
    return rows


def build_summary_table(rows: Sequence[Row]) -> Table:
    """Return the rows of ``build_summary_rows`` as a terminal table; each panel's rows follow a line with its title."""
    note = "±: the standard error of the mean over seeds"
    caption = note if any(row.get("error") is not None for row in rows) else None
    table = FittedTable("", "at", "exact match", f"seeds ≥ {SOLVED}", "stopping, or source", caption=caption)
    panel = None
    for row in rows:
        if row["panel"] != panel:
            panel = row["panel"]
            table.add_row(Text(panel, "bold"))
        if "published" in row:
            standing = Text(f"published: {row['standing']}", "dim")
            table.add_row(row["who"], str(row["size"]), row["published"], "", standing)
            continue
        error = "" if row["error"] is None else f" ± {format_share(row['error'], 3)}"
        kind = "" if row["problems"] == "uniform" else f", {row['problems']}"
        notes = [f"{row['stopping']}{kind}"]
        notes.append(format_training_warnings(row["fit"], row["trained_to"], row.get("diverged", 0)))
        cells = f"{format_share(row['exact'], 3)}{error}", f"{row['solved']} of {row['seeds']}"
        table.add_row(row["who"], row["size"], *cells, ", ".join(filter(None, notes)))
    return table


def build_depth_rows(rows: Sequence[Row]) -> list[Row]:
    """Return a row per size: exact match under each stopping rule, and after one loop fewer, one more and five more
    than planned."""
    depth_summaries = []
    for row in rows:
        exact, planned, chosen = row["exact"], row["planned"], row["chosen"]
        around = {f"planned{extra_loops:+d}": planned - 1 + extra_loops for extra_loops in (-1, 1, 5)}
        depth_summaries.append({
            "size": format_size(row["sizes"]),
            "planned": planned,
            **{name: score["exact"] for name, score in chosen.items()},
            **{name: exact[loop] for name, loop in around.items() if 0 <= loop < len(exact)},
            **{f"{name}_loops": round(score["mean"], 2) for name, score in chosen.items() if name != "oracle"},
        })  # fmt: skip
    return depth_summaries


def build_worst_table(rows: Iterable[Row], tops: Sizes) -> Table:
    """Return a table, a row per size: exact match on uniform problems and the worst family, and this family's name."""
    rows = select_reported_rows(rows)
    uniform = select_uniform_rows(rows)
    structured = group_family_rows(rows)
    drawn_rows = [row for rows in structured.values() for row in rows if row["problems"] != "every"]
    counts = sorted({row["count"] for row in drawn_rows})
    drawn = f"; {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} problems of each family" if counts else ""
    headings = ("size", "uniform", "worst family", "", "families below")
    caption = f"families below: those with exact match under {SOLVED}{drawn}"
    table = FittedTable(*headings, left_aligned=("size", "worst family"), no_wrap=headings, caption=caption)
    drawn_sizes = {*uniform, *(tuple(row["sizes"]) for row in drawn_rows)}
    exhaustive_only = [sizes for sizes in structured if sizes not in drawn_sizes]
    for within in (True, False):
        if part := [sizes for sizes in exhaustive_only if is_within_training_sizes(sizes, tops) == within]:
            # The shortest sizes, where all problems were measured, share a row.
            rows = [row for at in part for row in structured[at]]
            count, wrong = sum(row["count"] for row in rows), sum((1 - row["exact"]) * row["count"] for row in rows)
            span = TRAINED_MARK * within + "–".join(dict.fromkeys([format_size(min(part)), format_size(max(part))]))
            share = _format_score(select_worst_row(rows))
            table.add_row(span, "", "every problem", share, f"{round(wrong)} of {count} wrong")
    for sizes in sorted({*uniform, *structured} - {*exhaustive_only}):
        family_rows = structured.get(sizes, [])
        worst = select_worst_row(family_rows) if family_rows else None
        below = sum(row["exact"] < SOLVED for row in family_rows)
        named, below = (worst["problems"], f"{below} of {len(family_rows)}") if worst else ("–", "–")
        size = TRAINED_MARK * is_within_training_sizes(sizes, tops) + format_size(sizes)
        table.add_row(size, _format_score(uniform.get(sizes)), named, _format_score(worst), below)
    return table


def build_family_table(rows: Iterable[Row], tops: Sizes) -> Table:
    """Return a table of exact match, with a row per family, the worst first, and a column per size."""
    structured = group_family_rows(select_reported_rows(rows))
    sizes = [size for size in sorted(structured) if {row["problems"] for row in structured[size]} != {"every"}]
    by_name: dict[str, dict[Sizes, Row]] = {}
    for size in sizes:
        for row in structured[size]:
            by_name.setdefault(row["problems"], {})[size] = row
    headings = ["family", *(TRAINED_MARK * is_within_training_sizes(size, tops) + format_size(size) for size in sizes)]
    table = FittedTable(*headings, left_aligned=("family",), no_wrap=headings)
    means = {name: statistics.fmean(row["exact"] for row in cells.values()) for name, cells in by_name.items()}
    for name, cells in sorted(by_name.items(), key=lambda item: means[item[0]]):
        table.add_row(name, *(_format_score(cells.get(size)) for size in sizes))
    return table


def build_anatomy_table(rows: Sequence[Row]) -> Table:
    """Return a table of error analyses: a line per size, followed by lines for its problems, grouped by difficulty."""
    headings = ("size", "exact match", "wrong", "end early", "end late", "wrong symbol", "first wrong at")
    table = FittedTable(*headings, left_aligned=("size", "first wrong at"), no_wrap=("size",))
    for row in rows:
        wrong, positions = sum(row["ends"].values()), row["first_wrong"]
        often = sorted(positions, key=lambda position: -positions[position])[:3]
        counts = [str(row["ends"][name]) for name in ("early", "late", "right")]
        first = ", ".join(f"{position} ({positions[position]})" for position in often)
        table.add_row(format_size(row["sizes"]), format_share(row["exact"], 3), str(wrong), *counts, first)
        for trait, groups in row["by"].items():
            for part in groups:
                span = str(part["low"]) if part["low"] == part["high"] else f"{part['low']}–{part['high']}"
                wrong_count = str(round(part["count"] * (1 - part["exact"])))
                table.add_row(f"  {trait} {span}", format_share(part["exact"], 3), wrong_count, style="dim")
    return table


def build_row_table(rows: Sequence[Row]) -> Table:
    """Return a table of any rows, with a column per field."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = FittedTable(*(name.replace("_", " ") for name in names))
    for row in rows:
        cells = []
        for value in map(row.get, names, [""] * len(names)):
            if isinstance(value, float):  # a fraction is not rounded to 0 or 1
                value = format_share(value, 3) if 0 <= value <= 1 else f"{value:.3f}"
            cells.append(str(value))
        table.add_row(*cells)
    return table


def _format_score(row: Row | None) -> Text:
    if row is None:
        return Text("–", "dim")
    return Text(format_share(row["exact"], 3), "bold green" if row["exact"] >= SOLVED else "red")


def _choose_score_style(score: float) -> str:
    if score >= SOLVED:
        return "bold green"
    return "dim red" if score == 0 else ""


def _format_detail_cells(row: Row, tops: Sizes | None) -> list[Text]:
    exact, style = row["exact"], _choose_score_style(row["exact"])
    # A bar of ten characters, in steps of an eighth of a character; any value above 0 is visible.
    eighths = max(round(exact * 80), 1 if exact > 0 else 0)
    bar = ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(10, "·")
    trained = tops is not None and is_within_training_sizes(row["sizes"], tops)
    return [
        Text.assemble((TRAINED_MARK * trained, "dim"), format_size(row["sizes"])),
        Text(bar, style),
        Text(format_share(exact, 3), style),
        Text(format_interval(row), "dim"),
        Text(format_share(row["token_accuracy"], 3)),
        Text(format_loops(row)),
        Text(f"{row['count']} ({row['distinct']})" if "distinct" in row else str(row["count"])),
    ]


def _describe_curves(curves: Sequence[Curve], points: Sequence[Point], shown_count: int, size_count: int) -> str:
    """Return a caption: training range, numbers of problems and seeds, bands, selection sizes, and worst families."""
    seeds = {point.seed_count for point in points}
    # Seeds share their problems, unless these are sealed.
    shared_text = "" if seeds == {1} or any(curve.is_sealed() for curve in curves) else ", the same for all seeds"
    bands = (["worst–best seed"] if seeds != {1} else []) + (["95 % interval"] if 1 in seeds else [])
    tops = sorted({curve.tops for curve in curves if curve.top})
    upto = " to ".join(dict.fromkeys(map(format_size, tops[:1] + tops[-1:])))
    problems = f"{_format_range({point.problem_count for point in points})} problems per size{shared_text}"
    lines = [f"{TRAINED_MARK} within the training range, up to {upto}"] if tops else []
    seeds_text = f"{_format_range(seeds)} seed{'s' * (seeds != {1})}"
    lines += [f"{problems}, {seeds_text}; beside exact match: {', for a single seed the '.join(bands)}"]
    lines += [f"{shown_count} of {size_count} sizes are shown"] if shown_count < size_count else []
    by_chosen_on = group_by(curves, lambda curve: curve.chosen_on)
    for chosen_on, curves_of_sizes in by_chosen_on.items():
        labels = ", ".join(dict.fromkeys(one.label for one in curves_of_sizes))
        of = f": {labels}" if len(by_chosen_on) > 1 else ""
        lines += [f"chosen on {', '.join(map(str, chosen_on))}{of}"] if chosen_on else []
    lines += ["final: on sealed problems"] if all(curve.is_sealed() for curve in curves) else []
    worst = [curve for curve in curves if curve.problems == WORST_FAMILY]
    several = len({curve.stopping for curve in worst}) > 1
    for curve in worst:
        failing: dict[str, list[str]] = {}  # sizes with wrong answers, by the worst families
        for point in curve.points:
            if point.mean < 1:
                named, others = [*point.families[:MAX_NAMED_FAMILIES]], len(point.families) - MAX_NAMED_FAMILIES
                family = " or ".join(named + [f"{others} others"] * (others > 0))
                failing.setdefault(family, []).append(format_size(point.sizes))
        listed = failing.pop("every", [])  # short sizes, where all problems were measured instead of families
        named_sizes = [f"{name} at {', '.join(size_texts)}" for name, size_texts in failing.items()]
        parts = [f"worst family {'; '.join(named_sizes)}"] if failing else []
        parts += [f"all problems measured, some wrong, at {', '.join(listed)}"] * bool(listed)
        right = f"every family is right at {', '.join(format_size(point.sizes) for point in curve.points)}"
        lines += [f"{curve.label}{f', {curve.stopping}' * several}: {'; '.join(parts) or right}"]
    return "\n".join(lines)


def _format_range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
