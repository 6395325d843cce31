"""The recurrent system's models: their published size, and the quick computation against the plain one."""

import json
import math
from dataclasses import replace

import plain_recurrent
import pytest
import torch
from lengthwise.nn.recall import Recall

from lengthwise import catalog
from lengthwise.base.rng import stream
from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.cli import main
from lengthwise.models.lstm import LSTM
from lengthwise.models.retran import ReTran
from lengthwise.nn.lstm import emit
from lengthwise.recipes.retran import cpu, models, paper
from lengthwise.studies import Study
from lengthwise.studies.retran import retran

SYMBOLS = Vocab(tuple("0123456789+-*()=$^_"))
GPT = models("small")["gpt"][0]
LENGTHS = [5, 9, 1, 7, 9]


def build(spec, grown=False):
    """In float64; ``grown``: every parameter matters."""
    torch.manual_seed(0)
    model = spec.build(SYMBOLS, SYMBOLS, causal=True).double()
    draw = stream(0, "more")
    for parameter in model.parameters() if grown else ():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=draw, dtype=torch.double)
    return model


def rows():
    width = max(LENGTHS) + 1
    tokens = torch.randint(len(SYMBOLS), (len(LENGTHS), width), generator=stream(0, "tokens"))
    position = torch.arange(width).expand(len(LENGTHS), -1)
    return Inputs(tokens, position, position, position < torch.tensor(LENGTHS)[:, None])


def advanced(model, inputs):
    context = model.embed(inputs)
    return model.advance(model.start(context), context)


# As published


PARAMETERS = {
    "small": {"retran": 35_936, "gpt": 39_328, "lstm": 32_432},
    "medium": {"retran": 185_536, "gpt": 202_368, "lstm": 168_000},
    "large": {"retran": 1_096_064, "gpt": 1_194_496, "lstm": 994_304},
}


@pytest.mark.parametrize("size", PARAMETERS)
def test_models_have_their_published_size(size):
    for name, parameters in PARAMETERS[size].items():
        for recipe in (cpu()[f"{name}-{size}"], paper()[f"paper-{name}-{size}"]):
            assert sum(parameter.numel() for parameter in recipe.build().parameters()) == parameters


def spread(tensor):
    return float(tensor.detach().std())


def orthogonal(matrix):
    """The shorter side's vectors have length 1 and right angles."""
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return torch.allclose(matrix @ matrix.T, torch.eye(len(matrix), dtype=matrix.dtype), atol=1e-5)


def test_retran_starts_as_stated():
    model = build(ReTran(64, 256, 6))
    assert spread(model.embedding.weight) == pytest.approx(1, rel=0.1)
    assert float(model.readout.weight.detach().abs().max()) <= 1 / 8
    for layer in model.layers:
        for linear in (layer.query, layer.key, layer.value):
            assert spread(linear.weight) == pytest.approx(0.02, rel=0.1) and not linear.bias.any()
        assert spread(layer.mix.weight) == pytest.approx(0.02 / math.sqrt(12), rel=0.1) and not layer.mix.bias.any()
        cell = layer.cell
        for linear in (cell.input, cell.out):
            assert spread(linear.weight) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("spec", [ReTran(64, 256, 6), LSTM(64, 256, 6)], ids=repr)
def test_cells_start_as_stated(spec):
    model = build(spec)
    for cell in model.cells if isinstance(spec, LSTM) else [layer.cell for layer in model.layers]:
        i, f, o, g = cell.input.bias.split(256)
        assert torch.equal(f, torch.ones_like(f)) and not torch.cat([i, o, g]).any()
        assert orthogonal(cell.recurrent.weight) and orthogonal(cell.short.weight)
        assert cell.recurrent.bias is None and not cell.short.bias.any() and not cell.out.bias.any()
        assert not cell.first_short.any() and not cell.first_long.any()
        if isinstance(spec, LSTM):  # uniform up to √3 · √(1/3) / √inputs, so spread 1 / √(3 · inputs)
            for linear in (cell.input, cell.out):
                assert spread(linear.weight) == pytest.approx(1 / math.sqrt(3 * linear.in_features), rel=0.1)


def test_gpt_starts_as_stated():
    model = build(replace(GPT, width=128, layers=6))
    assert spread(model.embedding.weight) == pytest.approx(0.02, rel=0.1)
    assert spread(model.readout[0].weight) == pytest.approx(0.02, rel=0.1)
    for block in model.blocks:
        assert spread(block.attention.out.weight) == pytest.approx(0.02 / math.sqrt(12), rel=0.1)
        for linear in (block.attention.project, block.mlp.widen, block.mlp.narrow):
            assert spread(linear.weight) == pytest.approx(0.02, rel=0.1) and not linear.bias.any()


@pytest.mark.parametrize("spec", [LSTM(), ReTran(), GPT], ids=lambda spec: type(spec).__name__)
def test_logits_are_divided_by_the_root_of_the_width(spec):
    model = build(spec)
    state = torch.randn(1, 1, spec.width, dtype=torch.double)
    weight = model.readout.get_parameter("0.weight" if spec is GPT else "weight")
    logits = model.read(state, torch.ones(1, 1, dtype=torch.bool))
    torch.testing.assert_close(logits, state[0] @ weight.T / math.sqrt(spec.width))


def test_a_model_of_one_direction_takes_a_causal_layout():
    for spec in (LSTM(), ReTran()):
        with pytest.raises(UsageError, match="causal layout"):
            spec.build(SYMBOLS, SYMBOLS, causal=False)


@pytest.mark.parametrize("wrong", [{"width": 12}, {"heads": 0}, {"dropout": 1.0}, {"layers": 0}], ids=str)
def test_a_model_that_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError):
        ReTran(**wrong)
    with pytest.raises(UsageError):
        LSTM(**({"hidden": 0} if wrong.keys() & {"heads", "width"} else wrong))


# Quick against plain: values and gradients

PAIRS = [
    (ReTran(16, 64, 3), plain_recurrent.retran),
    (ReTran(32, 12, 1, 4), plain_recurrent.retran),
    (ReTran(24, 12, 6, 2), plain_recurrent.retran),
    (LSTM(16, 64, 3), plain_recurrent.lstm),
    (LSTM(4, 7, 1), plain_recurrent.lstm),
    (GPT, plain_recurrent.gpt),
]


@pytest.mark.parametrize(("spec", "plain"), PAIRS, ids=lambda value: getattr(value, "__name__", repr(value)))
def test_the_quick_computation_is_the_plain_one(spec, plain):
    model, inputs = build(replace(spec, dropout=0.0), grown=True), rows()
    weight = torch.randn(*inputs.tokens.shape, spec.width, generator=stream(0, "weight"), dtype=torch.double)
    weight = weight * inputs.padding_mask[..., None]
    values, gradients = [], []
    for outputs in (advanced(model, inputs), plain(model, inputs.tokens)):
        model.zero_grad()
        (outputs * weight).sum().backward()
        values.append(outputs[inputs.padding_mask].detach())
        gradients.append({name: p.grad for name, p in model.named_parameters() if not name.startswith("readout")})
    torch.testing.assert_close(*values, atol=1e-9, rtol=0)
    assert all(gradient is not None and gradient.any() for gradient in gradients[1].values())
    torch.testing.assert_close(*gradients, atol=1e-8, rtol=0)


def test_a_second_backward_pass_is_as_the_first():
    """Gradients of keys and values are gathered outside autograd's sight: nothing of one pass may reach the next."""
    model, inputs = build(ReTran(dropout=0.0), grown=True), rows()
    outputs = advanced(model, inputs)
    passes = [torch.autograd.grad(outputs.sum(), model.embedding.weight, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*passes)


def test_the_gates_gradient():
    draw = stream(0, "gates")
    shapes = ((2, 3, 6), (2, 20, 6), (2, 5, 3))
    parts = [torch.randn(shape, generator=draw, dtype=torch.double, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(emit, parts)


def recalled(query, key, value, dropout):
    """Three steps of two layers: what is stored is looked at by all that follow; the last row leaves."""
    torch.manual_seed(0)
    recall = Recall((2, 3, 4, 3), 2, dropout=dropout, like=query)
    found = []
    for step, rows in enumerate((3, 3, 2)):
        recall.store(key[step][:, :rows], value[step][:, :rows], 0, step)
        hidden = torch.tensor([[False] * (step + 1), [step > 0] + [False] * step])
        found.append(recall.attend(query[step][:, :rows], 0, slice(step + 1), hidden))
    found.append(recall.attend(query[0][1:], 1, slice(1, 3), None))
    return tuple(found)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_recall_s_gradient(dropout):
    draw = stream(0, "recall")
    parts = [torch.randn(3, 2, 3, 4, generator=draw, dtype=torch.double, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *parts: recalled(*parts, dropout), parts)


def test_dropout_in_recall_keeps_the_mean():
    query, key, value = (torch.randn(3, 2, 3, 4, generator=stream(i, "mean"), dtype=torch.double) for i in range(3))
    plain = recalled(query, key, value, 0.0)[1]
    found = []
    for seed in range(4000):
        torch.manual_seed(seed)
        recall = Recall((2, 2, 4, 3), 2, dropout=0.3, like=query)
        for step in range(2):
            recall.store(key[step], value[step], 0, step)
        hidden = torch.tensor([[False, False], [True, False]])
        found.append(recall.attend(query[1], 0, slice(2), hidden))
    error = torch.stack(found).std(0) / math.sqrt(len(found))
    assert ((torch.stack(found).mean(0) - plain).abs() < 5 * error + 1e-9).all()
    assert error.any()


@pytest.mark.parametrize("spec", [ReTran(), LSTM()], ids=repr)
def test_dropout_is_for_training(spec):
    model, inputs = build(spec, grown=True), rows()
    model.train()
    assert not torch.equal(advanced(model, inputs), advanced(model, inputs))
    model.eval()
    assert torch.equal(advanced(model, inputs), advanced(model, inputs))


# The study


def test_the_study_is_reproduced(monkeypatch, tmp_path, capsys):
    """Problems in the range and beyond it, and the pictures of both."""
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / "runs"))
    words = ["steps=2", "batch=4", "model.width=8", "model.hidden=4", "model.layers=1", "source.rows=200"]
    words += ["watch.every=1", "watch.validation=20", "name=tiny"]
    tiny = catalog.recipe("lstm-small", words)
    panel = replace(retran(sizes="small").panels[0], recipes=(tiny,), curve=(8, 31))
    monkeypatch.setattr(catalog, "study", lambda *_, **__: Study("Tiny", (panel,)))
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "retran", "--out", str(tmp_path / "out"), "--json", "--samples", "8", "--quiet"])
    assert end.value.code == 0
    result = json.loads(capsys.readouterr().out)
    measured = [(row["sizes"], row["problems"]) for row in result["scores"]]
    assert sorted(measured) == [
        ([8], "uniform"),
        ([30], "natural"),
        ([30], "uniform"),
        ([31], "uniform"),
        ([40], "natural"),
        ([40], "uniform"),
    ]
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")}
    assert {"parameters.csv", "parameters.png", "small/distribution.png", "small/lengths.png"} <= written
    counts = json.loads((tmp_path / "out" / "small" / "distribution.json").read_text())
    assert sum(counts.values()) == 200 and {int(length) for length in counts} <= set(range(8, 31))
    assert {row["problems"] for row in result["summary"] if "published" not in row} == {"natural", "uniform"}
