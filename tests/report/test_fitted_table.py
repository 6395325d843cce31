"""Tables of any width are printed without splitting numbers or words."""

import io

import pytest
from rich.console import Console

from lengthwise.base.results import wilson_interval
from lengthwise.report.card import build_card_table
from lengthwise.report.fitted_table import FittedTable
from lengthwise.report.tables import (
    build_anatomy_table,
    build_detail_table,
    build_family_table,
    build_language_model_table,
    build_map_table,
    build_row_table,
    build_summary_table,
    build_worst_table,
)

WIDTHS = (60, 80, 200)


def print_table(table, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def build_score_row(size, exact, problems="uniform", **further_fields):
    low, high = wilson_interval(exact, 1000)
    row = {"sizes": [size], "problems": problems, "stopping": "MaxConfidence(extra=20, per=batch)", "exact": exact}
    return row | {"low": low, "high": high, "token_accuracy": 0.98765, "loops": 123.4, "count": 1000} | further_fields


CARD_ROW = {"recipe": "fop-loop-adaptive-wo-unique-set", "task": "unique-set", "trained_to": "20x100",
            "chosen_on": [20], "seeds": 5, "generalise": 3, "longest": ["1000", None, "25"],
            "longest_uniform": ["1000", None, "2500"], "fit": 0.5, "parameters": 12_345_678, "operations": 1.2e15,
            "worst": {"family": "rich-in-one-digit", "size": "20x100", "exact": 0.125}, "cpu_s": 123_456.7}  # fmt: skip
SUMMARY_ROW = {"panel": "unique-set", "who": "fop-loop-adaptive-wo-unique-set", "stopping": "MaxConfidence(per=batch)",
           "problems": "uniform", "size": "100x100", "exact": 0.98765, "error": 0.01234, "solved": 3, "seeds": 5,
           "count": 1000, "fit": 0.5, "trained_to": 20}  # fmt: skip
SCORE_ROWS = [build_score_row(size, share) for size, share in ((8, 1.0), (1000, 0.123))]
FAMILY_ROWS = [build_score_row(size, 0.25, "every-column-carries") for size in (8, 16, 32, 64, 128, 256, 512, 1000)]
REPLY_FIELDS = {"weights": "org/model", "task": "addition", "chatter": 998, "asked": 1000, "lenient": 0.9}
DIFFICULTY_GROUP = {"low": 1, "high": 1000, "count": 1000, "exact": 0.394}
ANATOMY_ROW = {"sizes": [1000], "ends": {"early": 101, "late": 202, "right": 303}, "exact": 0.394,
               "first_wrong": {"1": 500, "999": 106}, "by": {"longest-carry": [DIFFICULTY_GROUP]}}  # fmt: skip
PAIR_ROWS = [build_score_row(1, 0.5) | {"sizes": [i, j]} for i in range(1, 101, 10) for j in range(1, 101, 10)]

TABLES = {
    "card": build_card_table([CARD_ROW]),
    "detail": build_detail_table([*SCORE_ROWS, *FAMILY_ROWS[:2]], (20,)),
    "asked": build_language_model_table([row | REPLY_FIELDS for row in SCORE_ROWS]),
    "anatomy": build_anatomy_table([ANATOMY_ROW]),
    "map": build_map_table(PAIR_ROWS, (20, 20)),
    "summary": build_summary_table([SUMMARY_ROW]),
    "families": build_family_table(FAMILY_ROWS, (20,)),
    "worst": build_worst_table([*SCORE_ROWS, *FAMILY_ROWS], (20,)),
    "rows": build_row_table(
        [{"recipe": CARD_ROW["recipe"], "size": "100x100", "T": 1000, "oracle": 0.123, "batch_loops": 12.5}]
    ),
}


def list_words(table):
    cells = [cell for column in table.columns for cell in (column.header, *column.cells)]
    return {word for cell in cells for word in str(cell).split()}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_no_number_is_cut_and_no_word_is_split(name, width):
    text = print_table(TABLES[name], width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text.replace(" … ", "")
    found = set(text.split())
    for word in list_words(TABLES[name]):
        assert is_printed(word, found), word


def is_printed(word, words):
    """Return whether a word is printed, whole or broken after hyphens; True for a bar, which may be missing."""
    pieces = {part for part in words if part.endswith("-") and word.startswith(part)}
    in_pieces = any(is_printed(word[len(part) :], words) for part in pieces)
    return word in words or set(word) <= set("█▏▎▍▌▋▊▉·") or in_pieces


def test_a_table_that_does_not_fit_is_wrapped_or_stacked():
    table = FittedTable("name", "share")
    table.add_row("a-long-name", "0.123")
    assert "[red]" in print_table(FittedTable("[red]", "[/x]"), 60)  # text, no markup
    assert len(print_table(table, 60).splitlines()) == 3  # heading, rule, row
    assert print_table(table, 16).split() == ["name", "share", "─" * 15, "a-long-", "0.123", "name"]
    assert print_table(table, 12).split() == ["name", "a-long-name", "share", "0.123"]


def test_the_summary_explains_its_spread():
    assert "±: the standard error of the mean over seeds" in str(TABLES["summary"].caption)
    assert build_summary_table([SUMMARY_ROW | {"error": None}]).caption is None


def test_rows_of_several_rules_are_grouped_by_size_and_limits_are_listed_per_rule():
    rules = "Converged(patience=4, extra=20)", "MaxConfidence(extra=20, per=batch)"
    limits = {(8, rules[0]): 0.24, (8, rules[1]): 0.73, (16, rules[1]): 0.5}
    pairs = [(size, rule) for size in (8, 16) for rule in rules]
    rows = [build_score_row(size, 0.5, stopping=rule, at_limit=limits.get((size, rule), 0.0)) for size, rule in pairs]
    text = print_table(build_detail_table(rows, (8,)), 80)
    heads = [line.strip() for line in text.splitlines() if not line.startswith("  ")]
    assert heads[:2] == ["size ▪8", "size 16"] and text.count(f"stopping {rules[0]}") == 2
    caption = " ".join(text.split())
    assert f"fraction stopped by the limit of {rules[0]}: 0.24 at 8" in caption
    assert f"fraction stopped by the limit of {rules[1]}: 0.73 at 8, 0.50 at 16" in caption
    text = " ".join(print_table(build_detail_table(rows[:1]), 80).split())
    assert "fraction stopped by the rule's limit: 0.24 at 8" in text
