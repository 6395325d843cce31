"""The notebooks run with small budgets, as Python code and in a Jupyter kernel."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LONG

marimo = pytest.importorskip("marimo", reason="the notebooks need the extra: pip install 'lengthwise[notebooks]'")

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TINY_BUDGETS = {
    "train_and_see": {"steps": 6, "lengths": [3, 20, 22], "samples": 4},
    "my_own_model": {"steps": 6, "lengths": [3, 20], "samples": 4},
    "inside_a_loop": {"prompt": "1101", "sizes": (4,), "samples": 4},
}


def test_every_notebook_has_a_test():
    assert {path.stem for path in NOTEBOOKS.glob("*.py")} == set(TINY_BUDGETS)


@pytest.mark.parametrize("name", TINY_BUDGETS)
def test_a_notebook_runs(name, monkeypatch):
    monkeypatch.syspath_prepend(NOTEBOOKS)
    app = __import__(name).app
    shown, _ = app.run(defs=TINY_BUDGETS[name])
    assert sum(hasattr(one, "savefig") for one in shown) >= 2  # figures


def _read_colab_notebook(steps, samples):
    """Return the notebook for Colab and Kaggle, with fewer steps and problems."""
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.read(NOTEBOOKS / "colab.ipynb", as_version=4)
    nbformat.validate(book)
    for cell in book.cells:
        cell.source = cell.source.replace("steps, samples = 300, 300", f"steps, samples = {steps}, {samples}")
    assert not any(cell.get("outputs") for cell in book.cells)
    return book


def test_the_cells_of_the_notebook_for_colab_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in _read_colab_notebook(4, 8).cells:
        if cell.cell_type == "code":
            exec(cell.source.replace("%pip", "# %pip"), names)
    assert [score.sizes for score in names["scores"]] == [(10,), (20,), (40,), (60,)]
    assert names["mine"].digest


@pytest.mark.skipif(not LONG, reason="a kernel takes half a minute: make test-long")
@pytest.mark.parametrize("name", ["colab", "train_and_see"])
def test_a_notebook_shows_progress_and_pictures_in_a_kernel(name, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / "runs"))
    if name == "colab":
        book = _read_colab_notebook(20, 20)
    else:
        source = (NOTEBOOKS / f"{name}.py").read_text()
        source = source.replace("steps = 2500", "steps = 400").replace("[5, 10, 20, 26, 40, 60]", "[5, 20]")
        (tmp_path / "notebook.py").write_text(source)
        command = [sys.executable, "-m", "marimo", "-q", "export", "ipynb", "notebook.py", "-o", "notebook.ipynb"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
        book = nbformat.read(tmp_path / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=240, kernel_name="python3").execute(cwd=str(tmp_path))
    shown = [output.get("data", {}) for cell in book.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in data for data in shown) >= 1 and sum("text/html" in data for data in shown) >= 3
    assert name == "colab" or any("<progress" in data.get("text/html", "") for data in shown)
