"""Training several seeds of a module, saving scores, and pooling runs by recipe."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import lengthwise as lw
from lengthwise.api.runs import build_replicate
from lengthwise.cli import entry
from lengthwise.report import by_recipe

SYMBOL_COUNT = len(lw.NextToken().vocabs(lw.Parity())[0])
SHORT_RUN = {"steps": 2, "batch": 4, "lengths": 3, "quiet": True}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.read = nn.Embedding(SYMBOL_COUNT, 8), nn.Linear(8, SYMBOL_COUNT)
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, tokens):
        return self.read(self.gru(self.embed(tokens))[0])


class NetWithBareParameter(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))


def have_equal_weights(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_seeds_of_a_recipe_have_different_weights_and_problems():
    net = Net()
    runs = lw.train(net, task="parity", seeds=3, seed=4, **SHORT_RUN)
    assert [run.recipe.seed for run in runs] == [run.recipe.data_seed for run in runs] == [4, 5, 6]
    assert len({run.recipe.id for run in runs}) == 3 and len({run.recipe.seedless_id for run in runs}) == 1
    assert [len(group) for group in by_recipe(runs).values()] == [3]
    assert have_equal_weights(net, runs[0].model.module) and not have_equal_weights(net, runs[1].model.module)
    spec = runs[0].recipe.model
    assert replace(spec, form="").spec_without_seed == replace(spec, form="")  # an earlier version: not pooled
    assert spec.spec_without_seed.digest == spec.form
    other = lw.train(nn.Sequential(nn.Embedding(SYMBOL_COUNT, SYMBOL_COUNT)), task="parity", **SHORT_RUN)
    assert other.recipe.seedless_id != runs[0].recipe.seedless_id


def test_replicates_use_the_initialization_of_their_class():
    for module in (nn.GRU(4, 5), nn.MultiheadAttention(8, 2), nn.TransformerEncoderLayer(8, 2, 16)):
        first, again, other = (build_replicate(module, seed) for seed in (1, 1, 2))
        assert have_equal_weights(first, again) and not have_equal_weights(first, other)
        for name, value in first.named_parameters():
            if name.endswith("bias") and value.dim() == 1 and "attn" in name:
                assert value.abs().max() == 0  # as nn.MultiheadAttention begins


def test_a_class_or_a_function_builds_the_module_of_each_seed():
    first = lw.train(Net, task="parity", seeds=2, **SHORT_RUN)
    again = lw.train(lambda: Net(), task="parity", seeds=2, **SHORT_RUN)
    assert [run.recipe.id for run in first] == [run.recipe.id for run in again]
    assert lw.train(Net, task="parity", **SHORT_RUN).recipe.id == first[0].recipe.id
    recipes = lw.train("looped-parity", "model.width=8", "watch.every=0", seeds=2, **SHORT_RUN)
    assert [run.recipe.seed for run in recipes] == [0, 1]


@pytest.mark.parametrize(
    ("module_or_function", "message"),
    [
        (NetWithBareParameter(), "NetWithBareParameter has weights but no reset_parameters"),
        (lambda: 1 / 0, "the function that builds the module: ZeroDivisionError"),
        (lambda: "net", "which is not a torch module"),
    ],
)
def test_a_module_that_cannot_be_reinitialized_is_refused(module_or_function, message):
    with pytest.raises(lw.UsageError, match=message):
        lw.train(module_or_function, task="parity", seeds=2, **SHORT_RUN)
    with pytest.raises(lw.UsageError, match="each seed needs its own folder"):
        lw.train(Net(), task="parity", seeds=2, folder="somewhere", **SHORT_RUN)


@pytest.fixture(scope="module")
def replicates(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENGTHWISE_RUNS", str(tmp_path_factory.mktemp("replicates")))
        found = lw.train(Net(), task="parity", seeds=2, **SHORT_RUN)
    for run in found:
        lw.evaluate(run, [20, 40], samples=6, families=True, save=True, quiet=True)
    return found


def test_scores_are_saved_once_and_only_for_runs(replicates):
    rows = replicates[0].rows("scores")
    assert {tuple(row["sizes"]) for row in rows} >= {(20,), (40,)} and all(row["seed"] == 0 for row in rows)
    lw.evaluate(replicates[0], [20, 40], samples=6, save=True, quiet=True)
    assert replicates[0].rows("scores") == rows
    for wrong in (Net(), "looped-parity"):
        with pytest.raises(lw.UsageError, match=r"save: .* is not a run, and scores|there is no such run"):
            lw.evaluate(wrong, [2], task="parity" if isinstance(wrong, Net) else None, save=True, quiet=True)


def test_seeds_are_pooled_beside_shipped_weights_in_one_table_and_one_figure(replicates):
    found = lw.compare(replicates, "looped-parity", "halting-parity")
    uniform = {(row["recipe"], row["size"]): row for row in found.rows() if row["problems"] == "uniform"}
    rows = [row for run in replicates for row in run.rows("scores")]
    exact = [row["exact"] for row in rows if (row["problems"], row["sizes"]) == ("uniform", [20])]
    pooled = uniform["net-parity", "20"]
    assert pooled["seeds"] == 2 and pooled["exact"] == pytest.approx(sum(exact) / 2)
    assert (pooled["low"], pooled["high"]) == (min(exact), max(exact))
    assert {name for name, _ in uniform} == {"net-parity", "looped-parity", "halting-parity"}
    assert "worst family" in str(found) and "not fitted" not in str(found).partition("looped")[2]
    latex = found.to_latex()
    heads = re.search(r"\\toprule\n(.*?) \\\\", latex)[1]
    assert heads == "exact match & problems & seeds & 20 & 40"
    assert all(line.count("&") == 4 for line in latex.splitlines() if line.endswith(r"\\"))
    assert latex.count(r"\begin{tabular}{lllrr}") == 1
    assert found.frame().shape[0] == len(found.rows()) and "<table>" in found._repr_html_()
    assert lw.compare(*replicates, "looped-parity", "halting-parity").rows() == found.rows()
    assert {row["seeds"] for row in lw.compare(*(str(run.folder) for run in replicates)).rows()} == {2}


def test_scores_that_cannot_be_pooled_are_refused(replicates):
    with pytest.raises(lw.UsageError, match="different tasks"):
        lw.compare(replicates, "looped-addition")
    with pytest.raises(lw.UsageError, match="compare pools runs"):
        lw.compare(replicates, replicates[0].scores)
    fresh = lw.train(Net(), task="parity", seed=9, **SHORT_RUN)
    with pytest.raises(lw.UsageError, match="no scores yet"):
        lw.compare([fresh])
    with pytest.raises(lw.UsageError, match="net-parity: no scores yet"):
        lw.compare(fresh, replicates[0].scores)
    lw.evaluate(fresh, [2], stopping="Oracle(offset=1)", samples=2, save=True, quiet=True)  # not its own rule
    with pytest.raises(lw.UsageError, match=rf"{fresh.folder.name}: no scores yet .*save=True"):
        lw.compare(fresh, "looped-parity")


@pytest.mark.usefixtures("blank_figures")
def test_the_command_line_reports_runs_of_a_module_with_figures_and_a_latex_table(replicates, tmp_path, capsys):
    folders = [str(run.folder) for run in replicates]
    words = ["report", *folders, "looped-parity", "--formats", "pdf,png", "--table", "latex"]
    assert entry._run(entry.parse([*words, "--out", str(tmp_path), "--quiet"])) == 0
    output = capsys.readouterr().out
    assert r"\begin{tabular}" in output and (tmp_path / "lengths.pdf").exists() and (tmp_path / "lengths.png").exists()
    assert "net-parity & uniform & 2 &" in output and "looped-parity & uniform & 1" in output
    assert max(map(len, output.splitlines())) > 80  # not folded
