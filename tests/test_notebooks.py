"""The notebooks run, on tiny budgets."""

from pathlib import Path

import pytest

marimo = pytest.importorskip("marimo", reason="the notebooks need the extra: pip install 'lengthwise[notebooks]'")

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
TINY = {
    "inside_a_loop": {"prompt": "1101", "sizes": (4,), "samples": 4},
}


def test_each_notebook_is_run():
    assert {path.stem for path in NOTEBOOKS.glob("*.py")} == set(TINY)


@pytest.mark.parametrize("name", TINY)
def test_a_notebook_runs(name, monkeypatch):
    monkeypatch.syspath_prepend(NOTEBOOKS)
    app = __import__(name).app
    shown, _ = app.run(defs=TINY[name])
    assert sum(hasattr(one, "savefig") for one in shown) >= 2  # pictures
