"""Fill in tables of stopping rules, and compute the loss of stopping without T(n)."""

from __future__ import annotations

import json
from collections import defaultdict

import torch
from fillers.rows import ROOT, numbers, recipes_of, scores_of, table_of, trained_to

from lengthwise.base import fields
from lengthwise.base.rng import stream
from lengthwise.base.score_rows import Row, share_text, size_text
from lengthwise.experiment.loops import Loops
from lengthwise.tasks import Task


def loops(name: str) -> str:
    """Write exact match after loops around T(n), and by each stopping rule."""
    shown = {"T−1": -1, "T": 0, "T+1": 1, "T+5": 5, "T+20": 20}
    heading = ["length", "T(n)", *(f"after {text}" for text in shown), "most confident, per example", "per batch"]
    lines = [heading, ["---:"] * len(heading)]
    found = json.loads((ROOT / name).read_text())
    rows = [row for row in found if row.get("train_seed") == found[0].get("train_seed")]
    for row in rows:
        planned = row["planned"]
        around = [row["exact"][planned - 1 + more] for more in shown.values()]
        rules = [row["chosen"][rule] for rule in ("example", "batch")]
        stops = [f"{share_text(rule['exact'], 3)} (after {rule['mean']:.1f} loops)" for rule in rules]
        size = size_text(row["sizes"])
        lines.append([size, str(planned), *(share_text(share, 3) for share in around), *stops])
    which = "" if len(rows) == len(found) else f", of seed {rows[0]['train_seed']}"
    return f"{table_of(lines)}\n{rows[0]['count']} fresh problems per length{which}.\n"


def stopped(folder: str) -> dict[tuple[str, str, str], list[Row]]:
    """Return rows of recipes' own rules by recipe, rule and sizes, each with ``lost``: the largest possible loss of
    exact match against ``Oracle``, which takes the loops planned for T(n)."""
    recipes = recipes_of(folder)
    own: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    oracle = {}
    for row in scores_of(folder):
        at, top = numbers(row["sizes"]), trained_to(recipes[row["recipe_name"]]["lengths"], row["sizes"])
        if row["stopping"] == "Oracle":
            oracle[row["recipe_name"], row["train_seed"], row["sizes"], row["problems"]] = float(row["exact"])
        elif row["stopping"] != row["own_rule"]:
            continue
        elif all(low <= size for low, size in zip(top, at, strict=True)) and max(at) <= 2 * max(top):
            own[row["recipe_name"], row["stopping"], row["sizes"]].append(row | {"exact": float(row["exact"])})
    for (name, _, sizes), rows in own.items():
        task, loops_of = (fields.decode(kind, recipes[name][kind.__name__.lower()]) for kind in (Task, Loops))
        planned = int(loops_of.planned(task.sample(torch.tensor([numbers(sizes)]), stream(0, "page")).rounds))
        for row in rows:
            known = oracle.get((name, row["train_seed"], sizes, row["problems"]))
            as_known = row["exact"] if float(row["loops"]) == planned else 1.0
            row["lost"] = max(0.0, (as_known if known is None else known) - row["exact"])
    return own
