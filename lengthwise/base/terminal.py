"""A rich console that is safe for foreign text: text from files and servers is shown, never interpreted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text


class Terminal(Console):
    """A rich console that prints strings literally: markup and emoji codes have no effect, and control characters,
    which could move the cursor, are removed. Styled text is passed as ``Text``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: Any = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if not control and not text.isprintable():
                segment = Segment("".join(one for one in text if one.isprintable() or one == "\n"), style)
            yield segment

    def status(self, status: RenderableType, **options: Any) -> Status:
        return super().status(Text(status) if isinstance(status, str) else status, **options)

    def on_broken_pipe(self) -> None:
        raise
