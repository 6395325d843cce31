"""Build the documentation site: `make site`. Neither the build nor the site uses the network.

    python docs/site/build.py build        # build/site; its sources are written to build/site-source

Zensical builds HTML from the pages of `docs`, a page per folder of results (`gallery.py`), the Python interface from
docstrings (`reference.py`), and the notebooks that marimo has run (`notebooks.py`). `check.py` tests every link.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SITE_FOLDER = Path(__file__).parent
sys.path.append(str(SITE_FOLDER.parent))  # where `fillers` is

import check
import gallery
import reference
from fillers import exact_match, run_tables
from fillers.results import read_own_rule_scores
from mirror import ROOT, Mirror

import notebooks

TABLES = {  # of a folder of results: by heading, the file that a table needs and the function that writes it
    "All cells of the matrix": ("matrix.png", exact_match.format_matrix),
    "Exact match on uniform problems": (
        "runs.json",
        lambda folder: "" if _is_map(folder) else exact_match.format_accuracy_table(folder, "uniform"),
    ),
    "Score card": ("card.json", run_tables.format_score_cards),
    "Cost of training": ("runs.json", run_tables.format_run_costs),
}
MAX_COLUMNS = 40
ASSETS = ("docs/site/site.css", "docs/site/sort.js")
WORKER_URL = "https://unpkg.com/iframe-worker/shim"  # the address in the pages that Zensical writes
PAPER_PAGES = ["results", "reproduced", "looped", "abacus", "retran", "pairs", "claims", "records"]
TOPIC_PAGES = ["controls", "ablations", "families", "leaderboard", "mixers", "formal", "what-a-loop-does", "settled"]
HOW_TO_PAGES = [
    "README", "task", "tagging", "file", "module", "model", "mixer", "position", "objective", "training", "stopping",
    "recipe", "figure", "export", "page", "compare", "continue", "files", "problems", "many", "gpu", "verify", "hub",
    "tracking",
]  # fmt: skip
DESIGN_PAGES = ["docs/architecture.md", "docs/decisions.md", "docs/releasing.md", "bench/README.md"]
DESIGN_PAGES += ["CONTRIBUTING.md", "CHANGELOG.md"]
DESIGN_PAGES += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs" / "lab").glob("*.md"))]
Navigation = list[str | dict[str, Any]]


def _is_map(folder: str) -> bool:
    """Return whether a folder's scores form a map, which has too many cells for a table."""
    sizes = {row["sizes"] for row, _ in read_own_rule_scores(folder)}
    return len(sizes) > MAX_COLUMNS


def build_navigation() -> Navigation:
    """Return the paths of all pages in order; sections are dictionaries of one entry."""
    return [
        {"Start": "README.md"},
        {"How to": [*(f"docs/how-to/{name}.md" for name in HOW_TO_PAGES), "docs/what-now.md"]},
        {"Papers": [f"docs/{name}.md" for name in PAPER_PAGES]},
        {"Python interface": [reference.INDEX, *map(reference.get_page_path, reference.TITLES)]},
        {"Design": [*(f"docs/{name}.md" for name in TOPIC_PAGES), *DESIGN_PAGES]},
        {"Notebooks": [notebooks.INDEX, *(f"notebooks/{path.stem}.md" for path in notebooks.list_notebooks())]},
        {"Gallery": [gallery.INDEX, "results/README.md", *map(gallery.get_page_path, gallery.list_folders())]},
    ]


def list_pages(entries: Navigation) -> list[str]:
    """Return the paths of all pages in a navigation."""
    paths = []
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            paths += [value] if isinstance(value, str) else list_pages(value)
    return paths


def format_toml(value: Any) -> str:
    """Format strings, lists and dictionaries as TOML on one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {format_toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(format_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def write_sources(source: Path, notebook_cache: Path) -> None:
    """Write all sources of the site into the folder ``source``."""
    shutil.rmtree(source, ignore_errors=True)
    generated = gallery.build_pages(TABLES)
    mirror = Mirror(source / "pages", generated | reference.build_pages() | notebooks.build_pages(notebook_cache))
    entries = build_navigation()
    for path in list_pages(entries):
        mirror.stage_page(path)
    for path in ASSETS:
        mirror.write_file(path, (ROOT / path).read_bytes())
    settings = (SITE_FOLDER / "zensical.toml").read_text()
    header = f'[project]\ndocs_dir = "pages"\nsite_dir = "site"\nnav = {format_toml(entries)}\n'
    (source / "zensical.toml").write_text(settings.replace("[project]\n", header, 1))


def bundle_worker(site: Path) -> None:
    """Copy into the site the only script that pages would load from another address, and remove the page for errors."""
    beside = site / "assets" / "javascripts" / "iframe-worker.js"
    shutil.copyfile(SITE_FOLDER / beside.name, beside)
    for path in site.rglob("*.html"):
        if WORKER_URL in (text := path.read_text()):
            path.write_text(text.replace(WORKER_URL, os.path.relpath(beside, path.parent)))
    (site / "404.html").unlink()


def main() -> None:
    """Stage, build and check the site, then replace the last one."""
    folder, start = Path(sys.argv[1]), time.monotonic()
    source, site = folder / "site-source", folder / "site"
    write_sources(source, folder / "notebooks")
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--strict", "--clean", "-f", "zensical.toml"], cwd=source, check=True)
    bundle_worker(source / "site")
    if faults := check.find_faults(source / "site"):
        sys.exit("\n".join(faults))
    shutil.rmtree(site, ignore_errors=True)
    (source / "site").rename(site)
    pages = sum(1 for _ in site.rglob("*.html"))
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6
    print(f"{site}/index.html: {pages} pages, {size:.0f} MB, in {time.monotonic() - start:.0f} s; no link is broken")


if __name__ == "__main__":
    main()
