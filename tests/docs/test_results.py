"""``results/`` holds the figures that pages show, and the data needed to draw them again."""

import re
from pathlib import Path

import pandas as pd
import pytest

from lengthwise.base.schemas import MetricsRow, ScoreRow

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
FILES = sorted(path for path in RESULTS.rglob("*") if path.is_file())
PAGES = [ROOT / "README.md", ROOT / "bench" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_BYTES = 8_000_000  # of all files, on a disk with blocks of 4,096 bytes
SOURCES = {
    "lengths": ("runs.json", "scores"),
    "map": ("runs.json", "scores"),
    "loss": ("runs.json", "metrics"),
    "stopping": ("{name}.json",),
    "anatomy": ("{name}.json",),
    "distribution": ("distribution.json",),
    "parameters": ("parameters.csv",),
    "overview": ("*/scores",),
    "length": ("length.json",),
    "depth": ("depth.csv",),
    "matrix": ("runs.json", "scores"),
}


def list_shown_pictures():
    """Return the paths of all pictures of results that a page shows."""
    links = {page: re.findall(r"!\[[^\]]*\]\(([^)]*results/[^)]*)\)", page.read_text()) for page in PAGES}
    return {(page.parent / link).resolve() for page, found in links.items() for link in found}


def test_results_are_small_and_stored_in_one_format():
    assert sum(-(-path.stat().st_size // 4096) * 4096 for path in FILES) <= MAX_BYTES
    assert {path.suffix for path in FILES} <= {".png", ".csv", ".gz", ".json", ".md"}
    assert not [path for path in FILES if path.with_name(f"{path.name}.gz").exists()]


def test_pictures_are_shown_by_a_page_or_called_lengths():
    pictures = {path for path in FILES if path.suffix == ".png"}
    assert list_shown_pictures() <= pictures
    assert {path.name for path in pictures - list_shown_pictures()} <= {"lengths.png"}


def test_every_picture_has_the_data_it_was_drawn_from():
    for path in FILES:
        for source in SOURCES[path.stem.split("-")[0]] if path.suffix == ".png" else ():
            assert [*path.parent.glob(source.format(name=path.stem) + "*")], (path, source)


def test_every_folder_is_in_the_table_of_commands():
    cells = re.findall(r"^\| (`[^|]*`) \|", (RESULTS / "README.md").read_text(), re.M)
    listed = set(re.findall(r"`([^`]+)`", "".join(cells)))
    folders = {str(path.parent.relative_to(RESULTS)) for path in FILES if path.parent != RESULTS}
    covered = {folder for folder in folders if any(folder == name or folder.startswith(f"{name}/") for name in listed)}
    assert folders == covered
    assert {name for name in listed if not (RESULTS / name).is_dir() and "/" in name and " " not in name} == set()


def read_described_columns(file):
    """Return the names of columns in the table of results/README.md that describes ``file``."""
    table = (RESULTS / "README.md").read_text().split(f"Columns of `{file}`", 1)[1].split("\n\n")[1]
    return set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?`) \|", table, re.M))))


@pytest.mark.parametrize(("file", "schema"), [("scores.csv", ScoreRow), ("metrics.csv", MetricsRow)])
def test_every_column_of_the_rows_is_described(file, schema):
    kept = {name for path in RESULTS.rglob(f"{file}*") for name in pd.read_csv(path, nrows=0).columns}
    fields = {"recipe_name", "id", "train_seed", *schema.__annotations__}
    assert {name.split(".")[0] for name in kept} <= fields
    assert {name.split(".")[0] for name in read_described_columns(file)} == fields
