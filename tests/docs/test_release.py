"""The files of a release are consistent; `make dist` builds and tests it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import lengthwise

ROOT = Path(__file__).parents[2]
MAX_LINES = 40  # of the changelog, per release
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_version_and_the_changelog_agree():
    told = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert told == lengthwise.__version__
    date = re.search(r"^date-released: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[:2] == ["Unreleased", f"{told} - {date}"]
    releases = text.split("\n## ")[1:]
    assert all(len(release.splitlines()) <= MAX_LINES for release in releases)
    parts = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert parts <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda path: path.stem)
def test_workflows_run_only_make_targets(path):
    """Steps run only `make` with existing targets, and get no secrets."""
    yaml = pytest.importorskip("yaml")
    text = path.read_text()
    jobs = yaml.safe_load(text)["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    for command in commands:
        first, *words = command.split()
        assert first == "make" and {word for word in words if "=" not in word} <= MAKE_TARGETS, command
    assert "secrets." not in text


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_installs_the_package_alone_and_tests_add_their_tools(tmp_path):
    """`make demo` and `make test` install only what is missing, in an empty folder and after one another."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def list_installs(*words):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        command = ["make", "-n", *words]
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True)
        return [line.split("constraints.txt ")[1].split() for line in done.stdout.splitlines() if "pip install" in line]

    alone, tools, torch = ["-e", "."], ["-e", "'.[dev]'"], ["torch==2.13.0"]
    assert list_installs("demo") == [torch, alone]
    assert list_installs("test") == [torch, alone, tools]
    assert list_installs("demo", "TORCH=cpu")[0] == ["--index-url", "https://download.pytorch.org/whl/cpu", *torch]
    (tmp_path / ".venv").mkdir()
    for number, mark in enumerate((".ready", ".dev")):
        (tmp_path / ".venv" / mark).touch()
        assert (list_installs("demo"), list_installs("test")) == ([], [tools] if number == 0 else [])


def test_make_targets_named_in_the_release_guide_exist():
    told = (ROOT / "docs" / "releasing.md").read_text()
    assert {word for line in re.findall(r"`make ([a-z -]+)`", told) for word in line.split()} <= MAKE_TARGETS
