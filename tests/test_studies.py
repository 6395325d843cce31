"""Invalid studies are refused, and each panel of a study has its own folder of results."""

from dataclasses import replace

import pytest
from conftest import command

import lengthwise as lw
from lengthwise.api import catalog

RECIPE = replace(lw.find("looped-parity"), name="tiny", lengths=lw.Uniform(3), steps=2, batch=4, watch=lw.Watch())
PANELS = tuple(lw.Panel(f"Batch of {n}", (RECIPE.change([f"name=tiny-{n}", f"batch={n}"]),), (4, 5)) for n in (4, 8))


@pytest.mark.usefixtures("jobs_in_process", "blank_figures")
def test_panels_without_names_write_into_separate_folders(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "find_study", lambda *_, **__: lw.Study("Tiny", PANELS))
    done = command("reproduce", "pairs", "--samples", "2", "--out", tmp_path / "out", "--jobs", "1", "--quiet")
    assert done.returncode == 0, done.stderr
    assert sorted(path.parent.name for path in (tmp_path / "out").rglob("lengths.png")) == ["batch-of-4", "batch-of-8"]


def test_a_panel_keeps_its_name_and_a_single_panel_needs_none():
    assert lw.Study("Two", (replace(PANELS[0], name="a"), PANELS[1])).panels[0].name == "a"
    assert lw.Study("One", PANELS[:1]).panels[0].name == ""


ONE, OTHER = PANELS
REFUSED_STUDIES = [
    ({"title": "Batch of 4"}, "two panels have the same title"),
    ({"name": "Batch-of-4"}, "two panels have the same name"),
    ({"name": "a/b"}, "name='a/b' is not a folder name"), ({"title": "…"}, "name='' is not a folder name"),
    ({"title": "Again", "recipes": ONE.recipes}, "two recipes have the same name, 'tiny-4'"),
    ({"recipes": ()}, "panel 'Batch of 8' has no recipes"), ({"sizes": ()}, "panel 'Batch of 8' has no sizes"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED_STUDIES)
def test_a_study_that_cannot_be_measured_or_written_is_refused(changes, message):
    with pytest.raises(lw.UsageError, match=f"^study 'Two': {message}"):
        lw.Study("Two", (ONE, replace(OTHER, **changes)))


def test_a_study_needs_panels_and_a_panel_may_have_a_grid_instead_of_sizes():
    with pytest.raises(lw.UsageError, match="it has no panels"):
        lw.Study("Two", ())
    assert lw.Study("Map", (replace(ONE, sizes=(), grid=(4, 4)),)).panels


@pytest.mark.parametrize(
    ("build", "message"),
    [(lambda: None, "its function must return a study, not None"), (lambda: 1 / 0, "ZeroDivisionError in ")],
)
def test_a_failing_study_function_is_reported_in_one_line(build, message, monkeypatch):
    monkeypatch.setitem(catalog._OWN_STUDIES, "mine", build)
    with pytest.raises(lw.UsageError, match=f"^study mine: {message}"):
        catalog.find_study("mine")
