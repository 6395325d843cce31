"""Assemble scripts, styles and data into one HTML file without network access."""

from __future__ import annotations

import base64
import html
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lengthwise.base.errors import remove_controls
from lengthwise.base.files import check_writable, format_json, write

VIEWER_FOLDER = Path(__file__).parent
# Makes the browser block every network request.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


def build_document(
    title: str,
    body: str,
    code: str,
    data: dict[str, Any],
    *,
    libraries: Sequence[str] = (),
    compressed_ids: Sequence[str] = (),
) -> str:
    """Return a complete page as HTML. ``data`` maps element ids to values for the scripts. Values are embedded as JSON
    or, if their id is in ``compressed_ids``, as deflated JSON in base64. ``libraries`` are scripts that run first."""
    elements = []
    for name, value in data.items():
        if name in compressed_ids:
            kind, content = "text/plain", base64.b64encode(zlib.compress(format_json(value).encode(), 9)).decode()
        else:  # it must not close its HTML element
            kind, content = "application/json", format_json(value).replace("<", "\\u003c")
        elements.append(f'<script type="{kind}" id="{name}">{content}</script>')
    for part in (*libraries, code):
        elements.append("<script>\n" + part.replace("</script", "<\\/script") + "\n</script>")
    style, embedded = (VIEWER_FOLDER / "page.css").read_text(encoding="utf-8"), "\n".join(elements)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">
<meta name="generator" content="lengthwise">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
{body}
{embedded}
</body>
</html>
"""


def write_page(file: str, page: str) -> Path:
    """Write a page to a file atomically; return its path. Raises UsageError if ``file`` is a folder."""
    path = Path(file)
    check_writable("--html", path)
    write(path, page.encode())
    return path


def escape(text: object) -> str:
    """Return the text of an object, without control characters, escaped for HTML."""
    return html.escape(remove_controls(str(text)))


def join_scripts(*names: str) -> str:
    """Join scripts from ``js`` into one, wrapped so that it defines no global names."""
    parts = [f"// {name}.js\n{(VIEWER_FOLDER / 'js' / f'{name}.js').read_text(encoding='utf-8')}" for name in names]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "})();"


def read_vendor_scripts(*names: str) -> list[str]:
    """Return the texts of third-party scripts from ``vendor``; the first starts with the licences."""
    licences = (VIEWER_FOLDER / "vendor" / "LICENSES.txt").read_text(encoding="utf-8")
    notice = f"/* The licences of these libraries:\n{licences}*/\n"
    texts = [(VIEWER_FOLDER / "vendor" / f"{name}.min.js").read_text(encoding="utf-8") for name in names]
    return [notice * (not n) + code.partition("//# sourceMappingURL")[0] for n, code in enumerate(texts)]
