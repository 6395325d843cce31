"""The data of a report page: rows for its charts and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lengthwise.base.score_rows import ALONE, Row, latest_rows, size_text
from lengthwise.report import all_curves, by_recipe, language_model_curves, name_curves
from lengthwise.report.anatomy_figure import group_by_size, merge_rows
from lengthwise.report.card import format_sizes, score_card
from lengthwise.report.lines import line_style
from lengthwise.report.loss_figure import running_mean
from lengthwise.report.map_figure import average_cells, label_scores
from lengthwise.report.publish import anatomy_rows, identified_scores, metrics_rows
from lengthwise.report.tables import depth_rows
from lengthwise.runs.folder import InquiryFolder, RunFolder

LOSSES = 250  # approximate number of points drawn per run
SHAPES = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "stroke",
}
SEEDS = {"seed", "data_seed", "name"}  # recipe fields that are ignored when comparing recipes


def chart_rows(runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder]) -> dict[str, list[Row]]:
    """Return the rows of every chart, by the chart's name; a chart with nothing to draw has no rows."""
    groups = by_recipe(runs) if runs else {}
    labels = dict.fromkeys([*groups, *(curve.label for curve in language_model_curves(inquiries))])
    looks = {label: line_style(number, name=label) for number, label in enumerate(labels)}  # as in figures
    return {
        "methods": [
            {"label": label, "colour": one.colour, "shape": SHAPES[one.marker]} for label, one in looks.items()
        ],
        "lengths": _length_rows(runs, inquiries),
        **{
            name: [{"label": label} | row for label, group in groups.items() for row in rows_of(group)]
            for name, rows_of in {
                "maps": _map_rows,
                "loops": _loop_rows,
                "stops": _stop_rows,
                "loss": _loss_rows,
                "watched": _training_rows,
                "wrong": _first_wrong_rows,
                "traits": _feature_rows,
            }.items()
        },
    }


def table_rows(
    runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder], operations: Mapping[str, float] | None
) -> dict[str, list[Row]]:
    """Return the rows of each table that has rows, by its name."""
    groups = by_recipe(runs) if runs else {}
    found = {
        "scores": identified_scores(runs, inquiries),
        "curves": [{**row, "families": " ".join(row["families"])} for row in _length_rows(runs, inquiries)],
        # Lists are of the sizes of several seeds, not sizes themselves.
        "card": [
            {name: format_sizes(value) if isinstance(value, list) else value for name, value in row.items()}
            for row in card_rows(runs, operations)
        ],
        "metrics": metrics_rows(runs),
        "stopping": [
            {"recipe": label} | row for label, group in groups.items() for row in depth_rows(_depth_rows(group))
        ],
        "anatomy": [{"recipe": label} | row for label, group in groups.items() for row in anatomy_rows(group)],
        "differences": recipe_differences(groups),
    }
    return {name: rows for name, rows in found.items() if rows}


def card_rows(runs: Sequence[RunFolder], operations: Mapping[str, float] | None) -> list[Row]:
    """Return the score card; empty without scores."""
    return score_card(runs, operations) if any(run.rows("scores") for run in runs) else []


def _length_rows(runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder]) -> list[Row]:
    """Return exact match against length: a row per curve and size."""
    found = all_curves(runs, inquiries)
    rows = []
    for curve, name in zip(found, name_curves(found), strict=True):
        line = {point.sizes for point in curve.diagonal()}
        for point in curve.points():
            rows.append(
                {
                    "label": curve.label,
                    "name": name,
                    "problems": curve.problems,
                    "stopping": curve.stopping,
                    "own": curve.stopping in ("", curve.own_rule),
                    "trained": curve.top,
                    "size": point.length,
                    "sizes": size_text(point.sizes),
                    "along": point.sizes in line,
                    "mean": round(point.mean, 6),
                    "low": round(point.low, 6),
                    "high": round(point.high, 6),
                    "seeds": point.seeds,
                    "count": point.count,
                    "families": list(point.families),
                }
            )
    return rows


def _map_rows(group: Sequence[RunFolder]) -> list[Row]:
    """Return exact match over two sizes, the mean over seeds; empty unless a pair of different sizes was measured."""
    rows = [row for row in label_scores(group) if row["problems"] in ALONE and len(row["sizes"]) == 2]
    if all(first == second for first, second in (row["sizes"] for row in rows)):
        return []
    return [
        {"problems": problems, "stopping": rule, "first": first, "second": second, "exact": round(share, 6)}
        for (rule, problems), cells in average_cells(rows).items()
        for (first, second), share in cells.items()
    ]


def _depth_rows(group: Sequence[RunFolder]) -> list[Row]:
    """Return the scores after each loop from the first run that has them: per size, the row with the most problems."""
    rows = next((rows for run in group if (rows := run.rows("depth"))), [])
    return list({tuple(row["sizes"]): row for row in sorted(rows, key=lambda row: row["count"])}.values())


def _loop_rows(group: Sequence[RunFolder]) -> list[Row]:
    return [
        {"size": size_text(row["sizes"]), "loop": loop, "exact": exact, "confidence": sure}
        for row in _depth_rows(group)
        for loop, (exact, sure) in enumerate(zip(row["exact"], row["confidence"], strict=True), 1)
    ]


def _stop_rows(group: Sequence[RunFolder]) -> list[Row]:
    """Return the mean loop at which each stopping rule stops."""
    return [
        {"size": size_text(row["sizes"]), "rule": name, "loop": round(chosen["mean"], 2)} | chosen
        for row in _depth_rows(group)
        for name, chosen in row["chosen"].items()
    ]


def _seed_labels(group: Sequence[RunFolder]) -> dict[RunFolder, int | str]:
    """Return the label of each run: its seed or, if several runs share it, also the seed of its problems."""
    same, outlines = Counter(run.outline.seed for run in group), {run: run.outline for run in group}
    return {
        run: one.seed if same[one.seed] == 1 else f"{one.seed}, problems {one.data_seed}"
        for run, one in outlines.items()
    }


def _loss_rows(group: Sequence[RunFolder]) -> list[Row]:
    rows = []
    for run, seed in _seed_labels(group).items():
        logged = [(row["step"], row["loss"]) for row in run.rows("metrics") if (row.get("loss") or 0) > 0]
        smooth = running_mean([loss for _, loss in logged]) if logged else []
        every = max(1, len(logged) // LOSSES)
        for (step, _), loss in list(zip(logged, smooth, strict=True))[::every]:
            rows.append({"seed": seed, "step": step, "loss": float(f"{loss:.4g}")})
    return rows


def _training_rows(group: Sequence[RunFolder]) -> list[Row]:
    return [
        {"seed": seed, "size": size, "step": row["step"], "exact": share}
        for run, seed in _seed_labels(group).items()
        for row in run.rows("metrics")
        for size, share in row.get("exact", {}).items()
    ]


def _first_wrong_rows(group: Sequence[RunFolder]) -> list[Row]:
    """Return the positions at which wrong answers first go wrong, over all seeds."""
    return [
        {"size": size, "position": position, "answers": count}
        for size, rows in group_by_size(anatomy_rows(group)).items()
        for position, count in sorted(merge_rows(rows)["first_wrong"].items())
    ]


def _feature_rows(group: Sequence[RunFolder]) -> list[Row]:
    """Return exact match against difficulty features; if a size was analysed twice, only the one that ``latest_rows``
    prefers."""
    return [
        {"seed": seed, "size": size_text(row["sizes"]), "trait": trait}
        | {"middle": (part["low"] + part["high"]) / 2, "exact": part["exact"], "count": part["count"]}
        for run, seed in _seed_labels(group).items()
        for row in latest_rows(anatomy_rows([run]))
        for trait, parts in row["by"].items()
        for part in parts
    ]


# Recipes


def recipe_differences(groups: Mapping[str, Sequence[RunFolder]]) -> list[Row]:
    """Return a row per field in which recipes differ, a column per recipe; seeds and names are ignored."""
    flat = {label: flatten_fields(group[0].config()) for label, group in groups.items()}
    paths = dict.fromkeys(path for one in flat.values() for path in one if path not in SEEDS)
    rows = [{"field": path} | {label: one.get(path, "–") for label, one in flat.items()} for path in paths]
    return [row for row in rows if len({str(value) for name, value in row.items() if name != "field"}) > 1]


def flatten_fields(tree: Any, path: str = "") -> dict[str, Any]:
    """Return a recipe's fields by path, such as ``model.width``; a part's kind is stored at the part's own path."""
    if isinstance(tree, dict):
        inside = [flatten_fields(part, f"{path}.{name}".lstrip(".")) for name, part in tree.items() if name != "kind"]
        own = {path: tree["kind"]} if path and "kind" in tree else {}
        return own | {name: value for part in inside for name, value in part.items()}
    if isinstance(tree, list) and any(isinstance(part, dict) for part in tree):
        numbered = [flatten_fields(part, f"{path}.{number}") for number, part in enumerate(tree, 1)]
        return {name: value for part in numbered for name, value in part.items()}
    return {path: " ".join(map(str, tree)) if isinstance(tree, list) else tree}
