"""The terminal as this package writes to it: what comes from files and other people is shown, and never obeyed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text


class Terminal(Console):
    """A rich console on which a string is text: brackets are no markup, colons no emoji, and control characters, with
    which names and files could write anywhere, are left out. Our own styles are given as ``Text``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: Any = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(_printable(text), style)

    def status(self, status: RenderableType, **options: Any) -> Status:
        return super().status(Text(status) if isinstance(status, str) else status, **options)

    def on_broken_pipe(self) -> None:
        raise


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable() or character == "\n")
