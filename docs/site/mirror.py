"""Mirror the repository: a page has the same path as in a clone, so that links work in both.

A link to a folder leads to the folder's README, and a link to a source file leads to a page that shows the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE_BLOCK = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FILL_MARK = re.compile(r"^<!-- (?:fill: .*|end) -->\n", re.MULTILINE)  # marks of `fill.py`
LANGUAGES = {".py": "python", ".toml": "toml", ".cff": "yaml", ".js": "javascript"}


class Mirror:
    """The sources of the site, in ``folder``; ``generated`` holds the texts of generated files, by path."""

    def __init__(self, folder: Path, generated: Mapping[str, str | bytes]) -> None:
        self.folder, self.generated = folder, generated
        self.staged: set[str] = set()

    def stage_page(self, path: str) -> None:
        """Stage a page and everything that it links to."""
        if path in self.staged:
            return
        self.staged.add(path)
        text = content.decode() if isinstance(content := self._read(path), bytes) else content
        self.write_file(path, self.rewrite_links(FILL_MARK.sub("\n", text), path))

    def rewrite_links(self, text: str, page: str) -> str:
        """Return a text with its links rewritten for the site, and stage their targets. Code is unchanged."""
        parts = CODE_BLOCK.split(text)
        parts[::2] = [
            LINK.sub(lambda link: link[1] + self._rewrite_target(link[2], page) + link[3], part) for part in parts[::2]
        ]
        return "".join(parts)

    def _rewrite_target(self, target: str, page: str) -> str:
        if ":" in target:
            return target
        path = os.path.normpath(Path(page).parent / target)
        found = self._stage(path)
        return target if found == path else os.path.relpath(found, Path(page).parent)

    def _stage(self, path: str) -> str:
        """Stage the target of a link; return its path in the site."""
        if (ROOT / path).is_dir():
            path = f"{path}/README.md"
        if path.endswith(".md"):
            self.stage_page(path)
        elif Path(path).suffix in LANGUAGES:
            return self._stage_source(path)
        elif path not in self.staged:
            self.staged.add(path)
            self.write_file(path, self._read(path))
        return path

    def _stage_source(self, path: str) -> str:
        """Stage a page that shows a source file, excluded from search."""
        page = f"{path}.md"
        if page not in self.staged:
            self.staged.add(page)
            fence = f'``` {{ .{LANGUAGES[Path(path).suffix]} linenums="1" }}'
            head = "---\nsearch:\n  exclude: true\n---\n\n"
            self.write_file(page, f"{head}# {Path(path).name}\n\n`{path}`\n\n{fence}\n{(ROOT / path).read_text()}```\n")
        return page

    def _read(self, path: str) -> str | bytes:
        return self.generated[path] if path in self.generated else (ROOT / path).read_bytes()

    def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file of the site's sources."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
