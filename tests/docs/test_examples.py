"""Each file of ``examples/`` runs as a script and by the commands that users type, with a few steps of training."""

import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import lengthwise as lw
import lengthwise.api
from lengthwise.api import catalog
from lengthwise.cli import entry
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.study import Study

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE_NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
SMALL_RUN = ["steps=3", "batch=4", "watch.every=0", "keep=last"]
MAX_LINES = 65


@pytest.fixture
def examples_folder(tmp_path, monkeypatch, runs):
    """Return a working folder from which examples can be imported; their recipes are unregistered afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    for known in ("_OWN_RECIPES", "_OWN_STUDIES"):
        monkeypatch.setattr(catalog, known, {})
    return tmp_path


@pytest.fixture
def use_small_budgets(monkeypatch):
    """Make ``lw.train`` take a few steps and ``lw.evaluate`` a few problems."""
    train, evaluate = lengthwise.api.train, lengthwise.api.evaluate
    few = {"quiet": True}, {"samples": 4}
    monkeypatch.setattr(lengthwise.api, "train", lambda *given, **how: train(*given, *SMALL_RUN, **how | few[0]))
    few_sizes = lambda run, lengths=None, **how: evaluate(run, list(lengths)[:2], **how | few[1])  # noqa: E731
    monkeypatch.setattr(lengthwise.api, "evaluate", few_sizes)


def run_cli(*words):
    """Run a command line in this process; return its exit status."""
    return entry._run(entry.parse(list(words)))


def list_names(name, kind):
    """Return the names of an example's recipes, or of its studies."""
    module = importlib.import_module(name)
    if kind is Recipe:
        return list(catalog._find_recipes([module]))
    return list(catalog._find_functions([module], kind))


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_an_example_is_short_and_has_a_docstring(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert re.match(r'"""[A-Z][^\n]*[.?:]', text)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """Train a run for the examples that need one, and return its folder."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENGTHWISE_RUNS", str(folder))
        assert run_cli("train", "looped-parity", *SMALL_RUN, "--lengths", "1,2", "--samples", "4", "--quiet") == 0
    (run,) = folder.iterdir()
    return run


@pytest.mark.usefixtures("examples_folder", "use_small_budgets", "blank_figures")
@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_an_example_runs_as_a_script(name, monkeypatch, trained_run):
    """The whole script runs and prints something."""
    monkeypatch.setattr(sys, "argv", [name, str(trained_run)])
    printed = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: printed.append(words))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert printed


@pytest.mark.usefixtures("examples_folder")
@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_an_example_s_recipes_and_studies_are_found_from_the_command_line(name):
    for recipe in list_names(name, Recipe)[-1:]:
        short = [*SMALL_RUN, "--lengths", "2", "--samples", "4", "--quiet"]
        assert run_cli("train", recipe, "--import", name, *(short if name == "own_task" else ["--dry-run"])) == 0
    for study in list_names(name, Study):
        assert run_cli("reproduce", study, "--import", name, "--dry-run") == 0


def test_the_example_of_a_stopping_rule_stops_at_the_first_confident_loop(examples_folder):
    from own_stopping import Confident

    words = ["--import", "own_stopping", "--stopping", "Confident(threshold=0.999)", "--lengths", "2", "--samples", "4"]
    assert run_cli("evaluate", "looped-binary-sum", *words) == 0
    confidence = torch.tensor([[0.5, 0.999, 0.2], [0.995, 0.1, 0.3], [0.999, 0.1, 0.999]]).log()
    nothing = torch.zeros(3, 3, 1, dtype=torch.long)
    trace = lw.Trace(nothing, nothing[..., 0], confidence, torch.tensor([3, 3, 2]))
    planned = torch.tensor([1, 1, 1])
    assert Confident().choose(trace, planned).tolist() == [2, 1, 2]  # the last row is sure after its limit only
    assert Confident(extra=4).limit(planned).tolist() == [5, 5, 5]


@pytest.mark.parametrize("causal", [False, True])
def test_the_example_of_a_position_encoding_distinguishes_left_from_right(causal, examples_folder):
    from own_position import Octaves

    encoding = Octaves(count=3).build(8, 2)
    encoding.scores.data.copy_(torch.arange(-3.0, 4.0).expand(2, 7))
    row = torch.arange(12)[None]
    bias = encoding.attention_bias(lw.Inputs(row, row, row, row >= 0))
    assert bias.shape == (1, 2, 12, 12)
    assert bias[0, 0, 0].tolist() == [0, 1, 2, 2, *[3] * 8]
    assert torch.equal(bias.mT, -bias)
