"""Recurrent models have their published sizes, and their runners equal reference implementations."""

import json
import math
from dataclasses import replace

import pytest
import torch
from specs import assert_all_close, compute_gradients

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.csv_files import write_csv
from lengthwise.base.schemas import ParameterRow
from lengthwise.cli.entry import main
from lengthwise.recipes.retran import build_models, build_paper_models, build_small_models
from lengthwise.report.results_folder import read_table
from lengthwise.runners.cpu import recurrent
from lengthwise.runners.cpu.recurrent import PackedLSTM, Wave
from lengthwise.runners.plain import Plain
from lengthwise.studies.retran import retran

VOCAB = lw.Vocab(tuple("0123456789+-*()=$^_"))
GPT_SPEC = build_models("small")["gpt"][0]
LENGTHS = [5, 9, 1, 7, 9]


def build(spec, with_noise=False):
    """Build a model in float64; ``with_noise`` adds noise to every parameter, so that each affects the logits."""
    torch.manual_seed(0)
    model = spec.build(VOCAB, VOCAB, causal=True).double()
    draw = lw.stream(0, "more")
    for parameter in model.parameters() if with_noise else ():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=draw, dtype=torch.double)
    return model


def build_rows():
    width = max(LENGTHS) + 1
    tokens = torch.randint(len(VOCAB), (len(LENGTHS), width), generator=lw.stream(0, "tokens"))
    position = torch.arange(width).expand(len(LENGTHS), -1)
    return lw.Inputs(tokens, position, position, position < torch.tensor(LENGTHS)[:, None])


def read_logits(runner, inputs, loops=1):
    return runner.last(inputs, torch.full((len(inputs),), loops), inputs.padding_mask)


# Published sizes and initialization


PARAMETER_COUNTS = {
    "small": {"retran": 35_936, "gpt": 39_328, "lstm": 32_432},
    "medium": {"retran": 185_536, "gpt": 202_368, "lstm": 168_000},
    "large": {"retran": 1_096_064, "gpt": 1_194_496, "lstm": 994_304},
}


@pytest.mark.parametrize("size", PARAMETER_COUNTS)
def test_models_have_their_published_size(size):
    for name, parameters in PARAMETER_COUNTS[size].items():
        for recipe in (build_small_models()[f"{name}-{size}"], build_paper_models()[f"paper-{name}-{size}"]):
            assert sum(parameter.numel() for parameter in recipe.build().parameters()) == parameters


def assert_normal(std, *parts):
    """Assert that these modules' weights have this standard deviation, and that their biases are 0."""
    for part in parts:
        assert float(part.weight.detach().std()) == pytest.approx(std, rel=0.1)
        assert getattr(part, "bias", None) is None or not part.bias.any()


def is_orthogonal(matrix):
    """Return whether the rows are orthonormal or, if there are fewer columns than rows, the columns."""
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return torch.allclose(matrix @ matrix.T, torch.eye(len(matrix), dtype=matrix.dtype), atol=1e-5)


def test_retran_has_the_published_initialization():
    model = build(lw.ReTran(64, 256, 6))
    assert_normal(1, model.embedding)
    assert float(model.readout.weight.detach().abs().max()) <= 1 / 8
    for layer in model.layers:
        assert_normal(0.02, layer.query, layer.key, layer.value, layer.cell.out)
        assert_normal(0.02 / math.sqrt(12), layer.mix)
        assert float(layer.cell.input.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("spec", [lw.ReTran(64, 256, 6), lw.LSTM(64, 256, 6)], ids=repr)
def test_cells_have_the_published_initialization(spec):
    model = build(spec)
    for cell in model.cells if isinstance(spec, lw.LSTM) else [layer.cell for layer in model.layers]:
        i, f, o, g = cell.input.bias.split(256)
        assert torch.equal(f, torch.ones_like(f)) and not torch.cat([i, o, g]).any()
        assert is_orthogonal(cell.recurrent.weight) and is_orthogonal(cell.short.weight)
        assert cell.recurrent.bias is None and not cell.short.bias.any() and not cell.out.bias.any()
        assert not cell.first_short.any() and not cell.first_long.any()
        if isinstance(spec, lw.LSTM):  # uniform up to √3 · √(1/3) / √inputs, so std is 1 / √(3 · inputs)
            for linear in (cell.input, cell.out):
                wanted = pytest.approx(1 / math.sqrt(3 * linear.in_features), rel=0.1)
                assert float(linear.weight.detach().std()) == wanted


def test_gpt_has_the_published_initialization():
    model = build(replace(GPT_SPEC, width=128, layers=6))
    assert_normal(0.02, model.embedding, model.readout[0])
    for block in model.blocks:
        assert_normal(0.02 / math.sqrt(12), block.mixer.out)
        assert_normal(0.02, block.mixer.project, block.mlp.widen, block.mlp.narrow)


@pytest.mark.parametrize("spec", [lw.LSTM(), lw.ReTran(), GPT_SPEC], ids=lambda spec: type(spec).__name__)
def test_logits_are_divided_by_the_root_of_the_width(spec):
    model = build(spec)
    state = torch.randn(1, 1, spec.width, dtype=torch.double)
    weight = model.readout.get_parameter("0.weight" if spec is GPT_SPEC else "weight")
    torch.testing.assert_close(model.read(state), state @ weight.T / math.sqrt(spec.width))


def test_recurrent_models_need_a_causal_layout():
    for spec in (lw.LSTM(), lw.ReTran()):
        with pytest.raises(lw.UsageError, match="causal layout"):
            spec.build(VOCAB, VOCAB, causal=False)


@pytest.mark.parametrize("settings", [{"width": 12}, {"heads": 0}, {"dropout": 1.0}, {"layers": 0}], ids=str)
def test_invalid_settings_are_refused(settings):
    with pytest.raises(lw.UsageError):
        lw.ReTran(**settings)
    with pytest.raises(lw.UsageError):
        lw.LSTM(**({"hidden": 0} if settings.keys() & {"heads", "width"} else settings))


# Reference implementations: one row at a time, symbol by symbol, with keys and values in lists


def attend(query, keys, values, heads):
    found = []
    for head in range(heads):
        own = slice(head * len(query) // heads, (head + 1) * len(query) // heads)
        scores = torch.stack([query[own] @ key[own] for key in keys]) / math.sqrt(len(query) // heads)
        found.append(sum(share * value[own] for share, value in zip(scores.softmax(0), values, strict=True)))
    return torch.cat(found)


def rotate_by_position(x, heads, position):
    """Rotate coordinates i and i + half of each head, as one complex number, by the position's angle."""
    first, second = x.view(heads, 2, -1).unbind(1)
    rates = (10_000.0 ** (-torch.arange(first.shape[1]) / first.shape[1])).to(x.dtype)  # in the dtype of the models
    found = torch.complex(first, second) * torch.polar(torch.ones_like(rates), position * rates)
    return torch.stack([found.real, found.imag], 1).flatten()


def compute_cell(cell, x, short_state, long_state):
    i, f, o, g = (cell.input(x) + cell.recurrent(short_state)).chunk(4)
    long_state = f.sigmoid() * long_state + i.sigmoid() * g.tanh()
    emitted = o.sigmoid() * long_state
    return cell.out(emitted), cell.short(emitted), long_state


def compute_lstm(model, xs):
    for cell in model.cells:
        short, long, outputs = cell.first_short, cell.first_long, []
        for x in xs:
            output, short, long = compute_cell(cell, x, short, long)
            outputs.append(output)
        xs = outputs
    return xs


def compute_retran(model, xs):
    """Run ReTran on one row. Each layer attends to its own stored outputs, and stores the states of its cell."""
    heads = model.spec.heads
    for layer in model.layers:
        short, long, outputs = layer.cell.first_short, layer.cell.first_long, []
        keys, values = [layer.key(layer.first)], [layer.value(layer.first)]
        for position, x in enumerate(xs, 1):
            found = attend(rotate_by_position(layer.query(x), heads, position), keys, values, heads)
            h = layer.norm_attention(x + layer.mix(found))
            output, short, long = compute_cell(layer.cell, h, short, long)
            y = layer.norm_cell(h + output)
            keys.append(rotate_by_position(layer.key(y), heads, position))
            values.append(layer.value(y))
            outputs.append(y)
        xs = outputs
    return xs


REFERENCES = [
    (lw.ReTran(16, 12, 1, 4), Wave, compute_retran),
    (lw.ReTran(8, 5, 3, 2), Wave, compute_retran),
    (lw.LSTM(4, 7, 3), PackedLSTM, compute_lstm),
]


@pytest.mark.parametrize("loops", [1, 2])
@pytest.mark.parametrize(
    ("spec", "kind", "compute_outputs"), REFERENCES, ids=lambda value: getattr(value, "__name__", type(value).__name__)
)
def test_models_equal_reference_implementations(spec, kind, compute_outputs, loops):
    """Values and gradients of the plain and the fast runner equal those of the reference. In a second loop a model
    reads its own output."""
    model, inputs = build(replace(spec, dropout=0.0), with_noise=True), build_rows()
    assert kind.find_obstacle(model) is None
    states = []
    for tokens, mask in zip(inputs.tokens, inputs.padding_mask, strict=True):
        xs = list(model.embedding(tokens[mask]))
        for _ in range(loops):
            xs = compute_outputs(model, xs)
        states += xs
    wanted = compute_gradients(model.readout(torch.stack(states)), model)
    assert all(part.any() for part in wanted)
    for runner in (Plain(model), kind(model)):
        for one, two in zip(compute_gradients(read_logits(runner, inputs, loops), model), wanted, strict=True):
            torch.testing.assert_close(one, two, atol=1e-8, rtol=1e-8)


def test_a_second_backward_pass_equals_the_first():
    """Gradients of keys and values are accumulated outside autograd's context and must not persist between passes."""
    model, inputs = build(lw.ReTran(dropout=0.0), with_noise=True), build_rows()
    outputs = read_logits(Wave(model), inputs)
    passes = [torch.autograd.grad(outputs.sum(), model.embedding.weight, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*passes)


@pytest.mark.parametrize(("spec", "kind"), [(lw.ReTran(8, 5, 3, 2), Wave), (lw.LSTM(4, 7, 3), PackedLSTM)], ids=repr)
def test_fast_runners_apply_dropout_to_the_same_values_as_the_plain_one(spec, kind, monkeypatch):
    """Dropout is replaced by a factor of one half, so that results are comparable."""
    model, inputs = build(spec, with_noise=True).train(), build_rows()
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, p, training=True, inplace=False: x / 2)
    monkeypatch.setattr(recurrent, "dropout", lambda x, p: x / 2)
    monkeypatch.setattr(recurrent, "draw_dropout_factors", lambda like, p: torch.full_like(like, 0.5))
    assert_all_close(*(compute_gradients(read_logits(runner, inputs), model) for runner in (kind(model), Plain(model))))


@pytest.mark.parametrize(("spec", "kind"), [(lw.ReTran(), Wave), (lw.LSTM(), PackedLSTM)], ids=repr)
@pytest.mark.parametrize("use_plain_runner", [True, False])
def test_dropout_acts_only_in_training(spec, kind, use_plain_runner):
    model, inputs = build(spec, with_noise=True), build_rows()
    runner = Plain(model) if use_plain_runner else kind(model)
    model.train()
    assert not torch.equal(read_logits(runner, inputs), read_logits(runner, inputs))
    model.eval()
    assert torch.equal(read_logits(runner, inputs), read_logits(runner, inputs))


# The study


@pytest.mark.usefixtures("jobs_in_process", "blank_figures")
def test_reproduce_retran_writes_scores_and_pictures(monkeypatch, tmp_path, capsys):
    """Scores on problems within the training range and beyond it are written and drawn."""
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / "runs"))
    words = ["steps=2", "batch=4", "model.width=8", "model.hidden=4", "model.layers=1", "source.rows=200"]
    words += ["watch.every=1", "watch.validation=20", "name=tiny"]
    tiny = catalog.find_recipe("lstm-small", words)
    panel = replace(retran(sizes="small").panels[0], recipes=(tiny,), curve=(8, 31))
    monkeypatch.setattr(catalog, "find_study", lambda *_, **__: lw.Study("Tiny", (panel,)))
    row = {"seed": 0, "model": "LSTM", "parameters": 9, "validation_loss": 1.0, "within": 0.5, "beyond": 0.25}
    before = [{"recipe": name, **row} for name in ("another", "tiny")]
    write_csv(tmp_path / "out" / "parameters.csv", before)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "retran", "--out", str(tmp_path / "out"), "--json", "--samples", "8", "--quiet"])
    assert end.value.code == 0
    result = json.loads(capsys.readouterr().out)
    alone = [row for row in result["scores"] if row["problems"] in ("uniform", "natural")]
    measured = [(row["sizes"], row["problems"]) for row in alone]
    expected = [([size], "uniform") for size in (8, 30, 31, 40)] + [([size], "natural") for size in (30, 40)]
    assert sorted(measured) == sorted(expected)
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")}
    assert {"parameters.csv", "parameters.png", "small/distribution.png", "small/lengths.png"} <= written
    kept, new = read_table(tmp_path / "out" / "parameters.csv", ParameterRow)
    assert kept == before[0] and (new["recipe"], new["seed"]) == ("tiny", 0) and new["parameters"] > 9
    counts = json.loads((tmp_path / "out" / "small" / "distribution.json").read_text())
    assert sum(counts.values()) == 200 and {int(length) for length in counts} <= set(range(8, 31))
    kinds = {row["problems"] for row in result["summary"] if "published" not in row}
    assert kinds == {"natural", "uniform", "worst family"}
