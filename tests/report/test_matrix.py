"""The matrix of architectures × tasks: the runs in a cell, the cell's text, and the figure."""

import json
import re
import shutil
import tomllib
from itertools import pairwise

import pytest
from conftest import command
from made_up_runs import build_run, recipe

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base import fields
from lengthwise.cli.reproduce import _read_runs_of_other_tasks
from lengthwise.experiment.recipe import import_parts
from lengthwise.report.matrix import (
    PAPER_SCORES_FILE,
    build_matrix_rows,
    draw_matrix_figure,
    find_paper_score,
    format_cell_foot,
    label_differing_fields,
    name_architectures,
)
from lengthwise.runs.folder import DIVERGED, RunFolder

TRAINING_CHANGES = ["steps=1", "batch=4", "lengths=Uniform(top=5)", "loops=Constant", "layout=Labelled"]
TRAINING_CHANGES += ["watch.every=0", "ema=0"]
MODELS = {"lstm": "model=TorchLSTM(width=4,layers=1)", "mix": "model=Transformer(width=8,heads=2,mixer=DeltaNet)"}


@pytest.fixture(scope="module")
def run_folders(tmp_path_factory):
    """Train two architectures on two tasks (one pair with two seeds), measure at 5, 16 and 32; return the folders."""
    base = tmp_path_factory.mktemp("matrix")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENGTHWISE_RUNS", str(base))
        for name, model in MODELS.items():
            for task in ("Parity", "EvenPairs"):
                changes = [f"name={name}-{task}", f"task={task}", model, *TRAINING_CHANGES]
                words = [*changes, "--lengths", "5,16,32", "--samples", "10"]
                seeds = ["--seeds", "2", "--jobs", "1"] if (name, task) == ("lstm", "Parity") else []
                done = command("train", "looped-parity", *words, *seeds, "--families", "--far-families", "--quiet")
                assert done.returncode == 0, done.stderr
        return sorted(path for path in base.iterdir() if (path / "scores.jsonl").exists())


def test_a_cell_has_the_means_over_seeds_for_uniform_problems_and_the_worst_family(run_folders):
    runs = [RunFolder(folder) for folder in run_folders]
    rows = build_matrix_rows(runs)
    assert len(rows) == 2 * 2 * 3 and {row["times"] for row in rows} == {1.0, 3.2, 6.4}
    assert {row["architecture"] for row in rows} == {"TorchLSTM", "DeltaNet negative=false"}
    assert {row["task"] for row in rows} == {"Parity, labelled", "EvenPairs, labelled"}
    by_cell = {(row["architecture"], row["task"], row["sizes"]): row for row in rows}
    row = by_cell["TorchLSTM", "Parity, labelled", (16,)]
    seeds = [run for run in runs if run.outline.name == "lstm-Parity"]
    here = [[one for one in run.rows("scores") if one["sizes"] == [16]] for run in seeds]
    uniform = [one["exact"] for rows in here for one in rows if one["problems"] == "uniform"]
    lowest = [min(one["exact"] for one in rows if one["problems"] not in ("uniform", "every")) for rows in here]
    assert row["seeds"] == len(uniform) == 2
    assert row["uniform"] == pytest.approx(sum(uniform) / 2) and row["worst"] == pytest.approx(sum(lowest) / 2)
    assert not row["fitted"] and row["parameters"] and row["cpu_s"] is not None and row["scaled"] is not None


def test_seeds_without_a_score_are_not_counted_and_a_diverged_seed_marks_cells_as_not_fitted():
    def summarize_by_size(*runs):
        return {row["sizes"]: (row["seeds"], row["uniform"], row["fitted"]) for row in build_matrix_rows(runs)}

    short, failed = build_run(recipe(), (8, 1.0)), build_run(recipe(seed=2))
    full = build_run(recipe(seed=1), (8, 1.0), (26, 0.5))
    assert summarize_by_size(short, full, failed) == {(8,): (2, 1.0, True), (26,): (1, 0.5, True)}
    failed.record_failure("not finite", DIVERGED)
    assert summarize_by_size(failed, short, full) == {(8,): (2, 1.0, False), (26,): (1, 0.5, False)}
    with pytest.raises(lw.UsageError, match="there is no matrix to draw"):
        build_matrix_rows([failed])


def test_an_architecture_is_named_after_its_mixers_and_positions():
    delta = {"kind": "DeltaNet", "negative": False, "taps": 4}
    attention = {"kind": "Attention"}
    positions = [{"kind": "RoPE"}, {"kind": "NoPE"}]
    old = {"kind": "Transformer", "positions": []}
    models = {
        "DeltaNet negative=true": {"kind": "Transformer", "mixer": delta | {"negative": True}},
        "DeltaNet negative=false + Attention": {"kind": "Transformer", "mixers": [delta, attention]},
        "Attention, RoPE": {"kind": "Transformer", "mixer": attention, "positions": positions},
        "Attention": old,
        "TorchLSTM": {"kind": "TorchLSTM", "width": 3},
    }
    assert name_architectures([{"model": model} for model in models.values()]) == [*models]
    assert name_architectures([{"model": old, "families": 0.5}]) == ["Attention + families"]


def test_parts_are_labelled_by_the_fields_that_differ():
    groups = [{"kind": "GroupWords", "group": group, "each": True} for group in ("S3", "S5")]
    assert label_differing_fields(groups) == ["GroupWords S3", "GroupWords S5"]
    counted = [{"kind": "CountedBlocks", "letters": letters} for letters in (2, 3)]
    found = label_differing_fields([*counted, {"kind": "Parity"}])
    assert found == ["CountedBlocks letters=2", "CountedBlocks letters=3", "Parity"]
    assert label_differing_fields(counted[:1]) == ["CountedBlocks"]


def build_config(mixer, task, **changes):
    model, loops = {"kind": "Transformer", "mixer": mixer}, {"kind": "Constant", "count": 1}
    return {"model": model, "task": task, "layout": {"kind": "Labelled"}, "loops": loops} | changes


@pytest.mark.parametrize(
    ("mixer", "task", "changes", "paper_score"),
    [
        ({"kind": "DeltaNet", "negative": True}, {"kind": "Parity"}, {}, 1.0),
        ({"kind": "DeltaNet", "negative": False}, {"kind": "ModularArithmetic", "modulus": 5}, {}, 0.314),
        ({"kind": "DeltaNet", "negative": False}, {"kind": "ModularArithmetic", "modulus": 7}, {}, None),
        ({"kind": "Attention"}, {"kind": "CycleNavigation", "places": 5, "each": False}, {}, 0.619),
        ({"kind": "Mamba2", "negative": True}, {"kind": "Parity"}, {}, None),
        ({"kind": "SLSTM"}, {"kind": "Parity"}, {"layout": {"kind": "Tagged"}}, None),
        ({"kind": "SLSTM"}, {"kind": "Parity"}, {"families": 0.5}, None),
        ({"kind": "SLSTM"}, {"kind": "Parity"}, {"loops": {"kind": "Constant", "count": 2}}, None),
        ({"kind": "SLSTM"}, {"kind": "BracketedArithmetic", "modulus": 5}, {}, None),
    ],
    ids=str,
)
def test_a_published_score_is_shown_only_for_the_same_configuration(mixer, task, changes, paper_score):
    assert find_paper_score(build_config(mixer, task, **changes))["published"] == paper_score


def test_published_scores_are_complete_and_unique_per_cell():
    import_parts()
    papers, cells = tomllib.loads(PAPER_SCORES_FILE.read_text()), []
    for paper in papers["paper"]:
        assert paper["standing"] in ("read", "second-hand") and paper["where"] and paper["tested"]
        assert re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", paper["source"])
        for score in paper["scores"]:
            values = {task: value for task, value in score.items() if task != "model"}
            assert values and values.keys() <= papers["tasks"].keys() and all(0 <= one <= 1 for one in values.values())
            cells += [(str(score["model"]), task) for task in values]
            assert any(score["model"]["kind"] in fields.find_part_classes(one) for one in (lw.ModelSpec, lw.MixerSpec))
    assert len(set(cells)) == len(cells) and papers["tasks"].keys() <= fields.find_part_classes(lw.Task).keys()


def test_a_cell_shows_the_published_score_and_the_cpu_seconds(run_folders):
    rows = build_matrix_rows(RunFolder(folder) for folder in run_folders)
    published = {(row["architecture"], row["task"]): format_cell_foot(row)[0] for row in rows}
    assert published == {
        ("TorchLSTM", "Parity, labelled"): "1",
        ("TorchLSTM", "EvenPairs, labelled"): "1",
        ("DeltaNet negative=false", "Parity, labelled"): ".017†",
        ("DeltaNet negative=false", "EvenPairs, labelled"): "",
    }
    shown = [text.get_text() for text in draw_matrix_figure(rows).axes[0].texts]
    assert shown.count(".017†") == 1 and sum(text.endswith(" s") for text in shown) == 4
    known = {"published": 0.242, "published_scaled": False, "standing": "second-hand", "cpu_s": 1234.5}
    assert format_cell_foot(known) == (".242*", "1,234 s")


def test_recipes_that_share_a_name_have_separate_rows(run_folders, tmp_path):
    first = next(folder for folder in run_folders if "lstm-EvenPairs" in folder.name)
    other = tmp_path / "other"
    shutil.copytree(first, other)
    (other / "about.json").unlink()  # so that the outline is computed from the recipe
    recipe = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(recipe | {"batch": 5}))  # as two trials of a sweep
    runs = [RunFolder(first), RunFolder(other)]
    names = {f"TorchLSTM (lstm-EvenPairs-{run.outline.id})" for run in runs}
    assert {row["architecture"] for row in build_matrix_rows(runs)} == names and len(names) == 2


@pytest.mark.usefixtures("blank_figures")
def test_the_command_draws_runs_and_published_results_together(run_folders, tmp_path):
    first, *others = map(str, run_folders)
    published = tmp_path / "results"
    assert command("report", *others, "--out", published, "--quiet").returncode == 0
    done = command("report", first, published, "--matrix", "--out", tmp_path / "drawn", "--quiet")
    assert done.returncode == 0 and "uniform/worst family at 5, 16, 32" in done.stdout
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {"matrix.csv", "matrix.png"}
    assert len((tmp_path / "drawn" / "matrix.csv").read_text().splitlines()) == 13
    done = command("report", first, "--matrix", "--stopping")
    assert done.returncode == 2 and "exclude each other" in done.stderr


@pytest.mark.usefixtures("blank_figures")
def test_the_matrix_of_a_study_keeps_columns_that_were_published_earlier(run_folders, tmp_path):
    for name in ("Parity", "even-pairs"):
        assert command("report", run_folders[0], "--out", tmp_path / "formal" / name, "--quiet").returncode == 0
    study = catalog.find_study("formal", tasks="even-pairs", methods="lstm")
    assert [run.outline.name for run in _read_runs_of_other_tasks(tmp_path / "formal", study)] == ["lstm-EvenPairs"]
    assert _read_runs_of_other_tasks(tmp_path / "none", study) == []


def test_cells_that_are_not_fitted_are_hatched_and_an_empty_matrix_is_refused(run_folders):
    rows = build_matrix_rows(RunFolder(folder) for folder in run_folders)
    (axes,) = draw_matrix_figure(rows).axes
    assert {patch.get_hatch() for patch in axes.patches if patch.get_fill()} == {"/////"}
    assert "seeds: 1–2; " in axes.get_xlabel()
    fitted = draw_matrix_figure([row | {"fitted": True} for row in rows]).axes[0]
    assert {patch.get_hatch() for patch in fitted.patches} == {None}
    with pytest.raises(lw.UsageError, match="there is no matrix to draw"):
        build_matrix_rows([])


def test_headings_of_many_columns_do_not_overlap(run_folders):
    rows = build_matrix_rows(RunFolder(folder) for folder in run_folders)
    names = ("Parity", "EvenPairs", "CycleNavigation", "ModularArithmetic", "CountedBlocks", "GroupWords S3", "Dyck")
    figure = draw_matrix_figure([rows[0] | {"task": f"{name}, labelled"} for name in (*names, "GroupWords S5")])
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) == 8 and all(left.x1 < right.x0 for left, right in pairwise(boxes))
