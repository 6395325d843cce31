"""The Python interface, ``import lengthwise as lw``: arguments, return values and error messages."""

import copy
import inspect
import itertools
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from conftest import command
from matplotlib.text import Text
from torch import nn

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.api.arguments import MAX_SIZE_COUNT, resolve_sizes
from lengthwise.report.comparisons import newcombe_interval
from lengthwise.runs.run import load

ROOT = Path(__file__).parents[2]
SHORT_RUN = {"steps": 3, "batch": 4, "lengths": 3, "quiet": True}


class Gru(nn.Module):
    """A user's module."""

    def __init__(self, input_count=4, output_count=4, returns_dict=False):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(input_count, 8), nn.GRU(8, 8, batch_first=True)
        self.head, self.returns_dict = nn.Linear(8, output_count), returns_dict

    def forward(self, tokens):
        logits = self.head(self.cell(self.embedding(tokens))[0])
        return {"scores": logits} if self.returns_dict else logits


class UnfrozenSpec(lw.ModelSpec):
    """A configuration that is not a frozen dataclass."""

    def build(self, reads, writes, *, causal):
        return Gru()


@dataclass(frozen=True)
class Spec(lw.ModelSpec):
    """A valid model configuration."""

    width: int = 8  # numbers per position

    def build(self, reads, writes, *, causal):
        return Gru(len(reads), len(writes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def run(folder):
    run = lw.train(lw.Transformer(width=8, heads=2), task="parity", folder=folder / "transformer", **SHORT_RUN)
    run.append("scores", *(score.row() | {"seed": 0} for score in lw.evaluate(run, [2, 3, 6], samples=10, quiet=True)))
    return run


# Arguments


def test_any_module_is_measured():
    module = Gru().train()
    scores = lw.evaluate(module, [2, 5], task="parity", samples=10, trained_to=4, quiet=True)
    assert [(score.sizes, score.count) for score in scores] == [((2,), 10), ((5,), 10)]
    assert (scores.outline.name, scores.outline.top) == ("Gru", 4)
    assert module.training  # as it was
    scores = lw.evaluate("looped-multiplication", [[2, 2], 3, (3, 3), (2, 2), np.int64(1)], samples=2, quiet=True)
    assert [score.sizes for score in scores] == [(2, 2), (2, 3), (3, 3), (1, 1)]  # 3 is at most 2 on the first axis

    class CountsOnes(nn.Module):
        def forward(self, tokens):
            ones = (tokens == 1).cumsum(1)
            answer = nn.functional.one_hot(ones % 2, 4).float()
            after = (tokens == 2).cumsum(1) - (tokens == 2).long() > 0  # behind the equals sign comes the end
            return torch.where(after[..., None], torch.tensor([0.0, 0.0, 0.0, 1.0]), answer)

    assert [score.exact for score in lw.evaluate(CountsOnes(), [1, 9], task="parity", samples=20, quiet=True)] == [1, 1]


def test_the_training_length_is_shown_only_if_it_is_given():
    pair = {"task": "addition", "samples": 3, "quiet": True}
    for tops, told in (({}, False), ({"trained_to": 4}, True)):
        scores = lw.evaluate(Gru(13, 13), [(2, 2), (2, 3), (3, 2)], **pair, **tops)
        drawn = " ".join(text.get_text() for text in scores.plot().findobj(Text))
        assert all(("trained" in text) == told for text in (str(scores), scores._repr_html_(), drawn))
    assert "trained" not in str(lw.evaluate(Gru(), [2, 5], task="parity", samples=3, quiet=True))


def test_a_trained_module_holds_the_trained_weights():
    """Tied weights stay tied in memory, and are stored as separate copies, as safetensors requires. Frozen weights stay
    unchanged."""
    module = Gru()
    module.head.weight = module.embedding.weight
    frozen = copy.deepcopy(module)
    frozen.cell.requires_grad_(False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(7)
    want = torch.rand(2)
    torch.manual_seed(7)
    run, other = (lw.train(one, task="parity", **SHORT_RUN) for one in (module, frozen))
    assert torch.equal(torch.rand(2), want)  # the global generator is as it was
    after = module.state_dict()
    assert any((after[name] != before[name]).any() for name in before)
    assert all((run.model.module.state_dict()[name] == after[name]).all() for name in after)
    assert module.head.weight is module.embedding.weight
    assert torch.equal(load(run.folder).model.module.head.weight, module.head.weight)
    assert run.folder != other.folder and torch.equal(frozen.cell.weight_hh_l0, before["cell.weight_hh_l0"])
    assert run.recipe.model.name == "Gru"
    assert lw.models.external.ExternalModule.from_module(module) != run.recipe.model  # other weights are another model


def test_a_run_of_another_process_s_module_is_reported_though_it_cannot_be_built(folder, monkeypatch):
    run = lw.train(Gru(), task="parity", **SHORT_RUN)
    monkeypatch.setattr("lengthwise.models.external._MODULES", {})
    done = command("report", run.folder, "--out", folder / "out", "--quiet")
    assert done.returncode == 0 and "runs.json" in done.stdout
    assert f"{run.folder.name}: the card has no operations" in done.stderr and done.stderr.count("\n") == 1
    with pytest.raises(lw.UsageError, match="which the saved files cannot build"):
        lw.models.external.ExternalModule("Gru", "0" * 10).build(lw.Vocab(("a",)), lw.Vocab(("a",)), causal=True)
    imported = ModuleType("imported")
    exec("def build(width=8) -> 'Gru':\n    return Gru()", vars(imported) | {"Gru": Gru}, built := {})
    imported.build = built["build"]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "imported", imported)
        assert lw.load(run).solve("101").loops == 1
    longer = lw.train(Gru(), "steps=6", task="parity", parent=run, quiet=True)  # has a module of the parent's form
    assert longer.recipe.parent.step == 3


def test_scores_do_not_depend_on_torch_s_default_dtype():
    rules = ["Oracle", "MaxConfidence", "Converged", "Settled"]
    expected = lw.evaluate("looped-parity", [3, 5], samples=9, stopping=rules, quiet=True)
    torch.set_default_dtype(torch.float64)
    try:
        for one in ([rule] for rule in rules):
            scores = lw.evaluate("looped-parity", [3, 5], samples=9, stopping=one, quiet=True)
            assert [s.exact for s in scores] == [s.exact for s in expected if s.stopping == one[0]]
    finally:
        torch.set_default_dtype(torch.float32)


def test_fields_of_a_recipe_may_be_given_as_keywords():
    own = lw.Transformer(width=8, heads=2)
    run = lw.train("looped-parity", "watch.every=0", model=own, **SHORT_RUN, seed=5)
    assert run.recipe == run.recipe.change(steps=3, batch=4, seed=5, data_seed=5, lengths=lw.Uniform(top=3), model=own)
    assert run.recipe.chosen_on.sizes == ()
    run = lw.train(Gru(32, 32), name="expressions", task="expression", **SHORT_RUN | {"lengths": np.int64(9)})
    assert run.recipe.lengths == lw.Uniform(9, run.recipe.task.smallest) and run.recipe.name == "expressions"
    assert lw.train(Spec(), task=lw.Copy, **SHORT_RUN).recipe.name == "spec-copy"


def test_docstrings_explain_every_public_argument():
    for name in dir(lw):
        function = getattr(lw, name)
        if inspect.isfunction(function) and function.__module__ == "lengthwise.api":
            for parameter in inspect.signature(function).parameters:
                assert f"``{parameter}``" in function.__doc__, f"help(lw.{name}) does not explain {parameter}"


# Return values


def test_a_run_has_scores_model_and_plot(run):
    assert [score.sizes for score in run.scores] == [(2,), (3,), (6,)]
    assert isinstance(run.model, lw.Model)
    assert run.plot().axes  # exact match against length
    assert "exact match" in str(run) and run.recipe.name in str(run)
    unmeasured = lw.train(lw.Transformer(width=8, heads=2), task="copy", **SHORT_RUN)
    assert not unmeasured.scores and unmeasured.plot().axes[0].get_yscale() == "log"  # the loss


def test_a_run_is_found_by_its_name_among_the_runs(run, monkeypatch):
    monkeypatch.setenv("LENGTHWISE_RUNS", str(run.folder.parent))
    assert lw.load(run.folder.name).solve("101").prompt == "101"
    assert lw.evaluate(run.folder.name, [2], samples=2, quiet=True)[0].weights == run.folder.name


def test_scores_convert_to_frames_and_plots(run):
    scores = lw.evaluate("looped-multiplication", [(1, 2), (2, 2)], samples=4, quiet=True)
    frame = scores.frame()
    assert list(frame.columns[:2]) == ["first", "second"] and "sizes" not in frame
    assert frame["exact"].tolist() == [score.exact for score in scores]
    assert run.scores.plot().axes
    assert "6" in str(run.scores)


def test_scores_are_compared(run, tmp_path):
    other = lw.evaluate("looped-parity", [6, 2, 7], samples=10, quiet=True)
    with pytest.raises(lw.UsageError, match=r"not Scores; pass scores without a list, [^\n]*$"):
        lw.compare([run.scores])
    both = lw.compare(run, other)
    assert [row["size"] for row in both.rows()] == ["2", "6"]
    assert run.scores.compare(other).rows() == both.rows()
    row = both.rows()[1]
    assert row["difference"] == row["looped-parity"] - row[run.recipe.name]
    assert row["low"] <= row["difference"] <= row["high"]
    assert both.plot().axes and len(both.frame()) == 2
    assert other.savefig(tmp_path / "scores.svg").stat().st_size > 1000
    other.outline = replace(other.outline, name=run.recipe.name, seed=run.recipe.seed)  # another recipe of this name
    assert lw.compare(run, other).names == [f"{run.recipe.name}-{one.outline.id}" for one in (run, other)]
    with pytest.raises(lw.UsageError, match=r"at the same size in all scores \(sizes 2, 3, 6; 7\)"):
        lw.compare(run, lw.evaluate("looped-parity", 7, samples=2, quiet=True))
    with pytest.raises(lw.UsageError, match="two or more runs or scores"):
        lw.compare(run)
    assert list(lw.compare(run, run).rows()[0])[2:4] == [f"{run.recipe.name} 0 (1)", f"{run.recipe.name} 0 (2)"]
    sums = lw.evaluate("looped-pairs", 6, samples=2, quiet=True)
    with pytest.raises(lw.UsageError, match="parity and addition are different tasks"):
        lw.compare(run, sums)
    assert lw.compare(str(run.folder), run).rows() == lw.compare(run, run).rows()
    with pytest.raises(lw.UsageError, match="scores that evaluate returned, runs or their folders, not 3"):
        lw.compare(run, 3)


def test_scores_by_several_rules_are_shown_with_the_rules():
    """Two scores of one recipe by different stopping rules have separate names and lines."""
    rules = ["After(loops=1)", "Oracle"]
    both = lw.evaluate("looped-parity", [8], samples=20, stopping=rules, quiet=True)
    assert both.rules == rules and all(rule in str(both) and rule in both._repr_html_() for rule in rules)
    own, early = (lw.evaluate("looped-parity", [8], samples=20, stopping=rule, quiet=True) for rule in (None, rules[0]))
    assert "Oracle" not in str(own)
    compared = lw.compare(own, early)
    assert compared.names == ["looped-parity Oracle", "looped-parity After(loops=1)"]
    drawn = [line.get_ydata()[0] for line in compared.plot().axes[0].lines if len(line.get_ydata()) == 1]
    assert drawn == [row[name] for row in compared.rows() for name in compared.names]
    (row,) = lw.compare(both, both).rows()  # the recipe's own rule
    assert [row["looped-parity 0 (1)"], row["looped-parity 0 (2)"]] == [both[1].exact] * 2
    with pytest.raises(lw.UsageError, match=r"After\(loops=1\) and After\(loops=2\): evaluate it by one rule"):
        lw.compare(both, lw.evaluate("looped-parity", 8, samples=2, stopping=[rules[0], "After(loops=2)"], quiet=True))


def test_a_run_prefers_scores_by_its_own_rule():
    words = ["looped-parity", "model.width=8", "watch.every=0", "steps=2", "batch=2", "lengths.top=4"]
    run = lw.Run.locate(lw.find(*words))
    for rule, heading in (("After(loops=1)", "exact match, After(loops=1)"), ("Oracle", "exact match ")):
        done = command("train", *words, "--lengths", "3", "--samples", "10", "--stopping", rule, "--quiet")
        assert done.returncode == 0 and heading in str(run) and str(run).count("3: ") == 1
    assert run.scores.rules == ["After(loops=1)", "Oracle"]


def test_a_difference_between_scores_has_newcombe_s_interval():
    """Newcombe (1998), Statistics in Medicine 17, 873–890, table II, method 10: the interval of 56/70 − 48/80."""

    def score(exact, count):
        return lw.Score("", "", "", "", (1,), count, exact, exact, exact, 1.0)

    assert newcombe_interval(score(48 / 80, 80), score(56 / 70, 70)) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_a_notebook_shows_results(run):
    answer = lw.Answer("<b>1+1", "2", "2", True, 3, 0.5, 1.5)
    for shown in (run, run.recipe, run.scores, answer, lw.compare(run, run), lw.list_tasks()):
        page = shown._repr_html_()
        assert page.count("<tr>") == page.count("</tr>") > 1 and "<b>1+1" not in page


def test_a_recipe_prints_its_fields_in_several_lines(run):
    lines = str(lw.find("looped-pairs")).splitlines()
    assert len(lines) > 10 and max(map(len, lines)) <= 100
    assert any(re.match(r"  model +Transformer\(", line) for line in lines)
    assert repr(run.recipe) == str(run.recipe)


def test_lists_have_a_sentence_for_each_entry_and_can_be_filtered():
    models = catalog.list_parts()["models"]
    for found, known in ((lw.list_recipes(), catalog.list_recipes()), (lw.list_models(), models)):
        assert set(found) == set(known) and all(found.values())
    assert list(lw.list_tasks("ones", "binary")) == ["binary-sum"]
    assert "looped-parity" in lw.list_recipes("PARITY") and "looped-copy" not in lw.list_recipes("parity")
    assert lw.tasks.__name__ == "lengthwise.tasks"  # the folder
    assert "binary-sum" in str(lw.list_tasks())


def test_a_task_may_be_given_as_text_in_a_new_process():
    code = "import lengthwise as lw; print(lw.problems('GroupWords(group=S3)', 4, 3).task.group)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "S3\n"


def test_parts_may_be_given_as_text():
    found = lw.find("looped-parity").change(layout="FullOutput(causal=false)", optimizer="AdamW(rate=0.01)")
    assert (found.layout, found.optimizer.rate) == (lw.FullOutput(causal=False), 0.01)
    with pytest.raises(lw.UsageError, match=r"layout\.caus: there is no such field.*did you mean causal"):
        found.change(layout="FullOutput(caus=false)")


def test_the_maximum_number_of_sizes_is_allowed():
    assert len(resolve_sizes(range(1, MAX_SIZE_COUNT + 1), lw.Parity())) == MAX_SIZE_COUNT
    with pytest.raises(lw.UsageError, match="give between 1 and 10,000 sizes"):
        resolve_sizes(range(1, MAX_SIZE_COUNT + 2), lw.Parity())


# Invalid arguments

TINY_RECIPE = lw.find("looped-parity", "steps=2", "batch=4", "watch.every=0", "lengths.top=3", "model.width=8")
WRONG_CALLS = [
    (lambda: lw.evaluate("looped-pairs", [8.5]), "lengths: 8.5 is not a size"),
    (lambda: lw.evaluate("looped-pairs", [True]), "lengths: True is not a size"),
    (lambda: lw.evaluate("looped-pairs", [10**30]), r"lengths: 10+ is not a size"),
    (lambda: lw.evaluate("looped-pairs", []), "give between 1 and 10,000 sizes"),
    (lambda: lw.evaluate("looped-pairs", "8,12"), r"'8,12' is neither a size nor a list of sizes, such as \[8, 12\]"),
    (lambda: lw.evaluate("looped-pairs", torch.tensor([8, 9])), r"lengths: tensor\(8\) is not a size"),
    (lambda: lw.evaluate("looped-pairs", np.array(8)), r"lengths: array\(8\) is neither a size nor a list of sizes"),
    (lambda: lw.evaluate("looped-pairs", itertools.count(1)), "give between 1 and 10,000 sizes"),
    (lambda: lw.evaluate("looped-pairs", 8, samples=2.5), "samples: 2.5 is not a whole number"),
    (lambda: lw.evaluate("looped-pairs", 8, samples=10**9), "1,000,000,000 problems of a size"),
    (lambda: lw.evaluate("looped-pairs", 8, stopping="Orcale"), "did you mean Oracle"),
    (lambda: lw.evaluate("looped-pairs", 8, stopping=True), "stopping: True is not one of"),
    (lambda: lw.evaluate("looped-pairs", 8, stopping=[]), "stopping: give at least one rule"),
    (lambda: lw.problems("Addition(bas=2)", 4, 3), "did you mean base"),
    (lambda: lw.problems("Additon(base=2)", 4, 3), "did you mean Addition"),
    (lambda: lw.evaluate("looped-pairs", 8, kind="hrad"), "did you mean hard"),
    (lambda: lw.evaluate("looped-pairs", 8, task="parity"), "apply only to a module"),
    (lambda: lw.evaluate("looped-pairs", 8, device="nonsense"), "available are: auto, cpu"),
    (lambda: lw.evaluate(7, 8), "evaluate takes a run, weights, a name, a folder or a torch module, not 7"),
    (lambda: lw.evaluate(Gru(), 2), "Gru: name the task"),
    (lambda: lw.evaluate(Gru(), 2, task=3), "task: 3 is neither a task nor the name of one"),
    (lambda: lw.evaluate(Gru(returns_dict=True), 2, task="parity"), "but Gru returned dict"),
    (lambda: lw.evaluate(Gru(input_count=3), 2, task="parity"), "Gru has too few embeddings for the 4 symbols"),
    (lambda: lw.evaluate(Gru(output_count=3), 2, task="parity"), "3 logits per position, but .* 4 output symbols: 0 "),
    (lambda: lw.evaluate(Gru().to("meta"), 2, task="parity"), "Gru has weights on the meta device"),
    (lambda: lw.evaluate("looped-parity", 3, samples=2, quiet=True).compare("x"), "compare takes scores, not 'x'; lw."),
    (lambda: lw.depth([]), "depth: name weights"),
    (lambda: lw.depth("looped-parity", more="5"), "more: '5' is not a whole number"),
    (lambda: lw.check(), "check needs at least one argument"),
    (lambda: lw.problems("parity", 4, 3).batches(0, lw.NextToken()), "rows must be 1 or more, not 0"),
    (lambda: lw.problems("parity", 4, 3).batches(2, "NextTokn"), "layout: .*did you mean NextToken"),
    (lambda: lw.File.of([("10", "1")], "x.jsonl"), "rows must be dicts with prompt and answer, as frame.to_dict"),
    (lambda: lw.train("looped-parity", track=itertools.repeat("wandb")), "track must be a string or a list of strings"),
    (lambda: lw.train(UnfrozenSpec(), task="parity"), "UnfrozenSpec is not a frozen dataclass"),
    (lambda: lw.train(Spec()), "Spec: name the task"),
    (lambda: lw.train("looped-parity", lengths=[4, 8]), r"^lengths: \[4, 8\] is neither the longest training length"),
    (lambda: lw.train(Spec(), task="parity", model=Spec()), "^model: the recipe Spec is a model; omit model$"),
    (lambda: lw.train([]), "train takes a recipe, its name, a model's configuration or a torch module, not "),
    (lambda: lw.train("looped-parity", matmul="bfloat16"), "matmul: 'bfloat16' is not one of: fp32, tf32, bf16"),
    (lambda: lw.train(TINY_RECIPE, threads=True), "threads: True is not a whole number"),
    (lambda: lw.train(TINY_RECIPE, folder={}), "give a name or a path, not {}"),
    (lambda: lw.train(TINY_RECIPE, folder="a\0b"), "give a name or a path"),
    (lambda: lw.train(TINY_RECIPE, folder="x" * 3000), "not a valid path"),
    (lambda: lw.list_recipes(5), "words must be a string or a list of strings, not .*5.*"),
    (lambda: lw.list_tasks(["parity"]), "words must be a string or a list of strings, not .*"),
    (lambda: lw.list_models(b"lstm"), "words must be a string or a list of strings, not .*"),
    (lambda: lw.style(["page"]).__enter__(), r"width must be 'column' or 'page', not \['page'\]"),
    (lambda: lw.load("looped-pairs").solve(["1+1"]), "solve takes one prompt as text, not list"),
    (lambda: lw.load("looped-pairs", "meta"), "available are: auto, cpu"),
    (lambda: lw.find(3), "name: 3 is not a word"),
    (lambda: lw.find("looped-parity", 3), "a change: 3 is not a word"),
    (lambda: lw.families(b"parity"), "is neither a task nor the name of one"),
    (lambda: lw.families(lw.Addition(), "nonsense=2"), "nonsense: there is no such field"),
    (lambda: lw.Recipe.read(None), "not a recipe in JSON"),
    (lambda: replace(TINY_RECIPE, objective=object()), "objective: .* is not one of"),
]  # fmt: skip


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(("call", "message"), WRONG_CALLS, ids=[message for _, message in WRONG_CALLS])
def test_wrong_arguments_are_refused_in_one_line(call, message):
    with pytest.raises(lw.UsageError, match=message) as error:
        call()
    assert str(error.value).isprintable()


TYPED_SCRIPT = """
import lengthwise as lw

run = lw.train("looped-parity", seed=1, {word}=True)
scores: lw.Scores = lw.evaluate(run, [8, 16], stopping=lw.Oracle())
print(scores.plot(), scores.compare(lw.evaluate("looped-pairs", 8)), run.model, lw.ALiBi(), lw.list_tasks("sum"))
"""


def test_a_misspelt_keyword_fails_in_a_type_checker(tmp_path):
    """A type checker finds a misspelled keyword, because the installed package is typed."""
    assert (ROOT / "lengthwise" / "py.typed").exists()
    for word, wrong in (("quiet", 0), ("quite", 1)):
        (tmp_path / f"{word}.py").write_text(TYPED_SCRIPT.format(word=word))
        command = [Path(sys.executable).with_name("pyrefly"), "check", f"{word}.py", "--preset", "default"]
        command += ["--python-interpreter-path", sys.executable, "--search-path", ROOT]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == wrong, done.stdout
        assert ("quite" in done.stdout) == bool(wrong)


def test_families_accepts_changes_of_the_task():
    assert lw.families(lw.Addition(), "base=2").keys() == lw.families("addition", "base=2").keys()
