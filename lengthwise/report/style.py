"""How figures look, and how they are saved.

Drawn with matplotlib's objects, never with pyplot, so that no backend is chosen and no window opens; the reader's own
matplotlib settings change nothing, and the same rows give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from lengthwise.folder import write

# Okabe and Ito (2008): told apart with any colour vision. Yellow is left out, as it is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, FAINT, SHADE = "#333333", "#8a8a8a", "#f1f0ec"
WIDTH = 5.5  # inches: a one-column page's text
DPI = 200
DASHED = (0.0, (3.2, 1.6))
DOTTED = (0.0, (1.0, 1.2))

STYLE = {
    "figure.dpi": DPI,  # text is measured as it will be drawn
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so metrics are the same everywhere
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.2,
    "svg.fonttype": "none",  # text stays text: to be searched, and edited
    "svg.hashsalt": "lengthwise",
}


@contextmanager
def styled() -> Iterator[None]:
    """Drawing in our style, whatever the reader's own settings."""
    with style.context(["default", STYLE]):
        yield


def save(figure: Figure, path: Path | str) -> list[Path]:
    """Write ``path`` + .png and ``path`` + .svg, each whole or not at all; the paths written."""
    path, files = Path(path), []
    for suffix, about in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        content = io.BytesIO()
        with styled():
            figure.savefig(content, format=suffix[1:], metadata=about)
        files.append(path.with_name(path.name + suffix))
        write(files[-1], content.getvalue())
    return files


def settled(figure: Figure) -> Figure:
    """The figure with its layout worked out once and kept: both formats, and a second save, look the same."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure
