"""What README and docs say is what the repository holds."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fill = load(ROOT / "docs" / "fill.py")


@pytest.mark.parametrize("page", fill.PAGES, ids=lambda page: page.name)
def test_quoted_code_and_figures_are_up_to_date(page):
    assert page.read_text() == fill.filled(page.read_text()), "run `make docs`"


@pytest.mark.parametrize("page", [*fill.PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_quoted_commands_parse():
    """Every `lengthwise …` line in a shell block of the README is a command that exists."""
    from lengthwise.cli import parse

    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.split("#")[0] for block in blocks for line in block.splitlines() if line.startswith("lengthwise ")]
    assert lines
    for line in lines:
        words = line.split("|")[-1].split()
        parse([word for word in words[1:] if word not in ("...", "…")])


def test_nothing_but_the_project_is_spoken_of():
    """No path of the machine that it was made on."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*"), *ROOT.glob("lengthwise/**/*.py")]:
        if path.is_file() and path.suffix in {".md", ".py"}:
            assert not re.search(r"/work/|/root/|/tmp/\w", path.read_text()), path
