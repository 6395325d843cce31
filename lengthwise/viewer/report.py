"""The report page: curves, maps, score cards and tables of a study in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lengthwise import __version__
from lengthwise.base.csv_files import flatten_rows
from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import Row
from lengthwise.report import by_recipe
from lengthwise.report.card import HEADINGS, SURE, card_cells
from lengthwise.report.length_figure import default_title
from lengthwise.runs.folder import InquiryFolder, RunFolder
from lengthwise.runs.run import Run, Weights
from lengthwise.viewer.document import build_document, escape, join_scripts, vendor_scripts
from lengthwise.viewer.models import check_exportable
from lengthwise.viewer.rows import card_rows, chart_rows, table_rows
from lengthwise.viewer.viewer import SCRIPTS as VIEWER
from lengthwise.viewer.viewer import model_data

MOST = 3_000_000  # bytes per page; models that do not fit are left out
LIBRARIES = "vega", "vega-lite", "vega-embed"
TRIES = 300  # tries per model, in the attack


def report_page(
    runs: Sequence[RunFolder],
    inquiries: Sequence[InquiryFolder] = (),
    *,
    title: str | None = None,
    command: str = "",
    operations: Mapping[str, float] | None = None,
    models: Sequence[Weights] = (),
) -> str:
    """Return the page of these runs and of the language models in ``inquiries``, as HTML. ``command`` regenerates the
    page, ``operations`` are as in ``report.card``; as many of ``models`` as fit can be run in the page."""
    title = title or default_title([one.outline for one in [*runs, *inquiries]])
    packed = {}
    for name, rows in table_rows(runs, inquiries, operations).items():  # each column is named once
        columns, flat = flatten_rows(rows)
        packed[name] = {"columns": columns, "rows": [[row.get(column) for column in columns] for row in flat]}
    report = {
        "made": command,
        "charts": chart_rows(runs, inquiries),
        "tables": packed,
        "recipes": {label: group[0].config() for label, group in (by_recipe(runs) if runs else {}).items()},
    }
    body = _build_body(title, runs, inquiries, card_rows(runs, operations), command)
    page, chosen = _build_page(title, body, report, []), []
    for model in models:
        # Its parameters in base64, and its program.
        weight = sum(part.numel() for part in model.model.parameters()) * 16 // 3 + 100_000
        if len(page) + weight < MOST:
            chosen.append(model_data(model, TRIES))
            page = _build_page(title, body, report, chosen)
    return page


def exportable_weights(runs: Sequence[RunFolder]) -> list[Weights]:
    """Return the weights of each recipe's first trained run, if ``js`` implements the model."""
    found = []
    for group in by_recipe(runs).values() if runs else ():
        run = next((run for run in group if run.about() and not run.diverged), None)
        if isinstance(run, Run):
            try:
                check_exportable(run.recipe, run.about()["parameters"])
            except UsageError:
                continue
            found.append(run.weights())
    return found


def _build_page(title: str, body: str, content: dict[str, Any], models: list[dict[str, Any]]) -> str:
    data, code = {"report": content}, join_scripts("dom", "csv", "charts", "report")
    if models:
        body = body.replace(_THINKING, _VIEWER)
        data["models"], code = {"models": models}, code + "\n" + join_scripts(*VIEWER)
    return build_document(
        title, body.replace(_THINKING, ""), code, data, libraries=vendor_scripts(*LIBRARIES), compressed=("report",)
    )


_THINKING = "<!-- thinking -->"
_VIEWER = """<section id="thinking" aria-labelledby="thinking-title"><h2 id="thinking-title">Watch it loop by loop</h2>
<p>The model itself runs here: its weights are in this file. Type a problem to see the answer after every loop.</p>
<div data-viewer="models"></div></section>"""


def _build_body(
    title: str, runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder], card: Sequence[Row], command: str
) -> str:
    """Return the part of the page that needs no script: the title, the score card, and the command that regenerates the
    page."""
    count = f"{len(runs)} run{'s' * (len(runs) != 1)}" + (f", {len(inquiries)} inquiries" if inquiries else "")
    seeds = max((len(group) for group in by_recipe(runs).values()), default=1) if runs else 1
    again = f"<p>To make this page again, run <code>{escape(command)}</code></p>" if command else ""
    return f"""<a class="skip" href="#charts">to the charts</a>
<header><h1>{escape(title)}</h1><p class="soft">{count}; Lengthwise {escape(__version__)}</p></header>
<main>
<section aria-labelledby="card-title"><h2 id="card-title">Score card</h2>
{_card_html(card) if card else "<p>No scores yet.</p>"}
</section>
<div id="charts" data-report="report"></div>
{_THINKING}
<section aria-labelledby="again-title"><h2 id="again-title">Reproduce</h2>
{again}
<p>To train a recipe again, save it below, then run <code>lengthwise train recipe.json --seeds {seeds}</code></p>
<div id="recipes"></div></section>
<noscript><p>Charts, tables and the model need JavaScript, which is switched off.</p></noscript>
</main>"""


def _card_html(rows: Sequence[dict[str, Any]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEADINGS)
    lines = [
        f'<tr><th scope="row">{escape(cells[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
        + "</tr>"
        for cells in map(card_cells, rows)
    ]
    about = (
        "Longest: the largest size solved, for each seed: 0.99 or more at the lower end of the 95 % interval (from "
        f"{SURE} problems on) and on every family of structured problems. Seeds beyond: those that solve a size longer "
        "than in training. Operations and processor minutes: of the whole training."
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="score card"><table><thead><tr>{head}</tr></thead>'
        f'<tbody>{"".join(lines)}</tbody></table></div><p class="soft">{about}</p>'
    )
