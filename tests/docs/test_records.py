"""Records have every value that their tables need, and no verdict claims more than our rows show."""

import json
import re
import tomllib

import fill
import pytest
from fillers import records
from fillers.records import Ours

from lengthwise.cli import entry
from lengthwise.cli.records import read_records

RECORDS = tomllib.loads((records.ROOT / "docs" / "records.toml").read_text())["record"]
PAGE = (records.ROOT / "docs" / "records.md").read_text()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record['group']}: {record['system']}")
def test_a_record_is_complete_and_its_group_is_on_the_page(record):
    records.validate_record(record)
    assert re.fullmatch(r"https://(arxiv\.org/abs/\d{4}\.\d{4,5}|github\.com/[\w-]+/[\w-]+)", record["source"])
    assert f"<!-- fill: records docs/records.toml {record['group']} -->" in PAGE


def test_the_page_is_up_to_date():
    assert fill.filled(PAGE) == PAGE, "run `make docs`"
    assert len(RECORDS) >= 20 and sum("ours" in record for record in RECORDS) >= 8


@pytest.mark.parametrize("missing", sorted(records.REQUIRED))
def test_an_incomplete_record_is_refused(missing):
    with pytest.raises(SystemExit, match=f"no {missing}"):
        records.validate_record({key: value for key, value in RECORDS[0].items() if key != missing})


@pytest.mark.parametrize("missing", sorted(records.OURS))
def test_a_record_with_incomplete_results_of_ours_is_refused(missing):
    ours = {key: value for key, value in RECORDS[0]["ours"].items() if key != missing}
    with pytest.raises(SystemExit, match=f"no {missing}"):
        records.validate_record(RECORDS[0] | {"ours": ours})


@pytest.mark.parametrize(
    ("verdict", "score", "looked_at", "refused"),
    [
        ("ahead", 0.99, (20, 26), None),
        ("ahead", 0.97, (20, 26), "was published"),
        ("level", 0.98, (20, 26), None),
        ("level", 0.99, (20, 40), "chosen by looking at 40"),
        ("level", 0.99, (20, 60), "chosen by looking at 60"),
        ("level", 0.99, (20, 30), None),  # the compared size, 40, was not looked at
        ("behind", 0.1, (20, 60), None),
        ("better", 0.99, (20,), "none of"),
    ],
)
def test_a_verdict_needs_the_score_and_an_unseen_size(verdict, score, looked_at, refused):
    record = {"group": "copy", "exact": 0.98, "ours": {"recipe": "one", "sizes": "40", "verdict": verdict}}
    ours = Ours([score], (20,), looked_at, "Oracle", 1.0)
    if refused is None:
        records.validate_verdict(record, ours)
    else:
        with pytest.raises(SystemExit, match=refused):
            records.validate_verdict(record, ours)


def test_the_package_has_the_records_of_the_page():
    assert read_records() == json.loads(records.packaged("docs/records.toml")), "run `make docs`"


@pytest.mark.parametrize("words", [["records", "parity"], ["records", "parity", "--json"]])
def test_records_are_printed(capsys, words):
    assert entry._run(entry.parse(words)) == 0
    text, found = capsys.readouterr().out, read_records("parity")
    if "--json" in words:
        assert json.loads(text) == found
    else:
        ours = [record["ours"]["verdict"] for record in found if "ours" in record]
        assert ours and all(f"{verdict}:" in text for verdict in ours)


def test_an_unknown_group_is_refused_with_the_known_ones(capsys):
    assert entry._run(entry.parse(["records", "nothing"])) == 2
    assert "no group 'nothing'; the groups are: addition-decimal" in capsys.readouterr().err
