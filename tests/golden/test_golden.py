"""Recipes keep the ids of the record in ``tests/golden``; ``make.py --check`` compares the rest of it."""

import json
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent
sys.path.append(str(GOLDEN))

import make  # noqa: E402 (a script, not a package)


@pytest.mark.skipif(not (GOLDEN / "golden.json").exists(), reason="no record: python tests/golden/make.py")
def test_recipes_keep_the_ids_of_the_record():
    before = json.loads((GOLDEN / "golden.json").read_text())["ids"]
    aliases = json.loads((GOLDEN / "aliases.json").read_text())
    kept, now = make.apply_aliases(before, aliases), make.list_recipe_ids()  # there may be new ones
    assert {name: now.get(name) for name in kept} == kept


def test_renamed_names_and_ids_are_no_difference():
    before = {"ids": {"old": "1a", "kept": "2b"}, "commands": {"list": [0, "old"]}}
    after = {"ids": {"new": "3c", "kept": "2b"}, "commands": {"list": [0, "changed"]}}
    found = [
        *make.describe_differences(make.apply_aliases(before, {"names": {"old": "new"}, "ids": {"1a": "3c"}}), after)
    ]
    assert found == ["/commands/list\n  before: [0, 'new']\n  after:  [0, 'changed']"]


def test_times_ids_and_paths_are_masked(tmp_path):
    text = f"runs/looped-pairs-0123456789 in 3.2 s, {tmp_path}/page.html of lengthwise/cli/entry.py:12, 0.2.0"
    assert make._mask_text(text, str(tmp_path)) == "runs/looped-pairs-HASH in TIME, FOLDER/page.html of FILE, VERSION"
    assert (
        make._mask_text('{"wall_s": 3, "exact": 0.12345678}', str(tmp_path))
        == '{"wall_s": "MASKED", "exact": 0.123457}'
    )
