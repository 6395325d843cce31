"""Records have every value that their tables need, and no verdict claims more than our rows show."""

import json
import re
import tomllib

import pytest
from conftest import command
from fillers import records
from fillers.records import OurScores

from lengthwise.cli.records import read_records

RECORDS = tomllib.loads((records.ROOT / "docs" / "records.toml").read_text())["record"]
PAGE = (records.ROOT / "docs" / "records.md").read_text()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record['group']}: {record['system']}")
def test_a_record_is_complete_and_its_group_is_on_the_page(record):
    records.validate_record(record)
    assert re.fullmatch(r"https://(arxiv\.org/abs/\d{4}\.\d{4,5}|github\.com/[\w-]+/[\w-]+)", record["source"])
    assert f"<!-- fill: records docs/records.toml {record['group']} -->" in PAGE


@pytest.mark.parametrize("missing_key", sorted(records.REQUIRED_KEYS | records.OUR_KEYS))
def test_an_incomplete_record_is_refused(missing_key):
    record = {key: value for key, value in RECORDS[0].items() if key != missing_key or missing_key in records.OUR_KEYS}
    if missing_key in records.OUR_KEYS:
        record |= {"ours": {key: value for key, value in record["ours"].items() if key != missing_key}}
    else:
        del record["ours"]
    with pytest.raises(SystemExit, match=f"missing keys: {missing_key}"):
        records.validate_record(record)


@pytest.mark.parametrize(
    ("verdict", "score", "seen_sizes", "message"),
    [
        ("ahead", 0.99, (20, 26), None),
        ("ahead", 0.97, (20, 26), "the published score is"),
        ("level", 0.98, (20, 26), None),
        ("level", 0.99, (20, 40), "chosen by scores at size 40"),
        ("level", 0.99, (20, 60), "chosen by scores at size 60"),
        ("level", 0.99, (20, 30), None),  # the compared size, 40, was not looked at
        ("behind", 0.1, (20, 60), None),
        ("better", 0.99, (20,), "not a verdict"),
    ],
)
def test_a_verdict_needs_a_sufficient_score_at_an_unseen_size(verdict, score, seen_sizes, message):
    record = {"group": "copy", "exact": 0.98, "ours": {"recipe": "one", "sizes": "40", "verdict": verdict}}
    ours = OurScores([score], (20,), seen_sizes, "Oracle", 1.0)
    if message is None:
        records.validate_verdict(record, ours)
    else:
        with pytest.raises(SystemExit, match=message):
            records.validate_verdict(record, ours)


def test_the_package_has_the_records_of_the_page():
    assert read_records() == json.loads(records.format_records_json("docs/records.toml")), "run `make docs`"


def test_records_are_printed_by_group():
    text, found = command("records", "parity").stdout, read_records("parity")
    assert json.loads(command("records", "parity", "--json").stdout) == found
    ours = [record["ours"]["verdict"] for record in found if "ours" in record]
    assert ours and all(f"{verdict}:" in text for verdict in ours)
    done = command("records", "nothing")
    assert done.returncode == 2 and "no group 'nothing'; the groups are: addition-decimal" in done.stderr
