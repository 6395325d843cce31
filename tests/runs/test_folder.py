"""Folders of results, and what a report reads from them with and without importing torch."""

import json
import subprocess
import sys

import pytest
from conftest import command

from lengthwise.api import catalog
from lengthwise.api.runs import Run
from lengthwise.ask.inquiry import Inquiry, InquiryRun
from lengthwise.base.files import append, read_rows
from lengthwise.base.types import Score, UsageError
from lengthwise.experiment.recipe import Recipe
from lengthwise.report.publish import publish
from lengthwise.runs import folder as folders
from lengthwise.runs.folder import SHIPPED_FOLDER, InquiryFolder, RunFolder, list_shipped_weights


@pytest.fixture
def run():
    """Return a run with scores and losses, as after training, on a task with two axes, one of them limited."""
    recipe = catalog.find_recipe("looped-multiplication", ["seed=1", "stopping=MaxConfidence(extra=3)"])
    run = Run.of(recipe)
    score = Score("multiplication", run.folder.name, recipe.stopping.name, "uniform", (2, 2), 500, 1.0, 1.0, 1.0, 4.0)
    run.append("scores", score.row() | {"seed": 0})
    run.append("metrics", *({"step": step, "loss": 1 / step} for step in (1, 2)))
    run.write_about({"parameters": 9, "cpu_s": 1.0, "wall_s": 1.0})
    return run


@pytest.fixture
def inquiry():
    """Return the results of a language model, with one score."""
    inquiry = InquiryRun.of(Inquiry("http://x/v1", "org/model", catalog.find_task("multiplication"), "Well?", seed=3))
    score = Score("multiplication", "org/model", "", "uniform", (2, 2), 100, 0.5, 0.5, 0.5, 0.0)
    inquiry.append("scores", score.row() | {"seed": 3, "asked": 100, "chatter": 0})
    return inquiry


def test_an_outline_has_the_values_of_its_recipe_or_inquiry(run, inquiry):
    recipe, found = run.recipe, RunFolder(run.folder).outline
    assert found == run.outline
    assert (found.id, found.name, found.task) == (recipe.id, recipe.name, "multiplication")
    assert found.axes == ("first", "second")
    assert found.tops == recipe.lengths.tops(2) == recipe.sizes(recipe.lengths.top) and found.top == recipe.lengths.top
    assert (found.stopping, found.steps, found.model) == ("MaxConfidence(extra=3)", recipe.steps, "Timed")
    assert found.seedless_id == recipe.change(seed=0, data_seed=0).id != found.id
    assert InquiryFolder(inquiry.folder).outline == inquiry.outline == inquiry.inquiry.outline
    outline = inquiry.outline
    assert (outline.model, outline.seed, outline.id) == ("org/model", 3, inquiry.inquiry.id)


def test_config_outline_and_provenance_are_read_from_files(run, inquiry):
    assert run.about() == RunFolder(run.folder).about() == {"parameters": 9, "cpu_s": 1.0, "wall_s": 1.0}
    assert RunFolder(run.folder).config() == run.config() == json.loads(run.recipe.json())
    assert InquiryFolder(inquiry.folder).config() == inquiry.config() and "outline" not in inquiry.config()
    for damaged, what in (("{", "not JSON"), ("3", "not a JSON object")):
        (run.folder / "config.json").write_text(damaged)
        with pytest.raises(UsageError, match=rf"config\.json: {what}"):
            RunFolder(run.folder).config()
    (run.folder / "about.json").unlink()  # as of an unfinished run
    with pytest.raises(UsageError, match=r"config\.json: "):
        _ = RunFolder(run.folder).outline
    with pytest.raises(UsageError, match=r"config\.json: cannot be read"):
        RunFolder(inquiry.folder).config()


@pytest.mark.parametrize("name", list_shipped_weights()[:2])
def test_an_outline_is_computed_for_folders_of_earlier_versions(name):
    """The folder has no outline file, and its config.json lacks fields that were added later."""
    assert RunFolder(SHIPPED_FOLDER / name).outline == Run.open(SHIPPED_FOLDER / name).outline


def test_a_damaged_outline_is_refused_in_one_line(run, inquiry):
    (run.folder / "about.json").write_text('{"outline": {"kind": "RunOutline", "id": 3}}')
    (inquiry.folder / "asked.json").write_text("{}")
    for folder in (RunFolder(run.folder), InquiryFolder(inquiry.folder)):
        with pytest.raises(UsageError, match="outline") as error:
            _ = folder.outline
        assert "\n" not in str(error.value)


def test_the_list_command_describes_weights_without_building_a_model(monkeypatch):
    monkeypatch.setattr(Recipe, "build", None)
    recipes = {name: Run.open(SHIPPED_FOLDER / name).recipe for name in list_shipped_weights()}
    described = {name: f"{recipe.task.name}, trained up to {recipe.lengths.top}" for name, recipe in recipes.items()}
    assert json.loads(command("list", "--json").stdout)["weights"] == described


PUBLISH_SCRIPT = """
import sys
from pathlib import Path
import lengthwise.report, lengthwise.report.publish, lengthwise.cli.report
from lengthwise.runs.folder import InquiryFolder, RunFolder

run, asked, out = map(Path, sys.argv[1:])
lengthwise.report.publish.publish([RunFolder(run)], out, inquiries=[InquiryFolder(asked)])
heavy = ("torch", "safetensors", "openai", "lengthwise.models", "lengthwise.nn", "lengthwise.tasks", "lengthwise.ask")
assert not [name for name in sys.modules if name.startswith(heavy)]
"""


def test_a_report_imports_neither_torch_nor_models_nor_a_client(run, inquiry, tmp_path):
    """The report equals, byte for byte, a report on runs whose recipes are loaded."""
    command = [sys.executable, "-c", PUBLISH_SCRIPT, run.folder, inquiry.folder, tmp_path / "data"]
    subprocess.run(list(map(str, command)), check=True, timeout=120)
    publish([run], tmp_path / "run", inquiries=[inquiry])
    written = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert {"runs.json", "inquiries.json", "scores.csv", "card.json", "lengths.png", "loss.png"} <= written.keys()


def test_appending_rows_one_by_one_does_not_read_the_file_each_time(run, monkeypatch):
    reads, names = [], ("a row of another process", "one more")
    monkeypatch.setattr(folders, "read_rows", lambda *given: reads.append(given) or read_rows(*given))
    (first,) = run.rows("scores")
    rows = [{**first, "seed": seed} for seed in range(30)]
    for row in [*rows, *rows]:
        run.append_new("scores", row)
    assert run.rows("scores") == rows and len(reads) == 1, "the file is read by the first call only"
    others = [{**first, "weights": name} for name in names]
    RunFolder(run.folder).append("scores", *others)
    run.append_new("scores", others[0], rows[3])
    assert run.rows("scores") == [*rows, *others], "rows of another process must be seen"


def test_a_row_that_another_process_appends_meanwhile_is_not_stored_twice(run, monkeypatch):
    (first,) = run.rows("scores")
    own, other = {**first, "seed": 1}, {**first, "seed": 2}

    def append_both(path, text):
        append(path, f"{json.dumps(other)}\n".encode())
        append(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(folders, "append", append_both)
        run.append_new("scores", own)
    run.append_new("scores", other, own)
    assert run.rows("scores") == [first, other, own]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_not_written(run, number):
    before = (run.folder / "scores.jsonl").read_text()
    with pytest.raises(UsageError, match="a measured number is not finite"):
        run.append("scores", {"exact": 1.0}, {"exact": number})
    assert (run.folder / "scores.jsonl").read_text() == before


def test_scores_of_an_earlier_version_without_the_field_whole_row_are_read(run):
    (row,) = run.rows("scores")
    path = run.folder / "scores.jsonl"
    path.write_text(json.dumps({name: value for name, value in row.items() if name != "whole_row"}) + "\n")
    (score,) = Run.open(run.folder).scores
    assert score.whole_row is None and score.exact == 1.0 and "whole_row" not in score.row()


def test_an_empty_variable_selects_the_default_folder_and_a_tilde_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("LENGTHWISE_RUNS", "")
    assert str(folders.get_runs_folder()) == "runs"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LENGTHWISE_RUNS", "~/mine")
    assert folders.get_runs_folder() == tmp_path / "mine"
    monkeypatch.setenv("LENGTHWISE_RUNS", "~no-such-user/mine")
    with pytest.raises(UsageError, match="LENGTHWISE_RUNS=~no-such-user/mine: there is no such home folder"):
        folders.get_runs_folder()
