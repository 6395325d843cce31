"""Build pages of the notebooks with their outputs. marimo runs a notebook only once, since training takes long; the
outputs are cached."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INDEX = "notebooks/README.md"


def list_notebooks() -> list[Path]:
    """Return all notebooks."""
    return sorted((ROOT / "notebooks").glob("*.py"))


def build_pages(cache: Path) -> dict[str, str | bytes]:
    """Return all notebooks as pages with pictures, by path. ``cache``: a folder of notebooks that have been run."""
    texts: dict[str, str | bytes] = {}
    lines = ["# Notebooks", "`pip install -e '.[notebooks]'`, then `marimo edit notebooks/train_and_see.py`."]
    for path in list_notebooks():
        cells = _run_notebook(path, cache)
        rendered = render(path.stem, cells)
        texts |= rendered
        title = rendered[f"notebooks/{path.stem}.md"].split("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.stem}.md): [its source]({path.name})")
    texts[INDEX] = "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]) + "\n"
    return texts


def _run_notebook(path: Path, cache: Path) -> list[dict[str, Any]]:
    """Return a notebook's cells with outputs, in Jupyter's format; run the notebook only if its text has changed."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    executed = cache / f"{path.stem}-{digest}.ipynb"
    if not executed.exists():
        cache.mkdir(parents=True, exist_ok=True)
        print(f"{path.name}: running it for the first time; training takes minutes", flush=True)
        new = executed.with_suffix(".new")
        command = [sys.executable, "-m", "marimo", "-q", "export", "ipynb", str(path), "--include-outputs", "-f"]
        environment = {**os.environ, "LENGTHWISE_RUNS": str(cache / "runs")}
        subprocess.run([*command, "-o", str(new)], check=True, env=environment)
        new.replace(executed)
    return json.loads(executed.read_text())["cells"]


def render(name: str, cells: list[dict[str, Any]]) -> dict[str, str | bytes]:
    """Return a notebook's page and the pictures of its cells, by path."""
    lines, pictures = [], {}
    for cell in cells:
        source = "".join(cell["source"]).strip()
        lines.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                path = f"notebooks/{name}-{len(pictures) + 1}.png"
                pictures[path] = base64.b64decode(data["image/png"].partition(",")[2] or data["image/png"])
                lines.append(f"![What the cell above draws]({Path(path).name})")
            elif "text/plain" in data and (text := "".join(data["text/plain"]).strip()):
                lines.append(f"```text\n{text}\n```")
    title = next(n for n, line in enumerate(lines) if line.startswith("# "))  # imports may stand before it
    lines.insert(0, lines.pop(title))
    return {f"notebooks/{name}.md": "\n\n".join(lines) + "\n", **pictures}
