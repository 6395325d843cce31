"""The style of figures, and how they are saved.

Figures use matplotlib's objects, never pyplot, so that no backend is chosen and no window opens. The user's matplotlib
settings have no effect, and the same rows give the same bytes.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import matplotlib.style
from cycler import cycler
from matplotlib.figure import Figure
from PIL import Image

from lengthwise.base.errors import UsageError, quote_value
from lengthwise.base.files import write

Width = Literal["column", "page"]
PNG_ONLY = ("png",)  # default formats of figures
KNOWN_FORMATS = ("png", "svg", "pdf")
PANELS_PER_ROW: dict[Width, int] = {"column": 2, "page": 3}
WIDTHS: dict[Width, float] = {"column": 3.25, "page": 6.75}  # inches, for a two-column page

# Okabe and Ito (2008): safe for all colour vision. Yellow is left out, as it is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, FAINT, SHADE = "#333333", "#8a8a8a", "#f1f0ec"
DPI = 200
Dash = str | tuple[float, tuple[float, ...]]
DASHED: Dash = (0.0, (3.2, 1.6))
DOTTED: Dash = (0.0, (1.0, 1.2))
DASHES: tuple[Dash, ...] = ("-", DASHED, DOTTED, (0.0, (6.0, 1.4, 1.0, 1.4)), (0.0, (3.0, 1.2, 1.0, 1.2, 1.0, 1.2)))

STYLE: dict[str, Any] = {
    "axes.prop_cycle": cycler(linestyle=DASHES) * cycler(color=COLOURS),  # 35 distinct lines
    "figure.constrained_layout.use": True,
    "figure.dpi": DPI,  # so that text is measured at the size drawn
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib, so that metrics are the same on every machine
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
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    **{f"{axis}tick.color": FAINT for axis in "xy"},
    **{f"{axis}tick.labelcolor": INK for axis in "xy"},
    **{f"{axis}tick.major.width": 0.6 for axis in "xy"},
    "lines.linewidth": 1.4,
    "lines.markersize": 4.2,
    "svg.fonttype": "none",  # keeps text searchable and editable
    "svg.hashsalt": "lengthwise",
    "pdf.fonttype": 42,  # TrueType, which publishers require
}

# Keeps matplotlib from creating a layout engine for a figure without one: with an engine, each save draws twice.
_without_layout_engine = partial(matplotlib.rc_context, {"figure.constrained_layout.use": False})


@contextmanager
def style(width: Width = "page") -> Iterator[None]:
    """Apply the package's figure style in place of the user's settings, as a context manager or a decorator; see
    ``lw.style``. Letters that the font lacks are drawn as boxes, without a warning."""
    if not isinstance(width, str) or width not in WIDTHS:
        raise UsageError(f"width must be 'column' or 'page', not {quote_value(width)}")
    size = (WIDTHS[width], 0.62 * min(WIDTHS[width], 5.0))
    with matplotlib.style.context(["default", STYLE | {"figure.figsize": size}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


class Drawing(Figure):
    """A figure that notebooks display without pyplot."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(96 * inches) for inches in self.get_size_inches())  # on screen, at 96 pixels per inch
        return _encode_figure(self, "png"), {"width": width, "height": height}


def new_figure(width: Width, height: float) -> Drawing:
    """Return an empty figure of this width, ``height`` inches high."""
    return Drawing((WIDTHS[width], height), layout="constrained")


def wrap_title(title: str, width: Width) -> str:
    """Wrap a title to the figure's width."""
    return "\n".join(textwrap.wrap(title, 34 if width == "column" else 80))


def save(figure: Figure, path: Path | str, formats: Sequence[str] = PNG_ONLY) -> list[Path]:
    """Write the figure atomically to ``path`` with the extension of each format; return the paths written."""
    path, files = Path(path), []
    for name in formats:
        files.append(path.with_name(f"{path.name}.{name}"))
        write(files[-1], _encode_figure(figure, name))
    return files


def _encode_figure(figure: Figure, file_format: str) -> bytes:
    """Return the content of a figure's file, without dates. A PNG has only 64 colours, so it is a quarter as large."""
    content = io.BytesIO()
    about = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
    with style(), _without_layout_engine():
        figure.savefig(content, format=file_format, metadata=about.get(file_format))
    if file_format == "png":
        image, content = Image.open(content).convert("RGB"), io.BytesIO()
        image.quantize(64, dither=Image.Dither.NONE).save(content, "png", optimize=True)
    return content.getvalue()


def fix_layout(figure: Drawing, title: str = "", width: Width = "page") -> Drawing:
    """Compute the layout once and freeze it, so that repeated saves look the same; write ``title`` at the top left."""
    if title:
        figure.suptitle(wrap_title(title, width), x=0.01, ha="left", fontsize=9, fontweight="bold")
    figure.draw_without_rendering()
    with _without_layout_engine():
        figure.set_layout_engine(None)
    return figure
