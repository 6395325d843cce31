"""Weights as ONNX and as programs of torch.export: the same logits, for any batch, length and number of loops."""

import json

import pytest
import torch
from conftest import LONG, forked
from forms import away

import lengthwise as lw
from lengthwise.api.export import trace
from lengthwise.runners.exported import NAMES, Exported
from lengthwise.runners.plain import Plain
from lengthwise.runs.run import load

pytestmark = pytest.mark.filterwarnings("ignore")  # torch and onnxruntime warn of their own plans

CLOSE = 1e-5  # of the largest logit


def rows(weights, size, count, more=0):
    """A graph's inputs, by name: problems of one size, each with ``more`` loops than planned."""
    recipe = weights.recipe
    sizes = torch.tensor([recipe.sizes(size)] * count)
    batch = recipe.layout.write(recipe.task.sample(sizes, lw.stream(size, "export")), recipe.task)
    inputs, loops = batch.inputs, recipe.loops.planned(batch.rounds) + more
    given = inputs.tokens, inputs.position.contiguous(), inputs.digit_position, inputs.padding_mask, loops
    return inputs, dict(zip(NAMES, given, strict=True))


def assert_equal(weights, run, *, further=2):
    """At two lengths, for one row and several, and after more loops than planned."""
    for size, count, more in ((3, 1, 0), (11, 2, further)):
        inputs, given = rows(weights, size, count, more)
        wanted = Plain(weights.model).last(inputs, given["loops"], inputs.padding_mask)
        found = run(given)[inputs.padding_mask]
        assert (wanted - found).abs().max() <= CLOSE * (1 + wanted.abs().max())


def test_onnx_equals_the_model(tmp_path):
    """From the command line, run by onnxruntime; the file says which symbols its ids stand for."""
    import onnxruntime

    file = tmp_path / "pairs.onnx"
    done = forked("export", "looped-pairs", "--onnx", str(file), "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inputs"] == list(NAMES)
    session = onnxruntime.InferenceSession(file.read_bytes())
    weights = load("looped-pairs")

    def run(given):
        return torch.from_numpy(session.run(["logits"], {name: one.numpy() for name, one in given.items()})[0])

    with torch.no_grad():
        assert_equal(weights, run)
    told = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(told["writes"])) == weights.recipe.layout.vocabs(weights.recipe.task)[1].symbols


def test_a_program_of_torch_equals_the_model(tmp_path):
    file = tmp_path / "parity.pt2"
    done = forked("export", "looped-parity", "--program", str(file), "--quiet")
    assert done.returncode == 0, done.stderr
    program, weights = torch.export.load(file).module(), load("looped-parity")
    with torch.no_grad():
        assert_equal(weights, lambda given: program(*given.values()))


TRACED = ["halting-parity", "abacus-addition", *(["looped-addition", "gpt-small"] if LONG else [])]


@pytest.mark.parametrize("name", TRACED)
def test_what_is_traced_equals_the_model(name):
    """Windows, a clock, Abacus positions, and a decoder, by the module that is exported."""
    recipe = lw.find(name, f"model.width={2 * lw.find(name).model.heads}")
    weights = lw.Weights(name, recipe, away(recipe.build()).eval())
    module = Exported(weights.model)
    with torch.no_grad():
        assert_equal(weights, lambda given: module(*given.values()))


@pytest.mark.parametrize("name", ["lstm-small", "retran-small"])
def test_recurrences_over_positions_equal_the_model(name):
    """An LSTM, and ReTran with room for all keys from the start; in one loop."""
    weights = load(name)
    module = Exported(weights.model)
    with torch.no_grad():
        assert_equal(weights, lambda given: module(*given.values()), further=0)


def test_wrong_requests_are_answered_in_one_line(tmp_path, monkeypatch):
    done = forked("export", "looped-pairs")
    assert done.returncode == 2 and "name a file to write" in done.stderr and done.stderr.count("\n") == 1
    recurrent = lw.find("looped-parity").change(model=lw.LSTM(), layout=lw.NextToken())
    with pytest.raises(lw.UsageError, match="LSTMModel is exported with one loop only"):
        trace(lw.Weights("mine", recurrent, recurrent.build()))
