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
from lengthwise.evaluation.attack import GROUPS, _group_values, measure_anatomy, prompt_texts
from lengthwise.evaluation.depth import measure_depth
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment import data
from lengthwise.experiment.loops import AnyLoops, Constant, PerRound
from lengthwise.experiment.stopping import After, Converged, Halted, MaxConfidence, Oracle
from lengthwise.jobs import launchers
from lengthwise.models.timed import Timed
from lengthwise.objectives import Halting
from lengthwise.recipes import looped
from lengthwise.recipes.looped import METHODS, SETTINGS, build_variation
from lengthwise.report.depth_figure import anatomy_figure, depth_figure
from lengthwise.report.publish import anatomy_rows
from lengthwise.report.published import read_published_runs
from lengthwise.report.style import save
from lengthwise.report.tables import depth_rows
from lengthwise.runs.run import Run, load
from lengthwise.studies import looped as study
from lengthwise.tasks.arithmetic import Multiplication
from lengthwise.tasks.bits import BinarySum
from lengthwise.training.cost import measure_cost
from lengthwise.training.loop import train

PLACES = [(scale, task) for scale, settings in SETTINGS.items() for task in settings]
every_place = pytest.mark.parametrize(("scale", "task"), PLACES)


# Methods

# layout, loops (None: T(n)), blocks for each of the task's, injection
TABLE = {
    "ntp": (lw.NextToken(), 1, 20, False),
    "ntp-pause": (lw.NextToken(20), 1, 20, False),
    "ntp-loop": (lw.NextToken(), 20, 1, True),
    "fop": (lw.FullOutput(), 1, 20, False),
    "fop-pause": (lw.FullOutput(20), 1, 20, False),
    "fop-loop-fixed": (lw.FullOutput(), 20, 1, True),
    "fop-loop-adaptive": (lw.FullOutput(), None, 1, True),
    "fop-loop-adaptive-wo": (lw.FullOutput(), None, 1, False),
}


def methods_of(task, scale):
    return {method: build_variation(task, method, scale) for method in METHODS}


@every_place
def test_a_method_is_a_layout_loops_and_a_depth(scale, task):
    assert list(METHODS) == list(TABLE)
    for method, recipe in methods_of(task, scale).items():
        layout, count, blocks, injection = TABLE[method]
        part = 2 if scale == "half" else 1
        level = isinstance(layout, lw.FullOutput) and SETTINGS[scale][task].level
        whole = {"whole_tail": True, "level": True} if level else {}
        assert recipe.layout == replace(layout, pauses=layout.pauses // part, **whole)
        assert recipe.loops == (Constant(max(1, count // part)) if count else PerRound())
        assert recipe.model.layers == max(1, blocks // part) * SETTINGS[scale][task].layers
        assert recipe.model.injection == ("add" if injection else "once")


@every_place
def test_methods_of_a_task_share_all_other_settings(scale, task):
    own = build_variation(task, "ntp", scale)
    for recipe in methods_of(task, scale).values():
        model = replace(recipe.model, layers=own.model.layers, injection=own.model.injection)
        assert replace(recipe, name=own.name, layout=own.layout, loops=own.loops, model=model).id == own.id


@every_place
def test_all_methods_of_a_task_read_the_same_prompts(scale, task):
    """All methods draw the same batches of prompts, although their rows differ."""
    seen = set()
    for recipe in methods_of(task, scale).values():
        equals = recipe.layout.vocabs(recipe.task)[0].id("=")
        batch, _ = data.draw_batch(replace(recipe, batch=8), recipe.steps // 2)
        seen.add(str([row[: row.index(equals)] for row in batch.inputs.tokens.tolist()]))
    assert len(seen) == 1


# shared/spec/looped.md: layers, heads, steps per length, train up to, test at, end of the constant rate, T
PUBLISHED = {
    "parity": (1, 64, 500, (20,), 40, 10_500, lambda n: n),
    "copy": (2, 8, 1000, (20,), 30, 20_000, lambda n: n),
    "addition": (3, 8, 1600, (20,), 30, 32_000, lambda n: n),
    "binary-sum": (2, 16, 500, (20,), 24, 10_000, lambda n: n),
    "multiplication": (4, 8, 500, (2, 11), 15, 6_000, lambda n, m: n * m),
    "unique-set": (3, 8, 1000, (20,), 30, 20_000, lambda n: n),
}
AVERAGED = ("parity", "binary-sum")


@pytest.mark.parametrize("task", PUBLISHED)
def test_the_paper_s_figures(task):
    layers, heads, every, tops, tested, constant, rounds = PUBLISHED[task]
    recipe = build_variation(task, "fop-loop-adaptive", "paper")
    model = recipe.model
    assert (model.layers, model.heads, model.width, model.mlp, model.dropout) == (layers, heads, 256, 4, 0)
    assert (model.positions, model.activation, model.injection, model.init_std) == ((lw.NoPE(),), "gelu", "add", 0.02)
    assert recipe.layout == lw.FullOutput(whole_tail=True, level=True)  # as the official code
    assert (recipe.steps, recipe.batch, recipe.clip) == (100_000, 64, 1.0)
    assert recipe.optimizer == lw.AdamW(rate=1e-4, weight_decay=0.01)
    assert recipe.lengths == lw.Curriculum(max(tops), every, start=1, most=tops if min(tops) < max(tops) else ())
    assert recipe.lengths.tops(len(recipe.task.axes)) == tops
    assert (recipe.ema, recipe.ema_start) == ((0.9999, constant) if task in AVERAGED else (0, 0))
    assert recipe.schedule.shape == "cosine"
    assert recipe.schedule.cooldown == pytest.approx(1 - constant / 100_000)
    rates = [recipe.schedule.factor(step, recipe.steps) for step in (0, constant, constant + 2000, recipe.steps)]
    assert rates[:2] == pytest.approx([1, 1])
    assert 0.99 < rates[2] < 0.999999
    assert rates[3] == pytest.approx(0)
    sizes = (2, 5)[-len(tops) :]
    problems = data.fresh_problems(recipe.task, sizes, 3, seed=0)
    assert recipe.loops.planned(problems.rounds).tolist() == [rounds(*sizes)] * 3
    (panel,) = catalog.study("looped", tasks=task, scale="paper").panels
    assert panel.sizes == (tested,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("party", "fop"), "task: 'party' has no recipe; the tasks at the cpu scale are: parity, copy"),
        (("parity", "fip"), "method: 'fip' is not one of: ntp, "),
    ],
)
def test_wrong_variations(words, message):
    with pytest.raises(lw.UsageError) as error:
        build_variation(*words)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


# The study


@pytest.mark.parametrize("task", SETTINGS["cpu"])
def test_our_models_differ_from_the_published_ones_in_positions_and_training(task):
    """Task, layout and injection are equal; models that stop by themselves may take up to two loops more."""
    ours, published = study._find_recipe(task, "looped", "cpu"), build_variation(task, "fop-loop-adaptive")
    assert ours.name == {"binary-sum": "short-binary-sum"}.get(task, f"looped-{task}")
    assert catalog.recipe(ours.name) == ours
    slots = {"whole_tail": False, "level": False}  # supervision after the answer
    assert (ours.task, ours.layout) == (published.task, replace(published.layout, **slots))
    assert published.stopping == Oracle()
    own = {"addition": Halted(), "copy": Halted(), "multiplication": Halted(more=4), "unique-set": Halted()}
    assert ours.stopping == own.get(task, Oracle())
    waits = {Halting: Halted}.get(type(ours.objective))
    assert bool(waits) == isinstance(ours.loops, AnyLoops)
    assert isinstance(ours.stopping, waits) if waits else ours.objective == published.objective
    rounds = torch.arange(1, 30)
    more = ours.loops.planned(rounds) - published.loops.planned(rounds)
    assert ((more == 0) | (ours.stopping != Oracle()) & (more > 0) & (more <= 2)).all()
    assert ours.lengths.tops(len(ours.task.axes)) == published.lengths.tops(len(ours.task.axes))
    model = ours.model.answers if isinstance(ours.model, Timed) else ours.model
    assert published.model.positions == (lw.NoPE(),) != model.positions
    assert model.injection == published.model.injection
    assert model.width == published.model.width * (2 if task == "unique-set" else 1)  # 50 symbols to tell apart


def test_choices_are_panels_and_recipes_in_their_order():
    assert [panel.name for panel in catalog.study("looped").panels] == ["parity", "copy"]
    assert [len(panel.recipes) for panel in catalog.study("looped").panels] == [9, 9]
    chosen = catalog.study("looped", tasks="copy,parity", methods="fop,ntp")
    assert [recipe.name for recipe in chosen.recipes] == ["fop-copy", "ntp-copy", "fop-parity", "ntp-parity"]
    paper = catalog.study("looped", tasks="all", scale="paper")
    assert [panel.name for panel in paper.panels] == list(PUBLISHED)
    assert {recipe.steps for recipe in paper.recipes} == {100_000}


@pytest.mark.parametrize("scale", SETTINGS)
def test_no_reported_size_is_watched_and_no_size_far_beyond_training_chooses(scale):
    for panel in catalog.study("looped", tasks=",".join(SETTINGS[scale]), scale=scale).panels:
        top = panel.recipes[0].lengths.top
        assert min(panel.sizes) > top
        assert panel.curve == tuple(range(1, 3 * top + 1))
        for recipe in panel.recipes:
            assert not set(recipe.watch.sizes) & set(panel.sizes)
            assert recipe.watch.sizes == (top, int(1.3 * top)) and {*recipe.watch.sizes} <= {*recipe.chosen_on.sizes}
            best = (
                scale == "cpu" and panel.name in ("addition", "multiplication") and not recipe.name.startswith("looped")
            )
            assert recipe.keep == ("best" if best else "last")
            assert {max(recipe.sizes(size)) for size in panel.sizes} == set(panel.sizes)


@pytest.mark.parametrize("scale", SETTINGS)
def test_confidence_chooses_only_where_loops_adapt(scale):
    for panel in catalog.study("looped", tasks=",".join(SETTINGS[scale]), scale=scale).panels:
        further = 30 if panel.name in ("multiplication", "unique-set") else 20
        methods = [*METHODS, *(["looped"] if scale == "cpu" else [])]  # the last is our own model
        for recipe, method in zip(panel.recipes, methods, strict=True):
            both = MaxConfidence(further), MaxConfidence(further, per="batch")
            more = both if "adaptive" in method or method == "looped" else ()
            own = () if recipe.stopping == Oracle() else (recipe.stopping,)
            assert panel.rules(recipe) == (*own, Oracle(), *more)


# On the command line


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Make the terminal as wide as tables need."""
    monkeypatch.setattr(console.out, "width", 200)


def run_command(*words):
    """Return a command's exit status, standard output and standard error."""
    done = command(*words)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("looped --tasks party", ["task: 'party'", "parity, copy"]),
        ("looped --tasks addition,copy --methods looped --scale paper", ["method: 'looped' is not one of: ntp"]),
        ("ablations --tasks copy", ["tasks: 'copy' is not one of: parity, addition, flipped-copy"]),
        ("looped --methods fop,fip", ["method: 'fip' is not one of: ntp, ntp-pause"]),
        ("looped --methods fop,fop", ["methods: list each only once, not fop,fop"]),
        ("looped --tasks copy,copy", ["tasks: list each only once, not copy,copy"]),
        ("looped --samples 0", ["--samples must be 1 or more"]),
        ("looped --curve-samples 0", ["--curve-samples must be 1 or more"]),
        ("looped --methods fop --tasks parity --seeds 0", ["--seeds must be 1 to 1000"]),
        ("pairs --tasks parity", ["the study pairs has no --tasks"]),
        ("parity --scale paper", ["the study parity has no --scale"]),
        ("lopped", ["did you mean looped?"]),
        ("looped --scale big", ["scale: 'big' is not one of: cpu, half, paper"]),
        ("formal --scale half", ["'half' is not one of: cpu, paper, long"]),
    ],
)
def test_wrong_choices(words, parts, runs):
    code, out, err = run_command("reproduce", *words.split(), "--dry-run")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    for part in parts:
        assert part in err
    assert not runs.exists()


# Programs


def test_a_program_s_task_can_be_changed():
    for change, row in (([], "110+001=$$$$"), (["order=least"], "011+100=$$$$")):
        code, out, _ = run_command("rasp", "addition", "110+001", *change, "--json")
        result = json.loads(out)
        assert (code, result["prompt"], result["row"], result["answer"]) == (0, "110+001", row, "111")
        assert len(result["rounds"]) == 4
        assert {len(part) for state in result["rounds"] for part in state.values()} == {len(row)}


def test_programs_are_listed():
    code, out, _ = run_command("rasp", "--json")
    assert code == 0
    assert list(json.loads(out)) == list(PUBLISHED)
    assert all(json.loads(out).values())
    shown = run_command("rasp")[1]
    assert all(name in shown for name in PUBLISHED)


@pytest.mark.parametrize("task", PUBLISHED)
def test_a_program_answers_as_its_task_does(task):
    part = SETTINGS["paper"][task].task
    problem = data.fresh_problems(part, (2, 4)[-len(part.axes) :], 1, seed=0)
    prompt = part.vocab.decode(problem.prompt[0])
    result = json.loads(run_command("rasp", task, prompt, "--json")[1])
    assert len(result["rounds"]) == int(problem.rounds) + 1
    assert result["answer"] == part.format(problem.answer[0, : int(problem.answer_length)])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["party", "101"], "'party' is not one of: addition, "),
        (["parity"], "give the program of parity a prompt, for example: rasp parity 10110"),
        (["parity", "10a"], "'a' at position 3 is not one of: 0 1"),
        (["parity", ""], "the prompt is empty"),
        (["parity", "101", "order=least"], "there is no such field"),
        (["addition", "10+11", "order=up"], "order: 'up' is not one of: least, most"),
        (["addition", "10+11", "ordre=least"], "did you mean order"),
        (["addition", "10+11", "leading_zeros=false"], "needs equal_lengths=true leading_zeros=true"),
    ],
)
def test_programs_refuse(words, part):
    code, out, err = run_command("rasp", *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert part in err


# From end to end


@pytest.fixture
def small(monkeypatch):
    """Shrink the study on parity; its processes read the recipe from their run's folder."""
    setting = looped._small_setting(lw.Parity(), 1, 2, 1, 4, steps=6, width=8, top=2)
    monkeypatch.setitem(SETTINGS["cpu"], "parity", setting)
    monkeypatch.setitem(study.TEST_LENGTHS, "parity", 50)  # 50 at 20 is 5 at 2
    return build_variation("parity", "fop-loop-adaptive")


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_prints_its_plan_and_writes_nothing(small, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "looped", "--tasks", "parity", "--methods", "fop-loop-adaptive,fop", "--seeds", 3]
    code, out, err = run_command(*words, "--dry-run", "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["recipes"]
    assert [(row["recipe"], row["seeds"], row["missing"]) for row in rows] == [
        ("fop-loop-adaptive-parity", 3, 3),
        ("fop-parity", 3, 3),
    ]
    assert all(row["minutes_each"] > 0 for row in rows)
    assert not runs.exists() and not contents(tmp_path)
    train(replace(small, seed=1, data_seed=1))
    left = json.loads(run_command(*words, "--dry-run", "--json")[1])["recipes"]
    assert [row["missing"] for row in left] == [2, 3]


RULES = ("Oracle", "MaxConfidence", "MaxConfidence(per=batch)")


@pytest.mark.usefixtures("jobs_in_process", "blank_figures")
def test_the_study_is_reproduced_without_repeating_work(small, runs, tmp_path, monkeypatch):
    words = ["reproduce", "looped", "--methods", "fop-loop-adaptive", "--tasks", "parity", "--samples", 8]
    words += ["--curve-samples", 4, "--out", tmp_path / "out", "--jobs", 1, "--quiet", "--json"]
    code, out, err = run_command(*words)
    assert (code, err) == (0, "")
    result = json.loads(out)
    run = Run.of(small)
    assert [path.name for path in runs.glob("[!.]*")] == [run.folder.name]
    assert run.done
    uniform = [row for row in result["scores"] if row["problems"] == "uniform"]
    measured = [(*row["sizes"], row["stopping"], row["count"]) for row in uniform]
    curve = [(size, "Oracle", 4) for size in (1, 2, 3, 4, 6)]
    assert measured == [*((5, rule, 8) for rule in RULES), *curve]
    written = contents(tmp_path / "out")
    for name in ("runs.json", "scores.csv", "lengths.png", "loss.png"):
        assert f"parity/{name}" in written
    assert any(name.endswith("summary.csv") for name in written)
    assert "overview.png" not in written  # a single panel has no overview
    ours = [row for row in result["summary"] if "published" not in row and row["problems"] == "uniform"]
    assert [(row["who"], row["stopping"], row["size"], row["seeds"]) for row in ours] == [
        ("fop-loop-adaptive-parity", rule, "5", 1) for rule in RULES
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
    monkeypatch.setattr(launchers, "subprocess", None)  # nothing is left to do: no process starts
    assert run_command(*words)[0] == 0


@pytest.mark.usefixtures("jobs_in_process", "blank_figures")
def test_seeds_and_methods_join_those_that_were_published_before(small, tmp_path, monkeypatch):
    """Only rows of the same recipe are joined: where a recipe has changed, its old seeds are dropped."""
    monkeypatch.setattr("lengthwise.report.publish._draw_depth", lambda *_: Figure(figsize=(1, 1)))

    def reproduce(methods, seed, **changed):
        recipes = [replace(small, name=f"{name}-parity", **changed) for name in methods]
        panel = lw.Panel("Tiny", tuple(recipes), (3,), name="parity", also=(MaxConfidence(),))
        monkeypatch.setattr(catalog, "study", lambda *_, **__: lw.Study("Tiny", (panel,)))
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
    assert reproduce(["b"], 2, steps=small.steps + 1) == [("a-parity", 1), ("b-parity", 2), ("c-parity", 1)]


@pytest.mark.usefixtures("jobs_in_process", "blank_figures")
def test_panels_that_share_their_methods_are_drawn_in_one_figure_too(small, tmp_path, monkeypatch):
    panels = [
        lw.Panel(
            name,
            (replace(small, name=f"tiny-a-{name}"), replace(small, name=f"tiny-b-{name}", seed=1)),
            (2, 3),
            name=name,
        )
        for name in ("parity", "twin")
    ]
    monkeypatch.setattr(catalog, "study", lambda *_, **__: lw.Study("Tiny", tuple(panels), strong="b"))
    code, out, _ = run_command("reproduce", "looped", "--samples", 4, "--out", tmp_path / "out", "--quiet", "--json")
    assert code == 0
    assert str(tmp_path / "out" / "overview.png") in json.loads(out)["files"]
    about = json.loads((tmp_path / "out" / "figures.json").read_text())
    assert about == {"title": "Tiny", "panels": ["parity", "twin"], "strong": "b"}


# Effect of further loops

TINY = lw.Recipe(
    "tiny-parity",
    lw.Parity(),
    lw.FullOutput(),
    lw.Uniform(4),
    PerRound(),
    lw.Transformer(width=8, heads=2, init_std=0.3),
    lw.Final(),
    steps=60,
    optimizer=lw.AdamW(1e-2),
)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """Return runs that are sometimes right."""
    position = tmp_path_factory.mktemp("half")
    several = {"parity": TINY, "copy": replace(TINY, name="tiny-copy", task=lw.Copy(), steps=80)}
    several["next"] = replace(TINY, name="tiny-next", layout=lw.NextToken(), steps=2)
    return {name: train(recipe, position / name) for name, recipe in several.items()}


@pytest.mark.parametrize("own", [Converged(extra=25), Oracle(more=25)], ids=repr)
def test_depth_reports_the_own_rule_of_weights_that_halt(half, monkeypatch, own):
    weights = half["copy"].weights()
    weights = replace(weights, recipe=replace(weights.recipe, stopping=own))
    row = measure_depth(weights, 3, samples=40)
    problems = data.evaluation_problems(weights.recipe, (3,), 40, seed=0)
    monkeypatch.setattr("lengthwise.evaluation.scores.evaluation_problems", lambda *_, **__: problems)
    for kind, rule in {"own": own, "example": MaxConfidence(), "batch": MaxConfidence(per="batch")}.items():
        (scored,) = evaluate(weights, [3], samples=40, stopping=[rule])
        found = row["chosen"][kind]
        assert (found["exact"], found["mean"]) == pytest.approx((scored.exact, scored.loops))
    assert len(row["exact"]) == 3 + 25
    assert "its own rule" in "".join(text.get_text() for text in depth_figure([row], "x").legends[0].get_texts())


@pytest.mark.parametrize(("name", "seed"), [("parity", 0), ("parity", 7), ("copy", 0)])
def test_depth_agrees_with_the_scores_of_the_same_problems(half, name, seed, monkeypatch):
    """`evaluate`, which draws other problems than `depth`, gets the same ones here."""
    weights, size, samples = half[name].weights(), 3, 40
    row = measure_depth(weights, size, samples=samples, seed=seed)
    problems = data.fresh_problems(weights.recipe.task, (size,), samples, seed=seed)
    monkeypatch.setattr("lengthwise.evaluation.scores.evaluation_problems", lambda *_, **__: problems)

    after = [After(k) for k in range(1, size + 21)]
    choosing = {"oracle": Oracle(), "example": MaxConfidence(), "batch": MaxConfidence(per="batch")}
    scores = list(evaluate(weights, [size], samples=samples, stopping=[*after, *choosing.values()]))
    assert row["planned"] == size
    assert (row["task"], row["sizes"], row["count"], row["seed"]) == (name, [size], samples, seed)
    assert len(row["exact"]) == len(row["confidence"]) == size + 20
    assert row["exact"] == pytest.approx([score.exact for score in scores[: len(after)]])
    for kind, scored in zip(choosing, scores[len(after) :], strict=True):
        chosen = row["chosen"][kind]
        assert (chosen["exact"], chosen["mean"]) == pytest.approx((scored.exact, scored.loops))
        assert 1 <= chosen["low"] <= chosen["high"] <= size + 20
    assert row["exact"][size - 1] == pytest.approx(row["chosen"]["oracle"]["exact"])
    best = max(range(len(row["confidence"])), key=row["confidence"].__getitem__) + 1
    assert row["chosen"]["batch"]["low"] == row["chosen"]["batch"]["high"] == best
    assert max(row["exact"]) > 0
    assert json.loads(json.dumps(row)) == row


def test_depth_looks_as_far_as_the_recipe_s_own_rule(half):
    weights = half["parity"].weights()
    nearer = replace(weights, recipe=replace(weights.recipe, stopping=MaxConfidence(extra=2, per="batch")))
    near, far = (measure_depth(each, 3, samples=10) for each in (nearer, weights))
    assert near["exact"] == far["exact"][:5]
    assert near["confidence"] == far["confidence"][:5]


class _Ones(lw.Parity):
    """Parity with a round for each one."""

    def from_rows(self, sizes, bits):
        return replace(super().from_rows(sizes, bits), rounds=bits.sum(1).clamp(min=1))


def test_depth_refuses_problems_without_a_single_curve(half):
    with pytest.raises(lw.UsageError, match=r"^next: its inputs hold the right answer"):
        measure_depth(half["next"].weights(), 3)
    weights = half["parity"].weights()
    uneven = replace(weights, recipe=replace(weights.recipe, task=_Ones()))
    with pytest.raises(lw.UsageError, match="take different numbers of loops, so there is no single curve"):
        measure_depth(uneven, 3)
    with pytest.raises(lw.UsageError, match="sizes start at 1"):
        measure_depth(weights, 0)


# Anatomy of wrong answers


def force_answers(monkeypatch, weights, *answers):
    """Make a model give these answers to any prompt: ids in its slots, padded with zeros."""
    width = max(map(len, answers))
    symbols = torch.tensor([[*answer, *[0] * (width - len(answer))] for answer in answers])
    predicted = Predictions(symbols, torch.zeros(len(answers)), torch.ones(len(answers), dtype=torch.long))
    monkeypatch.setattr("lengthwise.evaluation.attack.predict_by_rules", lambda *_: [predicted])
    return weights


def test_anatomy_counts_early_late_and_wrong_answers(half, monkeypatch):
    """Wrong answers end early, end late or have a wrong symbol; slots hold two digits and the end."""
    weights = half["parity"].weights()
    task, end = BinarySum(), 3
    weights = replace(weights, recipe=replace(weights.recipe, task=task))
    rows = ["100", "110", "111", "111", "111", "111"]
    problems = lw.Problems.join([task.parse(row) for row in rows])
    monkeypatch.setattr("lengthwise.evaluation.attack.evaluation_problems", lambda *_, **__: problems)
    answers = [
        [1, end, 0],  # right
        [0, 1, end],  # right
        [1, end, 0],  # ends early
        [1, 1, 1],  # never ends
        [0, 1, end],  # a wrong symbol, at the first place
        [1, 1, end],  # right
    ]
    row = measure_anatomy(force_answers(monkeypatch, weights, *answers), 3, samples=6)
    assert (row["exact"], row["ends"]) == (0.5, {"early": 1, "late": 1, "right": 1})
    assert row["first_wrong"] == {"1": 1, "2": 1, "3": 1}
    assert row["by"]["ones"] == [
        {"low": 1, "high": 2, "count": 2, "exact": 1.0},
        {"low": 3, "high": 3, "count": 4, "exact": 0.25},
    ]
    assert json.loads(json.dumps(row)) == row


def test_anatomy_of_a_next_token_model_uses_its_decoded_answers():
    """Fed the right answer instead, it may continue or end where it would not by itself."""
    weights = load("lstm-small")
    row = measure_anatomy(weights, 40, samples=10)
    problems = data.evaluation_problems(weights.recipe, (40,), 10, seed=0)
    solver = lw.Solver(weights)
    said = [solver.solve(prompt) for prompt in prompt_texts(weights.recipe.task, problems)]
    wrong = [(len(one.text), len(one.right)) for one in said if not one.correct]
    ends = {
        "early": sum(length < right for length, right in wrong),
        "late": sum(length > right for length, right in wrong),
    }
    assert row["ends"] == ends | {"right": len(wrong) - sum(ends.values())}


@pytest.mark.parametrize("name", ["parity", "copy", "next"])
def test_anatomy_looks_at_the_problems_that_evaluate_scores(half, name):
    weights = half[name].weights()
    row = measure_anatomy(weights, 3, samples=200, seed=2)
    score = next(evaluate(weights, [3], samples=200, seed=2))
    assert row["exact"] == pytest.approx(score.exact)
    assert sum(row["ends"].values()) == sum(row["first_wrong"].values()) == round(200 * (1 - score.exact))
    for groups in row["by"].values():
        assert sum(part["count"] for part in groups) == 200
        assert sum(part["count"] * part["exact"] for part in groups) == pytest.approx(200 * score.exact, abs=0.01)
        assert all(one["high"] < two["low"] for one, two in itertools.pairwise(groups))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200))
def test_groups_are_few_and_of_like_number(values):
    values = torch.tensor(values)
    groups = _group_values(values, values % 2 == 0)
    assert 1 <= len(groups) <= GROUPS
    assert sum(part["count"] for part in groups) == len(values)
    most = int(values.unique(return_counts=True)[1].max())
    assert all(part["count"] <= len(values) / GROUPS + 2 * most for part in groups)


def test_anatomy_without_samples_or_rows_is_refused(half):
    with pytest.raises(lw.UsageError, match="samples must be 1 or more"):
        measure_anatomy(half["parity"].weights(), 3, samples=0)
    with pytest.raises(lw.UsageError, match="there is nothing to draw"):
        anatomy_figure([], "none")


@pytest.mark.usefixtures("blank_figures")
def test_anatomy_from_the_shell(half, tmp_path):
    folder = tmp_path / "parity"
    shutil.copytree(half["parity"].folder, folder)
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
    written = contents(tmp_path / "out")
    assert {"anatomy-tiny-parity.json", "anatomy-tiny-parity.png", "card.json"} <= set(written)
    assert json.loads(written["anatomy-tiny-parity.json"]) == [{"train_seed": 0, **row} for row in kept]
    # Errors on other problems, or by other rules, differ and are not mixed in.
    for other in (["--family", "runs"], ["--stopping", "After(loops=1)"]):
        assert run_command("evaluate", folder, "--lengths", "3", "--samples", 20, "--anatomy", *other)[0] == 0
    assert len(Run.open(folder).rows("anatomy")) == len(kept) + 2
    assert anatomy_rows([Run.open(folder)]) == [{"train_seed": 0, **row} for row in kept]
    assert json.loads(written["card.json"]) == json.loads(out)["cards"]


def test_a_grid_after_several_numbers_of_loops(tmp_path):
    run = train(replace(TINY, name="tiny-product", task=Multiplication(), steps=1), tmp_path / "product")
    rows = json.loads(run_command("evaluate", run.folder, "--grid", "1x2", "--loops", "1,3", "--json")[1])
    assert [(row["sizes"], row["stopping"], row["loops"]) for row in rows] == [
        ([1, j], f"After(loops={k})", k) for j in (1, 2) for k in (1, 3)
    ]
    code, out, err = run_command("evaluate", run.folder, "--loops", "0,2")
    assert (code, out) == (2, "")
    assert "--loops: give numbers from 1 up, separated by commas, e.g. 1,8,16, not '0,2'" in err


def test_a_further_rule_is_measured_alone_on_a_grid(tmp_path):
    run = train(replace(TINY, name="tiny-product", task=Multiplication(), steps=1), tmp_path / "product")
    words = ["evaluate", run.folder, "--grid", "1x2", "--samples", 3, "--json"]
    before = json.loads(run_command(*words)[1])
    rows = json.loads(run_command(*words, "--stopping", "Oracle", "--stopping", "After(loops=1)")[1])
    told = [(tuple(row["sizes"]), row["stopping"]) for row in rows]
    assert len(told) == len(set(told)) == 4 and len(run.rows("scores")) == 4
    assert [row for row in rows if row["stopping"] == "Oracle"] == before


def test_an_interrupted_grid_continues(tmp_path):
    """Cells stored in the run's folder are not measured again, unless they are of another seed."""
    run = train(replace(TINY, name="tiny-product", task=Multiplication(), steps=1), tmp_path / "product")
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
    run_command(*words, "--seed", 1)
    assert len(run.rows("scores")) == 12


def row_of(planned, exact, **chosen):
    """Return a hand-made row of `depth`."""
    stops = {kind: {"mean": planned, "low": planned, "high": planned, "exact": 0.5} for kind in ("oracle", "batch")}
    confidence = [-0.5 / k for k in range(1, len(exact) + 1)]
    return {
        "task": "parity",
        "sizes": [planned],
        "count": 10,
        "seed": 0,
        "planned": planned,
        "exact": exact,
        "confidence": confidence,
        "chosen": {**stops, "example": {"mean": 2.5, "low": 1.0, "high": 4.0, "exact": 0.75}, **chosen},
    }


def test_the_figure_of_loops_is_drawn_from_rows_alone(tmp_path):
    rows = [row_of(3, [0.0, 0.1, 1.0, 0.4]), row_of(6, [0.0] * 5 + [0.9, 0.2])]
    rows[1]["confidence"][5] = 0.0  # full confidence
    figure = depth_figure(rows, "tiny parity")
    assert [path.name for path in save(figure, tmp_path / "loops", ("png", "svg"))] == ["loops.png", "loops.svg"]
    assert (tmp_path / "loops.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "loops.svg").read_text()
    for part in ("tiny parity", "length 3", "length 6", "T(n)", "most confident, per batch", "per example"):
        assert part in text
    first, second, under, sure = figure.axes
    assert [line.get_xydata().tolist() for line in (first.lines[3], second.lines[3])] == [
        [[k, share] for k, share in enumerate(row["exact"], 1)] for row in rows
    ]
    assert [line.get_xdata()[0] for line in first.lines[:3]] == [3, 3, 2.5]
    assert under.lines[3].get_ydata() == pytest.approx([0.5, 0.25, 1 / 6, 0.125])
    assert under.get_yscale() == "log"
    assert min(sure.lines[3].get_ydata()) == 1e-8
    with pytest.raises(lw.UsageError, match="no loops were measured"):
        depth_figure([], "nothing")
    uneven = rows[0] | {"confidence": rows[0]["confidence"][1:]}
    with pytest.raises(
        lw.UsageError, match=r"depth\.jsonl: the row of length \d+ has different numbers of loops and confidences"
    ):
        depth_figure([uneven], "uneven")


def test_loops_in_numbers():
    near, far = depth_rows([row_of(1, [0.25, 0.5]), row_of(3, [0.0, 0.1, 1.0, 0.4, 0.3, 0.2, 0.1, 0.0])])
    assert near == {
        "size": "1", "planned": 1, "oracle": 0.5, "batch": 0.5, "example": 0.75, "planned+1": 0.5, "batch_loops": 1,
        "example_loops": 2.5,
    }  # fmt: skip
    assert (far["planned-1"], far["planned+1"], far["planned+5"]) == (0.1, 0.4, 0.0)


@pytest.mark.usefixtures("blank_figures")
def test_a_report_on_loops_is_written(half, tmp_path):
    run = half["parity"]
    words = ["report", run.folder, "--stopping", "--samples", 20, "--formats", "png,pdf", "--out", tmp_path / "new"]
    code, out, _ = run_command(*words, "--json")
    assert code == 0
    result = json.loads(out)
    name = f"stopping-{run.folder.name}"
    assert set(contents(tmp_path / "new")) == {f"{name}.json", f"{name}.png", f"{name}.pdf"}
    assert sorted(result["files"]) == sorted(str(path) for path in (tmp_path / "new").iterdir())
    rows = json.loads((tmp_path / "new" / f"{name}.json").read_text())
    assert rows == [measure_depth(run.weights(), size, samples=20) for size in (4, 8)]
    assert [(row["recipe"], row["size"], row["planned"]) for row in result["loops"]] == [
        ("tiny-parity", "4", 4),
        ("tiny-parity", "8", 8),
    ]
    code, out, _ = run_command(*words, "--lengths", "2,3,5")
    assert code == 0
    # A name may be folded where the terminal is narrow.
    assert [line.split()[1:3] for line in out.splitlines() if line.strip().startswith("tiny-p")] == [
        [size, size] for size in "235"
    ]


def test_train_measures_a_curve_and_several_rules_once(half, tmp_path):
    """Further rules are measured at --lengths only, not on the curve, and no size twice."""
    shutil.copytree(half["copy"].folder, tmp_path / "copy")
    words = ["train", tmp_path / "copy", "--lengths", "4", "--samples", 8, "--curve", "3-5", "--curve-samples", 6]
    words += ["--stopping", "Oracle", "--stopping", "Converged", "--quiet", "--json"]
    for _ in range(2):
        code, out, _ = run_command(*words)
        assert code == 0
        scores = [(row["sizes"], row["stopping"], row["count"]) for row in json.loads(out)[0]["scores"]]
        care = [([4], "Oracle", 8), ([4], "Converged", 8)]
        assert scores == [*care, ([3], "Oracle", 6), ([5], "Oracle", 6)]


@pytest.mark.parametrize(
    ("options", "part"),
    [(["--lengths", "many"], "'many' names no sizes"), (["--samples", "0"], "--samples must be 1 or more")],
)
def test_a_report_on_loops_that_cannot_be_made(half, options, part, tmp_path):
    code, out, err = run_command("report", half["parity"].folder, "--stopping", "--out", tmp_path / "new", *options)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert part in err
    assert not (tmp_path / "new").exists()


def test_operations_and_weights_of_the_paper_s_recipes_follow_from_their_depth():
    """20 blocks take as many operations as one block applied 20 times, and 20 times the weights."""
    changes = {"batch": 2, "steps": 4, "watch": lw.Watch(), "lengths": lw.Uniform(4, 4)}
    fixed, deep = (
        replace(build_variation("parity", method, "paper"), **changes) for method in ("fop-loop-fixed", "fop")
    )
    one, twenty = (measure_cost(replace(r, model=replace(r.model, width=64)), 1, rows=1) for r in (fixed, deep))
    assert twenty.operations == pytest.approx(one.operations, rel=0.05)
    assert 15 < twenty.parameters / one.parameters < 20


# Ablations


@pytest.mark.parametrize("task", ["parity", "addition", "abacus", "published-parity", "published-binary-sum"])
def test_an_ablation_differs_from_the_first_in_one_thing(task):
    first, *others = catalog.study("ablations", tasks=task).recipes
    for recipe in others:
        changed = {name for name, value in vars(recipe).items() if value != getattr(first, name)}
        changed -= {"name", "chosen_on"}
        assert len(changed) == 1, recipe.name
        if changed == {"model"}:
            assert sum(value != getattr(first.model, name) for name, value in vars(recipe.model).items()) == 1, (
                recipe.name
            )


def test_two_loops_take_the_rounds_of_both():
    for recipe in catalog.study("ablations", tasks="flipped-copy").recipes:
        problems = recipe.task.parse("10110")
        assert recipe.loops.planned(problems.rounds).tolist() == [10]
        assert recipe.task.format(problems.answer[0]) == "01001"
