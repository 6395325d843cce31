"""Check that a built site has no broken link or anchor, and loads nothing from another address."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING_ATTRIBUTES = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}
STANDALONE = "*.page.html"  # pages without the frame of the site, which have their own tests


class Page(HTMLParser):
    """The links, loaded addresses and anchors of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif (tag, name) in LOADING_ATTRIBUTES and value:
                self.loaded.append(value)
            elif (tag, name) == ("a", "href") and value is not None:
                self.links.append(value)


def find_faults(folder: Path) -> list[str]:
    """Return the faults of a site, one line each."""
    pages = {
        path.resolve(): Page(path.read_text()) for path in sorted(folder.rglob("*.html")) if not _is_standalone(path)
    }
    faults = []
    for path, page in pages.items():
        here = path.relative_to(folder.resolve())
        faults += [f"{here} loads {address}" for address in page.loaded if _is_external(address)]
        local = [link for link in page.links + page.loaded if not _is_external(link)]
        faults += [f"{here}: {link} leads nowhere" for link in local if not _resolves(link, path, pages)]
    for path in sorted(folder.rglob("*.css")):
        found = re.findall(r"(?:@import\s+|url\()[\"']?((?:https?:)?//[^\"')]+)", path.read_text())
        faults += [f"{path.relative_to(folder)} loads {address}" for address in found]
    return faults


def _is_standalone(path: Path) -> bool:
    return path.match(STANDALONE)


def _is_external(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in ("http", "https", "mailto")


def _resolves(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme in ("data", "javascript"):
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if target not in pages:
        return target.is_file() and not (parts.fragment and target.suffix == ".html" and not _is_standalone(target))
    return unquote(parts.fragment) in pages[target].anchors


if __name__ == "__main__":
    found = find_faults(Path(sys.argv[1]))
    print("\n".join(found) or f"{sys.argv[1]}: every link leads somewhere, and nothing is loaded from elsewhere")
    sys.exit(bool(found))
