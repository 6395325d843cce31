"""What the sources claim, beside what was measured here."""

from __future__ import annotations

import json
import re
import statistics
import tomllib

from fillers.rows import ROOT, exact_by_seed, maps_of, table_of, unfitted

from lengthwise.base.score_rows import size_text


def claims(name: str) -> str:
    """Each claim of the sources, with its figure here: the mean over seeds, and what it says of the claim."""
    lines = [["source", "claim", "recipe", "at", "agrees if", "here", "seeds", "verdict"]]
    lines.append(["---", "---", "---", "---:", "---:", "---:", "---:", "---"])
    for claim in tomllib.loads((ROOT / name).read_text())["claim"]:
        shares = _figures(claim, claim["recipe"])
        others = {other: _figures(claim, other) for other in claim["agrees"].split()[1:] if other[0].isalpha()}
        here = _mean(shares)
        if others:
            here += f" against {', '.join(map(_mean, others.values()))}"
        at = claim["sizes"].replace("-", "–").replace("x", " × ") + (f", {claim['stop']}" if "stop" in claim else "")
        verdict = _compared(claim, shares, others) if others else _verdict(claim, shares)
        bound = "above" if others else claim["agrees"].replace(">=", "≥").replace("<=", "≤")
        row = [claim["source"], claim["says"], f"`{claim['recipe']}`", at, bound, here, str(len(shares)), verdict]
        lines.append(row)
    return table_of(lines)


def _mean(shares: list[float]) -> str:
    return f"{statistics.fmean(shares):.3f}" if shares else "–"


def _figures(claim: dict[str, str], recipe: str) -> list[float]:
    """Exact match of each seed where a claim is about it: at a size, over a map of them; where it is to stop."""
    folder, sizes, stop = claim["folder"], claim["sizes"], claim.get("stop", "")
    if "-" in sizes:
        rule = re.sub(r"(\d+) loops?", r"After(loops=\1)", stop) or "Oracle"
        low, high = map(int, sizes.partition("x")[0].split("-"))
        maps = [found for key, found in maps_of(folder).items() if key[:2] == (recipe, rule)]
        return [
            statistics.fmean(exact for at, exact in found.items() if low <= min(at) <= max(at) <= high)
            for found in maps
        ]
    if not stop:
        return exact_by_seed(folder, recipe, sizes)
    rows = json.loads((ROOT / folder / f"stopping-{recipe}.json").read_text())
    (row,) = (row for row in rows if size_text(row["sizes"]) == sizes)
    if stop == "per batch":
        return [row["chosen"]["batch"]["exact"]]
    return [row["exact"][row["planned"] - 1 + int(stop.removeprefix("T(n)").replace(" ", ""))]]


def _verdict(claim: dict[str, str], shares: list[float]) -> str:
    """A claim that a model succeeds is not contradicted by one that did not learn to the end, nor is one that it fails
    confirmed by it; seeds on both sides of its bound do not decide it, and one seed decides nothing."""
    if not shares:
        return "not measured"
    sign, bound = claim["agrees"].split()

    def reaches(share: float) -> bool:
        return share >= float(bound) if sign == ">=" else share <= float(bound)

    holds, agreeing = reaches(statistics.fmean(shares)), sum(map(reaches, shares))
    unfit = unfitted(claim["folder"]).get(claim["recipe"], "")
    if unfit and holds == (sign == "<="):
        return f"undecided{unfit}"
    if 0 < agreeing < len(shares):
        return f"undecided ({agreeing} of {len(shares)} seeds agree)"
    return ("agrees" if holds else "disagrees") + (", one seed" if len(shares) == 1 else "")


def _compared(claim: dict[str, str], shares: list[float], others: dict[str, list[float]]) -> str:
    """One recipe is better than others where its worst seed is better than the best seed of each."""
    if not shares or not all(others.values()):
        return "not measured"
    alone = ", one seed" if any(len(found) == 1 for found in (shares, *others.values())) else ""
    if any(min(found) > max(shares) for found in others.values()):
        return "disagrees" + alone
    if min(shares) <= max(max(found) for found in others.values()):
        return "undecided (seeds overlap)"
    compared, unfit = (claim["recipe"], *others), unfitted(claim["folder"])
    missing = sum(name in unfit for name in compared)
    return "agrees" + alone + (f" ({missing} of the {len(compared)} not fitted)" if missing else "")
