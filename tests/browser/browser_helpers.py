"""Helpers for tests in a real browser. The default suite skips these tests; `make page-test` runs them."""

import importlib.util
import os
import shutil
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIREMENTS = {
    "a browser takes minutes: make page-test": bool(os.environ.get("LENGTHWISE_LONG")),
    "there is no playwright: pip install -e '.[browser]'": importlib.util.find_spec("playwright") is not None,
    "there is no Chromium: apt-get install --no-install-recommends chromium": CHROMIUM is not None,
}
MISSING_REQUIREMENTS = [reason for reason, there in REQUIREMENTS.items() if not there]
needs_browser = pytest.mark.skipif(bool(MISSING_REQUIREMENTS), reason="; ".join(MISSING_REQUIREMENTS))


@pytest.fixture(scope="module")  # one per importing module: two at once are refused
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Return a function that opens a file from disk with the network off; errors in the page fail the test."""
    contexts, wrong = [], []

    def open_page(path, *, width=1000, colour_scheme="light", fragment="", selector=".panel"):
        viewport = {"width": width, "height": 900}
        context = chromium.new_context(viewport=viewport, color_scheme=colour_scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda asked: wrong.append(asked.url) if not asked.url.startswith(("file:", "data:", "blob:")) else None,
        )
        page.goto(f"{path.as_uri()}{fragment}")
        page.wait_for_selector(selector, timeout=60_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong, wrong


def wait_until(page, expression, seconds=30):
    """Wait until a JavaScript expression is true. Playwright's own function for this is blocked by the page's content
    security policy."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        time.sleep(0.02)


def measure_first_paint(page):
    """Return the seconds from opening to the first paint: the least of three tries, since the machine may be busy."""
    found = []
    while not found or (min(found) >= 1 and len(found) < 3):
        if found:
            page.reload()
        wait_until(page, f"{FIRST_PAINT_SCRIPT}.length > 0")
        found.append(page.evaluate(f"{FIRST_PAINT_SCRIPT}[0].startTime") / 1000)
    return min(found)


FIRST_PAINT_SCRIPT = "performance.getEntriesByName('first-contentful-paint')"
FITS_SCRIPT = "box => box.scrollWidth <= box.clientWidth + 1 && box.offsetWidth <= box.parentElement.clientWidth + 1"
