"""The viewer page in Chromium, opened from disk with the network off."""

import os
import re

import numpy as np
import pytest
from browser_helpers import FITS_SCRIPT, chromium, measure_first_paint, needs_browser, open_page, wait_until  # noqa: F401
from viewer_reference import compute_reference, draw_prompts

from lengthwise.runs.run import load
from lengthwise.viewer.viewer import build_viewer_page

pytestmark = [needs_browser, pytest.mark.timeout(1500)]
PROBLEM_COUNT = int(os.environ.get("LENGTHWISE_PAGE_PROBLEMS", "30"))
MAX_SIZES = {"looped-pairs": 50, "looped-parity": 60, "abacus-addition": 25}

SOLVE_SCRIPT = """
async (prompts) => {
  const { viewer } = document.querySelector("[data-viewer]"), panel = viewer.panelOf(viewer.models[0].name), found = [];
  for (const prompt of prompts) {
    const trace = await panel.think(prompt, () => {}, () => false), { loop } = trace.stops[0];
    const { text, right, logs } = trace.loops[loop - 1], states = panel.beside?.states ?? null;
    found.push({ text, right, loops: loop, logs: logs.map((row) => [...row]), states });
  }
  return found;
}
"""
TIME_LOOPS_SCRIPT = """
async (prompt) => {
  const { viewer } = document.querySelector("[data-viewer]"), panel = viewer.panelOf(viewer.models[0].name);
  const { run, states } = await panel.think(prompt, () => {}, () => false), times = [];
  const out = new Float32Array(states[0].length);
  for (let k = 1; k < 40; k++) {
    const start = performance.now();
    panel.network.advance(run, states[k], 0, run.length, out);
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[20];
}
"""


@pytest.fixture(scope="session")
def write_viewer(tmp_path_factory):
    """Return a function that writes a viewer page of shipped weights and returns its path."""
    folder = tmp_path_factory.mktemp("pages")

    def write_viewer(*names):
        path = folder / f"{'-and-'.join(names)}.html"
        if not path.exists():
            path.write_text(build_viewer_page([load(name) for name in names]))
        return path

    return write_viewer


@pytest.mark.parametrize("name", MAX_SIZES)
def test_the_page_computes_what_pytorch_computes(name, write_viewer, open_page):
    weights = load(name)
    prompts = draw_prompts(weights.recipe, PROBLEM_COUNT, MAX_SIZES[name])
    wanted = [compute_reference(weights, prompt) for prompt in prompts]
    page, found = open_page(write_viewer(name)), []
    for start in range(0, PROBLEM_COUNT, 10):
        found += page.evaluate(SOLVE_SCRIPT, prompts[start : start + 10])
    worst = 0.0
    for row, want in zip(found, wanted, strict=True):
        for part in ("text", "right", "loops", "states"):
            assert row[part] == want[part], (part, want["prompt"])
        worst = max(worst, float(np.abs(np.array(row["logs"]) - np.array(want["logs"])).max()))
    print(f"{name}: {len(found)} problems, log probabilities differ by at most {worst:.1e}")
    assert worst < 1e-3


def test_a_loop_on_50_digits_takes_under_50_ms(write_viewer, open_page):
    milliseconds = open_page(write_viewer("looped-pairs")).evaluate(TIME_LOOPS_SCRIPT, f"{'7' * 50}+{'2' * 49}3")
    print(f"a loop of looped-pairs on 50 digits: {milliseconds:.1f} ms")
    assert milliseconds < 50


@pytest.mark.parametrize("colour_scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 900, 1200, 1600])
def test_every_part_is_shown_at_any_width(width, colour_scheme, write_viewer, open_page, tmp_path):
    page = open_page(write_viewer("looped-parity", "halting-parity"), width=width, colour_scheme=colour_scheme,
                  fragment="#problem=1011011101&model=looped-parity&beside=halting-parity&loop=6")  # fmt: skip
    assert measure_first_paint(page) < 1
    page.wait_for_selector(".panel")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    panels = page.locator(".panel")
    assert panels.count() == 2
    for panel, rules in zip(panels.all(), (3, 4), strict=True):  # its own rule, and the usual ones that differ from it
        assert panel.locator("canvas").count() == 5  # the map and four heads
        assert all("head" in label or " loops by " in label for label in _read_labels(panel))
        assert panel.locator(".stops tbody tr").count() == rules
        assert panel.locator(".stops").evaluate(FITS_SCRIPT)
        assert panel.locator(".positions").count() == 2  # of the model and of the program
    if folder := os.environ.get("LENGTHWISE_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/viewer-{width}-{colour_scheme}.png", full_page=True)


def _read_labels(panel):
    return [canvas.get_attribute("aria-label") for canvas in panel.locator("canvas").all()]


@pytest.mark.parametrize(("width", "height", "has_touch"), [(390, 844, True), (1280, 800, False)])
def test_the_play_button_and_the_map_fit_on_one_screen(width, height, has_touch, write_viewer, chromium):
    viewport = {"width": width, "height": height}
    page = chromium.new_context(viewport=viewport, has_touch=has_touch, is_mobile=has_touch, offline=True).new_page()
    page.goto(write_viewer("looped-pairs").as_uri())
    page.wait_for_selector(".panel")
    play, chart = (page.locator(name).bounding_box() for name in (".transport .primary", ".map"))
    assert play["y"] + play["height"] <= chart["y"] and chart["y"] + chart["height"] <= height
    assert page.locator(".keys").is_visible() != has_touch
    assert page.evaluate("document.body.innerText.split('After loop 1 of').length") == 2  # the sentence, once
    page.context.close()


@pytest.mark.parametrize("name", ["looped-maze", "looped-prefix-sum"])
@pytest.mark.parametrize(("width", "colour_scheme"), [(360, "dark"), (1200, "light")])
def test_a_recording_plays(name, width, colour_scheme, write_viewer, open_page):
    page = open_page(write_viewer(name), width=width, colour_scheme=colour_scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".panel canvas").count() == 2 and not page.locator("#problem").is_visible()
    status = lambda: page.locator(".status").text_content()  # noqa: E731
    assert status().startswith("After loop 1 of")
    page.keyboard.press("End")
    assert "less than .001" in status() or name != "looped-maze"
    count, right = re.search(r": (\d+) of (\d+) symbols correct", status()).groups()
    assert count == right
    page.keyboard.press("Home")
    page.locator(".transport .primary").click()
    wait_until(page, "document.querySelector('.transport output').textContent.startsWith('loop 3 ')")
    page.locator(".examples li button").nth(1).click()
    wait_until(page, "document.querySelector('.status').textContent.startsWith('After loop 1 of')")
    box = page.locator(".panel canvas").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "probability" in page.locator(".panel p.mono").text_content()


def test_the_page_can_be_used_with_the_keyboard_alone(write_viewer, open_page):
    page = open_page(write_viewer("looped-parity", "halting-parity"), fragment="#problem=101")
    loop = lambda: int(page.locator(".transport output").text_content().split()[1])  # noqa: E731
    press = page.keyboard.press
    for key, after in (("ArrowDown", 2), ("End", 23), ("Home", 1), ("ArrowUp", 1)):
        press(key)
        assert loop() == after
    press("/")
    press("Control+a")
    page.keyboard.type("11x")
    press("Enter")
    assert "not one of the symbols" in page.locator("#trouble").text_content()
    press("Backspace")
    press("Enter")
    wait_until(page, "location.hash.includes('problem=11&')")
    press("Tab")  # from the problem on to the button; letters are no longer typed
    press("c")
    page.wait_for_selector(".panels.two")
    before = page.locator("#problem").input_value()
    press("n")
    wait_until(page, f"document.querySelector('#problem').value !== '{before}'")
    reached, active = set(), "document.activeElement"
    for _ in range(60):
        press("Tab")
        reached.add(page.evaluate(f"{active}.id || {active}.ariaLabel || {active}.textContent"))
    assert {"model", "beside", "loop", "Play", "next loop", "Copy link"} <= reached
    page.locator(".transport .primary").focus()
    press("Enter")
    wait_until(page, "document.querySelector('.transport output').textContent.match(/loop [^1]/)")
    press("Enter")
    assert page.locator(".transport .primary").text_content() == "Play"


def test_a_link_opens_the_page_with_its_problem(write_viewer, open_page):
    page = open_page(write_viewer("looped-pairs"), fragment="#problem=99%2B1&loop=3")
    assert page.locator("#problem").input_value() == "99+1"
    assert "loop 3 of" in page.locator(".transport output").text_content()
    page.evaluate("location.hash = 'problem=5%2B6'")
    wait_until(page, "document.querySelector('.status').textContent.includes(': 11, right')")


def test_a_problem_that_is_too_long_is_refused_in_one_line(write_viewer, open_page):
    fragment, selector = f"#problem={'9' * 200}%2B1", "#trouble:not(:empty)"
    page = open_page(write_viewer("abacus-addition"), fragment=fragment, selector=selector)
    wait_until(page, "document.querySelector('#trouble').textContent.startsWith('Too long for this model')")


def test_failures_are_among_the_examples(write_viewer, open_page):
    page = open_page(write_viewer("local-sorting"))
    page.locator(".examples button.wrong", has_text="q:2,r:36,s:35").click()
    page.keyboard.press("End")
    wait_until(page, "document.querySelector('.status').textContent.includes('wrong: q,s,r is right')")
