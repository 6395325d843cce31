"""The report page: curves, maps, score cards and tables of a study in one file, with the rows of its charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lengthwise import __version__
from lengthwise.base.csv_files import flatten_rows
from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import KINDS_WITH_CURVE, Row, format_size, select_reported_rows
from lengthwise.report import build_all_curves, by_recipe, name_curves
from lengthwise.report.card import MIN_PROBLEMS, build_score_card, format_card_cells, format_sizes
from lengthwise.report.length_figure import build_title
from lengthwise.report.lines import line_style
from lengthwise.report.loss_figure import compute_running_geometric_mean
from lengthwise.report.map_figure import average_cells, label_scores
from lengthwise.report.publish import build_metrics_rows, collect_scores, select_anatomy_rows
from lengthwise.report.tables import build_depth_rows
from lengthwise.runs.folder import InquiryFolder, RunFolder
from lengthwise.runs.run import Run, Weights
from lengthwise.viewer.document import build_document, escape, join_scripts, read_vendor_scripts
from lengthwise.viewer.viewer import SCRIPTS as VIEWER
from lengthwise.viewer.viewer import build_model_data, find_export_obstacle

MAX_PAGE_BYTES = 3_000_000  # models that do not fit are left out
LIBRARY_NAMES = "vega", "vega-lite", "vega-embed"
ATTACK_TRIES = 300  # problems that the attack on each model tries
LOSS_POINTS_PER_RUN = 250  # approximate number of points
SHAPES: dict[str, str] = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond"}  # by matplotlib's marker
SHAPES |= {"v": "triangle-down", "P": "cross", "X": "stroke"}
SEED_FIELDS = {"seed", "data_seed", "name"}  # recipe fields that are ignored when comparing recipes


def build_report_page(
    runs: Sequence[RunFolder],
    inquiries: Sequence[InquiryFolder] = (),
    *,
    title: str | None = None,
    command: str = "",
    operations_per_step: Mapping[str, float] | None = None,
    models: Sequence[Weights] = (),
) -> str:
    """Return the page of these runs and of the language models in ``inquiries``, as HTML. It can run those of
    ``models`` that fit. ``command`` regenerates the page; ``operations_per_step`` is as in ``report.card``."""
    title = title or build_title([folder.outline for folder in [*runs, *inquiries]])
    card, packed = build_score_card(runs, operations_per_step) if any(run.rows("scores") for run in runs) else [], {}
    for name, rows in build_table_rows(runs, inquiries, card).items():  # each column is named once
        columns, flat = flatten_rows(rows)
        packed[name] = {"columns": columns, "rows": [[row.get(column) for column in columns] for row in flat]}
    recipes = {label: group[0].config() for label, group in (by_recipe(runs) if runs else {}).items()}
    report = {"made": command, "charts": build_chart_rows(runs, inquiries), "tables": packed, "recipes": recipes}
    body, code = _build_body(title, runs, inquiries, card, command), join_scripts("dom", "csv", "charts", "report")
    options = {"libraries": read_vendor_scripts(*LIBRARY_NAMES), "compressed_ids": ("report",)}
    page, chosen = build_document(title, body.replace(_VIEWER_HTML, ""), code, {"report": report}, **options), []
    scripts = f"{code}\n{join_scripts(*VIEWER)}"
    for model in models:
        # Approximate bytes that the model adds: its parameters in base64, its program and examples.
        added = sum(part.numel() for part in model.model.parameters()) * 16 // 3 + 100_000
        if len(page) + added < MAX_PAGE_BYTES:
            chosen.append(build_model_data(model, ATTACK_TRIES))
            page = build_document(title, body, scripts, {"report": report, "models": {"models": chosen}}, **options)
    return page


def load_exportable_weights(runs: Sequence[RunFolder]) -> list[Weights]:
    """Return the weights of each recipe's first trained run, if ``js`` implements the model."""
    exportable = []
    for group in by_recipe(runs).values() if runs else ():
        run = next((run for run in group if run.about() and not run.diverged), None)
        if isinstance(run, Run):
            try:
                obstacle = find_export_obstacle(run.recipe, run.about()["parameters"])
            except UsageError:  # a recipe that cannot be built
                continue
            if not obstacle:
                exportable.append(run.weights())
    return exportable


_VIEWER_HTML = """<section id="thinking" aria-labelledby="thinking-title">
<h2 id="thinking-title">Watch it loop by loop</h2>
<p>The model itself runs here: its weights are in this file. Type a problem to see the answer after every loop.</p>
<div data-viewer="models"></div></section>"""


def _build_body(
    title: str, runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder], card: Sequence[Row], command: str
) -> str:
    """Return the part of the page that needs no script: title, score card, and the command that regenerates it."""
    count = f"{len(runs)} run{'s' * (len(runs) != 1)}" + (f", {len(inquiries)} inquiries" if inquiries else "")
    seeds = max((len(group) for group in by_recipe(runs).values()), default=1) if runs else 1
    repeat_text = f"<p>To make this page again, run <code>{escape(command)}</code></p>" if command else ""
    head = lines = ""
    for row in map(format_card_cells, card):
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in row)
        first, *other_cells = row.values()
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in other_cells)
        lines += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    table = (
        f'<div class="wide" tabindex="0" role="region" aria-label="score card"><table><thead><tr>{head}</tr></thead>'
        f'<tbody>{lines}</tbody></table></div><p class="soft">'
        "Longest: the largest size solved, for each seed: 0.99 or more at the lower end of the 95 % interval (which "
        f"takes at least {MIN_PROBLEMS} problems) and on every family of structured problems. Seeds beyond: those that "
        "solve a size longer than in training. Operations and processor minutes: of the whole training.</p>"
    )
    return f"""<a class="skip" href="#charts">to the charts</a>
<header><h1>{escape(title)}</h1><p class="soft">{count}; Lengthwise {escape(__version__)}</p></header>
<main>
<section aria-labelledby="card-title"><h2 id="card-title">Score card</h2>
{table if card else "<p>No scores yet.</p>"}
</section>
<div id="charts" data-report="report"></div>
{_VIEWER_HTML}
<section aria-labelledby="again-title"><h2 id="again-title">Reproduce</h2>
{repeat_text}
<p>To train a recipe again, save it below, then run <code>lengthwise train recipe.json --seeds {seeds}</code></p>
<div id="recipes"></div></section>
<noscript><p>Charts, tables and the model need JavaScript, which is switched off.</p></noscript>
</main>"""


# Rows


def build_chart_rows(runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder]) -> dict[str, list[Row]]:
    """Return the rows of every chart, by the chart's name; a chart with nothing to draw has no rows."""
    lengths, groups = _build_length_rows(runs, inquiries), by_recipe(runs) if runs else {}
    labels = dict.fromkeys([*groups, *(row["label"] for row in lengths)])
    styles = [line_style(number, name=label) for number, label in enumerate(labels)]  # as in figures
    charts: dict[str, list[Row]] = {
        "methods": [{"label": style.name, "colour": style.colour, "shape": SHAPES[style.marker]} for style in styles],
        "lengths": lengths,
        **{name: [] for name in ("maps", "loops", "stops", "loss", "watched", "wrong", "traits")},
    }
    for label, group in groups.items():
        for name, rows in _build_recipe_charts(group).items():
            charts[name] += [{"label": label} | row for row in rows]
    return charts


def _build_recipe_charts(group: Sequence[RunFolder]) -> dict[str, list[Row]]:
    """Return the rows of the charts of one recipe's runs, by the chart's name."""
    # Exact match over two sizes, the mean over seeds, if a pair of different sizes was measured.
    cells = [row for row in label_scores(group) if row["problems"] in KINDS_WITH_CURVE and len(row["sizes"]) == 2]
    has_map = any(first != second for first, second in (row["sizes"] for row in cells))
    maps = [
        {"problems": problems, "stopping": rule, "first": first, "second": second, "exact": round(share, 6)}
        for (rule, problems), shares in average_cells(cells if has_map else []).items()
        for (first, second), share in shares.items()
    ]
    # Scores after each loop, and the mean loop at which each stopping rule stops.
    loops: list[Row] = []
    stops: list[Row] = []
    for row in _select_depth_rows(group):
        size = format_size(row["sizes"])
        for loop, (exact, sure) in enumerate(zip(row["exact"], row["confidence"], strict=True), 1):
            loops.append({"size": size, "loop": loop, "exact": exact, "confidence": sure})
        for name, chosen in row["chosen"].items():
            stops.append({"size": size, "rule": name, "loop": round(chosen["mean"], 2)} | chosen)
    # The positions at which wrong answers first go wrong, over all seeds.
    positions: dict[str, Counter[int]] = {}  # by size
    for row in sorted(select_anatomy_rows(group), key=lambda row: (max(row["sizes"]), row["sizes"])):
        counts = {int(position): count for position, count in row["first_wrong"].items()}
        positions.setdefault(format_size(row["sizes"]), Counter()).update(counts)
    wrong = [
        {"size": size, "position": position, "answers": count}
        for size, counts in positions.items()
        for position, count in sorted(counts.items())
    ]
    return {"maps": maps, "loops": loops, "stops": stops, "wrong": wrong, **_build_charts_by_seed(group)}


def _build_charts_by_seed(group: Sequence[RunFolder]) -> dict[str, list[Row]]:
    """Return the rows of the charts that have a line per run, by the chart's name."""
    loss, watched, features = list[Row](), list[Row](), list[Row]()
    same_seed = Counter(run.outline.seed for run in group)
    for run in group:
        outline, metrics = run.outline, run.rows("metrics")
        is_unique = same_seed[outline.seed] == 1
        seed = outline.seed if is_unique else f"{outline.seed}, problems {outline.data_seed}"
        logged = [row for row in metrics if (row.get("loss") or 0) > 0]
        smooth = compute_running_geometric_mean([row["loss"] for row in logged])
        for row, value in list(zip(logged, smooth, strict=True))[:: max(1, len(logged) // LOSS_POINTS_PER_RUN)]:
            loss.append({"seed": seed, "step": row["step"], "loss": float(f"{value:.4g}")})
        for row in metrics:
            for size, share in row.get("exact", {}).items():
                watched.append({"seed": seed, "size": size, "step": row["step"], "exact": share})
        for row in select_reported_rows(select_anatomy_rows([run])):
            for name, part in ((name, part) for name, parts in row["by"].items() for part in parts):
                point = {"size": format_size(row["sizes"]), "trait": name, "middle": (part["low"] + part["high"]) / 2}
                features.append({"seed": seed} | point | {"exact": part["exact"], "count": part["count"]})
    return {"loss": loss, "watched": watched, "traits": features}


def build_table_rows(
    runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder], card: Sequence[Row]
) -> dict[str, list[Row]]:
    """Return the rows of every table that is not empty, by the table's name."""
    groups = by_recipe(runs) if runs else {}
    tables = {
        "scores": collect_scores(runs, inquiries),
        "curves": [{**row, "families": " ".join(row["families"])} for row in _build_length_rows(runs, inquiries)],
        # These lists hold one size per seed, not one size per axis.
        "card": [
            {name: format_sizes(value) if isinstance(value, list) else value for name, value in row.items()}
            for row in card
        ],
        "metrics": build_metrics_rows(runs),
        "stopping": [
            {"recipe": name} | row for name in groups for row in build_depth_rows(_select_depth_rows(groups[name]))
        ],
        "anatomy": [{"recipe": name} | row for name, group in groups.items() for row in select_anatomy_rows(group)],
        "differences": list_recipe_differences(groups),
    }
    return {name: rows for name, rows in tables.items() if rows}


def _build_length_rows(runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder]) -> list[Row]:
    """Return exact match against length: a row per curve and size."""
    lines = build_all_curves(runs, inquiries)
    rows = []
    for curve, name in zip(lines, name_curves(lines), strict=True):
        line = {point.sizes for point in curve.diagonal}
        for point in curve.points:
            row = {"label": curve.label, "name": name, "problems": curve.problems, "stopping": curve.stopping}
            row |= {"own": curve.stopping in ("", curve.own_rule), "trained": curve.top, "size": point.length}
            row |= {"sizes": format_size(point.sizes), "along": point.sizes in line, "mean": round(point.mean, 6)}
            row |= {"low": round(point.low, 6), "high": round(point.high, 6), "seeds": point.seed_count}
            row |= {"joined": curve.has_all_seeds(point)}  # a line joins only means over the same seeds
            rows.append(row | {"count": point.problem_count, "families": list(point.families)})
    return rows


def _select_depth_rows(group: Sequence[RunFolder]) -> list[Row]:
    """Return the scores after each loop of the first run that has any: for each size the row with the most problems."""
    rows = next((rows for run in group if (rows := run.rows("depth"))), [])
    return list({tuple(row["sizes"]): row for row in sorted(rows, key=lambda row: row["count"])}.values())


def list_recipe_differences(groups: Mapping[str, Sequence[RunFolder]]) -> list[Row]:
    """Return a row per field in which recipes differ, with a column per recipe; seeds and names are ignored."""
    flat = {label: flatten_fields(group[0].config()) for label, group in groups.items()}
    paths = dict.fromkeys(path for recipe_fields in flat.values() for path in recipe_fields if path not in SEED_FIELDS)
    rows = [
        {"field": path} | {label: recipe_fields.get(path, "–") for label, recipe_fields in flat.items()}
        for path in paths
    ]
    return [row for row in rows if len({str(value) for name, value in row.items() if name != "field"}) > 1]


def flatten_fields(tree: Any, path: str = "") -> dict[str, Any]:
    """Return a recipe's fields by path, such as ``model.width``; a part's kind is stored at the part's own path."""
    if isinstance(tree, dict):
        inside = [flatten_fields(part, f"{path}.{name}".lstrip(".")) for name, part in tree.items() if name != "kind"]
        kind_field = {path: tree["kind"]} if path and "kind" in tree else {}
        return kind_field | {name: value for part in inside for name, value in part.items()}
    if isinstance(tree, list) and any(isinstance(part, dict) for part in tree):
        numbered = [flatten_fields(part, f"{path}.{number}") for number, part in enumerate(tree, 1)]
        return {name: value for part in numbered for name, value in part.items()}
    return {path: " ".join(map(str, tree)) if isinstance(tree, list) else tree}
