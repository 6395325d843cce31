"""Draw docs/architecture.svg: the data flow through the package, and the levels of its folders.

    python docs/draw_architecture.py

The levels are read from tests/test_architecture.py, which checks all imports against them. Each folder needs a caption
in ``CAPTIONS``.
"""

from __future__ import annotations

import ast
import sys
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.svg"

INK, FAINT, PAPER = "#2b2b2b", "#767676", "#ffffff"
PROBLEMS, MATHS, RECIPE, RESULTS, EDGE = "#009E73", "#0072B2", "#D55E00", "#8a4fa3", "#6b6b6b"

CAPTIONS = {
    "base": (EDGE, "shared types, random numbers, vocabulary"),
    "nn": (MATHS, "mixers, blocks, positions"),
    "tasks": (PROBLEMS, "one file, one task"),
    "models": (MATHS, "what one loop computes: four methods"),
    "registry": (RECIPE, "finds all parts"),
    "runners": (MATHS, "the plain runner, and faster ones, each equal to it"),
    "objectives": (RECIPE, "which loops the loss is computed from"),
    "experiment": (RECIPE, "layout, lengths, loops, stopping, optimizer; batch i of a recipe"),
    "runs": (RESULTS, "run folders, Hub, trackers"),
    "rasp": (PROBLEMS, "n-RASP-L programs"),
    "report": (RESULTS, "tables and figures, from files alone"),
    "viewer": (RESULTS, "one-file web pages that run a model"),
    "evaluation": (RESULTS, "scores, families, attack, decoding"),
    "ask": (RESULTS, "language models by endpoint"),
    "training": (RESULTS, "the training loop"),
    "jobs": (RESULTS, "a pool, Slurm, Ray, sweeps"),
    "verify": (RESULTS, "checks others’ weights"),
    "testing": (RESULTS, "laws for every part"),
    "recipes": (RECIPE, "the recipes’ functions"),
    "studies": (RECIPE, "several recipes and their figures"),
    "api": (EDGE, "import lengthwise as lw: lw.train, lw.evaluate, …"),
    "cli": (EDGE, "one file, one verb: train, evaluate, solve, …"),
}


def read_levels() -> list[list[str]]:
    """Return the folders of each level, from the bottom up, as tests/test_architecture.py lists them."""
    for node in ast.parse((ROOT / "tests" / "test_architecture.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "LEVELS":
            return [sorted(folders) for folders in ast.literal_eval(node.value)]
    raise LookupError("tests/test_architecture.py has no LEVELS")


class Drawing:
    """An SVG drawing, to which elements are added one by one."""

    def __init__(self, width: int, height: int) -> None:
        self.size, self.parts = (width, height), []

    def add_text(self, x, y, text, *, size=13, fill=INK, bold=False, anchor="middle", mono=False, italic=False) -> None:
        style = f'font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
        style += ' font-weight="600"' * bold + ' font-style="italic"' * italic
        style += ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace"' * mono
        self.parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>')

    def add_box(self, x, y, width, height, colour, *, tint=0.1, radius=5, dash="", line_width=1.3) -> None:
        """Draw a tinted rectangle."""
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"'
        self.parts.append(f'<rect {shape} fill="{PAPER}"/>')
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        style = f'fill-opacity="{tint:g}" stroke="{colour}" stroke-width="{line_width:g}"{dashed}'
        self.parts.append(f'<rect {shape} fill="{colour}" {style}/>')

    def add_part(self, x, y, width, height, name, colour, path="") -> None:
        """Draw a part of a recipe: a coloured box, and the path of its code."""
        self.add_box(x, y, width, height, colour, tint=0.14)
        self.add_text(x + width / 2, y + height / 2 + 5, name, bold=True)
        if path:
            self.add_text(x + width / 2, y + height + 15, path, size=10.5, fill=FAINT, mono=True)

    def add_data(self, x, y, width, height, name, caption="") -> None:
        """Draw a kind of data: a box with round ends."""
        self.add_box(x, y, width, height, EDGE, tint=0.0, radius=height / 2)
        self.add_text(x + width / 2, y + height / 2 + 5, name)
        for number, line in enumerate(caption.split("\n") if caption else []):
            self.add_text(x + width / 2, y + height + 15 + 13 * number, line, size=10.5, fill=FAINT)

    def add_line(self, points, *, colour=INK, dash="", arrow=True, width=1.4) -> None:
        """Draw straight segments with an arrowhead at the end."""
        path = " ".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
        style = f'stroke="{colour}" stroke-width="{width:g}" fill="none"'
        style += f' stroke-dasharray="{dash}"' if dash else ""
        style += f' marker-end="url(#{"point" if colour == INK else "faint"})"' if arrow else ""
        self.parts.append(f'<path d="{path}" {style}/>')

    def to_svg(self) -> str:
        width, height = self.size
        markers = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 1 L9 5 L0 9 z" fill="{colour}"/></marker>'
            for name, colour in (("point", INK), ("faint", FAINT))
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        )
        paper = f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
        inside = "\n".join([f"<defs>{markers}</defs>", paper, *self.parts])
        return f'{head} font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif">\n{inside}\n</svg>\n'


def draw_flow(page: Drawing) -> None:
    """Draw the upper half: the data flow from a recipe to a loss and to a figure."""
    page.add_box(20, 20, 1200, 38, RECIPE, tint=0.14)
    page.add_text(36, 44, "Recipe", bold=True, size=14, anchor="start")
    summary = "sets the task, the model and every orange part; field=value changes any; a hash names the run"
    page.add_text(100, 44, summary, size=12, fill=INK, anchor="start")
    y, h, gap = 190, 38, 26
    middle = y + h / 2
    # From left to right, with their widths.
    steps = [("Task", 84), ("Problems", 96), ("Layout", 84), ("Batch", 84), ("Runner", 296), ("Logits", 84),
             ("Objective", 100), ("Loss", 70), ("Optimizer", 100)]  # fmt: skip
    left, x = {}, 20
    for name, width in steps:
        left[name] = x
        x += width + gap
    widths = dict(steps)

    def find_centre(name):
        return left[name] + widths[name] / 2

    def connect(source, target):
        page.add_line([(left[source] + widths[source] + 3, middle), (left[target] - 3, middle)])

    # The recipe names the parts.
    for name in ("Layout", "Objective", "Optimizer"):
        page.add_line([(find_centre(name), 58), (find_centre(name), y - 3)], colour=FAINT, dash="2 4")
    page.add_line([(find_centre("Task"), 58), (find_centre("Task"), 92)], colour=FAINT, dash="2 4")
    page.add_part(left["Task"], 95, 84, 32, "Lengths", RECIPE)
    page.add_line([(find_centre("Task"), 130), (find_centre("Task"), y - 3)])
    page.add_text(find_centre("Task") + 8, 163, "sizes", size=11, fill=FAINT, anchor="start", italic=True)
    page.add_line([(left["Runner"] + 50, 58), (left["Runner"] + 50, 79)], colour=FAINT, dash="2 4")
    page.add_part(left["Runner"] + 8, 82, 84, 32, "Loops", RECIPE)
    page.add_line([(left["Runner"] + 50, 117), (left["Runner"] + 50, 132)])
    page.add_text(left["Runner"] + 58, 129, "how many, per row", size=11, fill=FAINT, anchor="start", italic=True)
    for one, two in pairwise(steps):
        if "Runner" not in (one[0], two[0]):
            connect(one[0], two[0])
    page.add_line([(left["Batch"] + 87, middle), (left["Runner"] - 3, middle)])
    page.add_line([(left["Runner"] + 299, middle), (left["Logits"] - 3, middle)])
    page.add_part(left["Task"], y, 84, h, "Task", PROBLEMS, "tasks/")
    page.add_data(left["Problems"], y, 96, h, "Problems", "prompts,\nanswers, T(n)")
    page.add_part(left["Layout"], y, 84, h, "Layout", RECIPE, "experiment/layout.py")
    page.add_data(left["Batch"], y, 84, h, "Batch", "tokens, masks,\ntargets")
    # A runner holds a model, a model holds blocks, and a block holds a mixer.
    x = left["Runner"]
    page.add_box(x, 135, 296, 208, MATHS, tint=0.06)
    page.add_text(x + 14, 157, "Runner", bold=True, anchor="start")
    page.add_text(x + 74, 157, "runs each row’s loops", size=11, fill=FAINT, anchor="start")
    page.add_box(x + 14, 175, 268, 128, MATHS, tint=0.1)
    page.add_line([(x + 268, 58), (x + 268, 172)], colour=FAINT, dash="2 4")
    page.add_text(x + 28, 197, "Model", bold=True, anchor="start")
    page.add_text(x + 79, 197, "embed, start, advance, read", size=11, anchor="start", mono=True)
    page.add_box(x + 28, 209, 240, 82, MATHS, tint=0.1)
    page.add_text(x + 42, 230, "Blocks", bold=True, anchor="start")
    page.add_text(x + 100, 230, "norm, residual, MLP", size=11, fill=FAINT, anchor="start")
    page.add_box(x + 42, 240, 212, 40, MATHS, tint=0.22)
    page.add_text(x + 54, 265, "Mixer", bold=True, anchor="start")
    page.add_text(x + 104, 265, "attention, or your own", size=11, anchor="start")
    page.add_text(x + 148, 322, "runners/plain.py, or runners/cpu/", size=10.5, fill=FAINT, mono=True)
    page.add_text(x + 148, 336, "faster, with the same values and gradients", size=10.5, fill=FAINT)
    page.add_data(left["Logits"], y, 84, h, "Logits")
    page.add_part(left["Objective"], y, 100, h, "Objective", RECIPE, "objectives/")
    page.add_data(left["Loss"], y, 70, h, "Loss")
    page.add_part(left["Optimizer"], y, 100, h, "Optimizer", RECIPE, "experiment/optim.py")
    page.add_text(find_centre("Objective") + 60, 166, "in training", size=12, fill=FAINT, italic=True, anchor="middle")
    # At test: the loop whose answer is scored, and where scores are stored.
    low = 290
    page.add_text(find_centre("Logits") + 118, low - 14, "at test", size=12, fill=FAINT, italic=True)
    page.add_line([(find_centre("Logits"), y + h + 3), (find_centre("Logits"), low - 3)])
    x = left["Logits"] - 4
    page.add_part(x, low, 92, h, "Stopping", RECIPE, "experiment/stopping.py")
    for number, (name, below) in enumerate([("Scores", "one row per size"), ("Run folder", "JSON lines, weights")]):
        at = x + 118 + number * 120
        page.add_line([(at - 23, low + 19), (at - 3, low + 19)])
        page.add_data(at, low, 94, h, name, below)
    page.add_line([(x + 335, low + 19), (x + 355, low + 19)])
    page.add_part(x + 358, low, 78, h, "Report", RESULTS, "report/")


def draw_folders(page: Drawing, top: int) -> None:
    """Draw the lower half: the folders by level, and the interfaces between them."""
    page.add_text(20, top, "Folders of lengthwise/, by level", bold=True, size=14, anchor="start")
    page.add_text(290, top, "imports go to lower levels only", size=12, fill=FAINT, anchor="start")
    levels = read_levels()[::-1]
    step, left, width = 31, 20, 690
    for number, folders in enumerate(levels):
        y, wide = top + 16 + number * step, (width - 10 * (len(folders) - 1)) / len(folders)
        for place, folder in enumerate(folders):
            colour, caption = CAPTIONS[folder]
            x = left + place * (wide + 10)
            page.add_box(x, y, wide, 25, colour, tint=0.12, line_width=1)
            page.add_text(x + 10, y + 17, folder, size=12, bold=True, anchor="start", mono=True)
            page.add_text(x + 22 + 7.4 * len(folder), y + 17, caption, size=11, anchor="start", fill=INK)
    bottom = top + 16 + len(levels) * step
    page.add_line([(726, top + 20), (726, bottom - 8)], colour=FAINT, dash="2 4")
    draw_cards(page, 750, top)


def draw_cards(page: Drawing, x: int, top: int) -> None:
    """Draw the signatures of the two interfaces, and the legend."""
    y = draw_card(page, x, top - 16, MATHS, "Interface 1: a model and its runner", [
        ("Model", ""),
        ("embed(inputs) → context", "stays the same in all loops"),
        ("start(context) → state", "before the first loop"),
        ("advance(state, context) → state", "one loop"),
        ("read(state) → logits", "every position"),
        ("Runner(model)", ""),
        ("last(inputs, loops, positions) → logits", "after each row’s last loop"),
        ("each(inputs, loops, positions) → …", "after every loop"),
    ])  # fmt: skip
    y = draw_card(page, x, y + 14, MATHS, "Interface 2: a block and its mixer", [
        ("Mixer", ""),
        ("forward(x, context, cache) → x", "added to the residual"),
        ("context", "which positions are visible"),
        ("Encoding (of positions)", ""),
        ("vectors(inputs) → x", "added to the embedded input"),
        ("keys, angles, attention_bias", "act within attention"),
    ])  # fmt: skip
    page.add_box(x, y + 14, 470, 116, EDGE, tint=0.03, line_width=1)
    page.add_text(x + 14, y + 36, "Colours", bold=True, anchor="start")
    legend = [(PROBLEMS, "problems and programs"), (MATHS, "mathematics: models and runners"),
              (RECIPE, "configuration: parts of a recipe, recipes, studies"),
              (RESULTS, "work and results: train, measure, store, report")]  # fmt: skip
    for number, (colour, words) in enumerate(legend):
        at = y + 46 + 20 * number
        page.add_box(x + 14, at, 26, 14, colour, tint=0.25, radius=3, line_width=1)
        page.add_text(x + 50, at + 11.5, words, size=11.5, anchor="start")


def draw_card(page: Drawing, x: int, y: int, colour: str, title: str, lines: list[tuple[str, str]]) -> float:
    """Draw a titled list of signatures and return its lower edge. A line without an explanation is a heading."""
    height = 40 + 20 * len(lines)
    page.add_box(x, y, 470, height, colour, tint=0.05, line_width=1)
    page.add_text(x + 14, y + 22, title, bold=True, anchor="start")
    for number, (code, words) in enumerate(lines):
        at = y + 45 + 20 * number
        page.add_text(x + (26 if words else 14), at, code, size=11.5, anchor="start", mono=True, bold=not words)
        page.add_text(x + 272, at, words, size=11.5, fill=FAINT, anchor="start")
    return y + height


def draw_page() -> str:
    """Return the whole drawing as SVG."""
    page = Drawing(1240, 920)
    draw_flow(page)
    draw_folders(page, 398)
    return page.to_svg()


if __name__ == "__main__":
    PAGE.write_text(draw_page())
    print(PAGE, file=sys.stderr)
