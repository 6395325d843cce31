"""Fill in the sources' claims, with our measurements beside them."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from fillers.rows import ROOT, WITHIN, exact_by_seed, maps_of, numbers, outlines_of, own_scores, table_of, unfitted

from lengthwise.base.score_rows import KINDS_WITH_CURVE, Row, share_text, size_text

VERDICTS = ("agrees", "better, none fitted", "disagrees", "undecided")
HEADS = ("claim", "at", "here", "earlier seeds", "verdict")
SEEDS = 3  # fewer decide nothing


def claims(name: str) -> str:
    """Write a tally of the verdicts, then a table per source: each claim with our figure (mean over seeds, worst
    family), the sizes that the recipe was chosen on, and earlier recipes."""
    toml_claims = tomllib.loads((ROOT / name).read_text())["claim"]
    rows: dict[str, list[list[str]]] = defaultdict(list)
    for claim in toml_claims:
        rows[claim["source"]].append(_line(claim))
    sides = [(shares, *others.values()) for shares, others in map(_measured, toml_claims)]
    several = sum(min(map(len, side)) >= SEEDS for side in sides)
    parts = [tally((row[-1] for found in rows.values() for row in found), several)]
    aligned = ["---:" if head == "at" else "---" for head in HEADS]
    for found in rows.values():
        for row in found:
            row[-1] = re.sub(r"^undecided \((.*)\)$", r"\1", row[-1])  # the page says once what is undecided
    parts += [f"### {source}\n\n{table_of([HEADS, aligned, *found])}" for source, found in rows.items()]
    return "\n".join(parts)


def headline(name: str, system: str) -> str:
    """Write the main results of a paper: its claims, our measurements, their costs and commands."""
    toml_claims = tomllib.loads((ROOT / name).read_text())["claim"]
    lines = [("claim", "here", "seeds", "CPU min", "command"), ("---", "---", "---:", "---:", "---")]
    for claim in (one for one in toml_claims if one.get("headline") == system):
        runs = json.loads((ROOT / claim["folder"] / "runs.json").read_text())
        minutes = statistics.median(run["cpu_s"] for run in runs if run["recipe_name"] == claim["recipe"]) / 60
        says, at, here, *_ = _line(claim)
        score = re.sub(r"; (claimed|[\d a-z]+ seeds).*", "", here)
        seeds = str(len(_figures(claim, claim["recipe"])))
        cells = (says, f"{score} at {at.strip('*')}", seeds, f"{minutes:,.0f}")
        lines.append((*cells, f"`{claim['command']}`"))
    return f"{table_of(lines)}\nMeans over seeds (in brackets: any seed's lowest family); CPU minutes per run.\n"


def standings(name: str) -> str:
    """List claims as reproduced, contradicted or open; of undecided claims only the main results of a paper."""
    toml_claims = tomllib.loads((ROOT / name).read_text())["claim"]
    found: dict[str, dict[str, list[str]]] = {
        group: defaultdict(list) for group in ("Reproduced", "Contradicted", "Open")
    }
    for claim in toml_claims:
        says, at, here, _, result = _line(claim)
        at = at.strip("*")
        place = "Here:" if says.endswith(f" {at}") else f"At {at}:"
        text = f"- {says}. {place} {re.sub(r'; claimed [^;]*', '', here)}"
        if result.startswith("agrees"):
            found["Reproduced"][claim["source"]].append(f"{text}.\n")
        elif result.startswith("disagrees"):
            found["Contradicted"][claim["source"]].append(f"{text}.\n")
        elif "headline" in claim:
            reason = re.sub(r"^undecided \((.*)\)$", r"\1", result)
            text = re.sub(r"; \d+ seeds$", "", text) if "seeds" in reason else text  # the reason counts them
            found["Open"][claim["source"]].append(f"{text}; {reason}.\n")
    parts = []
    for group, sources in found.items():
        parts += [f"## {group}\n", *(f"{source}:\n\n{''.join(lines)}" for source, lines in sources.items())]
        parts += [] if sources else ["Nothing.\n"]
    return "\n".join(parts)


def tally(verdicts: Iterable[str], several: int) -> str:
    """Count claims by verdict, undecided ones by reason, and those with ``SEEDS`` seeds or more (``several``)."""
    verdicts = list(verdicts)
    counts = Counter(next(kind for kind in VERDICTS if verdict.startswith(kind)) for verdict in verdicts)
    found = (match[1] for verdict in verdicts if (match := re.fullmatch(r"undecided \((.*?)(?:: .*)?\)", verdict)))
    reasons = Counter(
        "seeds on both sides" if re.search(r"of \d+ seeds|overlap", reason) else reason for reason in found
    )
    why = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
    lines = [("verdict", "claims"), ("---", "---:"), *((kind, str(counts[kind])) for kind in VERDICTS)]
    lines = [(kind + (f" ({why})" if kind == "undecided" and why else ""), count) for kind, count in lines]
    return table_of([*lines, ("in all", str(len(verdicts))), (f"with {SEEDS} seeds or more", str(several))])


def _measured(claim: Row) -> tuple[list[float], dict[str, list[float]]]:
    """Return exact match of each seed of a claim's recipe, and of the recipes that it is compared with."""
    names = [name for name in claim["agrees"].split()[1:] if name[0].isalpha()]
    return _figures(claim, claim["recipe"]), {name: _figures(claim, name) for name in names}


def _line(claim: Row) -> list[str]:
    shares, others = _measured(claim)
    here = _cell(claim, claim["recipe"], shares)
    if others:
        best = max(others.items(), key=lambda other: statistics.fmean(other[1] or [0]))
        here += f"; best of {len(others)} others: " if len(others) > 1 else " against "
        here += _cell(claim, *best)
    at = claim["sizes"].replace("-", "–").replace("x", " × ") + (f", {claim['stop']}" if "stop" in claim else "")
    bound = "above" if others else claim["agrees"].replace(">=", "≥").replace("<=", "≤")
    unfit = unfitted(claim["folder"])
    result = compared(claim["recipe"], shares, others, unfit) if others else verdict(claim, shares, unfit)
    if _was_chosen_out_of_range(claim) and not result.startswith(("undecided", "not measured")):
        result = f"undecided (chosen out of range: {result})"
    seeds = " against ".join(dict.fromkeys(str(len(found)) for found in (shares, *others.values())))
    # The claim's own length was looked at while its recipe was chosen.
    looked_at = outlines_of(claim["folder"])[claim["recipe"]].looked_at
    at = f"**{at}**" if max(numbers(claim["sizes"].split("-")[-1])) in looked_at else at
    usual = {">= 0.95", "<= 0.6"}  # what the page says once
    here += "" if others or claim["agrees"] in usual else f"; claimed {bound}"
    seeds = "" if seeds == "1" else f"; {seeds} seeds"
    earlier, count = "", claim.get("earlier", {"recipes": 0})  # of this name, as docs/claims.toml counts them
    if count["recipes"]:
        earlier = (f"{count['missed']} of " if "missed" in count else "") + str(count["seeds"])
    return [claim["says"], at, here + seeds, earlier, result]


def _was_chosen_out_of_range(claim: Row) -> bool:
    """Return whether the recipe was chosen on lengths beyond ``WITHIN`` times its training length."""
    outline = outlines_of(claim["folder"])[claim["recipe"]]
    return max(outline.looked_at, default=0) > WITHIN * outline.top


def _cell(claim: Row, recipe: str, shares: list[float]) -> str:
    """Format the mean over seeds, with the worst family in brackets unless the claim is that the model fails."""
    if not shares:
        return "–"
    low = None if claim["agrees"].startswith("<=") else _worst_family(claim, recipe)
    return share_text(statistics.fmean(shares), 3) + (f" ({low[1]} {share_text(low[0])})" if low else "")


def _worst_family(claim: Row, recipe: str) -> tuple[float, str] | None:
    """Return the lowest exact match of a family, and its name, at a claim's sizes by the recipe's own rule, over all
    seeds; "every" where all problems were measured. Nothing where families were not measured there, or where the claim
    is about another rule."""
    if claim.get("stop"):
        return None
    found = [
        (float(row["exact"]), row["problems"])
        for row, _ in own_scores(claim["folder"], None)
        if row["recipe_name"] == recipe and row["problems"] not in KINDS_WITH_CURVE and _within(claim, row["sizes"])
        if "-" not in claim["sizes"] or row["problems"] != "every"  # over a map, only its smallest sizes have it
    ]
    return min(found, default=None)


def _within(claim: Row, sizes: str) -> bool:
    if "-" not in claim["sizes"]:
        return sizes == claim["sizes"]
    low, high = map(int, claim["sizes"].partition("x")[0].split("-"))
    return low <= min(numbers(sizes)) <= max(numbers(sizes)) <= high


def _figures(claim: Row, recipe: str) -> list[float]:
    """Return exact match of each seed at a claim's size, or over its map, by its stopping rule."""
    folder, sizes, stop = claim["folder"], claim["sizes"], claim.get("stop", "")
    if "-" in sizes:
        rule = re.sub(r"(\d+) loops?", r"After(loops=\1)", stop) or "Oracle"
        maps = [found for key, found in maps_of(folder).items() if key[:2] == (recipe, rule)]
        cells = [[exact for at, exact in found.items() if _within(claim, size_text(at))] for found in maps]
        return [statistics.fmean(shares) for shares in cells]
    if not stop:
        return exact_by_seed(folder, recipe, sizes)
    rows = json.loads((ROOT / folder / f"stopping-{recipe}.json").read_text())
    rows = [row for row in rows if size_text(row["sizes"]) == sizes]
    if stop == "per batch":
        return [row["chosen"]["batch"]["exact"] for row in rows]
    more = int(stop.removeprefix("T(n)").replace(" ", ""))
    return [row["exact"][row["planned"] - 1 + more] for row in rows]


def verdict(claim: Mapping[str, str], shares: list[float], unfit: Mapping[str, str]) -> str:
    """Return the verdict on a claim with a bound. A model that did not learn its training length neither refutes that
    it succeeds nor confirms that it fails; fewer than ``SEEDS`` seeds decide nothing, nor do seeds on both sides of the
    bound."""
    if not shares:
        return "not measured"
    sign, bound = claim["agrees"].split()

    def reaches(share: float) -> bool:
        return share >= float(bound) if sign == ">=" else share <= float(bound)

    holds, agreeing = reaches(statistics.fmean(shares)), sum(map(reaches, shares))
    if claim["recipe"] in unfit and holds == (sign == "<="):
        return f"undecided ({unfit[claim['recipe']].strip(' ()')})"
    if 0 < agreeing < len(shares):
        return f"undecided ({agreeing} of {len(shares)} seeds agree)"
    if len(shares) < SEEDS:
        return f"undecided ({_few_seeds(len(shares), agree=holds)})"
    return "agrees" if holds else "disagrees"


def compared(recipe: str, shares: list[float], others: Mapping[str, list[float]], unfit: Mapping[str, str]) -> str:
    """Return the verdict on a comparison: better if the worst seed of the recipe beats the best seed of each other one.
    Beating only models that did not learn their training length decides nothing, nor does losing if the recipe itself
    did not."""
    if not shares or not all(others.values()):
        return "not measured"
    missing = sum(name in unfit for name in others)
    note = "no other fitted" if missing == len(others) else f"{missing} of {len(others)} others not fitted"
    worse = any(min(found) > max(shares) for found in others.values())
    better = min(shares) > max(max(found) for found in others.values())
    fewest = min(map(len, (shares, *others.values())))
    if worse and recipe in unfit:
        return f"undecided ({unfit[recipe].strip(' ()')})"
    if fewest < SEEDS and (better or worse):
        return f"undecided ({_few_seeds(fewest, agree=better)}{f': {note}' if better and missing else ''})"
    if better and missing == len(others):
        return "better, none fitted"
    if better:
        return "agrees" + (f" ({note})" if missing else "")
    return "disagrees" if worse else "undecided (seeds overlap)"


def _few_seeds(count: int, *, agree: bool) -> str:
    said = "agree" if agree else "disagree"
    return f"one seed {said}s" if count == 1 else f"{count} seeds {said}"
