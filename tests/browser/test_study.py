"""The report page in Chromium, opened from disk with the network off."""

import os
from pathlib import Path

import pytest
from browser_helpers import FITS_SCRIPT, chromium, measure_first_paint, needs_browser, open_page, wait_until  # noqa: F401

from lengthwise.base.csv_files import read_csv
from lengthwise.report.results_folder import read_published_runs
from lengthwise.runs.run import load
from lengthwise.viewer.report import MAX_PAGE_BYTES, build_report_page

pytestmark = [needs_browser, pytest.mark.timeout(600)]
RESULTS_FOLDER = Path(__file__).parents[2] / "results"
CHARTS_BY_STUDY = {
    "pairs": {"lengths", "loss", "watched", "cost"},
    "looped/parity": {"lengths", "loss", "watched", "loops", "cost"},
    "looped/addition-window": {"lengths", "loss", "watched", "loops", "wrong", "traits", "cost"},
    "looped/multiplication": {"lengths", "maps", "loss", "watched", "loops", "cost"},
}
READY_SELECTOR = "[data-drawn]"


@pytest.fixture(scope="session")
def write_report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")

    def write_report(name, *models):
        path = folder / f"{name.replace('/', '-')}{len(models)}.html"
        if not path.exists():
            runs, weights = read_published_runs(RESULTS_FOLDER / name), [load(model) for model in models]
            path.write_text(build_report_page(runs, command="again", models=weights))
        return path

    return write_report


@pytest.mark.parametrize("name", CHARTS_BY_STUDY)
def test_a_report_has_every_chart_of_its_study(name, write_report, open_page):
    page = open_page(write_report(name), selector=READY_SELECTOR)
    assert measure_first_paint(page) < 1
    page.wait_for_selector(READY_SELECTOR)
    drawn = {chart.get_attribute("id").removeprefix("chart-") for chart in page.locator(".chart:has(svg)").all()}
    assert drawn == CHARTS_BY_STUDY[name], drawn
    for chart in page.locator(".chart [role=graphics-document]").all():
        assert chart.locator("[role=graphics-symbol], path").count() > 0
        assert chart.get_attribute("aria-label")


@pytest.mark.parametrize("colour_scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 900, 1200, 1600])
def test_the_page_fits_any_width(width, colour_scheme, write_report, open_page):
    path = write_report("pairs", "looped-pairs")
    assert path.stat().st_size < MAX_PAGE_BYTES
    page = open_page(path, width=width, colour_scheme=colour_scheme, selector=".panel")
    assert measure_first_paint(page) < 1
    page.wait_for_selector(".panel")
    page.wait_for_selector(READY_SELECTOR)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".chart svg.marks").count() == 4
    assert page.locator(".stops").evaluate(FITS_SCRIPT)  # of looped-pairs: long answers, and a rule with its fields
    box = page.locator("#chart-lengths svg.marks").bounding_box()
    assert box["width"] <= width and box["x"] >= 0
    if folder := os.environ.get("LENGTHWISE_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/report-{width}-{colour_scheme}.png", full_page=True)


def test_methods_problems_and_scale_can_be_switched(write_report, open_page):
    page = open_page(write_report("pairs"), selector=READY_SELECTOR)
    labels = lambda: page.locator("#chart-lengths svg").get_by_label("standard-pairs").count()  # noqa: E731
    assert labels() > 0
    again = "document.querySelector('[data-report]').report"
    page.get_by_label("standard-pairs").first.uncheck()
    wait_until(page, f"{again}.hidden.has('standard-pairs')")
    wait_until(page, "!document.querySelector('#chart-lengths svg').innerHTML.includes('standard-pairs')")
    page.locator("#scale").select_option("log")
    wait_until(page, f"{again}.scale === 'log'")
    page.locator("#problems").select_option("worst family")
    wait_until(page, f"{again}.problems.length === 1")
    assert page.locator("#chart-lengths svg.marks").count() == 1


def test_a_hovered_point_shows_its_numbers(write_report, open_page):
    page = open_page(write_report("pairs"), selector=READY_SELECTOR)
    page.locator("#chart-lengths svg .mark-symbol.role-mark path").first.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "exact match" in page.locator("#vg-tooltip-element").text_content()


def test_tables_are_saved_as_csv(write_report, open_page, tmp_path):
    page = open_page(write_report("pairs"), selector=READY_SELECTOR)
    page.locator("#table-scores summary").focus()
    page.keyboard.press("Enter")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save scores.csv").press("Enter")
    saved.value.save_as(tmp_path / "scores.csv")
    found, wanted = read_csv(tmp_path / "scores.csv"), read_csv(RESULTS_FOLDER / "pairs" / "scores.csv")
    assert found == wanted
    assert page.locator("#table-scores tbody tr").count() == 200


def test_printed_pages_have_no_controls(write_report, open_page, tmp_path):
    page = open_page(write_report("pairs", "looped-pairs"), selector=".panel")
    page.emulate_media(media="print")
    assert not page.locator("form.controls").is_visible() and not page.locator(".transport").is_visible()
    assert page.locator("#chart-lengths svg.marks").is_visible()
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 10_000
