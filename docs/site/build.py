"""Build the documentation site: `make site`. Nothing is asked of the network, neither now nor by the site.

    python docs/site/build.py build        # build/site; what it is made of lies in build/site-source

Pages come as they are, with a page for every folder of results (`gallery.py`), the Python interface from docstrings
(`reference.py`), and notebooks as marimo runs them (`notebooks.py`). Zensical makes HTML of it, and `check.py` looks at
every link.
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

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # where `fill.py` is

import check
import fill
import gallery
import reference
from fillers import runs
from fillers.rows import own_scores
from mirror import ROOT, Mirror

import notebooks

TABLES = {  # of a folder of results, with the file that each needs
    "All cells of the matrix": ("matrix.csv", fill.matrix),
    "Exact match on uniform problems": (
        "runs.json",
        lambda folder: "" if _mapped(folder) else fill.table(folder, "uniform"),
    ),
    "Score card": ("card.json", runs.card),
    "Cost of training": ("runs.json", runs.time),
}
MOST_SIZES = 40  # columns of a table
OWN = ("docs/site/site.css", "docs/site/sort.js")
WORKER = "https://unpkg.com/iframe-worker/shim"  # where Zensical would have it loaded from
PAPERS = ["results", "reproduced", "looped", "abacus", "retran", "pairs", "claims", "records"]
REASONS = ["controls", "ablations", "families", "leaderboard", "mixers", "formal", "what-a-loop-does", "settled"]
HOW_TO = [
    "README",
    "task",
    "tagging",
    "file",
    "module",
    "model",
    "mixer",
    "position",
    "objective",
    "training",
    "stopping",
    "recipe",
    "figure",
]
HOW_TO += ["export", "page", "compare", "continue", "files", "problems", "many", "gpu", "verify", "hub", "tracking"]
INSIDE = ["docs/architecture.md", "docs/decisions.md", "docs/releasing.md", "bench/README.md"]
INSIDE += ["CONTRIBUTING.md", "CHANGELOG.md"]
INSIDE += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs" / "lab").glob("*.md"))]
Navigation = list[str | dict[str, Any]]


def _mapped(folder: str) -> bool:
    """Return whether the scores form a map, which has too many cells for a table."""
    sizes = {row["sizes"] for row, _ in own_scores(folder)}
    return len(sizes) > MOST_SIZES


def navigation() -> Navigation:
    """Return the paths of all pages in order; sections are dictionaries of one entry."""
    return [
        {"Start": "README.md"},
        {"How to": [*(f"docs/how-to/{name}.md" for name in HOW_TO), "docs/what-now.md"]},
        {"Papers": [f"docs/{name}.md" for name in PAPERS]},
        {"Python interface": [reference.INDEX, *map(reference.path_of, reference.TITLES)]},
        {"Design": [*(f"docs/{name}.md" for name in REASONS), *INSIDE]},
        {"Notebooks": [notebooks.INDEX, *(f"notebooks/{path.stem}.md" for path in notebooks.sources())]},
        {"Gallery": [gallery.INDEX, "results/README.md", *map(gallery.page_of, gallery.folders())]},
    ]


def in_navigation(found: Navigation) -> list[str]:
    """Return all pages of a navigation."""
    paths = []
    for one in found:
        for below in one.values() if isinstance(one, dict) else [one]:
            paths += [below] if isinstance(below, str) else in_navigation(below)
    return paths


def inline(value: Any) -> str:
    """Format strings, lists and dictionaries as TOML on one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {inline(below)}' for key, below in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    return json.dumps(value, ensure_ascii=False)


def stage(source: Path, kept: Path) -> None:
    """Write all sources of the site into the folder ``source``."""
    shutil.rmtree(source, ignore_errors=True)
    made = gallery.pages(TABLES)
    mirror = Mirror(source / "pages", made | reference.pages() | notebooks.pages(kept))
    found = navigation()
    for path in in_navigation(found):
        mirror.add(path)
    for path in OWN:
        mirror.put(path, (ROOT / path).read_bytes())
    settings = (HERE / "zensical.toml").read_text()
    own = f'[project]\ndocs_dir = "pages"\nsite_dir = "site"\nnav = {inline(found)}\n'
    (source / "zensical.toml").write_text(settings.replace("[project]\n", own, 1))


def own(site: Path) -> None:
    """Store the one script that pages would load from elsewhere beside them, and remove the page for errors."""
    beside = site / "assets" / "javascripts" / "iframe-worker.js"
    shutil.copyfile(HERE / beside.name, beside)
    for path in site.rglob("*.html"):
        if WORKER in (text := path.read_text()):
            path.write_text(text.replace(WORKER, os.path.relpath(beside, path.parent)))
    (site / "404.html").unlink()


def main() -> None:
    """Stage, build, check, and put the site where the last one was."""
    folder, start = Path(sys.argv[1]), time.monotonic()
    source, site = folder / "site-source", folder / "site"
    stage(source, folder / "notebooks")
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--strict", "--clean", "-f", "zensical.toml"], cwd=source, check=True)
    own(source / "site")
    if said := check.wrong(source / "site"):
        sys.exit("\n".join(said))
    shutil.rmtree(site, ignore_errors=True)
    (source / "site").rename(site)
    pages = sum(1 for _ in site.rglob("*.html"))
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6
    print(f"{site}/index.html: {pages} pages, {size:.0f} MB, in {time.monotonic() - start:.0f} s; no link is broken")


if __name__ == "__main__":
    main()
