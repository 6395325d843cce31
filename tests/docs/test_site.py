"""The documentation site has all pages in its navigation, and all public names in its reference. `make site` builds and
checks the site."""

import importlib
import sys
from pathlib import Path

import pytest

import lengthwise as lw
from lengthwise import api

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def import_builder():
    """Return a function that imports a module of the site's builder."""
    path = str(ROOT / "docs" / "site")
    sys.path.insert(0, path)
    yield importlib.import_module
    sys.path.remove(path)


def test_every_public_name_is_in_the_reference(import_builder):
    reference = import_builder("reference")
    names = [name for names in reference.group_names().values() for name in names]
    assert sorted(names) == sorted(lw.__all__)
    texts = "\n".join(reference.build_pages().values())
    for name in names:
        assert f"{{ #{name} }}" in texts and reference.docstring_to_markdown(getattr(api, name)), name


def test_fields_and_methods_are_explained(import_builder):
    text = import_builder("reference").describe_name("Transformer") + import_builder("reference").describe_name(
        "Parity"
    )
    assert "| `width` | `" in text and "def " not in text and "lengthwise/models/transformer.py" in text


def test_the_navigation_has_every_page_and_every_folder_of_results(import_builder):
    build, gallery, notebooks = import_builder("build"), import_builder("gallery"), import_builder("notebooks")
    shown = build.list_pages(build.build_navigation())
    assert len(shown) == len(set(shown))
    pages = {str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
    assert pages <= set(shown)
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "results").rglob("figures.json")}
    assert {f"{folder}/README.md" for folder in folders} <= set(shown)
    assert {f"notebooks/{path.stem}.md" for path in notebooks.list_notebooks()} <= set(shown)
    assert gallery.INDEX in shown


def test_every_table_of_the_gallery_is_on_a_page(import_builder):
    """Each table is written for some folder of results; else it would be missing without an error."""
    for heading, (needed, format_table) in import_builder("build").TABLES.items():
        folders = [folder for folder in import_builder("gallery").list_folders() if (ROOT / folder / needed).exists()]
        assert any(format_table(folder).startswith("| ") for folder in folders), heading


def test_links_lead_to_pages_of_the_site(import_builder, tmp_path):
    """Links to sources and folders lead to their pages and READMEs; links to pages and code blocks stay unchanged."""
    mirror = import_builder("mirror").Mirror(tmp_path, {"docs/a.md": "", "notebooks/README.md": ""})
    text = "[a](a.md#b) [p](../lengthwise/base/rows.py) [n](../notebooks) [x](https://x.org)\n\n"
    linked = mirror.rewrite_links(f"{text}```\n[n](../notebooks)\n```\n", "docs/page.md")
    assert linked.startswith("[a](a.md#b) [p](../lengthwise/base/rows.py.md) [n](../notebooks/README.md) [x](https")
    assert linked.endswith("```\n[n](../notebooks)\n```\n")
    assert "import" in (tmp_path / "lengthwise/base/rows.py.md").read_text()


PAGE_TEMPLATE = '<h1 id="a">A</h1><a href="{}">x</a>{}'
FAULTS_BY_LINK = {
    "gone.html": "leads nowhere",
    "#gone": "leads nowhere",
    "other.html#gone": "leads nowhere",
    "other.html#a": None,
    "https://x.org": None,
    "": None,
}


@pytest.mark.parametrize("link", FAULTS_BY_LINK)
def test_broken_links_are_found(link, import_builder, tmp_path):
    (tmp_path / "index.html").write_text(PAGE_TEMPLATE.format(link, ""))
    (tmp_path / "other.html").write_text(PAGE_TEMPLATE.format("index.html#a", ""))
    faults = import_builder("check").find_faults(tmp_path)
    assert (faults == []) if FAULTS_BY_LINK[link] is None else (len(faults) == 1 and FAULTS_BY_LINK[link] in faults[0])


@pytest.mark.parametrize(
    "element",
    ['<script src="//x.org/a.js"></script>', '<img src="https://x.org/a.png">', '<link href="http://x.org/a.css">'],
)
def test_resources_loaded_from_other_sites_are_found(element, import_builder, tmp_path):
    (tmp_path / "index.html").write_text(PAGE_TEMPLATE.format("#a", element))
    (tmp_path / "a.css").write_text("@import url(https://fonts.org/a.css);")
    assert len(import_builder("check").find_faults(tmp_path)) == 2
