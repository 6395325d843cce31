"""Fill in the best published length generalization, with ours beside it."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache

from fillers.rows import ROOT, WITHIN, exact_by_seed, numbers, recipes_of, runs_of, table_of, unfitted

from lengthwise.api import catalog
from lengthwise.base.score_rows import share_text, size_text

REQUIRED = {"group", "system", "paper", "trained_to", "tested_at", "score", "seeds", "told", "source", "standing"}
OURS = {"folder", "recipe", "sizes", "told", "verdict", "reason"}
VERDICTS = ("ahead", "level", "behind", "not comparable")
NEAR_PERFECT = 0.95  # the value of a published score in words, such as "near-perfect"


@dataclass(frozen=True)
class Ours:
    """Scores of our runs of one recipe at one size: exact match of each seed, and the cost."""

    seeds: list[float]
    trained_to: tuple[int, ...]
    looked_at: tuple[int, ...]  # sizes that may have chosen the recipe
    stopping: str
    minutes: float  # processor time of training, median over runs

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seeds)

    def was_chosen_on(self, sizes: str) -> bool:
        """Return whether the recipe was chosen by looking at this size or a longer one, beyond ``WITHIN``."""
        longest = max(self.looked_at, default=0)
        return longest >= max(numbers(sizes)) and longest > WITHIN * max(self.trained_to)


@cache
def load_records(name: str) -> list[dict]:
    """Return the records of a file; exit if one lacks a key or has a verdict that our rows do not support."""
    records = tomllib.loads((ROOT / name).read_text())["record"]
    for record in records:
        validate_record(record)
        if "ours" in record:
            validate_verdict(record, ours_of(record["ours"]))
    return records


def validate_record(record: dict) -> None:
    """Exit if a record lacks a key or has an invalid value."""
    title = f"{record.get('group')}: {record.get('system')}"
    missing = (REQUIRED - record.keys()) | (OURS - record["ours"].keys() if "ours" in record else set())
    if missing:
        raise SystemExit(f"{title}: no {', '.join(sorted(missing))}")
    if record["standing"] not in ("read", "second-hand"):
        raise SystemExit(f"{title}: standing is read or second-hand, not {record['standing']!r}")
    if (record["standing"] == "read") != ("where" in record):
        raise SystemExit(f"{title}: say where it was read, if it was")


def validate_verdict(record: dict, ours: Ours) -> None:
    """Exit if our rows do not support the verdict."""
    verdict, sizes = record["ours"]["verdict"], record["ours"]["sizes"]
    title = f"{record['group']}: {record['ours']['recipe']}: {verdict}"
    if verdict not in VERDICTS:
        raise SystemExit(f"{title} is none of {', '.join(VERDICTS)}")
    if verdict not in ("ahead", "level"):
        return
    if ours.was_chosen_on(sizes):
        raise SystemExit(f"{title}, but the recipe was chosen by looking at {max(ours.looked_at)}")
    bound = record.get("exact", NEAR_PERFECT)
    if ours.mean < bound or (verdict == "ahead" and ours.mean == bound):
        raise SystemExit(f"{title}, but ours is {ours.mean:.3f} and {bound:.3f} was published")


def ours_of(entry: dict[str, str]) -> Ours:
    """Return our scores of a recipe at a size, from the rows of a results folder."""
    runs = [run for run in runs_of(entry["folder"]) if run.outline.name == entry["recipe"]]
    seeds = exact_by_seed(entry["folder"], entry["recipe"], entry["sizes"])
    if not runs or not seeds:
        raise SystemExit(f"{entry['folder']} has no row of {entry['recipe']} at {entry['sizes']}")
    outline = runs[0].outline
    minutes = statistics.median(run.about()["cpu_s"] for run in runs) / 60
    recipe = catalog.recipes().get(entry["recipe"])  # may state sizes that were looked at after these runs
    looked_at = tuple(sorted({*outline.looked_at, *(recipe().examined_sizes if recipe else ())}))
    return Ours(seeds, tuple(outline.tops), looked_at, outline.stopping, minutes)


def tally(name: str) -> str:
    """Write the number of records, and how ours compare."""
    records = load_records(name)
    verdicts = Counter(record["ours"]["verdict"] for record in records if "ours" in record)
    read = sum(record["standing"] == "read" for record in records)
    lines = [["", "records"], ["---", "---:"], ["published records", str(len(records))]]
    lines += [["of these, read first-hand", str(read)], ["second-hand", str(len(records) - read)]]
    lines += [["with ours beside them", str(verdicts.total())]]
    names = {"ahead": "ours ahead", "level": "ours level", "behind": "ours behind", "not comparable": "not comparable"}
    lines += [[names[verdict], str(verdicts[verdict])] for verdict in VERDICTS]
    return table_of(lines)


def packaged(name: str) -> str:
    """Write all records with our scores as JSON, for `lengthwise records`."""
    found = []
    for record in load_records(name):
        entry = {key: value for key, value in record.items() if key != "ours"}
        if "ours" in record:
            ours = ours_of(record["ours"])
            scored = {"seeds": ours.seeds, "trained_to": ours.trained_to, "stopping": ours.stopping}
            entry["ours"] = record["ours"] | scored | {"minutes": round(ours.minutes, 1)}
        found.append(entry)
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def records(name: str, group: str) -> str:
    """Write a group of records as a list: what was published, and ours where we have runs of it."""
    found = [record for record in load_records(name) if record["group"] == group]
    if not found:
        raise SystemExit(f"{name} has no record of {group}")
    return "".join(f"- {_published(record)}{_ours(record.get('ours'))}\n" for record in found)


def _published(record: dict) -> str:
    """Write what was published: the system, its lengths, its score with seeds and source, and what it is given."""
    paper = re.sub(r", arXiv [\d.]+$", "", record["paper"]).replace("et al. ", "et al., ")
    parts = [record["score"]]
    parts += [] if record["seeds"].startswith("not ") else [record["seeds"]]
    if "ours" in record:
        parts += [] if record["told"].startswith(("nothing", "not stated")) else [f"given: {record['told']}"]
    parts += [] if record["standing"] == "read" else [record["standing"]]
    lengths = f"{record['trained_to']} → {record['tested_at']}"
    return f"**{record['system']}** ([{paper}]({record['source']})), {lengths}: {'; '.join(parts)}."


def _ours(entry: dict[str, str] | None) -> str:
    if entry is None:
        return ""
    ours = ours_of(entry)
    count = len(ours.seeds)
    worst = f" (worst of {count}: {share_text(min(ours.seeds), 3)})"
    score = share_text(ours.mean, 3) + (", one seed" if count == 1 else worst)
    loops_given = "given T(n)" if ours.stopping == "Oracle" else f"stops by `{ours.stopping}`"
    if recipes_of(entry["folder"])[entry["recipe"]]["loops"]["kind"] == "Constant" and ours.stopping == "Oracle":
        loops_given = "equal depth at every length"
    unfit = unfitted(entry["folder"]).get(entry["recipe"], "")
    lengths = f"{_spaced(size_text(ours.trained_to))} → {_spaced(entry['sizes'])}"
    row = f"`{entry['recipe']}`{unfit}, {lengths}: **{score}**; {loops_given}"
    return f" *Ours: {entry['verdict']}*, {row}. {entry['reason'][0].upper()}{entry['reason'][1:]}."


def _spaced(sizes: str) -> str:
    return sizes.replace("x", " × ")
