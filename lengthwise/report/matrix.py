"""The matrix of architectures × tasks: exact match on uniform problems and the worst family at three sizes."""

from __future__ import annotations

import math
import re
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from rich.table import Table
from rich.text import Text

from lengthwise.base.csv_files import write_csv
from lengthwise.base.errors import UsageError
from lengthwise.base.results import MATRIX_LENGTH_FACTORS, RunOutline, select_worst_families
from lengthwise.base.score_rows import SOLVED, Row, format_share, select_training_length_rows, select_uniform_rows
from lengthwise.report import select_own_scores
from lengthwise.report.fitted_table import FittedTable
from lengthwise.report.style import INK, PNG_ONLY, Drawing, Width, fix_layout, new_figure, save, style
from lengthwise.runs.folder import RunFolder

FOOT_HEIGHT_FRACTION = 0.2  # fraction of a cell's height for the published score and the seconds
MAX_HEADING_CHARACTERS = 80  # of all headings of a figure together
SCORE_KEYS = ("uniform", "worst")  # fields of a row with exact match
PAPER_SCORES_FILE = Path(__file__).with_name("paper_scores.toml")
# Model fields that are not part of an architecture's name
OMITTED_FIELDS = ("width", "init_std", "embedding_std", "layers", "heads", "mlp")


def build_matrix_rows(runs: Iterable[RunFolder]) -> list[Row]:
    """Return a row per architecture, task and size. ``uniform`` and ``worst`` are means over seeds: exact match on
    uniform problems, and on each seed's worst family. ``fitted`` is True if every seed has exact match of .99 or more
    at the training length; a diverged seed makes it False. ``seeds`` is the number of seeds measured at the size. Other
    fields are the cost and a paper's score. A task's name includes the layout, since supervision at every position
    differs from supervision at the end. Raises UsageError without scores."""
    measured = [run for run in runs if run.rows("scores") or run.diverged]
    if not any(run.rows("scores") for run in measured):
        raise UsageError("there is no matrix to draw: evaluate a run first")
    configs = [run.config() for run in measured]
    layouts = [str(config["layout"]["kind"]).lower() for config in configs]
    tasks = map(", ".join, zip(label_differing_fields([config["task"] for config in configs]), layouts, strict=True))
    labels = list(zip(name_architectures(configs), tasks, strict=True))
    recipes: dict[tuple[str, str], dict[str, RunOutline]] = {}  # by label: the outline of each recipe's first run
    for run, label in zip(measured, labels, strict=True):
        recipes.setdefault(label, {}).setdefault(run.outline.seedless_id, run.outline)
    cells: dict[tuple[str, str], list[RunFolder]] = {}
    for run, (architecture, task) in zip(measured, labels, strict=True):
        first = recipes[architecture, task][run.outline.seedless_id]
        suffix = f" ({first.name}-{first.id})" if len(recipes[architecture, task]) > 1 else ""
        cells.setdefault((architecture + suffix, task), []).append(run)
    rows_of_cells = []
    for (architecture, task), group in cells.items():
        rows_of_cells += [{"architecture": architecture, "task": task} | row for row in _summarize_cell(group)]
    return rows_of_cells


def _summarize_cell(group: Sequence[RunFolder]) -> list[Row]:
    """Return a row per size for the runs of one architecture on one task."""
    scores = [select_own_scores(run) for run in group]
    tops = [run.outline.tops for run in group]
    fits = [row["exact"] for rows in map(select_training_length_rows, scores, tops) for row in rows]
    abouts, published = [about for run in group if (about := run.about())], find_paper_score(group[0].config())
    summaries = []
    for times in MATRIX_LENGTH_FACTORS:
        # The measured size whose longest axis is nearest to the wanted length, if one is near.
        length, sizes = times * max(tops[0]), {tuple(row["sizes"]) for rows in scores for row in rows}
        size = min(sorted(sizes), key=lambda size: abs(math.log(max(size) / length)), default=None)
        if size is None or abs(math.log(max(size) / length)) > math.log(1.1):
            continue
        uniform = [row_or_none for rows in scores if (row_or_none := select_uniform_rows(rows).get(size))]
        families = [row for rows in scores for row in select_worst_families(rows) if tuple(row["sizes"]) == size]
        if not (uniform or families):
            continue
        scaled = [row["scaled"] for row in uniform if "scaled" in row]
        row = {
            "sizes": size,
            "times": times,
            "seeds": len(uniform or families),
            "uniform": statistics.fmean(row["exact"] for row in uniform) if uniform else None,
            "worst": statistics.fmean(row["exact"] for row in families) if families else None,
            "family": min(families, key=lambda row: row["exact"])["problems"] if families else "",
            "scaled": statistics.fmean(scaled) if scaled else None,
            "fitted": len(fits) == len(group) and all(round(fit, 9) >= SOLVED for fit in fits),
            "reached": min((about["length"] for about in abouts if "length" in about), default=None),
            "parameters": abouts[0]["parameters"] if abouts else None,
            "cpu_s": round(statistics.fmean(about["cpu_s"] for about in abouts), 1) if abouts else None,
        }
        summaries.append(row | published)
    return summaries


def find_paper_score(config: Mapping[str, Any]) -> Row:
    """Return the score that a paper reports for a recipe's mixer (or model) and task, as fields of a row: the score
    ``published``, ``published_scaled`` (True if guessing scores 0), ``paper``, ``source``, ``tested``, ``standing`` and
    ``where``. All are None if no paper reports a score, or if the recipe loops or trains on families."""
    fields = dict.fromkeys(("published", "published_scaled", "paper", "source", "tested", "standing", "where"))
    papers = tomllib.loads(PAPER_SCORES_FILE.read_text(encoding="utf-8"))
    parts, task = _read_mixers(config["model"]) or [config["model"]], config["task"]["kind"]
    form, loops = papers["tasks"].get(task), config["loops"]
    if form is None or not form.items() <= config["task"].items() or config["layout"]["kind"] != "Labelled":
        return fields
    if config.get("families") or loops != {"kind": "Constant", "count": 1}:
        return fields
    for paper in papers["paper"]:
        for score in paper["scores"]:
            if task in score and all(score["model"].items() <= part.items() for part in parts):
                about = {name: paper[name] for name in ("source", "tested", "standing", "where")}
                return {"published": score[task], "published_scaled": paper["scaled"], "paper": paper["name"]} | about
    return fields


def format_cell_foot(row: Row) -> tuple[str, str]:
    """Return the published score of a cell and its processor seconds as two texts, empty if unknown."""
    score, seconds = row["published"], row["cpu_s"]
    marks = "†" * bool(row["published_scaled"]) + "*" * (row["standing"] == "second-hand")
    score_text = "" if score is None else f"{score:g}".removeprefix("0") + marks
    return score_text, "" if seconds is None else f"{seconds:,.0f} s"


# Names


def name_architectures(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return an architecture's name for each recipe: the model's mixers (or class) and positional encodings."""
    mixers = [_read_mixers(config["model"]) for config in configs]
    texts = iter(label_differing_fields([mixer for group in mixers for mixer in group]))
    models = [config["model"] for config, group in zip(configs, mixers, strict=True) if not group]
    other_names, names_of_architectures = iter(label_differing_fields(models)), []
    for config, group in zip(configs, mixers, strict=True):
        names = list(dict.fromkeys(next(texts) for _ in group)) or [next(other_names)]
        positions = [part["kind"] for part in config["model"].get("positions", []) if part["kind"] != "NoPE"]
        half = " + families" if config.get("families") else ""
        names_of_architectures.append(", ".join([" + ".join(names), *positions]) + half)
    return names_of_architectures


def _read_mixers(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    # Old recipes have no field for mixers.
    attention = [{"kind": "Attention"}] if model["kind"] == "Transformer" else []
    return list(model.get("mixers") or ([model["mixer"]] if "mixer" in model else attention))


def label_differing_fields(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for each part: its class, text fields, and other fields in which parts of this class differ."""
    values: dict[tuple[str, str], set[str]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault((part["kind"], name), set()).add(str(value))
    labels = []
    for part in parts:
        texts = [
            value if isinstance(value, str) else f"{name}={str(value).lower()}"
            for name, value in part.items()
            if name not in ("kind", *OMITTED_FIELDS) and isinstance(value, (str, int, float))
            if isinstance(value, str) or name == "negative" or len(values[part["kind"], name]) > 1
        ]
        labels.append(" ".join([part["kind"], *texts]))
    return labels


# Table and figure


def build_matrix_table(rows: Sequence[Row]) -> Table:
    """Return a table with a row per architecture and a column per task. A cell shows exact match on uniform problems
    and the worst family at each size, in brackets if not fitted; below, the published score and processor seconds."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    headings = ("architecture", *tasks)
    sizes = sorted({max(row["sizes"]) for row in rows})
    caption = (
        f"uniform/worst family at {', '.join(map(str, sizes))}; in brackets: a seed is not fitted, below {SOLVED} at"
        " the training length, or diverged; means over seeds, each with its own worst family; below: published score"
        " (†: scaled so that guessing is 0, *: second-hand) and a training's processor seconds"
    )
    table = FittedTable(*headings, no_wrap=headings, caption=caption)
    for architecture in dict.fromkeys(row["architecture"] for row in rows):
        cells = [Text("–", "dim")] * len(tasks)
        for number, task in enumerate(tasks):
            if cell := [row for row in rows if (row["architecture"], row["task"]) == (architecture, task)]:
                texts = [["–" if row[name] is None else format_share(row[name]) for name in SCORE_KEYS] for row in cell]
                scores_text = " ".join(map("/".join, texts))
                fitted, (published, seconds) = cell[0]["fitted"], format_cell_foot(cell[0])
                foot = ", ".join(filter(None, (f"published {published}" if published else "", seconds)))
                text = "\n".join((scores_text if fitted else f"({scores_text})", foot)).strip()
                cells[number] = Text(text, "" if fitted else "dim")
        table.add_row(architecture, *cells)
    return table


def publish_matrix(
    rows: Sequence[Row], folder: Path, *, title: str = "", width: Width = "page", formats: Sequence[str] = PNG_ONLY
) -> list[Path]:
    """Write ``matrix.csv`` and the figure ``matrix``; return the paths written."""
    files = save(draw_matrix_figure(rows, title, width=width), folder / "matrix", formats)
    return [write_csv(folder / "matrix.csv", rows), *files]


@style()
def draw_matrix_figure(rows: Sequence[Row], title: str = "", *, width: Width = "page") -> Drawing:
    """Draw the rows of ``build_matrix_rows`` as a matrix; darker cells have higher exact match."""
    architectures = list(dict.fromkeys(row["architecture"] for row in rows))
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure = new_figure(width, 1.1 + 0.5 * len(architectures))
    axes, feet = figure.subplots(), {}
    wide, high = 1 / len(MATRIX_LENGTH_FACTORS), (1 - FOOT_HEIGHT_FRACTION) / 2
    for row in rows:
        x, y = tasks.index(row["task"]), architectures.index(row["architecture"])
        feet[x, y] = format_cell_foot(row)
        # One size of a cell: a column with uniform problems above and the worst family below.
        left = x + MATRIX_LENGTH_FACTORS.index(row["times"]) * wide
        for top, share in ((y, row["uniform"]), (y + high, row["worst"])):
            if share is not None:
                patch_options = {"facecolor": matplotlib.colormaps["Blues"](0.08 + 0.72 * share), "edgecolor": "white"}
                hatch = None if row["fitted"] else "/////"
                axes.add_patch(Rectangle((left, top), wide, high, linewidth=0.4, hatch=hatch, **patch_options))
                place, text = (left + wide / 2, top + high / 2), format_share(share).removeprefix("0")
                colour = "white" if share > 0.6 and row["fitted"] else INK
                label = axes.text(*place, text, ha="center", va="center", fontsize=5, color=colour)
                if hatch:  # legible on the hatching's lines
                    label.set_path_effects([withStroke(linewidth=1.2, foreground="white")])
    for (x, y), texts in feet.items():
        for text, side, x_offset in zip(texts, ("left", "right"), (0.04, 0.96), strict=True):
            axes.text(x + x_offset, y + 1 - FOOT_HEIGHT_FRACTION / 2, text, ha=side, va="center", fontsize=4.5)
    for x in range(len(tasks)):
        for y in range(len(architectures)):
            axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="white", linewidth=2.5))
    axes.set(xlim=(0, len(tasks)), ylim=(len(architectures), 0))
    headings = [task.replace(", ", "\n") for task in tasks]
    if max(map(len, tasks)) > MAX_HEADING_CHARACTERS // len(tasks):  # also split class names between their words
        headings = [re.sub("(?<=[a-z])(?=[A-Z])", "\n", heading) for heading in headings]
    axes.set_xticks([x + 0.5 for x in range(len(tasks))], headings, fontsize=6.5)
    axes.set_yticks([y + 0.5 for y in range(len(architectures))], architectures, fontsize=7)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    sizes = [{max(row["sizes"]) for row in rows if row["times"] == times} for times in MATRIX_LENGTH_FACTORS]
    seeds, sizes_text = _format_span({row["seeds"] for row in rows}), " · ".join(map(_format_span, filter(None, sizes)))
    caption = (
        f"in each cell, uniform problems above, the worst family below; seeds: {seeds}; hatched: a seed is not fitted\n"
        "at the foot: the published score (†: scaled so that guessing is 0, *: second-hand)\n"
        f"and a training's processor seconds; sizes {sizes_text}"
    )
    axes.set_xlabel(caption, fontsize=6.5)
    return fix_layout(figure, title or "Exact match", width)


def _format_span(values: set[int]) -> str:
    """Format the smallest and the largest of ``values``: ``13–40``, or ``8`` if they are equal."""
    return "–".join(map(str, dict.fromkeys((min(values), max(values)))))
