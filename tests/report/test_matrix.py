"""Architectures × tasks: which runs stand in a cell, what it shows, and the figure."""

import pytest
from conftest import command

from lengthwise.base.errors import UsageError
from lengthwise.report.matrix import architectures, distinguish_parts, matrix_figure, matrix_rows
from lengthwise.runs.folder import RunFolder

TINY = ["steps=1", "batch=4", "lengths=Uniform(top=5)", "loops=Constant", "layout=Labelled", "watch.every=0", "ema=0"]
MODELS = {"lstm": "model=TorchLSTM(width=4,layers=1)", "mix": "model=Transformer(width=8,heads=2,mixer=DeltaNet)"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs of two architectures, one of them of two seeds, on two tasks; measured at 5, 16 and 32."""
    base = tmp_path_factory.mktemp("matrix")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENGTHWISE_RUNS", str(base))
        for name, model in MODELS.items():
            for task in ("Parity", "EvenPairs"):
                words = [f"name={name}-{task}", f"task={task}", model, *TINY, "--lengths", "5,16,32", "--samples", "10"]
                seeds = ["--seeds", "2", "--jobs", "1"] if (name, task) == ("lstm", "Parity") else []
                done = command("train", "looped-parity", *words, *seeds, "--families", "--far-families", "--quiet")
                assert done.returncode == 0, done.stderr
        return sorted(path for path in base.iterdir() if (path / "scores.jsonl").exists())


def test_a_cell_is_the_mean_over_seeds_of_uniform_problems_and_worst_families(folders):
    runs = [RunFolder(folder) for folder in folders]
    rows = matrix_rows(runs)
    assert len(rows) == 2 * 2 * 3 and {row["times"] for row in rows} == {1.0, 3.2, 6.4}
    assert {row["architecture"] for row in rows} == {"TorchLSTM", "DeltaNet negative=false"}
    assert {row["task"] for row in rows} == {"Parity, labelled", "EvenPairs, labelled"}
    (row,) = [
        row
        for row in rows
        if (row["architecture"], row["task"], row["sizes"]) == ("TorchLSTM", "Parity, labelled", (16,))
    ]
    seeds = [run for run in runs if run.outline.name == "lstm-Parity"]
    here = [[one for one in run.rows("scores") if one["sizes"] == [16]] for run in seeds]
    uniform = [one["exact"] for rows in here for one in rows if one["problems"] == "uniform"]
    lowest = [min(one["exact"] for one in rows if one["problems"] not in ("uniform", "every")) for rows in here]
    assert row["seeds"] == len(uniform) == 2
    assert row["uniform"] == pytest.approx(sum(uniform) / 2) and row["worst"] == pytest.approx(sum(lowest) / 2)
    assert not row["fitted"] and row["parameters"] and row["cpu_s"] is not None and row["scaled"] is not None


def test_an_architecture_is_called_by_its_mixers_and_positions():
    config = {"kind": "Transformer", "mixer": {"kind": "DeltaNet", "negative": True, "taps": 4}}
    hybrid = {
        "kind": "Transformer",
        "mixers": [{"kind": "DeltaNet", "negative": False, "taps": 4}, {"kind": "Attention"}],
    }
    rope = {"kind": "Transformer", "mixer": {"kind": "Attention"}, "positions": [{"kind": "RoPE"}, {"kind": "NoPE"}]}
    old = {"kind": "Transformer", "positions": []}
    named = architectures(
        [{"model": model} for model in (config, hybrid, rope, old, {"kind": "TorchLSTM", "width": 3})]
    )
    assert named == [
        "DeltaNet negative=true",
        "DeltaNet negative=false + Attention",
        "Attention, RoPE",
        "Attention",
        "TorchLSTM",
    ]
    assert architectures([{"model": old, "families": 0.5}]) == ["Attention + families"]


def test_parts_are_written_by_the_fields_that_tell_them_apart():
    groups = [{"kind": "GroupWords", "group": group, "each": True} for group in ("S3", "S5")]
    assert distinguish_parts(groups) == ["GroupWords S3", "GroupWords S5"]
    counted = [{"kind": "CountedBlocks", "letters": letters} for letters in (2, 3)]
    assert distinguish_parts([*counted, {"kind": "Parity"}]) == [
        "CountedBlocks letters=2",
        "CountedBlocks letters=3",
        "Parity",
    ]
    assert distinguish_parts(counted[:1]) == ["CountedBlocks"]


def test_the_command_draws_runs_and_published_results_together(folders, tmp_path):
    first, *others = map(str, folders)
    published = tmp_path / "results"
    assert command("report", *others, "--out", published, "--quiet").returncode == 0
    done = command("report", first, published, "--matrix", "--out", tmp_path / "drawn", "--quiet")
    assert done.returncode == 0 and "uniform/worst family at 5, 16, 32" in done.stdout
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {"matrix.csv", "matrix.png"}
    assert len((tmp_path / "drawn" / "matrix.csv").read_text().splitlines()) == 13
    done = command("report", first, "--matrix", "--stopping")
    assert done.returncode == 2 and "--matrix draws one figure" in done.stderr


def test_what_is_not_fitted_is_hatched_and_nothing_is_drawn_of_nothing(folders):
    rows = matrix_rows(RunFolder(folder) for folder in folders)
    (axes,) = matrix_figure(rows).axes
    assert {patch.get_hatch() for patch in axes.patches if patch.get_fill()} == {"/////"}
    fitted = matrix_figure([row | {"fitted": True} for row in rows]).axes[0]
    assert {patch.get_hatch() for patch in fitted.patches} == {None}
    with pytest.raises(UsageError, match="there is no matrix to draw"):
        matrix_rows([])
