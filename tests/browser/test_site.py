"""Tests of the documentation site in a browser, opened from disk without a network: `make site-test` runs them."""

import re
from pathlib import Path

import pytest
from browser_helpers import chromium, needs_browser, open_page, wait_until  # noqa: F401

SITE_FOLDER = Path(__file__).parents[2] / "build" / "site"
pytestmark = [needs_browser, pytest.mark.skipif(not SITE_FOLDER.exists(), reason="there is no site: make site")]
PAGES = ["index.html", "docs/what-now.html", "docs/gallery.html", "docs/ablations.html", "docs/architecture.html"]
PAGES += ["docs/reference/recipes.html", "notebooks/inside_a_loop.html", "results/pairs/index.html"]
PAGES += ["lengthwise/runners/plain.py.html"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_width_and_logs_no_errors(name, open_page):
    for width in (360, 1200):
        for colour_scheme in ("light", "dark"):
            page = open_page(SITE_FOLDER / name, width=width, colour_scheme=colour_scheme, selector="h1")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            missing = "[...document.images].filter(one => one.complete && !one.naturalWidth).map(one => one.src)"
            assert page.evaluate(missing) == []


@pytest.mark.parametrize(("word", "expected_page"), [("Mastery", "recipes.html"), ("leaderboard", "leaderboard.html")])
def test_search_finds_a_word_without_a_server(word, expected_page, open_page):
    """Search works with the keyboard alone, and Enter opens the first result."""
    page = open_page(SITE_FOLDER / "docs" / "gallery.html", width=1400, selector="h1")
    page.keyboard.press("Control+k")
    page.keyboard.type(word, delay=20)
    page.get_by_text(re.compile(r"^\d+ results?$")).wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "?h=" in url and expected_page in url, wait_until="domcontentloaded")
    assert word in page.inner_text("main")


def test_interactive_pages_open_from_the_gallery(open_page):
    page = open_page(SITE_FOLDER / "results" / "pairs" / "index.html", selector="h1")
    page.click("text=Interactive page")
    page.wait_for_selector(".panel, main")
    wait_until(page, "document.querySelectorAll('svg, canvas').length > 0")
