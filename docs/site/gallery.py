"""Build the gallery: a page for every folder of ``results/``, with its figures, tables and data, and a page for every
shipped model that can run in a browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from lengthwise.base.errors import UsageError
from lengthwise.report.results_folder import is_results_folder, read_published_runs
from lengthwise.runs.folder import SHIPPED_FOLDER, list_shipped_weights
from lengthwise.runs.run import load
from lengthwise.viewer.report import build_report_page
from lengthwise.viewer.viewer import build_viewer_page

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
INDEX = "docs/gallery.md"
Tables = Mapping[str, tuple[str, Callable[[str], str]]]
DATA_SUFFIXES = (".csv", ".gz", ".json")  # data that a page offers


@cache
def list_folders() -> tuple[str, ...]:
    """Return the paths of all results folders, from the repository's root."""
    found = {path.parent for name in ("*.png", "figures.json") for path in RESULTS.rglob(name)}
    return tuple(sorted(str(path.relative_to(ROOT)) for path in found))


def get_page_path(folder: str) -> str:
    """Return the path of a folder's page."""
    return f"{folder}/README.md"


def read_title(folder: str) -> str:
    """Return the title of a folder's figures or, if there is none, the folder's name."""
    path = ROOT / folder / "figures.json"
    named = json.loads(path.read_text()) if path.exists() else {}
    return named.get("title", folder.removeprefix("results/"))


def build_pages(tables: Tables) -> dict[str, str | bytes]:
    """Return all files of the gallery by path. ``tables`` maps each heading to the file that the table needs, and to
    the function that writes the table of a folder."""
    models = build_viewer_pages()
    texts: dict[str, str | bytes] = {INDEX: _build_index(models)}
    texts |= {f"docs/models/{name}.page.html": page for name, page in models.items()}
    for folder in list_folders():
        path = ROOT / folder
        runs = read_published_runs(path) if is_results_folder(path) else []
        if runs:
            command = f"lengthwise report {folder} --html page.html"
            texts[f"{folder}/report.page.html"] = build_report_page(runs, command=command)
        texts[get_page_path(folder)] = _build_page(folder, tables, interactive=bool(runs))
    return texts


def build_viewer_pages() -> dict[str, str]:
    """Return, by name, the pages of all shipped models that can run in a browser."""
    found = {}
    for name in list_shipped_weights():
        try:
            found[name] = build_viewer_page([load(SHIPPED_FOLDER / name)])
        except UsageError:  # no page can run it
            continue
    return found


def _build_page(folder: str, tables: Tables, *, interactive: bool) -> str:
    """Return a folder's page with figures, tables and data."""
    path = ROOT / folder
    lines = [f"# {read_title(folder)}", f"`{folder}` · [the commands behind it]({'../' * folder.count('/')}README.md)"]
    if interactive:
        lines.append("[**Interactive page**](report.page.html): curves, recipes and their differences, tables as CSV")
    lines += [f"![{figure.stem.replace('-', ' ')}]({figure.name})" for figure in _list_figures(path)]
    for heading, (needed, table) in tables.items():
        if (path / needed).exists() and (text := table(folder)):
            lines += [f"## {heading}", text]
    data = [file.name for file in sorted(path.iterdir()) if file.suffix in DATA_SUFFIXES]
    lines += ["## Data", " · ".join(f"[{name}]({name})" for name in data)]
    return "\n\n".join(lines) + "\n"


def _list_figures(folder: Path) -> list[Path]:
    """Return the paths of a folder's figures, sorted by kind: lengths first, then maps, and the loss last."""
    order = ("lengths", "map", "parameters", "stopping", "anatomy", "distribution", "loss")
    return sorted(
        folder.glob("*.png"),
        key=lambda path: (next((n for n, word in enumerate(order) if path.stem.startswith(word)), len(order)), path),
    )


def _build_index(models: dict[str, str]) -> str:
    lines = [
        "# Gallery",
        "Every folder of [results](../results), with its figures, tables and data. Most have an interactive page.",
        '<div class="gallery" markdown>',
    ]
    for folder in list_folders():
        picture = "".join(f"![](../{folder}/{path.name})<br>" for path in _list_figures(ROOT / folder)[:1])
        lines.append(f"[{picture}{read_title(folder)}](../{get_page_path(folder)})")
    about = "Each page runs a shipped model in the browser. Type a problem to see the answer after every loop."
    lines += ["</div>", "## Models in the browser", about]
    lines.append(" · ".join(f"[{name}](models/{name}.page.html)" for name in models))
    return "\n\n".join(lines) + "\n"
