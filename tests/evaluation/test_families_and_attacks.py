"""Families of structured problems, attacks, sealed problems, and their reports."""

import io
import json
import re
import time
from dataclasses import replace
from random import Random

import pytest
import torch
from conftest import LONG, Crash, command
from half_trained import NTP_COPY, PAIRS, PARITY, SUMS, train_briefly
from made_up_runs import build_run, recipe
from rich.console import Console

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.score_rows import select_reported_rows
from lengthwise.evaluation import attack as attacking
from lengthwise.evaluation import families
from lengthwise.evaluation.answers import predict_by_rules
from lengthwise.evaluation.attack import Attempt, Attempts, _generate_mutations, attack, format_prompts
from lengthwise.evaluation.families import derive_sealed_seed, evaluate_families, find_short_sizes, measure_sealed
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.data import draw_batch, draw_fresh_problems
from lengthwise.experiment.recipe import ChosenOn, Watch
from lengthwise.nn.position import Mark
from lengthwise.report import WORST_FAMILY, curves, describe_misfit, name_curves
from lengthwise.report.card import build_card_table, build_score_card
from lengthwise.report.length_figure import draw_length_figure
from lengthwise.report.tables import (
    build_family_table,
    build_score_table,
    build_summary_rows,
    build_summary_table,
    build_worst_table,
)
from lengthwise.runs.folder import Folder
from lengthwise.runs.run import Run, Weights, save_weights
from lengthwise.tasks.arithmetic import Multiplication
from lengthwise.tasks.bits import BinarySum

MANY = {"count": 1000}
SMALL_RUN = ["steps=2", "batch=2", "model.width=8", "lengths.top=12", "watch.every=0"]


def render(table, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


# Measuring


@pytest.mark.parametrize("recipe", [PARITY, SUMS, PAIRS, NTP_COPY], ids=lambda r: f"{r.task.name}-{r.layout!r}")
def test_a_family_has_the_same_scores_together_and_alone(recipe):
    """Answering equal problems once, and measuring all families together, changes no score."""
    weights = train_briefly(recipe)
    size = 12 if len(recipe.task.axes) == 1 else 9
    found = {score.problems: score for score in evaluate_families(weights, [size], samples=30, seed=3)}
    assert list(found) == [family.name for family in recipe.task.families]
    for name in [*found][:: 1 if LONG else 6]:
        (alone,) = evaluate(weights, [size], samples=30, kind=name, seed=3)
        assert replace(found[name], family="alone") == alone


def test_a_small_size_is_measured_on_all_its_problems():
    weights = train_briefly(PARITY)
    (score,) = evaluate_families(weights, [5], samples=7)
    prompts = [f"{number:05b}" for number in range(32)]
    right = sum(lw.Solver(weights).solve(prompt).correct for prompt in prompts)
    assert (score.problems, score.count, score.exact) == ("every", 32, right / 32)
    assert find_short_sizes(PARITY) == list(range(1, 12))
    assert find_short_sizes(replace(PARITY, lengths=lw.Uniform(6, bottom=4))) == list(range(4, 12))
    limited = replace(PARITY, lengths=lw.Curriculum(20, 1, max_per_axis=(2,)))
    assert find_short_sizes(limited) == [1, 2]  # without unnamed sizes


def test_a_task_of_few_problems_at_every_size_has_a_longest_short_size(monkeypatch):
    one = lw.Parity().sample(torch.tensor([[1]]), lw.stream(0, "one"))
    monkeypatch.setattr(lw.Parity, "enumerate", lambda self, size, most: one)
    assert find_short_sizes(replace(PARITY, lengths=lw.Uniform(3))) == list(range(1, 16))


def test_only_named_families_are_measured_if_names_are_given():
    found = list(evaluate_families(train_briefly(PARITY), [3, 9], samples=4, names=("palindrome", "runs")))
    wanted = [(size, name) for size in ((3,), (9,)) for name in ("palindrome", "runs")]
    assert [(score.sizes, score.problems) for score in found] == wanted
    with pytest.raises(lw.UsageError, match="did you mean palindrome"):
        list(evaluate_families(train_briefly(PARITY), [3], names=("palindrom",)))


@pytest.mark.parametrize(("task", "name"), [(lw.Addition(), "long-carry"), (BinarySum(), "uniform-count")])
def test_the_harder_set_is_a_family_of_the_same_problems(task, name):
    size = (9,) * len(task.axes)
    one, two = (draw_fresh_problems(task, size, 50, seed=1, kind=kind) for kind in ("hard", name))
    assert torch.equal(one.prompt, two.prompt)


def test_problems_of_no_known_kind_are_refused_in_one_line():
    message = r"^parity has no problems called 'unifrom' \(did you mean uniform\?\): [^\n]*$"
    with pytest.raises(lw.UsageError, match=message):
        draw_fresh_problems(lw.Parity(), (3,), 5, seed=0, kind="unifrom")
    with pytest.raises(lw.UsageError, match="did you mean runs"):
        list(evaluate(train_briefly(PARITY), [9], kind="run"))


def test_python_returns_families_and_measures_them():
    assert lw.families("parity")["palindrome"] == "Rows that read the same backwards."
    assert set(lw.families("addition", "base=2")) == {family.name for family in lw.Addition(2).families}
    assert lw.families("Addition(base=2)") == lw.families("addition", "base=2")
    scores = lw.evaluate(train_briefly(PARITY), [12], samples=40, families=True)
    assert [score.count for score in scores] == [40] + [4] * len(lw.Parity().families)


# Training on families


@pytest.mark.parametrize("name", ["looped-pairs", "looped-parity", "abacus-addition", "looped-multiplication"])
def test_a_fraction_of_a_batch_is_drawn_from_families(name):
    plain = lw.find(name, "watch.every=0", "keep=last")
    mixed = plain.change(families=0.25)
    rows = round(0.25 * plain.batch)
    for step in (0, 3, 40):
        written, again = draw_batch(mixed, step)[0], draw_batch(replace(mixed), step)[0]
        assert len(written) == plain.batch
        assert torch.equal(written.inputs.tokens, again.inputs.tokens)
    assert plain.id != mixed.id == plain.change(families=0.25).id
    assert 0 < rows < plain.batch
    only = plain.change(families=1.0, hard=0.0, family_names=("all-highest",) if "pairs" in name else ())
    tokens = draw_batch(only, 0)[0].inputs.tokens
    assert len(tokens) == plain.batch
    if "pairs" in name:  # stacked digits: every operand is made of nines
        assert len(tokens.unique()) <= 3


def test_family_names_change_nothing_if_families_is_0():
    one = lw.find("looped-pairs", "families=0", "family_names=()")
    two = lw.find("looped-pairs", "families=0", "family_names=(twice,)")
    assert torch.equal(draw_batch(one, 7)[0].inputs.tokens, draw_batch(two, 7)[0].inputs.tokens)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["families=1.5"], "families must be 0 to 1"),
        (["families=0.8", "hard=0.33"], "add up to 1 at most"),
        (["families=0.1", "family_names=(twce,)"], "did you mean twice"),
    ],
)
def test_an_impossible_fraction_of_families_is_refused(changes, message):
    with pytest.raises(lw.UsageError, match=message):
        lw.find("looped-pairs", *changes)


def test_families_and_the_harder_set_may_share_all_of_a_batch():
    """Shares of families and hard problems that add up to 1 are accepted, however they are rounded."""
    for share in range(0, 101, 1 if LONG else 7):
        recipe = lw.find("looped-pairs", f"hard={share / 100}", f"families={1 - share / 100}")
        assert recipe.families + recipe.hard <= 1


@pytest.mark.parametrize("has_mark", [False, True], ids=["alone", "marked"])
def test_local_attention_distinguishes_equal_columns_only_with_a_mark(has_mark):
    """Local attention averages equal columns to equal states; only ``Mark`` separates the first column."""
    own = lw.find("looped-pairs").model
    assert Mark() in own.positions  # the shipped recipe needs it: 99999999 + 99999999
    recipe = lw.find("looped-pairs", f"model.positions=(Local(reach=1),{'Mark()' * has_mark})")
    model = recipe.build().eval()
    inputs = recipe.layout.write(recipe.task.parse("99999999+99999999"), recipe.task).inputs
    with torch.no_grad():
        *_, (_, _, state) = lw.unroll(model, inputs, torch.tensor([12]))
    apart = float((state[0, 0] - state[0, 1]).abs().max())
    assert apart > 1e-2 if has_mark else apart < 1e-5


# Attacks


@pytest.mark.parametrize(("recipe", "size"), [(NTP_COPY, 9), (PAIRS, 12)], ids=["copy", "addition"])
def test_an_attack_finds_wrong_answers_and_is_reproducible(recipe, size):
    weights = train_briefly(recipe)
    found = attack(weights, [size], tries=200, seed=1)
    assert found == attack(weights, [size], tries=200, seed=1)
    assert found["tries"] >= 200
    assert found["failed"] > 0
    assert found["failed"] == sum(row["failed"] for row in found["origins"])
    assert found["tries"] == sum(row["tries"] for row in found["origins"])
    for row in found["shortest"]:
        answer = lw.Solver(weights).solve(row["prompt"])
        assert not answer.correct
        assert (row["answer"], row["right"]) == (answer.text, answer.right)
    lengths = [len(row["prompt"]) for row in found["shortest"]]
    assert lengths == sorted(lengths)


def test_an_attack_mutates_problems_that_it_has_tried():
    found = attack(train_briefly(PAIRS), [12], tries=900)
    origins = {row["origin"]: row["tries"] for row in found["origins"]}
    assert origins["mutation"] > 40
    assert {"uniform", "every", "complement"} <= set(origins)


def test_an_attack_tries_each_problem_once_and_ends_with_the_last(monkeypatch):
    tried = []
    try_problems = attacking._try_problems
    monkeypatch.setattr(attacking, "_try_problems", lambda w, *rest: tried.append(rest[0]) or try_problems(w, *rest))
    recipe = train_briefly(PARITY).recipe.change([], task=lw.Parity())
    untrained = Weights("untrained", recipe, recipe.build().eval())
    found = attack(untrained, [3], seconds=600)
    rows = [row for problems in tried for row in format_prompts(recipe.task, problems)]
    assert len(rows) == len(set(rows)) == found["tries"] == 2 + 4 + 8
    assert found["failed"] == sum(not lw.Solver(untrained).solve(prompt).correct for prompt in rows)


def test_mutations_stay_within_the_largest_size_on_each_axis():
    search = Attempts(
        least_confident_attempts=[Attempt("10*110", "uniform", True, -1.0), Attempt("1*1011", "uniform", True, -1.0)]
    )
    tried = list(_generate_mutations(Multiplication(), search, Random(0), torch.tensor([2, 4])))
    assert len(tried) > 20
    assert torch.cat([problems.sizes for problems in tried]).amax(0).tolist() == [2, 4]


def test_an_attack_ends_near_its_limit_however_slow_the_model(monkeypatch):
    """An attack ends near its time limit; here, a first round of 48 problems takes 50 ms per problem."""

    def predict_slowly(model, recipe, batch, rules):
        time.sleep(0.05 * len(batch))
        return predict_by_rules(model, recipe, batch, rules)

    monkeypatch.setattr(attacking, "predict_by_rules", predict_slowly)
    weights, start = train_briefly(PARITY), time.monotonic()
    found = attack(weights, [6], seconds=0.4)
    assert 1 <= found["tries"] <= 20 and time.monotonic() - start < 4


def test_an_attack_that_has_no_time_for_one_problem_is_refused_with_an_estimate():
    done = command("attack", "looped-pairs", "--seconds", "1", "--lengths", "2000")
    line = r"lengthwise: one problem of size 2000 takes about \d+ s: allow more than 1 s, or attack shorter problems\n"
    assert done.returncode == 2 and re.fullmatch(line, done.stderr)
    with pytest.raises(lw.UsageError, match="seconds must be above 0"):
        attack(train_briefly(PARITY), seconds=0)


# Reports


def add_family(run, name, *rows):
    for size, exact in rows:
        sizes = [size] if isinstance(size, int) else list(size)
        old = run.rows("scores")[0]
        ends = {"low": exact - 0.01, "high": min(1.0, exact + 0.01)}
        run.append("scores", old | {"problems": name, "sizes": sizes, "exact": exact, "count": 100} | ends)
    return run


def build_run_with_families(**changes):
    run = build_run(recipe(**changes), (8, 1.0, MANY), (16, 1.0, MANY), (24, 1.0, MANY))
    add_family(run, "runs", (8, 1.0), (16, 1.0), (24, 0.5))
    return add_family(run, "palindrome", (8, 1.0), (16, 0.995), (24, 1.0), (1, 1.0))


def test_the_worst_family_and_uniform_problems_have_separate_lines():
    lines = curves([build_run_with_families()])
    assert [line.problems for line in lines] == ["uniform", WORST_FAMILY]
    points = {point.length: (point.mean, point.families) for point in lines[1].points}
    assert (points[16], points[24]) == ((0.995, ("palindrome",)), (0.5, ("runs",)))
    assert "worst family palindrome at 16; runs at 24" in " ".join(render(build_score_table(lines)).split())
    assert name_curves(lines)[1] == "looped-parity, worst family"


def test_a_length_counts_as_solved_only_if_the_worst_family_is_solved():
    (row,) = build_score_card([build_run_with_families()])
    assert (row["longest"], row["longest_uniform"], row["generalise"]) == (["16"], ["24"], 1)
    assert row["worst"] == {"family": "runs", "size": "24", "exact": 0.5}
    assert "runs 0.50 at 24" in " ".join(render(build_card_table([row]), width=160).split())
    hole = build_run(recipe("hole"), (8, 1.0, MANY), (16, 1.0, MANY), (24, 1.0, MANY))
    assert build_score_card([add_family(hole, "runs", (8, 1.0), (16, 0.5), (24, 1.0))])[0]["longest"] == ["8"]
    (bare,) = build_score_card([build_run(recipe("other"), (16, 1.0, MANY))])
    assert (bare["longest"], bare["longest_uniform"], bare["worst"]) == (["16"], ["16"], None)
    assert "not measured" in render(build_card_table([bare]), width=160)


def test_a_family_measured_by_name_does_not_stand_for_all_families():
    """One family measured by name is not reported as the worst, as other families may be worse."""
    run = build_run(recipe(), (8, 1.0, MANY), (16, 1.0, MANY))
    row = run.rows("scores")[0] | {"problems": "runs", "sizes": [8], "family": "alone"}
    run.append("scores", row)
    assert [line.problems for line in curves([run])] == ["uniform", "runs"]
    first = build_run(recipe(seed=1), (8, 1.0, {"problems": "runs", "family": "alone"}), (8, 1.0))
    assert [line.problems for line in curves([first])] == ["uniform", "runs"]
    (card,) = build_score_card([run])
    assert (card["longest"], card["worst"]) == (["16"], None)
    # Among all families it counts as one of them.
    add_family(run, "palindrome", (8, 0.5), (16, 1.0))
    run.append("scores", row | {"exact": 0.2, "count": 2000})
    assert build_score_card([run])[0]["worst"] == {"family": "runs", "size": "8", "exact": 0.2}


def test_the_longest_solved_length_ends_before_a_failure():
    """The longest solved length is below the first failed one, even if families were not measured at the latter."""
    run = build_run(recipe(), (8, 1.0, MANY), (16, 0.3, MANY), (24, 1.0, MANY))
    add_family(run, "runs", (8, 1.0), (24, 1.0))
    (card,) = build_score_card([run])
    assert card["longest"] == card["longest_uniform"] == ["8"]


def test_a_model_that_has_not_learned_its_training_length_is_marked_everywhere():
    runs = [
        build_run(recipe(), (8, 0.6, MANY), (16, 0.5, MANY)),
        build_run(recipe("other"), (8, 1.0, MANY), (16, 0.5, MANY)),
    ]
    lines, note, cards = curves(runs), "not fitted: 0.600 at 8", build_score_card(runs)
    assert name_curves(lines) == [f"looped-parity, {note}", "other"] and [card["fit"] for card in cards] == [0.6, 1.0]
    for table in (
        build_score_table(lines),
        build_summary_table(build_summary_rows("p", lines, (16,))),
        build_card_table(cards),
    ):
        assert note in " ".join(render(table, width=200).split())
    assert any(note in text.get_text() for text in draw_length_figure(lines).axes[0].texts)
    close = [build_run(recipe("c", seed=seed), (8, exact, MANY)) for seed, exact in enumerate((0.98, 0.99, 1.0))]
    assert name_curves(curves(close)) == ["c"]  # a mean of exactly the bound
    assert name_curves(curves(close[:2])) == ["c, not fitted: 0.985 at 8"]
    assert describe_misfit(0.9897, 8) == "not fitted: 0.989 at 8"  # not rounded up to the bound


def test_tables_of_families_name_the_worst_and_count_wrong_answers():
    rows = build_run_with_families().rows("scores")
    every = rows[0] | {"problems": "every", "sizes": [2], "exact": 0.5, "count": 2}
    shown = render(build_worst_table([*rows, every], (8,)))
    assert "every problem" in shown and "1 of 2 wrong" in shown
    assert "runs" in shown and "1 of 2" in shown
    shown = render(build_worst_table([every, every | {"sizes": [9], "exact": 1.0}], (8,)))
    assert "▪2 " in shown and "1 of 2 wrong" in shown  # only sizes within the training range are marked
    assert "\n9 " in shown and "0 of 2 wrong" in shown
    assert render(build_family_table(rows, (8,))).index("runs") < render(build_family_table(rows, (8,))).index(
        "palindrome"
    )


# Protocol


def test_the_lengths_a_recipe_was_chosen_on_do_not_change_its_id():
    one = recipe()
    other = one.change(chosen_on=ChosenOn((8, 10)), watch=Watch())
    assert one.id == other.id
    assert type(other).read(other.json()) == other
    assert replace(other, watch=Watch(every=one.steps, sizes=(9,))).examined_sizes == (8, 9, 10)
    assert replace(other, watch=Watch(every=one.steps + 1, sizes=(9,))).examined_sizes == (8, 10)  # never watched
    run = build_run(other, (8, 1.0, MANY), (16, 1.0, MANY))
    assert "chosen on 8, 10" in render(build_score_table(curves([run])))
    assert build_score_card([run])[0]["chosen_on"] == [8, 10]


def test_the_shortest_failures_are_kept_whatever_their_order():
    draw = Random(0)
    texts = [str(number) * draw.randint(1, 3) for number in range(500)]
    tried = [Attempt(text, "uniform", draw.random() < 0.5, draw.choice([-1.0, -2.0])) for text in texts]
    wrong = sorted((len(one.prompt), -one.confidence, one.prompt) for one in tried if not one.is_right)
    search = Attempts()
    for start in range(0, len(tried), 70):
        search.add(tried[start : start + 70])
    found = [(len(one.prompt), -one.confidence, one.prompt) for one in search.shortest_failures]
    assert found == wrong[: attacking.MAX_MUTATED_FAILURES] and search.failures.total() == len(wrong)
    assert attacking.MAX_SHOWN_FAILURES <= attacking.MAX_MUTATED_FAILURES < len(wrong)


def build_untrained_run(seed=0):
    run = Run.of(replace(PARITY, seed=seed, name="tiny"))
    save_weights(run.folder, run.recipe, run.recipe.build().state_dict())
    return run


def test_sealed_problems_are_measured_once_and_belong_to_their_weights():
    run, other = build_untrained_run(), build_untrained_run(seed=1)
    assert derive_sealed_seed(run.weights()) == derive_sealed_seed(run.weights()) != derive_sealed_seed(other.weights())
    asked = {"samples": 20, "family_samples": 5, "kinds": ("uniform",)}
    first = measure_sealed(run, [12, 14], **asked)
    assert measure_sealed(run, [12, 14], **asked) == first == run.rows("scores")
    assert len(measure_sealed(run, [12, 13], **asked)) > len(first)
    assert {row["seed"] for row in first} == {derive_sealed_seed(run.weights())}
    uniform = [row for row in first if row["problems"] == "uniform"]
    assert [row["sizes"] for row in uniform] == [[12], [14]]
    assert {row["problems"] for row in first if row["sizes"] == [12]} > {"uniform", "palindrome"}
    (exact,) = evaluate(run.weights(), [12], samples=20, seed=derive_sealed_seed(run.weights()))
    assert exact.exact == uniform[0]["exact"]


def test_rules_give_the_same_sealed_scores_together_and_alone(monkeypatch):
    """Sealed scores do not depend on which rules are measured together; one run of the model measures all missing
    rules."""
    rules, asked, found, calls = [lw.Oracle(), lw.MaxConfidence(extra=3)], {"samples": 20, "family_samples": 2}, [], []
    monkeypatch.setattr(families, "evaluate", lambda *given, **how: calls.append(how) or evaluate(*given, **how))
    for groups in ([rules], [rules[:1], rules], [[rule] for rule in rules]):
        run = build_untrained_run()
        for group in groups:
            measure_sealed(run, [6, 9], rules=group, **asked)
        rows = [row for row in run.rows("scores") if row["problems"] == "uniform"]
        found.append(sorted(rows, key=lambda row: (row["sizes"], row["stopping"])))
        (run.folder / "scores.jsonl").unlink()
    assert found[0] == found[1] == found[2] and len(found[0]) == 4
    assert len(calls) == 1 + 2 + 2


def test_family_scores_are_stored_size_by_size(monkeypatch):
    run, keep = build_untrained_run(), Folder.append_new
    run.append("metrics", {"step": 1, "loss": 1.0})  # marks the run as trained here

    def append_or_crash(self, name, *rows):
        if rows[0]["sizes"] == [9] and rows[0]["problems"] != "uniform":
            raise Crash
        keep(self, name, *rows)

    monkeypatch.setattr(Folder, "append_new", append_or_crash)
    with pytest.raises(Crash):
        command("evaluate", run.folder, "--families", "--lengths", "8,9", "--samples", "20", "--quiet")
    assert {tuple(row["sizes"]) for row in run.rows("scores") if row["problems"] == "palindrome"} == {(8,)}


@pytest.mark.parametrize("rows_before_crash", [1, 12])
def test_sealed_problems_are_all_measured_even_if_the_process_dies(rows_before_crash, monkeypatch):
    run, append = build_untrained_run(), Run.append
    asked = {"samples": 5, "family_samples": 2}

    def append_or_crash(self, name, *rows):
        if len(self.rows(name)) >= rows_before_crash:
            raise Crash
        append(self, name, *rows)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "append", append_or_crash)
        with pytest.raises(Crash):
            measure_sealed(run, [8, 9], **asked)
    again = measure_sealed(run, [8, 9], **asked)
    (run.folder / "scores.jsonl").unlink()
    assert again == measure_sealed(Run.of(run.recipe), [8, 9], **asked)


def test_sealed_scores_are_reported_instead_of_others():
    run = build_run(recipe(), (8, 1.0, MANY), (16, 0.9, MANY))
    assert "sealed" not in render(build_score_table(curves([run])))
    run.append("scores", *(row | {"exact": 0.5, "count": 10, "sealed": "0" * 10} for row in run.rows("scores")))
    run.append("scores", run.rows("scores")[0])
    assert {row["exact"] for row in select_reported_rows(run.rows("scores"))} == {0.5}
    assert "final: on sealed problems" in render(build_score_table(curves([run])))


# The command line


def run_command(*words):
    done = command(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_evaluate_shows_families_unless_uniform_only():
    words = ["evaluate", "looped-parity", "--lengths", "13", "--samples", "20", "--json"]
    rows = json.loads(run_command(*words))
    assert {row["problems"] for row in rows if row["sizes"] == [13]} == {"uniform", *lw.families("parity")}
    assert {row["problems"] for row in rows if row["sizes"] == [3]} == {"every"}
    assert [row["problems"] for row in json.loads(run_command(*words, "--uniform-only"))] == ["uniform"]
    assert [row["problems"] for row in json.loads(run_command(*words, "--family", "runs"))] == ["runs"]
    assert "worst family" in run_command(*words[:-1])
    assert "palindrome" in run_command(*words[:-1], "--families")


def test_evaluate_shows_uniform_problems_and_the_worst_family_under_each_rule():
    words = ["evaluate", "looped-pairs", "--lengths", "8", "--samples", "20"]
    rules = ["--stopping", "Oracle", "--stopping", "After(loops=1)", "--stopping", "MaxConfidence(per=batch)"]
    rows = [line.split() for line in run_command(*words, *rules).splitlines()]
    assert ["▪8", "1.000", "all-highest", "1.000", "0", "of", "24"] in rows
    (uniform,) = lw.evaluate("looped-pairs", 8, samples=20, stopping="After(loops=1)", quiet=True)
    assert [row[1] for row in rows if row[:1] == ["▪8"] and "of" in row] == ["1.000", f"{uniform.exact:.3f}"]
    titles = [row for row in rows if row in (["Oracle"], ["After(loops=1)"])]
    assert titles == [["Oracle"], ["After(loops=1)"]]


def test_families_of_the_interface_are_measured_by_the_rules_of_the_command():
    rules = ["Oracle", "MaxConfidence(per=batch)", "After(loops=1)"]
    scores = lw.evaluate("looped-parity", 9, samples=20, stopping=rules, families=True, quiet=True)
    assert [score.stopping for score in scores if score.problems == "runs"] == ["Oracle", "After(loops=1)"]
    words = ["evaluate", "looped-parity", "--lengths", "9", "--samples", "20", "--json"]
    rows = json.loads(run_command(*words, *(word for rule in rules for word in ("--stopping", rule))))
    assert [row["stopping"] for row in rows if row["problems"] == "runs"] == ["Oracle", "After(loops=1)"]


def train_and_read_scores(options, *, recipe="looped-parity", changes=SMALL_RUN):
    """Train by the command line with ``options``; return the run's scores."""
    run_command("train", recipe, *changes, "--quiet", *options.split())
    return Run.locate(lw.find(recipe, *changes)).rows("scores")


def list_values_of_runs(rows, name):
    return [row[name] for row in rows if row["problems"] == "runs"]


def test_more_samples_measure_more_problems_of_each_family():
    for samples in (20, 200, 200):
        rows = train_and_read_scores(f"--families --lengths 12 --samples {samples}")
    assert list_values_of_runs(rows, "count") == [2, 20]


@pytest.mark.parametrize(("sizes", "measured_sizes"), [("3x4,8x3,9x1", [[3, 4], [8, 3]]), ("1-3x2-4,3", [[3, 3]])])
def test_families_are_measured_at_pairs_of_sizes_but_not_on_a_map(sizes, measured_sizes):
    few = ["steps=2", "batch=2", "lengths.top=4", "watch.every=0"]
    rows = train_and_read_scores(f"--families --lengths {sizes} --samples 10", recipe="abacus-addition", changes=few)
    assert list_values_of_runs(rows, "sizes") == measured_sizes


def test_a_family_that_was_measured_by_name_is_measured_again_with_the_others():
    train_and_read_scores("--lengths 12 --samples 20")
    run = Run.locate(lw.find("looped-parity", *SMALL_RUN))
    run_command("evaluate", str(run.folder), "--family", "runs", "--lengths", "12", "--samples", "40", "--quiet")
    assert [row["problems"] for row in run.rows("scores")] == ["uniform", "runs"]
    rows = train_and_read_scores("--lengths 12 --samples 20 --families")
    families = {row["problems"] for row in rows if row["sizes"] == [12] and "family" not in row}
    assert families == {"uniform", *lw.families("parity")}


def test_families_are_measured_by_every_rule_that_looks_at_one_problem_at_a_time():
    further = " --stopping Converged() --stopping MaxConfidence(per=batch)"
    for rules in ("", further, further):
        rows = train_and_read_scores(f"--families --lengths 12 --samples 20{rules}")
    assert list_values_of_runs(rows, "stopping") == ["Oracle", "Converged"]
    few = [*SMALL_RUN, "stopping=MaxConfidence(per=batch)"]  # there is no other rule
    rows = train_and_read_scores("--families --lengths 12 --samples 20", changes=few)
    assert list_values_of_runs(rows, "stopping") == ["MaxConfidence(per=batch)"]


def test_the_attack_command_reports_wrong_answers():
    words = ["attack", "looped-parity", "--lengths", "6", "--tries", "40"]
    assert "nothing found (not a proof" in run_command(*words)
    found = json.loads(run_command(*words, "--json"))
    assert (found["failed"], found["shortest"]) == (0, [])


def test_families_that_a_fixed_set_has_used_up_are_left_out():
    recipe = replace(catalog.find_recipe("looped-parity"), lengths=lw.Uniform(20), source=lw.Finite(rows=2000))
    weights = Weights("untrained", recipe, recipe.build().eval())
    found = {score.problems for score in evaluate_families(weights, [12], samples=10)}
    assert "odd-one-out" in found
    with pytest.raises(lw.UsageError, match="almost no problem of this size"):
        list(evaluate_families(weights, [20], samples=10, names=["one-symbol"]))


def test_attack_refuses_a_batch_wise_rule():
    recipe = catalog.find_recipe("looped-parity")
    weights = Weights("untrained", recipe, recipe.build().eval())
    with pytest.raises(lw.UsageError, match="per=example"):
        attack(weights, [4], tries=1, stopping=lw.MaxConfidence(per="batch"))


def test_anatomy_uses_the_batch_size_of_its_rule(monkeypatch):
    recipe = catalog.find_recipe("looped-parity", ["model.width=16"])
    seen = []

    def record_batch_size(model, recipe, batch, rules):
        seen.append(len(batch))
        return predict_by_rules(model, recipe, batch, rules)

    monkeypatch.setattr(attacking, "predict_by_rules", record_batch_size)
    weights = Weights("untrained", recipe, recipe.build().eval())
    attacking.measure_anatomy(weights, 3, samples=600, stopping=lw.MaxConfidence(per="batch"))
    assert seen == [512, 88]
