"""What a release consists of fits together; `make dist` builds and tries it."""

import re
from pathlib import Path

import pytest

import lengthwise

ROOT = Path(__file__).parents[1]
MOST_LINES = 40  # of the changelog, for each release
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_version_and_the_changelog_agree():
    told = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert told == lengthwise.__version__
    date = re.search(r"^date-released: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[:2] == ["Unreleased", f"{told} - {date}"]
    releases = text.split("\n## ")[1:]
    assert all(len(release.splitlines()) <= MOST_LINES for release in releases)
    parts = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert parts <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda path: path.stem)
def test_workflows_run_what_people_run(path):
    """Only `make`, and only what it can make; no secret is passed to any step."""
    yaml = pytest.importorskip("yaml")
    text = path.read_text()
    jobs = yaml.safe_load(text)["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    for command in commands:
        first, *words = command.split()
        assert first == "make" and {word for word in words if "=" not in word} <= TARGETS, command
    assert "secrets." not in text


def test_what_is_built_for_others_is_said_where_they_look():
    told = (ROOT / "docs" / "releasing.md").read_text()
    assert {word for line in re.findall(r"`make ([a-z -]+)`", told) for word in line.split()} <= TARGETS
