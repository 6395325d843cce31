"""ONNX files and torch.export programs give the logits of the weights, for any batch, length and number of loops."""

import json
from dataclasses import replace

import onnxruntime
import pytest
import torch
from conftest import LONG, command
from specs import BASE, add_noise, assert_close, build_rows, cached_model
from torch import nn
from torch.nn import functional as F

import lengthwise as lw
from lengthwise.api.export import export, trace_model
from lengthwise.cli import entry
from lengthwise.models.single_pass import SinglePass
from lengthwise.nn.mixers.attention_forms import ForgettingAttention
from lengthwise.runners import exported
from lengthwise.runners.exported import INPUT_NAMES, ExportedModule, list_graph_inputs
from lengthwise.runners.plain import Plain
from lengthwise.runs.folder import list_shipped_weights
from lengthwise.runs.run import load

# Torch and onnxruntime give deprecation warnings.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("no_type_checks")]

TOLERANCE = 3e-6  # relative to the largest logit: float32 rounding, as between the plain runner's float32 and float64
ONE_LOOP_NAMES = ("lstm-small", "retran-small")  # models that are exported with one loop only


def build_inputs(weights, size, count, additional_loops=0):
    """Return rows of one size, and the graph's inputs by name, with ``additional_loops`` more loops than planned."""
    recipe = weights.recipe
    sizes = torch.tensor([recipe.sizes(size)] * count)
    batch = recipe.layout.write(recipe.task.sample(sizes, lw.stream(size, "export")), recipe.task)
    inputs, loops = batch.inputs, recipe.loops.planned(batch.rounds) + additional_loops
    return inputs, dict(zip(INPUT_NAMES, list_graph_inputs(inputs, loops), strict=True))


def assert_equal_logits(weights, compute_logits, *, tolerance=None, sizes=((3, 1, 0), (8, 3, 1), (13, 2, 3))):
    """Assert that logits differ by at most ``tolerance``, by default ``TOLERANCE`` of the largest. ``sizes`` lists
    size, rows and additional loops, all different from those in the trace."""
    for size, count, additional_loops in sizes:
        more = 0 if weights.name in ONE_LOOP_NAMES else additional_loops
        inputs, given = build_inputs(weights, weights.recipe.task.round_to_valid_size(size), count, more)
        wanted = Plain(weights.model).last(inputs, given["loops"], inputs.padding_mask)
        found = compute_logits(given)[inputs.padding_mask]
        assert (wanted - found).abs().max() <= (tolerance or TOLERANCE * (1 + wanted.abs().max()))


def load_onnx(onnx_bytes):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(onnx_bytes, options)
    return session, lambda given: torch.from_numpy(
        session.run(["logits"], {name: one.numpy() for name, one in given.items()})[0]
    )


def test_the_commands_files_give_the_models_logits(tmp_path):
    """onnxruntime runs the ONNX file, whose metadata list the symbol of each id; torch reads the program."""
    files = tmp_path / "parity.onnx", tmp_path / "parity.pt2"
    done = command("export", "looped-parity", "--onnx", files[0], "--program", files[1], "--dtype", "float64",
                   "--quiet", "--json")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["inputs"] == list(INPUT_NAMES)
    session, run = load_onnx(files[0].read_bytes())
    weights, program = load("looped-parity"), torch.export.load(files[1]).module()
    weights.model.double()
    with torch.no_grad():
        assert_equal_logits(weights, run, tolerance=1e-5)
        assert_equal_logits(weights, lambda given: program(*given.values()), tolerance=1e-5)
    metadata = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(metadata["writes"])) == weights.recipe.layout.vocabs(weights.recipe.task)[1].symbols


@pytest.mark.skipif(not LONG, reason="a quarter of a minute each: make test-long")
@pytest.mark.parametrize("name", list_shipped_weights())
def test_onnx_graphs_of_all_shipped_weights_give_the_models_logits(name, tmp_path):
    """Logits of the files that the command writes equal the model's, in float32 up to rounding, in float64 within
    1e-5."""
    for dtype, tolerance in (("float32", None), ("float64", 1e-5)):
        file, weights = tmp_path / f"{dtype}.onnx", load(name)
        assert entry._run(entry.parse(["export", name, "--onnx", str(file), "--dtype", dtype, "--quiet"])) == 0
        weights.model.to(getattr(torch, dtype))
        with torch.no_grad():
            assert_equal_logits(weights, load_onnx(file.read_bytes())[1], tolerance=tolerance)


TRACED_NAMES = ["halting-parity", "abacus-addition", "looped-maze", "scan-prefix-sum", *ONE_LOOP_NAMES]
TRACED_NAMES += ["looped-addition", "gpt-small"] if LONG else []


@pytest.mark.parametrize("name", TRACED_NAMES)
def test_the_traced_module_gives_the_models_logits(name):
    """The recipes cover windows, a clock, Abacus positions, a decoder, a grid, a scan, and recurrences over positions,
    where ReTran's buffer holds all keys from the start."""
    recipe = lw.find(name)
    if name not in ONE_LOOP_NAMES:
        recipe = recipe.change([f"model.width={2 * getattr(recipe.model, 'heads', 4)}"])
    weights = lw.Weights(name, recipe, add_noise(recipe.build()).eval())
    module = ExportedModule(weights.model)
    with torch.no_grad():  # in one size, as the module is compiled for each
        assert_equal_logits(weights, lambda given: module(*given.values()), sizes=[(13, 2, 3)])


FORGETFUL = replace(BASE, positions=(), mixer=ForgettingAttention())  # divides scores by another width's root


@pytest.mark.parametrize("spec", [BASE, replace(BASE, positions=(lw.ALiBi(),)), FORGETFUL], ids=["", "bias", "forget"])
def test_explicit_attention_equals_torchs_attention(spec):
    model, inputs, loops = cached_model(spec, True), build_rows([7, 7]), torch.tensor([3, 2])
    expected = Plain(model).last(inputs, loops, inputs.padding_mask)
    with exported._use_explicit_attention():
        assert_close(Plain(model).last(inputs, loops, inputs.padding_mask), expected)


@pytest.mark.parametrize("arguments", [(), (None, 0.0, True), (torch.ones(5, 5).tril() > 0,), (torch.eye(5).double(),)])
def test_explicit_attention_takes_the_arguments_of_torchs_attention(arguments):
    """A user's mixer may pass arguments by name or position, and its mask may be Boolean."""
    states = torch.randn(3, 2, 1, 5, 4, generator=lw.stream(0, "states")).double()
    expected = F.scaled_dot_product_attention(*states, *arguments, scale=None)
    with exported._use_explicit_attention():
        assert_close(F.scaled_dot_product_attention(*states, *arguments, scale=None), expected)


class RecurrentModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(8, 4), nn.GRU(4, 8, batch_first=True)

    def forward(self, x):
        return self.mix(self.embed(x))[0]


def test_invalid_exports_are_refused_in_one_line(tmp_path):
    done = command("export", "looped-pairs")
    assert done.returncode == 2 and "a file to write" in done.stderr and done.stderr.count("\n") == 1
    done = command("export", "looped-pairs", "--program", tmp_path / "x.pt2", "--dtype", "int8")
    assert done.returncode == 2 and "--dtype: invalid choice: 'int8'" in done.stderr and done.stderr.count("\n") == 1
    recurrent = lw.find("looped-parity").change(model=lw.LSTM(), layout=lw.NextToken())
    with pytest.raises(lw.UsageError, match="LSTMModel is exported with one loop only"):
        trace_model(lw.Weights("mine", recurrent, recurrent.build()))
    own = SinglePass(RecurrentModule())
    with pytest.raises(
        lw.UsageError, match=r"^RecurrentModule: torch 2\S+ cannot trace this model .* all non-recurrent models"
    ):
        trace_model(lw.Weights("own", recurrent.change(loops=lw.Constant(1)), own))


def test_weights_that_torch_cannot_convert_are_refused_and_nothing_is_written(tmp_path, monkeypatch):
    def fail_to_convert(*_, **__):
        raise AssertionError("Expected same OpOverload packet")  # as torch 2.11 does

    monkeypatch.setattr(torch.onnx, "export", fail_to_convert)
    monkeypatch.setattr("lengthwise.api.export.trace_model", lambda weights: None)
    files = {form: str(tmp_path / form) for form in ("onnx", "program")}
    with pytest.raises(lw.UsageError, match=r"torch 2\S+ cannot convert this model to ONNX"):
        export(load("looped-parity"), **files)
    assert not list(tmp_path.iterdir())
