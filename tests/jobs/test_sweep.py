"""Sweeps: axes, the sizes that recipes may be chosen on, importances, and resuming after a stop."""

import csv
import json
import math
from pathlib import Path

import pytest
from conftest import command
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.api import catalog
from lengthwise.base.errors import UsageError
from lengthwise.cli import sweep as verb
from lengthwise.experiment.lengths import Uniform
from lengthwise.experiment.recipe import Recipe, change_recipe, check_sweep_sizes, largest_size_for_choosing
from lengthwise.jobs.search import Axis, Search, generate_grid_points, parse_axes
from lengthwise.report.sweep import compute_importances, draw_sweep_figure, rank_trials
from lengthwise.runs.run import Run

ONE_SEED = ["--seeds", "1", "--jobs", "1"]
TINY_SWEEP = ["steps=1", "lengths=Uniform(top=4)", "batch=2", "watch.every=0", "keep=last", "--samples", "4", "--quiet"]


@given(st.floats(1e-6, 1e3), st.floats(1.5, 1e3), st.integers(2, 9), st.booleans())
def test_points_of_a_range_are_evenly_spaced_from_end_to_end(low, factor, count, log):
    axis = Axis("x", (), low, low * factor, log)
    points = [float(text) for text in axis.space_evenly(count)]
    assert points == sorted(points) and len(points) <= count
    assert math.isclose(points[0], low, rel_tol=1e-9) and math.isclose(points[-1], low * factor, rel_tol=1e-9)
    if count == 3 and len(points) == 3:
        middle = math.sqrt(points[0] * points[2]) if log else (points[0] + points[2]) / 2
        assert math.isclose(points[1], middle, rel_tol=1e-2)


def test_axes_are_parsed():
    for word, values in (
        ("ema=0.999..0.99999:3", ("0.999", "0.9995", "0.99999")),
        ("x=0.123456789012..0.2:2", ("0.123456789012", "0.2")),
        ("optimizer.rate=0.00123456..0.002:2", ("0.00123456", "0.002")),
        ("optimizer.rate=1e-3..1e-2:log:3", ("0.001", "0.003162", "0.01")),
        ("optimizer=AdamW(rate=1e-3,betas=(0.9,0.99)),AdamW", ("AdamW(rate=1e-3,betas=(0.9,0.99))", "AdamW")),
    ):
        assert Axis.parse(word).values == values
    assert Axis.parse("ema=0.999..0.99999").format_value(0.99998) == "0.99998"
    narrow = Axis.parse("x=0.99999999991..0.99999999999:3").values
    assert all(0.99999999991 <= float(text) <= 0.99999999999 for text in narrow)
    assert Axis.parse("lengths=Curriculum(top=11,every=10,max_per_axis=(2,11))") is None


def test_a_grid_has_every_combination_once():
    axes, rest = parse_axes(["a.b=1,2,2", "c=(8,12),(9,)", "d=1..3:3", "e=5", "f=(1,2)"])
    assert rest == ["e=5", "f=(1,2)"]
    points = list(generate_grid_points(axes))
    assert len(points) == 2 * 2 * 3 == len({json.dumps(point) for point in points})
    assert points[0] == {"a.b": "1", "c": "(8,12)", "d": "1"}


def test_a_forecast_states_each_trial_s_values():
    words = ["sweep", "looped-parity", *TINY_SWEEP, "model.width=32,64", "--dry-run", "--jobs", "1"]
    rows = json.loads(command(*words, "--json").stdout)["recipes"]
    assert [row["values"] for row in rows] == [{"model.width": "32"}, {"model.width": "64"}]
    table = command(*words).stdout.splitlines()
    assert table[1].startswith("model.width") and [line.split()[0] for line in table[3:5]] == ["32", "64"]


def test_invalid_sweeps_are_refused():
    for words, message in (
        ("a=1", "nothing varies"), ("a=1,2 a=3,4", "vary each field only once"), ("a=3..1", "a range must ascend"),
        ("a=0..1:log", "must start above 0"), ("a=0..1:1", "2 to 1000 points"), ("a=0..1", "a grid needs a number"),
        ("a=0..1:1001", "2 to 1000 points"), ("name=a,b", "a name does not change training"),
        ("seed=1,2", "do not choose a seed"), ("source.seed=1,2", r"^source\.seed cannot be varied: do not"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            list(generate_grid_points(parse_axes(words.split())[0]))


def test_sizes_kept_for_testing_choose_no_recipe():
    recipe = catalog.find_recipe("looped-parity")
    assert largest_size_for_choosing(recipe) == 26
    check_sweep_sizes(recipe, [4, 20, 26])
    with pytest.raises(UsageError, match="size 27 is kept for testing"):
        check_sweep_sizes(recipe, [20, 27])
    done = command("sweep", "looped-parity", "model.width=8,16", "--lengths", "20,40", *TINY_SWEEP[:-3])
    assert done.returncode == 2 and "up to 5; size 20 is kept for testing" in done.stderr


def test_recipes_are_compared_at_one_training_length():
    recipe = catalog.find_recipe("looped-parity")
    assert change_recipe(recipe, {"lengths": "Uniform(top=20)"}).lengths == Uniform(20)
    for point in ({"lengths.top": "9"}, {"task": "Copy"}):
        with pytest.raises(UsageError, match="keep the task and the training length, 20"):
            change_recipe(recipe, point)


def build_trial(exact, **values):
    return {"values": values, "exact": exact, "worst": exact, "seeds": 1, "parameters": 10}


def test_equal_values_of_a_range_fall_into_one_bin():
    trials = [
        build_trial(share, a=a) for a, share in zip("11122233", [0.1, 0.9, 0.2, 0.7, 0.3, 0.8, 0.5, 0.6], strict=True)
    ]
    forth, back = compute_importances(trials, ["a"]), compute_importances(trials[::-1], ["a"])
    assert list(forth[0]["exact"]) == ["1", "2", "3"]
    assert forth[0]["explains"] == pytest.approx(back[0]["explains"])
    pairs = compute_importances([build_trial(0.5, a=a) for a in "11223344"], ["a"])
    assert list(pairs[0]["exact"]) == ["1", "2", "3–4"]


def test_importance_is_the_share_of_explained_variance():
    trials = [build_trial(0.1 + 0.4 * (a == "2") + 0.1 * (b == "y"), a=a, b=b) for a in "12" for b in "xy"]
    first, second = compute_importances(trials, [])
    assert first["field"] == "a" and math.isclose(first["explains"] + second["explains"], 1)
    assert first["exact"] == pytest.approx({"1": 0.15, "2": 0.55})
    assert compute_importances([build_trial(0.5, a="1")], [])[0]["explains"] == 0
    searched = compute_importances([build_trial(n / 10, a=str(n)) for n in range(7)], ["a"])
    assert list(searched[0]["exact"]) == ["0–2", "3–5", "6"]
    settled = compute_importances([build_trial(0.0, a="1"), *(build_trial(n / 10, a="2") for n in range(11))], ["a"])
    assert settled[0]["exact"] == pytest.approx({"1": 0.0, "2": 0.5})  # no trial is lost


def test_the_smaller_of_equally_good_models_is_best():
    trials = [build_trial(1.0, a="1") | {"parameters": 20}, build_trial(1.0, a="2"), build_trial(0.9, a="3")]
    assert [row["values"]["a"] for row in rank_trials(trials)] == ["2", "1", "3"]
    assert len(draw_sweep_figure(trials, {"a": False}, "x").axes) == 1


@pytest.fixture
def simulated_trainings(no_type_checks, monkeypatch, runs):
    """Replace training by scores that grow with the model's width. Return the list of trained runs, and a list whose
    only element is the number of runs before a simulated kill."""
    trained, kill_after = [], [None]

    class FakePool:
        def __init__(self, runs, *_, **__):
            self.runs, self.failed = runs, {}

        def __enter__(self):
            assert any((path.parent / ".owner").exists() for path in runs.glob("*/sweep.json"))  # two are not mixed
            for run in self.runs:
                if len(trained) == kill_after[0]:
                    raise KeyboardInterrupt
                trained.append(run.folder)
                measured = {"task": "parity", "weights": "x", "stopping": run.recipe.stopping.name, "count": 4,
                            "problems": "uniform", "token_accuracy": 1.0, "loops": 1.0,
                            "low": 0.0, "high": 1.0}  # fmt: skip
                exact = run.recipe.model.width / 64
                run.append("scores", *(measured | {"sizes": [size], "exact": exact} for size in (4, 5)))
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(verb, "JobPool", FakePool)
    monkeypatch.setattr(verb, "show_progress", lambda *_, **__: None)
    monkeypatch.setattr(verb, "try_training", lambda *_: None)
    return trained, kill_after


def test_a_sweep_keeps_the_best_and_trains_nothing_twice(runs, simulated_trainings):
    trained, _ = simulated_trainings
    words = ["sweep", "looped-parity", "model.width=4,8", "--seeds", "2", *TINY_SWEEP]
    done = command(*words, "--json")
    assert done.returncode == 0, done.stderr
    (folder,) = runs.glob("sweep-*")
    best = Recipe.read((folder / "best.json").read_text())
    assert best.chosen_on.sizes == (4, 5) and best.model.width == 8  # not 20, 26 and 60, as in the recipe
    rows = csv.DictReader((folder / "trials.csv").read_text().splitlines())
    assert [(row["model.width"], row["seeds"]) for row in rows] == [("4", "2"), ("8", "2")]
    assert {Path(file).name for file in json.loads(done.stdout)["files"]} < {path.name for path in folder.iterdir()}
    assert command(*words, "--json").stdout == done.stdout
    assert len(trained) == len(set(trained)) == 4
    assert command(*words, "--samples", "5", "--out", folder).returncode == 2  # the folder has another sweep
    other = folder.with_name("other")
    done = command("sweep", "looped-parity", "seed=3", "model.width=4,8", *ONE_SEED, *TINY_SWEEP, "--out", other)
    best = Recipe.read((other / "best.json").read_text())
    assert (best.seed, best.data_seed) == (3, 3) and Run.locate(best).folder in trained
    done = command("sweep", "looped-parity", "data_seed=7", "model.width=4,8", *ONE_SEED, *TINY_SWEEP)
    assert done.returncode == 2 and "draws its own problems" in done.stderr


def test_a_killed_search_resumes(simulated_trainings):
    pytest.importorskip("optuna")
    trained, kill_after = simulated_trainings
    kill_after[0] = 3
    words = ["sweep", "looped-parity", "model.width=4,8,32,64", "optimizer.rate=1e-4..1e-2:log", "--trials", "8",
             "--seeds", "2", "--jobs", "2", *TINY_SWEEP]  # fmt: skip
    assert command(*words).returncode == 130
    kill_after[0] = None
    done = command(*words, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(trained) == len(set(trained)) < 16  # trials below the median got no second seed
    widths = [int(row["values"]["model.width"]) for row in found["trials"]]
    assert len(widths) == 8 and found["best"]["model"]["width"] == max(widths)
    assert found["mattered"][0]["field"] == "model.width"
    before = len(trained)
    assert json.loads(command(*words, "--json").stdout) == found and len(trained) == before
    trained.clear()
    words = ["sweep", "looped-parity", "model.layers=1,2", "--trials", "6", *ONE_SEED, *TINY_SWEEP]
    assert command(*words).returncode == 0
    assert 1 <= len(trained) == len(set(trained)) <= 2  # a point that it tries twice is trained once


def test_scores_on_sealed_problems_choose_no_recipe(no_type_checks):
    recipe = catalog.find_recipe("looped-parity", ["lengths=Uniform(top=4)"])
    run = Run.of(recipe)
    row = {"task": "parity", "weights": "x", "stopping": "Oracle", "problems": "uniform", "sizes": [4], "count": 100}
    row |= {"token_accuracy": 1.0, "loops": 4.0, "low": 0.0, "high": 1.0}
    run.append("scores", row | {"exact": 0.5}, row | {"exact": 1.0, "count": 6400, "sealed": "abc", "seed": 7})
    assert verb._compute_mean_exact_match(verb.Sweep(recipe, (), (4,), samples=100, seeds=1, trials=None), run) == 0.5


def test_a_trial_whose_training_failed_is_tried_again_once(simulated_trainings, monkeypatch):
    pytest.importorskip("optuna")
    trained, _ = simulated_trainings
    fails = [True]

    class FailingPool(verb.JobPool):
        def __enter__(self):
            if fails[0]:
                self.failed = {run.folder: "the disk is full" for run in self.runs}
                return self
            return super().__enter__()

    monkeypatch.setattr(verb, "JobPool", FailingPool)
    words = ["sweep", "looped-parity", "optimizer.rate=1e-4..1e-2:log", "--trials", "2", *ONE_SEED, *TINY_SWEEP]
    assert command(*words).returncode == 2 and not trained
    fails[0] = False
    done = command(*words, "--json")
    assert done.returncode == 0 and len(json.loads(done.stdout)["trials"]) == 2, done.stderr
    fails[0] = True
    more = [*words[:4], "3", *words[5:], "--out", str(trained[0].parent / "other")]
    assert [command(*more).returncode for _ in range(2)] == [2, 2]
    fails[0] = False
    assert command(*more).returncode == 0  # the trial that failed twice blocks no other


def test_a_search_resumes_after_its_log_lost_its_last_bytes(tmp_path):
    """A search resumes from a log that is cut anywhere; other damage is reported in one line."""
    axes = [Axis("optimizer.rate", (), 0.001, 0.1, True)]
    whole = Search(tmp_path, axes, 0)
    for _ in range(2):
        trial = whole.ask()
        whole.suggest_point(trial)
        whole.tell(trial, 0.5)
    path = tmp_path / "optuna.log"
    content = path.read_bytes()
    for end in {*range(0, len(content), 97), len(content) - 1}:
        path.write_bytes(content[:end])
        (tmp_path / "optuna.log.lock").symlink_to("optuna.log")  # of a process that was killed while it wrote
        search = Search(tmp_path, axes, 0)
        trial = next(iter([*search.list_unfinished_trials(), search.ask()]))
        search.suggest_point(trial)
        search.tell(trial, 0.25)
        again = Search(tmp_path, axes, 0)
        assert again.count_finished() == search.count_finished() >= 1 and again.list_points() == search.list_points()
    lines = content.splitlines(keepends=True)
    for damaged in (b"{\n", b"[]\n", b'{"op_code": 4}\n', b'{"op_code": 99, "worker_id": "x"}\n', b"\xff\n"):
        path.write_bytes(b"".join([*lines[:2], damaged, *lines[2:]]))
        with pytest.raises(UsageError, match=r"optuna\.log: .*; delete optuna\.log to restart the search") as error:
            Search(tmp_path, axes, 0)
        assert str(error.value).isprintable()
