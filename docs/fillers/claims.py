"""Fill in the sources' claims, with our measurements beside them."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from fillers.results import (
    MAX_CHOICE_MULTIPLE,
    ROOT,
    describe_unfitted,
    format_table,
    parse_sizes,
    read_exact_match,
    read_maps,
    read_outlines,
    read_own_rule_scores,
)

from lengthwise.base.score_rows import KINDS_WITH_CURVE, Row, format_share, format_size

VERDICTS = ("agrees", "better, none fitted", "disagrees", "undecided")
COLUMNS = ("claim", "at", "here", "earlier seeds", "verdict")
MIN_SEEDS = 3  # fewer decide nothing


def format_claims(path: str) -> str:
    """Return a tally of the verdicts, and a table per source. A row has a claim, its size (bold if the recipe was
    chosen on it), our figure (mean over seeds, worst family), the number of earlier seeds, and the verdict."""
    toml_claims = tomllib.loads((ROOT / path).read_text())["claim"]
    rows: dict[str, list[list[str]]] = defaultdict(list)
    for claim in toml_claims:
        rows[claim["source"]].append(_format_claim(claim))
    sides = [(shares, *others.values()) for shares, others in map(_read_exact_matches, toml_claims)]
    several = sum(min(map(len, side)) >= MIN_SEEDS for side in sides)
    parts = [format_tally((row[-1] for found in rows.values() for row in found), several)]
    aligned = ["---:" if head == "at" else "---" for head in COLUMNS]
    for found in rows.values():
        for row in found:
            row[-1] = re.sub(r"^undecided \((.*)\)$", r"\1", row[-1])  # the page says once what is undecided
    parts += [f"### {source}\n\n{format_table([COLUMNS, aligned, *found])}" for source, found in rows.items()]
    return "\n".join(parts)


def format_main_results(path: str, system: str) -> str:
    """Write the main results of a paper: its claims, our measurements, their costs and commands."""
    toml_claims = tomllib.loads((ROOT / path).read_text())["claim"]
    lines = [("claim", "here", "seeds", "CPU min", "command"), ("---", "---", "---:", "---:", "---")]
    for claim in (one for one in toml_claims if one.get("headline") == system):
        runs = json.loads((ROOT / claim["folder"] / "runs.json").read_text())
        minutes = statistics.median(run["cpu_s"] for run in runs if run["recipe_name"] == claim["recipe"]) / 60
        says, at, here, *_ = _format_claim(claim)
        score = re.sub(r"; (claimed|[\d a-z]+ seeds).*", "", here)
        seeds = str(len(_read_figures(claim, claim["recipe"])))
        cells = (says, f"{score} at {at.strip('*')}", seeds, f"{minutes:,.0f}")
        lines.append((*cells, f"`{claim['command']}`"))
    note = "Scores are means over seeds (in brackets: lowest family); CPU minutes are per run."
    return f"{format_table(lines)}\n{note}\n"


def format_standings(path: str) -> str:
    """List claims as reproduced, contradicted or open. Undecided claims are listed only if they are main results of a
    paper."""
    toml_claims = tomllib.loads((ROOT / path).read_text())["claim"]
    found: dict[str, dict[str, list[str]]] = {
        group: defaultdict(list) for group in ("Reproduced", "Contradicted", "Open")
    }
    for claim in toml_claims:
        says, at, here, _, result = _format_claim(claim)
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


def format_tally(verdicts: Iterable[str], several: int) -> str:
    """Return a table that counts claims by verdict, and undecided ones by reason. ``several`` claims have ``MIN_SEEDS``
    seeds or more."""
    verdicts = list(verdicts)
    counts = Counter(next(kind for kind in VERDICTS if verdict.startswith(kind)) for verdict in verdicts)
    found = (match[1] for verdict in verdicts if (match := re.fullmatch(r"undecided \((.*?)(?:: .*)?\)", verdict)))
    reasons = Counter(
        "seeds on both sides" if re.search(r"of \d+ seeds|overlap", reason) else reason for reason in found
    )
    why = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
    lines = [("verdict", "claims"), ("---", "---:"), *((kind, str(counts[kind])) for kind in VERDICTS)]
    lines = [(kind + (f" ({why})" if kind == "undecided" and why else ""), count) for kind, count in lines]
    return format_table([*lines, ("in all", str(len(verdicts))), (f"with {MIN_SEEDS} seeds or more", str(several))])


def _read_exact_matches(claim: Row) -> tuple[list[float], dict[str, list[float]]]:
    """Return the exact match of each seed of a claim's recipe and, by name, of each recipe that it is compared with."""
    names = [name for name in claim["agrees"].split()[1:] if name[0].isalpha()]
    return _read_figures(claim, claim["recipe"]), {name: _read_figures(claim, name) for name in names}


def _format_claim(claim: Row) -> list[str]:
    shares, others = _read_exact_matches(claim)
    here = _format_share(claim, claim["recipe"], shares)
    if others:
        best = max(others.items(), key=lambda other: statistics.fmean(other[1] or [0]))
        here += f"; best of {len(others)} others: " if len(others) > 1 else " against "
        here += _format_share(claim, *best)
    at = claim["sizes"].replace("-", "–").replace("x", " × ") + (f", {claim['stop']}" if "stop" in claim else "")
    bound = "above" if others else claim["agrees"].replace(">=", "≥").replace("<=", "≤")
    unfit = describe_unfitted(claim["folder"])
    result = judge_comparison(claim["recipe"], shares, others, unfit) if others else judge_claim(claim, shares, unfit)
    if _was_chosen_out_of_range(claim) and not result.startswith(("undecided", "not measured")):
        result = f"undecided (chosen out of range: {result})"
    seeds = " against ".join(dict.fromkeys(str(len(found)) for found in (shares, *others.values())))
    # The claim's own length was looked at while its recipe was chosen.
    looked_at = read_outlines(claim["folder"])[claim["recipe"]].looked_at
    at = f"**{at}**" if max(parse_sizes(claim["sizes"].split("-")[-1])) in looked_at else at
    usual = {">= 0.95", "<= 0.6"}  # what the page says once
    here += "" if others or claim["agrees"] in usual else f"; claimed {bound}"
    seeds = "" if seeds == "1" else f"; {seeds} seeds"
    earlier, count = "", claim.get("earlier", {"recipes": 0})  # of this name, as docs/claims.toml counts them
    if count["recipes"]:
        earlier = (f"{count['missed']} of " if "missed" in count else "") + str(count["seeds"])
    return [claim["says"], at, here + seeds, earlier, result]


def _was_chosen_out_of_range(claim: Row) -> bool:
    """Return whether the recipe was chosen on lengths beyond ``MAX_CHOICE_MULTIPLE`` times its training length."""
    outline = read_outlines(claim["folder"])[claim["recipe"]]
    return max(outline.looked_at, default=0) > MAX_CHOICE_MULTIPLE * outline.top


def _format_share(claim: Row, recipe: str, shares: list[float]) -> str:
    """Format the mean over seeds, with the worst family in brackets unless the claim is that the model fails."""
    if not shares:
        return "–"
    low = None if claim["agrees"].startswith("<=") else _worst_family(claim, recipe)
    return format_share(statistics.fmean(shares), 3) + (f" ({low[1]} {format_share(low[0])})" if low else "")


def _worst_family(claim: Row, recipe: str) -> tuple[float, str] | None:
    """Return the lowest exact match of any family and seed at a claim's sizes by the recipe's own rule, and the
    family's name ("every" if all problems were measured). Return None if no family was measured there, or if the claim
    is about another rule."""
    if claim.get("stop"):
        return None
    found = [
        (float(row["exact"]), row["problems"])
        for row, _ in read_own_rule_scores(claim["folder"], None)
        if row["recipe_name"] == recipe and row["problems"] not in KINDS_WITH_CURVE and _has_sizes(claim, row["sizes"])
        if "-" not in claim["sizes"] or row["problems"] != "every"  # over a map, only its smallest sizes have it
    ]
    return min(found, default=None)


def _has_sizes(claim: Row, sizes: str) -> bool:
    if "-" not in claim["sizes"]:
        return sizes == claim["sizes"]
    low, high = map(int, claim["sizes"].partition("x")[0].split("-"))
    return low <= min(parse_sizes(sizes)) <= max(parse_sizes(sizes)) <= high


def _read_figures(claim: Row, recipe: str) -> list[float]:
    """Return each seed's exact match at the claim's size, or the mean over the claim's map, by the claim's stopping
    rule."""
    folder, sizes, stop = claim["folder"], claim["sizes"], claim.get("stop", "")
    if "-" in sizes:
        rule = re.sub(r"(\d+) loops?", r"After(loops=\1)", stop) or "Oracle"
        maps = [found for key, found in read_maps(folder).items() if key[:2] == (recipe, rule)]
        cells = [[exact for at, exact in found.items() if _has_sizes(claim, format_size(at))] for found in maps]
        return [statistics.fmean(shares) for shares in cells]
    if not stop:
        return read_exact_match(folder, recipe, sizes)
    rows = json.loads((ROOT / folder / f"stopping-{recipe}.json").read_text())
    rows = [row for row in rows if format_size(row["sizes"]) == sizes]
    if stop == "per batch":
        return [row["chosen"]["batch"]["exact"] for row in rows]
    more = int(stop.removeprefix("T(n)").replace(" ", ""))
    return [row["exact"][row["planned"] - 1 + more] for row in rows]


def judge_claim(claim: Mapping[str, str], shares: list[float], notes: Mapping[str, str]) -> str:
    """Return the verdict on a claim with a bound. A model that did not learn its training length can neither refute a
    claim of success nor confirm a claim of failure. A claim is undecided with fewer than ``MIN_SEEDS`` seeds, or with
    seeds on both sides of the bound."""
    if not shares:
        return "not measured"
    sign, bound = claim["agrees"].split()

    def reaches(share: float) -> bool:
        return share >= float(bound) if sign == ">=" else share <= float(bound)

    holds, agreeing = reaches(statistics.fmean(shares)), sum(map(reaches, shares))
    if claim["recipe"] in notes and holds == (sign == "<="):
        return f"undecided ({notes[claim['recipe']].strip(' ()')})"
    if 0 < agreeing < len(shares):
        return f"undecided ({agreeing} of {len(shares)} seeds agree)"
    if len(shares) < MIN_SEEDS:
        return f"undecided ({_describe_few_seeds(len(shares), agree=holds)})"
    return "agrees" if holds else "disagrees"


def judge_comparison(
    recipe: str, shares: list[float], others: Mapping[str, list[float]], notes: Mapping[str, str]
) -> str:
    """Return the verdict on a comparison: "agrees" if the recipe's worst seed beats the best seed of every other
    recipe, "disagrees" if another recipe's worst seed beats the recipe's best. Beating only models that did not learn
    their training length gives "better, none fitted"; losing without having learned it gives "undecided"."""
    if not shares or not all(others.values()):
        return "not measured"
    missing = sum(name in notes for name in others)
    note = "no other fitted" if missing == len(others) else f"{missing} of {len(others)} others not fitted"
    worse = any(min(found) > max(shares) for found in others.values())
    better = min(shares) > max(max(found) for found in others.values())
    fewest = min(map(len, (shares, *others.values())))
    if worse and recipe in notes:
        return f"undecided ({notes[recipe].strip(' ()')})"
    if fewest < MIN_SEEDS and (better or worse):
        return f"undecided ({_describe_few_seeds(fewest, agree=better)}{f': {note}' if better and missing else ''})"
    if better and missing == len(others):
        return "better, none fitted"
    if better:
        return "agrees" + (f" ({note})" if missing else "")
    return "disagrees" if worse else "undecided (seeds overlap)"


def _describe_few_seeds(count: int, *, agree: bool) -> str:
    said = "agree" if agree else "disagree"
    return f"one seed {said}s" if count == 1 else f"{count} seeds {said}"
