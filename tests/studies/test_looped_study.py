"""The looped study: eight methods on six tasks, from end to end, and reports on loops."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
import torch
from conftest import command
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.cli import console
from lengthwise.evaluation.answers import Predictions
from lengthwise.evaluation.attack import MAX_GROUPS, _group_values, format_prompts, measure_anatomy
from lengthwise.evaluation.depth import measure_depth
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment import data
from lengthwise.experiment.loops import Constant, PerRound
from lengthwise.experiment.stopping import After, Converged, MaxConfidence, Oracle
from lengthwise.jobs import launchers
from lengthwise.recipes import looped
from lengthwise.recipes.looped import METHODS, SETTINGS, build_variation
from lengthwise.report.depth_figure import draw_depth_figure
from lengthwise.report.publish import select_anatomy_rows
from lengthwise.report.results_folder import read_published_runs
from lengthwise.report.style import save
from lengthwise.report.tables import build_depth_rows
from lengthwise.runs.run import Run, load
from lengthwise.studies import looped as study
from lengthwise.tasks.arithmetic import Multiplication
from lengthwise.tasks.bits import BinarySum
from lengthwise.training.cost import measure_cost
from lengthwise.training.loop import train

SCALES_AND_TASKS = [(scale, task) for scale, settings in SETTINGS.items() for task in settings]
every_scale_and_task = pytest.mark.parametrize(("scale", "task"), SCALES_AND_TASKS)


# Methods

# layout, loops (None: T(n)), blocks for each of the task's, injection
METHOD_SETTINGS = {
    "ntp": (lw.NextToken(), 1, 20, "once"),
    "ntp-pause": (lw.NextToken(20), 1, 20, "once"),
    "ntp-loop": (lw.NextToken(), 20, 1, "add"),
    "fop": (lw.FullOutput(), 1, 20, "once"),
    "fop-pause": (lw.FullOutput(20), 1, 20, "once"),
    "fop-loop-fixed": (lw.FullOutput(), 20, 1, "add"),
    "fop-loop-adaptive": (lw.FullOutput(), None, 1, "add"),
    "fop-loop-adaptive-wo": (lw.FullOutput(), None, 1, "once"),
}


@every_scale_and_task
def test_methods_differ_only_in_layout_loops_depth_and_injection(scale, task):
    """All methods draw the same batches of prompts, although their rows differ."""
    own, part, prompts = build_variation(task, "ntp", scale), 2 if scale == "half" else 1, set()
    assert list(METHODS) == list(METHOD_SETTINGS)
    for method, (layout, count, blocks, injection) in METHOD_SETTINGS.items():
        recipe = build_variation(task, method, scale)
        level = isinstance(layout, lw.FullOutput) and SETTINGS[scale][task].level_rows
        whole = {"whole_tail": True, "level": True} if level else {}
        assert recipe.layout == replace(layout, pauses=layout.pauses // part, **whole)
        assert recipe.loops == (Constant(max(1, count // part)) if count else PerRound())
        layers = max(1, blocks // part) * SETTINGS[scale][task].layers
        assert (recipe.model.layers, recipe.model.injection) == (layers, injection)
        model = replace(recipe.model, layers=own.model.layers, injection=own.model.injection)
        assert replace(recipe, name=own.name, layout=own.layout, loops=own.loops, model=model).id == own.id
        equals = recipe.layout.vocabs(recipe.task)[0].id("=")
        batch, _ = data.draw_batch(replace(recipe, batch=8), recipe.steps // 2)
        prompts.add(str([row[: row.index(equals)] for row in batch.inputs.tokens.tolist()]))
    assert len(prompts) == 1


# shared/spec/looped.md: layers, heads, steps per length, train up to, test at, end of the constant rate, T
PAPER_SETTINGS = {
    "parity": (1, 64, 500, (20,), 40, 10_500, lambda n: n),
    "copy": (2, 8, 1000, (20,), 30, 20_000, lambda n: n),
    "addition": (3, 8, 1600, (20,), 30, 32_000, lambda n: n),
    "binary-sum": (2, 16, 500, (20,), 24, 10_000, lambda n: n),
    "multiplication": (4, 8, 500, (2, 11), 15, 6_000, lambda n, m: n * m),
    "unique-set": (3, 8, 1000, (20,), 30, 20_000, lambda n: n),
}


@pytest.mark.parametrize("task", PAPER_SETTINGS)
def test_paper_scale_recipes_have_the_settings_of_the_paper(task):
    layers, heads, every, tops, tested, constant, rounds = PAPER_SETTINGS[task]
    recipe = build_variation(task, "fop-loop-adaptive", "paper")
    model = recipe.model
    assert (model.layers, model.heads, model.width, model.mlp, model.dropout) == (layers, heads, 256, 4, 0)
    assert (model.positions, model.activation, model.injection, model.init_std) == ((lw.NoPE(),), "gelu", "add", 0.02)
    assert recipe.layout == lw.FullOutput(whole_tail=True, level=True)  # as the official code
    assert (recipe.steps, recipe.batch, recipe.clip) == (100_000, 64, 1.0)
    assert recipe.optimizer == lw.AdamW(rate=1e-4, weight_decay=0.01)
    assert recipe.lengths == lw.Curriculum(
        max(tops), every, start=1, max_per_axis=tops if min(tops) < max(tops) else ()
    )
    assert recipe.lengths.tops(len(recipe.task.axes)) == tops
    assert (recipe.ema, recipe.ema_start) == ((0.9999, constant) if task in ("parity", "binary-sum") else (0, 0))
    rates = [recipe.schedule.factor(step, recipe.steps) for step in (0, constant, constant + 2000, recipe.steps)]
    assert rates == pytest.approx([1, 1, rates[2], 0]) and 0.99 < rates[2] < 0.999999
    assert recipe.schedule == lw.Schedule("cosine", cooldown=recipe.schedule.cooldown)
    sizes = (2, 5)[-len(tops) :]
    problems = data.draw_fresh_problems(recipe.task, sizes, 3, seed=0)
    assert recipe.loops.planned(problems.rounds).tolist() == [rounds(*sizes)] * 3
    (panel,) = catalog.find_study("looped", tasks=task, scale="paper").panels
    assert panel.sizes == (tested,)


# The study


def test_chosen_tasks_and_methods_become_panels_and_recipes_in_order():
    """The cpu scale has one more method: our own looped models, trained on the same tasks."""
    panels = catalog.find_study("looped", tasks="all").panels
    assert [panel.name for panel in panels] == list(PAPER_SETTINGS)
    for panel in panels:
        *published, ours = panel.recipes
        assert [recipe.name for recipe in published] == [f"{method}-{panel.name}" for method in METHODS]
        assert ours.name in (f"looped-{panel.name}", "short-binary-sum") and catalog.find_recipe(ours.name) == ours
        assert (ours.task, ours.tops) == (published[0].task, published[0].tops)
    chosen = catalog.find_study("looped", tasks="copy,parity", methods="fop,ntp")
    assert [recipe.name for recipe in chosen.recipes] == ["fop-copy", "ntp-copy", "fop-parity", "ntp-parity"]
    paper = catalog.find_study("looped", tasks="all", scale="paper")
    assert [panel.name for panel in paper.panels] == list(PAPER_SETTINGS)
    assert {recipe.steps for recipe in paper.recipes} == {100_000}


@pytest.mark.parametrize("scale", SETTINGS)
def test_panels_measure_curves_and_stop_adaptive_methods_also_by_confidence(scale):
    methods = [*METHODS, *(["looped"] if scale == "cpu" else [])]  # the last is our own model
    for panel in catalog.find_study("looped", tasks=",".join(SETTINGS[scale]), scale=scale).panels:
        top, further = panel.recipes[0].lengths.top, 30 if panel.name in ("multiplication", "unique-set") else 20
        assert panel.curve == tuple(range(1, 3 * top + 1))
        both = MaxConfidence(further), MaxConfidence(further, per="batch")
        for recipe, method in zip(panel.recipes, methods, strict=True):
            assert recipe.watch.sizes == (top, int(1.3 * top)) and {*recipe.watch.sizes} <= {*recipe.chosen_on.sizes}
            assert {max(recipe.sizes(size)) for size in panel.sizes} == set(panel.sizes) and min(panel.sizes) > top
            own = () if recipe.stopping == Oracle() else (recipe.stopping,)
            more = both if "adaptive" in method or method == "looped" else ()
            assert panel.rules(recipe) == (*own, Oracle(), *more)


# On the command line


@pytest.fixture(autouse=True)
def _widen_terminal(monkeypatch):
    """Make the terminal wide enough for all tables."""
    monkeypatch.setattr(console.out, "width", 200)


def run_command(*words):
    """Return a command's exit status, standard output and standard error."""
    done = command(*words)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("looped --tasks party", "task: 'party' has no recipe; the tasks at the cpu scale are: parity, copy"),
        ("looped --tasks addition,copy --methods looped --scale paper", "method: 'looped' is not one of: ntp"),
        ("ablations --tasks copy", "tasks: 'copy' is not one of: parity, addition, flipped-copy"),
        ("looped --methods fop,fip", "method: 'fip' is not one of: ntp, ntp-pause"),
        ("looped --methods fop,fop", "methods: list each only once, not fop,fop"),
        ("looped --tasks copy,copy", "tasks: list each only once, not copy,copy"),
        ("looped --samples 0", "--samples must be 1 or more"),
        ("looped --curve-samples 0", "--curve-samples must be 1 or more"),
        ("looped --methods fop --tasks parity --seeds 0", "--seeds must be 1 to 1000"),
        ("pairs --tasks parity", "the study pairs has no --tasks"),
        ("lopped", "did you mean looped?"),
        ("looped --scale big", "scale: 'big' is not one of: cpu, half, paper"),
        ("formal --scale half", "'half' is not one of: cpu, paper, long"),
    ],
)
def test_invalid_choices_are_refused_in_one_line(words, message, runs):
    code, out, err = run_command("reproduce", *words.split(), "--dry-run")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert not runs.exists()


# Programs


def test_programs_are_listed_and_their_tasks_can_be_changed():
    code, out, _ = run_command("rasp", "--json")
    assert code == 0 and list(json.loads(out)) == list(PAPER_SETTINGS) and all(json.loads(out).values())
    assert all(name in run_command("rasp")[1] for name in PAPER_SETTINGS)
    for change, row in (([], "110+001=$$$$"), (["order=least"], "011+100=$$$$")):
        code, out, _ = run_command("rasp", "addition", "110+001", *change, "--json")
        result = json.loads(out)
        assert (code, result["prompt"], result["row"], result["answer"]) == (0, "110+001", row, "111")
        assert len(result["rounds"]) == 4
        assert {len(part) for state in result["rounds"] for part in state.values()} == {len(row)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("party 101", "'party' is not one of: addition, "),
        ("parity", "give the program of parity a prompt, for example: rasp parity 10110"),
        ("parity 10a", "'a' at position 3 is not one of: 0 1"),
        ("parity 101 order=least", "there is no such field"),
        ("addition 10+11 order=up", "order: 'up' is not one of: least, most"),
        ("addition 10+11 leading_zeros=false", "needs equal_lengths=true leading_zeros=true"),
    ],
)
def test_programs_refuse_invalid_prompts_and_tasks(words, message):
    code, out, err = run_command("rasp", *words.split())
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


# From end to end


@pytest.fixture
def small_recipe(monkeypatch):
    """Shrink the study on parity and return its recipe, which child processes read from their run's folder."""
    setting = looped._small_setting(lw.Parity(), 1, 2, 1, 4, steps=6, width=8, top=2)
    monkeypatch.setitem(SETTINGS["cpu"], "parity", setting)
    monkeypatch.setitem(study.TEST_LENGTHS, "parity", 50)  # 50 at 20 is 5 at 2
    return build_variation("parity", "fop-loop-adaptive")


def read_contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_prints_its_plan_and_writes_nothing(small_recipe, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "looped", "--tasks", "parity", "--methods", "fop-loop-adaptive,fop", "--seeds", 3]
    code, out, err = run_command(*words, "--dry-run", "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["recipes"]
    plan = [("fop-loop-adaptive-parity", 3, 3), ("fop-parity", 3, 3)]
    assert [(row["recipe"], row["seeds"], row["missing"]) for row in rows] == plan
    assert all(row["minutes_each"] > 0 for row in rows)
    assert not runs.exists() and not read_contents(tmp_path)
    train(replace(small_recipe, seed=1, data_seed=1))
    left = json.loads(run_command(*words, "--dry-run", "--json")[1])["recipes"]
    assert [row["missing"] for row in left] == [2, 3]


RULE_NAMES = ("Oracle", "MaxConfidence", "MaxConfidence(per=batch)")


@pytest.mark.usefixtures("jobs_in_process", "blank_figures")
def test_the_study_is_reproduced_without_repeating_work(small_recipe, runs, tmp_path, monkeypatch):
    words = ["reproduce", "looped", "--methods", "fop-loop-adaptive", "--tasks", "parity", "--samples", 8]
    words += ["--curve-samples", 4, "--out", tmp_path / "out", "--jobs", 1, "--quiet", "--json"]
    code, out, err = run_command(*words)
    assert (code, err) == (0, "")
    result = json.loads(out)
    run = Run.of(small_recipe)
    assert [path.name for path in runs.glob("[!.]*")] == [run.folder.name]
    assert run.done
    uniform = [row for row in result["scores"] if row["problems"] == "uniform"]
    measured = [(*row["sizes"], row["stopping"], row["count"]) for row in uniform]
    curve = [(size, "Oracle", 4) for size in (1, 2, 3, 4, 6)]
    assert measured == [*((5, rule, 8) for rule in RULE_NAMES), *curve]
    written = read_contents(tmp_path / "out")
    for name in ("runs.json", "scores.csv", "lengths.png", "loss.png"):
        assert f"parity/{name}" in written
    assert any(name.endswith("summary.csv") for name in written)
    assert "overview.png" not in written  # a single panel has no overview
    ours = [row for row in result["summary"] if "published" not in row and row["problems"] == "uniform"]
    assert [(row["who"], row["stopping"], row["size"], row["seeds"]) for row in ours] == [
        ("fop-loop-adaptive-parity", rule, "5", 1) for rule in RULE_NAMES
    ]
    claims = [row for row in result["summary"] if "published" in row]
    assert claims and all(row["published"] and row["standing"] for row in claims)
    before, scores = (run.folder / "model.safetensors").stat(), run.rows("scores")
    # Only the reported size gets more problems, so the curve stays.
    words[words.index(8)] = 16
    code, shown, _ = run_command(*[word for word in words if word != "--json"])
    assert code == 0
    assert (run.folder / "model.safetensors").stat() == before
    assert run.rows("scores")[: len(scores)] == scores
    for part in ("Parity, trained on up to 2", "of 1", "published: text of the paper", "0.992"):
        assert part in shown
    assert [(row["sizes"], row["count"]) for row in run.rows("scores")[len(scores) :]] == [([5], 16)] * 3
    run.record_failure("killed after its last measurement")
    assert run_command(*words)[0] == 0 and not (run.folder / "failed.json").exists()
    monkeypatch.setattr(launchers, "subprocess", None)  # nothing is left to do: no process starts
    assert run_command(*words)[0] == 0


@pytest.mark.usefixtures("jobs_in_process", "blank_figures")
def test_new_seeds_and_methods_are_published_with_earlier_ones(small_recipe, tmp_path, monkeypatch):
    """If a recipe has changed, published seeds of the old recipe are dropped."""
    monkeypatch.setattr("lengthwise.report.publish._draw_depth", lambda *_: Figure(figsize=(1, 1)))

    def reproduce(methods, seed, **changed):
        recipes = [replace(small_recipe, name=f"{name}-parity", **changed) for name in methods]
        panel = lw.Panel("Tiny", tuple(recipes), (3,), name="parity", further_rules=(MaxConfidence(),))
        monkeypatch.setattr(catalog, "find_study", lambda *_, **__: lw.Study("Tiny", (panel,)))
        monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / f"runs-{seed}"))  # a folder without the earlier weights
        words = ["--seed", seed, "--samples", 4, "--out", tmp_path / "out", "--quiet"]
        assert run_command("reproduce", "looped", *words)[0] == 0
        found = read_published_runs(tmp_path / "out" / "parity")
        assert found and all(run.rows("scores") and run.about() for run in found)
        stops = json.loads((tmp_path / "out" / "parity" / f"stopping-{methods[0]}-parity.json").read_text())
        assert [row["train_seed"] for row in stops if row["sizes"] == [3]] == [
            run.outline.seed for run in found if run.outline.name == f"{methods[0]}-parity"
        ]
        assert all(run.rows("depth") for run in found)
        return [(run.outline.name, run.outline.seed) for run in found]

    assert reproduce(["a", "b"], 1) == [("a-parity", 1), ("b-parity", 1)]
    assert reproduce(["b"], 0) == [("a-parity", 1), ("b-parity", 0), ("b-parity", 1)]
    assert reproduce(["c"], 1) == [("a-parity", 1), ("b-parity", 0), ("b-parity", 1), ("c-parity", 1)]
    published = tmp_path / "out" / "parity" / "runs.json"
    runs = json.loads(published.read_text())
    runs[0]["id"] = runs[0]["outline"]["id"] = "0123456789"  # ids of another version
    published.write_text(json.dumps(runs))
    assert reproduce(["a"], 1)[0] == ("a-parity", 1)
    assert reproduce(["b"], 2, steps=small_recipe.steps + 1) == [("a-parity", 1), ("b-parity", 2), ("c-parity", 1)]


@pytest.mark.usefixtures("jobs_in_process", "blank_figures")
def test_panels_with_the_same_methods_are_also_drawn_in_one_overview(small_recipe, tmp_path, monkeypatch):
    panels = []
    for name in ("parity", "twin"):
        recipes = replace(small_recipe, name=f"tiny-a-{name}"), replace(small_recipe, name=f"tiny-b-{name}", seed=1)
        panels.append(lw.Panel(name, recipes, (2, 3), name=name))
    monkeypatch.setattr(catalog, "find_study", lambda *_, **__: lw.Study("Tiny", tuple(panels), highlight="b"))
    code, out, _ = run_command("reproduce", "looped", "--samples", 4, "--out", tmp_path / "out", "--quiet", "--json")
    assert code == 0
    assert str(tmp_path / "out" / "overview.png") in json.loads(out)["files"]
    about = json.loads((tmp_path / "out" / "figures.json").read_text())
    assert about == {"title": "Tiny", "panels": ["parity", "twin"], "strong": "b"}


# Effect of further loops

TINY_RECIPE = lw.Recipe(
    "tiny-parity", lw.Parity(), lw.FullOutput(), lw.Uniform(4), PerRound(),
    lw.Transformer(width=8, heads=2, init_std=0.3), lw.Final(), steps=60, optimizer=lw.AdamW(1e-2),
)  # fmt: skip


@pytest.fixture(scope="module")
def weak_runs(tmp_path_factory):
    """Train models that answer only some problems correctly; return their runs."""
    position = tmp_path_factory.mktemp("half")
    several = {"parity": TINY_RECIPE, "copy": replace(TINY_RECIPE, name="tiny-copy", task=lw.Copy(), steps=80)}
    several["next"] = replace(TINY_RECIPE, name="tiny-next", layout=lw.NextToken(), steps=2)
    return {name: train(recipe, position / name) for name, recipe in several.items()}


@pytest.mark.parametrize(
    ("name", "seed", "own_rule"),
    [
        ("parity", 0, None),
        ("parity", 7, None),
        ("copy", 0, Converged(extra=25)),
        ("copy", 0, Oracle(offset=25)),
        ("copy", 0, lw.Settled(max_loops=28)),
    ],
)
def test_depth_agrees_with_evaluate_on_the_same_problems(weak_runs, name, seed, own_rule, monkeypatch):
    """`evaluate` is made to use the problems of `depth`. Some recipes have their own stopping rule, which is measured
    in addition to the usual rules."""
    weights, size, samples, last = weak_runs[name].weights(), 3, 40, 3 + (25 if own_rule else 20)
    weights = replace(weights, recipe=replace(weights.recipe, stopping=own_rule)) if own_rule else weights
    row = measure_depth(weights, size, samples=samples, seed=seed)
    problems = data.draw_fresh_problems(weights.recipe.task, (size,), samples, seed=seed)
    monkeypatch.setattr("lengthwise.evaluation.scores.draw_recipe_problems", lambda *_, **__: problems)
    after = [After(k) for k in range(1, last + 1)]
    choosing = {"oracle": Oracle(), "example": MaxConfidence(), "batch": MaxConfidence(per="batch")}
    choosing |= {"own": own_rule} if own_rule else {}
    scores = list(evaluate(weights, [size], samples=samples, stopping=[*after, *choosing.values()]))
    described = (row["task"], row["sizes"], row["count"], row["seed"], row["planned"])
    assert described == (name, [size], samples, seed, size)
    assert len(row["exact"]) == len(row["confidence"]) == last
    assert row["exact"] == pytest.approx([score.exact for score in scores[: len(after)]]) and max(row["exact"]) > 0
    for kind, scored in zip(choosing, scores[len(after) :], strict=True):
        chosen = row["chosen"][kind]
        assert (chosen["exact"], chosen["mean"]) == pytest.approx((scored.exact, scored.loops))
        assert 1 <= chosen["low"] <= chosen["high"] <= last
    assert row["exact"][size - 1] == pytest.approx(row["chosen"]["oracle"]["exact"])
    searched = row["confidence"][: size + 20]
    best = searched.index(max(searched)) + 1
    assert row["chosen"]["batch"]["low"] == row["chosen"]["batch"]["high"] == best
    assert json.loads(json.dumps(row)) == row
    legend = "".join(text.get_text() for text in draw_depth_figure([row], "x").legends[0].get_texts())
    assert ("its own rule" in legend) == bool(own_rule)
    nearer = replace(weights, recipe=replace(weights.recipe, stopping=MaxConfidence(extra=2, per="batch")))
    near = measure_depth(nearer, size, samples=samples, seed=seed)
    assert (near["exact"], near["confidence"]) == (row["exact"][:5], row["confidence"][:5])


def test_depth_and_anatomy_refuse_weights_and_arguments_that_they_cannot_measure(weak_runs):
    weights, following = weak_runs["parity"].weights(), weak_runs["next"].weights()
    ones = type("_Ones", (lw.Parity,), {})  # a round for each one
    ones.from_rows = lambda self, sizes, bits: replace(
        lw.Parity.from_rows(self, sizes, bits), rounds=bits.sum(1).clamp(min=1)
    )
    uneven = replace(weights, recipe=replace(weights.recipe, task=ones()))
    for act, message in (
        (lambda: measure_depth(following, 3), r"^next: its inputs hold the right answer"),
        (lambda: measure_depth(uneven, 3), "take different numbers of loops, so no curve can be drawn"),
        (lambda: measure_depth(weights, 0), "sizes start at 1"),
        (lambda: measure_anatomy(weights, 3, samples=0), "samples must be 1 or more"),
        (lambda: draw_depth_figure([], "nothing"), "no loops were measured"),
    ):
        with pytest.raises(lw.UsageError, match=message):
            act()


# Anatomy of wrong answers


def test_anatomy_counts_early_late_and_wrong_answers(weak_runs, monkeypatch):
    """Wrong answers end early, end late or have a wrong symbol. The answer slots hold two digits and the end symbol."""
    weights, task, end = weak_runs["parity"].weights(), BinarySum(), 3
    weights = replace(weights, recipe=replace(weights.recipe, task=task))
    problems = lw.Problems.join([task.parse(row) for row in ("100", "110", "111", "111", "111", "111")])
    monkeypatch.setattr("lengthwise.evaluation.attack.draw_recipe_problems", lambda *_, **__: problems)
    # Two are right, one ends early, one never ends, one has a wrong first symbol, one is right.
    answers = [[1, end, 0], [0, 1, end], [1, end, 0], [1, 1, 1], [0, 1, end], [1, 1, end]]
    predicted = Predictions(torch.tensor(answers), torch.zeros(6), torch.ones(6, dtype=torch.long))
    monkeypatch.setattr("lengthwise.evaluation.attack.predict_by_rules", lambda *_: [predicted])
    row = measure_anatomy(weights, 3, samples=6)
    assert (row["exact"], row["ends"]) == (0.5, {"early": 1, "late": 1, "right": 1})
    assert row["first_wrong"] == {"1": 1, "2": 1, "3": 1}
    groups = [(part["low"], part["high"], part["count"], part["exact"]) for part in row["by"]["ones"]]
    assert groups == [(1, 2, 2, 1.0), (3, 3, 4, 0.25)]
    assert json.loads(json.dumps(row)) == row


def test_anatomy_of_a_next_token_model_uses_its_decoded_answers():
    """With the right answer as input, the model may end its answer earlier or later than in decoding."""
    weights = load("lstm-small")
    problems = data.draw_recipe_problems(weights.recipe, (40,), 10, seed=0)
    solved = [lw.Solver(weights).solve(prompt) for prompt in format_prompts(weights.recipe.task, problems)]
    longer = [len(one.text) - len(one.right) for one in solved if not one.correct]
    ends = {"early": sum(n < 0 for n in longer), "late": sum(n > 0 for n in longer), "right": longer.count(0)}
    assert measure_anatomy(weights, 40, samples=10)["ends"] == ends


@pytest.mark.parametrize("name", ["parity", "copy", "next"])
def test_anatomy_uses_the_same_problems_as_evaluate(weak_runs, name):
    weights = weak_runs[name].weights()
    row = measure_anatomy(weights, 3, samples=200, seed=2)
    score = next(evaluate(weights, [3], samples=200, seed=2))
    assert row["exact"] == pytest.approx(score.exact)
    assert sum(row["ends"].values()) == sum(row["first_wrong"].values()) == round(200 * (1 - score.exact))
    for groups in row["by"].values():
        assert sum(part["count"] for part in groups) == 200
        assert sum(part["count"] * part["exact"] for part in groups) == pytest.approx(200 * score.exact, abs=0.01)
        assert all(one["high"] < two["low"] for one, two in itertools.pairwise(groups))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200))
def test_values_are_split_into_few_groups_of_similar_size(values):
    values = torch.tensor(values)
    groups = _group_values(values, values % 2 == 0)
    assert 1 <= len(groups) <= MAX_GROUPS
    assert sum(part["count"] for part in groups) == len(values)
    most = int(values.unique(return_counts=True)[1].max())
    assert all(part["count"] <= len(values) / MAX_GROUPS + 2 * most for part in groups)


@pytest.mark.usefixtures("blank_figures")
def test_evaluate_stores_the_anatomy_and_report_publishes_it(weak_runs, tmp_path):
    folder = tmp_path / "parity"
    shutil.copytree(weak_runs["parity"].folder, folder)
    code, out, _ = run_command("evaluate", folder, "--lengths", "2,3", "--samples", 50, "--anatomy", "--json")
    assert code == 0
    found = json.loads(out)
    assert [row["sizes"] for row in found["anatomy"]] == [[2], [3]]
    kept = Run.open(folder).rows("anatomy")
    assert kept == found["anatomy"]
    code, out, _ = run_command("evaluate", folder, "--lengths", "3", "--samples", 50, "--anatomy")
    assert code == 0
    assert "first wrong" in out and "ones" in out
    code, out, _ = run_command("report", folder, "--out", tmp_path / "out", "--json")
    written = read_contents(tmp_path / "out")
    assert {"anatomy-tiny-parity.json", "card.json"} <= set(written)
    assert json.loads(written["anatomy-tiny-parity.json"]) == [{"train_seed": 0, **row} for row in kept]
    # Errors on other problems, or by other rules, differ and are not mixed in.
    for other in (["--family", "runs"], ["--stopping", "After(loops=1)"]):
        assert run_command("evaluate", folder, "--lengths", "3", "--samples", 20, "--anatomy", *other)[0] == 0
    assert len(Run.open(folder).rows("anatomy")) == len(kept) + 2
    assert select_anatomy_rows([Run.open(folder)]) == [{"train_seed": 0, **row} for row in kept]
    assert json.loads(written["card.json"]) == json.loads(out)["cards"]


def test_a_grid_is_measured_after_each_requested_number_of_loops(tmp_path):
    run = train(replace(TINY_RECIPE, name="tiny-product", task=Multiplication(), steps=1), tmp_path / "product")
    rows = json.loads(run_command("evaluate", run.folder, "--grid", "1x2", "--loops", "1,3", "--json")[1])
    found = [(row["sizes"], row["stopping"], row["loops"]) for row in rows]
    assert found == [([1, j], f"After(loops={k})", k) for j in (1, 2) for k in (1, 3)]
    code, out, err = run_command("evaluate", run.folder, "--loops", "0,2")
    assert (code, out) == (2, "")
    assert "--loops: give numbers from 1 up, separated by commas, e.g. 1,8,16, not '0,2'" in err


def test_an_interrupted_grid_continues_with_missing_cells_and_rules(tmp_path):
    """Cells stored in the run's folder are not measured again, except with another seed."""
    run = train(replace(TINY_RECIPE, name="tiny-product", task=Multiplication(), steps=1), tmp_path / "product")
    words = ["evaluate", run.folder, "--grid", "2x3", "--samples", 5, "--json"]
    whole = json.loads(run_command(*words)[1])
    assert [row["sizes"] for row in whole] == [[i, j] for i in (1, 2) for j in (1, 2, 3)]
    file = run.folder / "scores.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 6
    file.write_text("".join(lines[:4]))
    again = json.loads(run_command(*words)[1])
    assert sorted(again, key=lambda row: row["sizes"]) == whole
    assert file.read_text() == "".join(lines)
    rows = json.loads(run_command(*words, "--stopping", "Oracle", "--stopping", "After(loops=1)")[1])
    cells = {(tuple(row["sizes"]), row["stopping"]) for row in rows}
    assert len(cells) == len(rows) == len(run.rows("scores")) == 12
    assert [row for row in rows if row["stopping"] == "Oracle"] == whole
    run_command(*words, "--seed", 1)
    assert len(run.rows("scores")) == 18


def build_row(planned, exact):
    """Return a row as `measure_depth` returns it, with invented values."""
    stops = {kind: {"mean": planned, "low": planned, "high": planned, "exact": 0.5} for kind in ("oracle", "batch")}
    stops["example"] = {"mean": 2.5, "low": 1.0, "high": 4.0, "exact": 0.75}
    row = {"task": "parity", "sizes": [planned], "count": 10, "seed": 0, "planned": planned, "exact": exact}
    return row | {"confidence": [-0.5 / k for k in range(1, len(exact) + 1)], "chosen": stops}


def test_the_figure_and_table_of_loops_need_only_stored_rows(tmp_path):
    rows = [build_row(3, [0.0, 0.1, 1.0, 0.4]), build_row(6, [0.0] * 5 + [0.9, 0.2])]
    rows[1]["confidence"][5] = 0.0  # full confidence
    figure = draw_depth_figure(rows, "tiny parity")
    assert [path.name for path in save(figure, tmp_path / "loops", ("png", "svg"))] == ["loops.png", "loops.svg"]
    assert (tmp_path / "loops.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "loops.svg").read_text()
    for part in ("tiny parity", "length 3", "length 6", "T(n)", "most confident, per batch", "per example"):
        assert part in text
    first, second, under, sure = figure.axes
    for axes, row in ((first, rows[0]), (second, rows[1])):
        assert axes.lines[3].get_xydata().tolist() == [[k, share] for k, share in enumerate(row["exact"], 1)]
    assert [line.get_xdata()[0] for line in first.lines[:3]] == [3, 3, 2.5]
    assert under.lines[3].get_ydata() == pytest.approx([0.5, 0.25, 1 / 6, 0.125]) and under.get_yscale() == "log"
    assert min(sure.lines[3].get_ydata()) == 1e-8
    uneven = rows[0] | {"confidence": rows[0]["confidence"][1:]}
    message = r"depth\.jsonl: the row of length \d+ has different numbers of loops and confidences"
    with pytest.raises(lw.UsageError, match=message):
        draw_depth_figure([uneven], "uneven")
    near, far = build_depth_rows([build_row(1, [0.25, 0.5]), build_row(3, [0.0, 0.1, 1.0, 0.4, 0.3, 0.2, 0.1, 0.0])])
    assert near == {
        "size": "1", "planned": 1, "oracle": 0.5, "batch": 0.5, "example": 0.75, "planned+1": 0.5, "batch_loops": 1,
        "example_loops": 2.5,
    }  # fmt: skip
    assert (far["planned-1"], far["planned+1"], far["planned+5"]) == (0.1, 0.4, 0.0)


@pytest.mark.usefixtures("blank_figures")
def test_a_report_on_loops_is_written(weak_runs, tmp_path):
    run = weak_runs["parity"]
    words = ["report", run.folder, "--stopping", "--out", tmp_path / "new"]
    for options, part in ((["--lengths", "many"], "'many' names no sizes"), (["--samples", 0], "must be 1 or more")):
        code, out, err = run_command(*words, *options)
        assert (code, out, len(err.splitlines())) == (2, "", 1) and part in err and not (tmp_path / "new").exists()
    words += ["--samples", 20, "--formats", "png,pdf"]
    code, out, _ = run_command(*words, "--json")
    result, name = json.loads(out), f"stopping-{run.folder.name}"
    assert code == 0 and set(read_contents(tmp_path / "new")) == {f"{name}.json", f"{name}.png", f"{name}.pdf"}
    assert sorted(result["files"]) == sorted(str(path) for path in (tmp_path / "new").iterdir())
    rows = json.loads((tmp_path / "new" / f"{name}.json").read_text())
    assert rows == [measure_depth(run.weights(), size, samples=20) for size in (4, 8)]
    shown = [(row["recipe"], row["size"], row["planned"]) for row in result["loops"]]
    assert shown == [("tiny-parity", "4", 4), ("tiny-parity", "8", 8)]
    code, out, _ = run_command(*words, "--lengths", "2,3,5")
    # A name may be folded where the terminal is narrow.
    lines = [line.split()[1:3] for line in out.splitlines() if line.strip().startswith("tiny-p")]
    assert code == 0 and lines == [[size, size] for size in "235"]


def test_train_measures_a_curve_and_several_rules_once(weak_runs, tmp_path):
    """Further rules are measured at --lengths only, not on the curve; no size is measured twice."""
    shutil.copytree(weak_runs["copy"].folder, tmp_path / "copy")
    words = ["train", tmp_path / "copy", "--lengths", "4", "--samples", 8, "--curve", "3-5", "--curve-samples", 6]
    words += ["--stopping", "Oracle", "--stopping", "Converged", "--quiet", "--json"]
    for _ in range(2):
        code, out, _ = run_command(*words)
        assert code == 0
        scores = [(row["sizes"], row["stopping"], row["count"]) for row in json.loads(out)[0]["scores"]]
        at_lengths = [([4], "Oracle", 8), ([4], "Converged", 8)]
        assert scores == [*at_lengths, ([3], "Oracle", 6), ([5], "Oracle", 6)]


def test_operations_and_weights_of_the_paper_s_recipes_follow_from_their_depth():
    """20 blocks take as many operations as one block applied 20 times, and have about 20 times the weights."""
    changes = {"batch": 2, "steps": 4, "watch": lw.Watch(), "lengths": lw.Uniform(4, 4)}
    fixed, deep = (
        replace(build_variation("parity", method, "paper"), **changes) for method in ("fop-loop-fixed", "fop")
    )
    one, twenty = (measure_cost(replace(r, model=replace(r.model, width=64)), 1, rows=1) for r in (fixed, deep))
    assert twenty.operations == pytest.approx(one.operations, rel=0.05)
    assert 15 < twenty.parameters / one.parameters < 20


# Ablations


@pytest.mark.parametrize("task", ["parity", "addition", "abacus", "published-parity", "published-binary-sum"])
def test_an_ablation_differs_from_the_first_recipe_in_one_setting(task):
    first, *others = catalog.find_study("ablations", tasks=task).recipes

    def list_changes(part, base):
        return {name for name, value in vars(part).items() if value != getattr(base, name)} - {"name", "chosen_on"}

    for recipe in others:
        changed = list_changes(recipe, first)
        assert len(changed) == 1, recipe.name
        assert changed != {"model"} or len(list_changes(recipe.model, first.model)) == 1, recipe.name


def test_flipped_copy_takes_two_loops_per_bit():
    for recipe in catalog.find_study("ablations", tasks="flipped-copy").recipes:
        problems = recipe.task.parse("10110")
        assert recipe.loops.planned(problems.rounds).tolist() == [10]
        assert recipe.task.format(problems.answer[0]) == "01001"
