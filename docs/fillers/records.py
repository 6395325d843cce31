"""Fill in the best published results on length generalization, with ours beside them."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache

from fillers.results import (
    MAX_CHOICE_MULTIPLE,
    ROOT,
    describe_unfitted,
    format_table,
    parse_sizes,
    read_exact_match,
    read_recipes,
    read_runs,
)

from lengthwise.api import catalog
from lengthwise.base.score_rows import format_share, format_size

REQUIRED_KEYS = {"group", "system", "paper", "trained_to", "tested_at", "score", "seeds", "told", "source", "standing"}
OUR_KEYS = {"folder", "recipe", "sizes", "told", "verdict", "reason"}
VERDICTS = ("ahead", "level", "behind", "not comparable")
NEAR_PERFECT_SCORE = 0.95  # the value of a published score in words, such as "near-perfect"


@dataclass(frozen=True)
class OurScores:
    """Scores of our runs of one recipe at one size, and the cost of these runs."""

    seed_scores: list[float]  # exact match of each seed
    training_sizes: tuple[int, ...]  # the largest, one per axis
    examined_sizes: tuple[int, ...]  # sizes that may have decided the choice of the recipe
    stopping: str
    minutes: float  # processor time of training, median over runs

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seed_scores)

    def was_chosen_on(self, sizes: str) -> bool:
        """Return whether the recipe was chosen by scores at a size that is at least ``sizes`` and more than
        ``MAX_CHOICE_MULTIPLE`` times its training length."""
        longest = max(self.examined_sizes, default=0)
        return longest >= max(parse_sizes(sizes)) and longest > MAX_CHOICE_MULTIPLE * max(self.training_sizes)


@cache
def load_records(path: str) -> list[dict]:
    """Return the records of a file; exit if one lacks a key or has a verdict that our rows do not support."""
    records = tomllib.loads((ROOT / path).read_text())["record"]
    for record in records:
        validate_record(record)
        if "ours" in record:
            validate_verdict(record, read_our_scores(record["ours"]))
    return records


def validate_record(record: dict) -> None:
    """Exit if a record lacks a key or has an invalid value."""
    title = f"{record.get('group')}: {record.get('system')}"
    missing = (REQUIRED_KEYS - record.keys()) | (OUR_KEYS - record["ours"].keys() if "ours" in record else set())
    if missing:
        raise SystemExit(f"{title}: missing keys: {', '.join(sorted(missing))}")
    if record["standing"] not in ("read", "second-hand"):
        raise SystemExit(f"{title}: standing must be read or second-hand, not {record['standing']!r}")
    if (record["standing"] == "read") != ("where" in record):
        raise SystemExit(f"{title}: a record that was read needs the key where; a second-hand record must not have it")


def validate_verdict(record: dict, ours: OurScores) -> None:
    """Exit if our rows do not support the verdict."""
    verdict, sizes = record["ours"]["verdict"], record["ours"]["sizes"]
    title = f"{record['group']}: {record['ours']['recipe']}: {verdict}"
    if verdict not in VERDICTS:
        raise SystemExit(f"{title} is not a verdict; use one of: {', '.join(VERDICTS)}")
    if verdict not in ("ahead", "level"):
        return
    if ours.was_chosen_on(sizes):
        raise SystemExit(f"{title}, but the recipe was chosen by scores at size {max(ours.examined_sizes)}")
    bound = record.get("exact", NEAR_PERFECT_SCORE)
    if ours.mean < bound or (verdict == "ahead" and ours.mean == bound):
        raise SystemExit(f"{title}, but our score is {ours.mean:.3f} and the published score is {bound:.3f}")


def read_our_scores(entry: dict[str, str]) -> OurScores:
    """Return our scores of a recipe at a size, from the rows of a results folder."""
    runs = [run for run in read_runs(entry["folder"]) if run.outline.name == entry["recipe"]]
    seeds = read_exact_match(entry["folder"], entry["recipe"], entry["sizes"])
    if not runs or not seeds:
        raise SystemExit(f"{entry['folder']} has no score of {entry['recipe']} at size {entry['sizes']}")
    outline = runs[0].outline
    minutes = statistics.median(run.about()["cpu_s"] for run in runs) / 60
    recipe = catalog.list_recipes().get(entry["recipe"])  # may state sizes that were looked at after these runs
    looked_at = tuple(sorted({*outline.looked_at, *(recipe().examined_sizes if recipe else ())}))
    return OurScores(seeds, tuple(outline.tops), looked_at, outline.stopping, minutes)


def format_record_tally(path: str) -> str:
    """Write the numbers of records: all, read first-hand, second-hand, and by our verdict."""
    records = load_records(path)
    verdicts = Counter(record["ours"]["verdict"] for record in records if "ours" in record)
    read = sum(record["standing"] == "read" for record in records)
    lines = [["", "records"], ["---", "---:"], ["published records", str(len(records))]]
    lines += [["of these, read first-hand", str(read)], ["second-hand", str(len(records) - read)]]
    lines += [["with ours beside them", str(verdicts.total())]]
    names = {"ahead": "ours ahead", "level": "ours level", "behind": "ours behind", "not comparable": "not comparable"}
    lines += [[names[verdict], str(verdicts[verdict])] for verdict in VERDICTS]
    return format_table(lines)


def format_records_json(path: str) -> str:
    """Return all records with our scores as JSON, for `lengthwise records`."""
    found = []
    for record in load_records(path):
        entry = {key: value for key, value in record.items() if key != "ours"}
        if "ours" in record:
            ours = read_our_scores(record["ours"])
            scored = {"seeds": ours.seed_scores, "trained_to": ours.training_sizes, "stopping": ours.stopping}
            entry["ours"] = record["ours"] | scored | {"minutes": round(ours.minutes, 1)}
        found.append(entry)
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def format_record_list(path: str, group: str) -> str:
    """Write a group of records as a list: each published result, and ours if there is one."""
    found = [record for record in load_records(path) if record["group"] == group]
    if not found:
        raise SystemExit(f"{path} has no record in the group {group}")
    return "".join(f"- {_describe_published(record)}{_describe_ours(record.get('ours'))}\n" for record in found)


def _describe_published(record: dict) -> str:
    """Describe a published result: the system, its paper, its lengths, its score and seeds, and what the model is
    given."""
    paper = re.sub(r", arXiv [\d.]+$", "", record["paper"]).replace("et al. ", "et al., ")
    parts = [record["score"]]
    parts += [] if record["seeds"].startswith("not ") else [record["seeds"]]
    if "ours" in record:
        parts += [] if record["told"].startswith(("nothing", "not stated")) else [f"given: {record['told']}"]
    parts += [] if record["standing"] == "read" else [record["standing"]]
    lengths = f"{record['trained_to']} → {record['tested_at']}"
    return f"**{record['system']}** ([{paper}]({record['source']})), {lengths}: {'; '.join(parts)}."


def _describe_ours(entry: dict[str, str] | None) -> str:
    if entry is None:
        return ""
    ours = read_our_scores(entry)
    count = len(ours.seed_scores)
    worst = f" (worst of {count}: {format_share(min(ours.seed_scores), 3)})"
    score = format_share(ours.mean, 3) + (", one seed" if count == 1 else worst)
    loops_given = "given T(n)" if ours.stopping == "Oracle" else f"stops by `{ours.stopping}`"
    if read_recipes(entry["folder"])[entry["recipe"]]["loops"]["kind"] == "Constant" and ours.stopping == "Oracle":
        loops_given = "equal depth at every length"
    unfit = describe_unfitted(entry["folder"]).get(entry["recipe"], "")
    lengths = f"{_space_sizes(format_size(ours.training_sizes))} → {_space_sizes(entry['sizes'])}"
    row = f"`{entry['recipe']}`{unfit}, {lengths}: **{score}**; {loops_given}"
    return f" *Ours: {entry['verdict']}*, {row}. {entry['reason'][0].upper()}{entry['reason'][1:]}."


def _space_sizes(sizes: str) -> str:
    return sizes.replace("x", " × ")
