"""Fill in tables of exact match by number of loops and by stopping rule."""

from __future__ import annotations

import json

from fillers.results import ROOT, format_table

from lengthwise.base.score_rows import format_share, format_size


def format_loop_table(path: str) -> str:
    """Write a table of exact match after T(n) − 1 to T(n) + 20 loops, and after the most confident loop of each example
    or batch."""
    shown = {"T−1": -1, "T": 0, "T+1": 1, "T+5": 5, "T+20": 20}
    heading = ["length", "T(n)", *(f"after {text}" for text in shown), "most confident, per example", "per batch"]
    lines = [heading, ["---:"] * len(heading)]
    found = json.loads((ROOT / path).read_text())
    rows = [row for row in found if row.get("train_seed") == found[0].get("train_seed")]
    for row in rows:
        planned = row["planned"]
        around = [row["exact"][planned - 1 + more] for more in shown.values()]
        rules = [row["chosen"][rule] for rule in ("example", "batch")]
        stops = [f"{format_share(rule['exact'], 3)} (after {rule['mean']:.1f} loops)" for rule in rules]
        size = format_size(row["sizes"])
        lines.append([size, str(planned), *(format_share(share, 3) for share in around), *stops])
    which = "" if len(rows) == len(found) else f"Seed {rows[0]['train_seed']}, "
    return f"{format_table(lines)}\n{which}{rows[0]['count']} fresh problems per length.\n"
