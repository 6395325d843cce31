"""Fill what the pages quote — code and figures — from where it stands: `make docs`. Nothing is copied by hand.

<!-- fill: code examples/own_task.py -->      a file of the repository
<!-- fill: table results/pairs uniform -->    exact match from a study's scores.csv, on one of its sets of problems
<!-- fill: time results/pairs -->             its runs' parameters and training times, from runs.json
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SPOT = re.compile(r"(<!-- fill: (\w+) ([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with every spot filled anew."""
    return SPOT.sub(lambda spot: spot[1] + FILLERS[spot[2]](*spot[3].split()) + spot[4], text)


def code(name: str) -> str:
    """A file, as a block of Python."""
    return f"```python\n{(ROOT / name).read_text()}```\n"


def table(folder: str, problems: str) -> str:
    """Median over seeds, with the worst and the best beside it."""
    shares: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    counts = set()
    with (ROOT / folder / "scores.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["problems"] == problems:
                shares[row["recipe_name"]][int(row["sizes"])].append(float(row["exact"]))
                counts.add(int(row["count"]))
    sizes = sorted({size for by_size in shares.values() for size in by_size})
    lines = [["", *map(str, sizes)], ["---", *("---:" for _ in sizes)]]
    for name, by_size in shares.items():
        lines.append([f"`{name}`", *(_spread(by_size[size]) for size in sizes)])
    seeds = {len(values) for by_size in shares.values() for values in by_size.values()}
    many = f"Median of {_one(seeds)} seeds (worst–best)" if seeds != {1} else "One seed"
    note = f"{many}, {_one(counts):,} fresh problems per length and seed.\n"
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n" + note


def _spread(values: list[float]) -> str:
    low, high = min(values), max(values)
    spread = "" if low == high else f" ({low:.3f}–{high:.3f})"
    return f"{statistics.median(values):.3f}{spread}"


def _one(values: set[int]) -> int:
    (value,) = values
    return value


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


FILLERS = {"code": code, "table": table, "time": time}


def main() -> None:
    """Fill every page in place."""
    for page in PAGES:
        text = page.read_text()
        if (new := filled(text)) != text:
            page.write_text(new)
            print(f"filled {page.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
