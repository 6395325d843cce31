"""User-defined models that look ahead, or read padding or other rows, are refused before training and evaluation."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import LONG
from torch import nn

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.cli import entry
from lengthwise.evaluation import causality
from lengthwise.evaluation.causality import check_model
from lengthwise.evaluation.families import evaluate_families
from lengthwise.evaluation.scores import evaluate
from lengthwise.models.single_pass import SinglePass
from lengthwise.nn.block import Block
from lengthwise.runs.run import Run, Weights, get_runs_folder
from lengthwise.training.loop import train


class Encoder(nn.Module):
    """Attention over the positions in ``visible``, a mask that subclasses choose."""

    def __init__(self, reads, writes):
        super().__init__()
        self.embedding, self.head = nn.Embedding(reads, 8), nn.Linear(8, writes)

    def attend(self, tokens, visible):
        x = self.embedding(tokens)
        scores = (x @ x.mT).masked_fill(~visible, -torch.inf)
        return self.head(scores.softmax(-1) @ x)


class UnmaskedEncoder(Encoder):
    def forward(self, tokens):
        return self.attend(tokens, torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool))


class MaskedEncoder(Encoder):
    def forward(self, tokens, padding_mask):
        return self.attend(tokens, padding_mask[:, None])


class CausalEncoder(Encoder):
    def forward(self, tokens):
        return self.attend(tokens, torch.ones(tokens.shape[1], tokens.shape[1]).tril() > 0)


class NextRowEncoder(CausalEncoder):
    """A causal model in which each row also reads the next row of the batch."""

    def forward(self, tokens):
        found = super().forward(tokens)
        return found + found.roll(1, 0)


class RandomEncoder(CausalEncoder):
    """A causal model that also applies dropout in evaluation."""

    def attend(self, tokens, visible):
        return nn.functional.dropout(super().attend(tokens, visible), 0.1)


class NumpyRandom(CausalEncoder):
    def forward(self, tokens):
        return super().forward(tokens) + np.random.random_sample()


class AddsLastOutput(CausalEncoder):
    """A model that adds a value that it computed in the last call."""

    last = 0.0

    def forward(self, tokens):
        found = super().forward(tokens) + self.last
        self.last = float(found.mean())
        return found


class ConvergingState(CausalEncoder):
    """A model that adds a state kept between calls, which converges as in a gated recurrence."""

    state = 9.0

    def forward(self, tokens):
        self.state = 0.5 * self.state + 1
        return super().forward(tokens) + self.state


class CachesTokens(CausalEncoder):
    """A model that appends its tokens to those of earlier calls."""

    kept = None

    def forward(self, tokens):
        self.kept = tokens if self.kept is None or self.training else torch.cat([self.kept, tokens], 1)
        return super().forward(self.kept)


class Probabilities(CausalEncoder):
    def forward(self, tokens):
        return super().forward(tokens).softmax(-1)


class LogProbabilities(CausalEncoder):
    def forward(self, tokens):
        return super().forward(tokens).log_softmax(-1)


class OneHot(CausalEncoder):
    def forward(self, tokens):
        found = super().forward(tokens)
        return nn.functional.one_hot(found.argmax(-1), found.shape[-1]) + 0 * found


@dataclass(frozen=True)
class OwnModel(lw.ModelSpec):
    module: str = "UnmaskedEncoder"

    def build(self, reads, writes, *, causal):
        return globals()[self.module](len(reads), len(writes))


def build_recipe(layout, kind):
    """Return a small addition recipe with a user-defined model."""
    task = catalog.find_task("addition", ["equal_lengths=true", "leading_zeros=true", "order=least"])
    base = catalog.find_recipe("looped-parity", ["steps=2", "batch=4", "watch.every=0", "loops=Constant"])
    return base.change([], model=OwnModel(kind), task=task, layout=layout)


@pytest.mark.parametrize(
    ("layout", "kind", "message"),
    [
        (lw.NextToken(), "UnmaskedEncoder", "UnmaskedEncoder looks ahead"),
        (lw.FullOutput(), "MaskedEncoder", "MaskedEncoder looks ahead"),
        (lw.Pairs(), "UnmaskedEncoder", "UnmaskedEncoder reads padding"),
        (lw.NextToken(), "NextRowEncoder", "NextRowEncoder reads other rows: a row's logits change when other rows"),
        (lw.Pairs(), "NextRowEncoder", "NextRowEncoder reads other rows"),
        (lw.NextToken(), "RandomEncoder", "RandomEncoder is random at test time"),
        (lw.Pairs(), "RandomEncoder", "RandomEncoder is random at test time"),
        (lw.NextToken(), "NumpyRandom", "NumpyRandom is random at test time"),
        (lw.NextToken(), "AddsLastOutput", "AddsLastOutput is random at test time, or keeps state from one call"),
        (lw.NextToken(), "ConvergingState", "ConvergingState is random at test time, or keeps state from one call"),
        (lw.NextToken(), "CachesTokens", "to logits .*, but CachesTokens gave|Sizes of tensors must match"),
        (lw.NextToken(), "Probabilities", r"^Probabilities returns probabilities; return logits \(before the softmax"),
        (lw.NextToken(), "CausalEncoder", None),
        (lw.NextToken(), "LogProbabilities", None),
        (lw.NextToken(), "OneHot", None),
        (lw.Pairs(), "MaskedEncoder", None),
    ],
)
def test_models_that_leak_are_neither_trained_nor_measured(layout, kind, message):
    own = build_recipe(layout, kind)
    weights = Weights("own", own, own.build())
    if message is None:
        assert train(own).done
        assert len(list(evaluate(weights, [3], samples=2))) == 1
        return
    for work in (lambda: train(own), lambda: list(evaluate(weights, [3], samples=2))):
        with pytest.raises(lw.UsageError, match=message) as error:
            work()
        assert "\n" not in str(error.value)
    assert not get_runs_folder().exists()  # no run folder remains


def test_a_model_trained_on_one_length_is_checked_beside_other_lengths():
    own = build_recipe(lw.Pairs(), "UnmaskedEncoder").change([], lengths=lw.Uniform(8, 8))
    with pytest.raises(lw.UsageError, match="UnmaskedEncoder reads padding"):
        check_model(own.build(), own)


class DeepEncoder(nn.Module):
    """Four of torch's encoder layers, causal unless ``ahead``, optionally in 16 bits."""

    def __init__(self, reads, writes, *, autocast=None, always_bfloat16=False, ahead=0, positions=99):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.embedding, self.head = nn.Embedding(reads, 32), nn.Linear(32, writes)
        self.positions, self.autocast, self.ahead = nn.Embedding(positions, 32), autocast, ahead
        self.always_bfloat16 = always_bfloat16  # casts to 16 bits whatever the dtype of the weights

    def forward(self, tokens):
        index = torch.arange(tokens.shape[1])
        with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            x = self.embedding(tokens) + self.positions(index)
            x = x.bfloat16() if self.always_bfloat16 else x
            return self.head(self.layers(x, mask=index > index[:, None] + self.ahead)).float()


class BatchedGRU(nn.Module):
    """A GRU whose bfloat16 logits differ by more than 1e-3 between a row alone and the same row in a batch."""

    def __init__(self, reads, writes):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(reads, 64), nn.GRU(64, 64, 2, batch_first=True)
        self.head = nn.Linear(64, writes)

    def forward(self, tokens):
        return self.head(self.cell(self.embedding(tokens))[0])


BF16 = torch.bfloat16
NARROW_TYPES = [{}, {"kind": BF16}, {"kind": torch.half}, {"autocast": BF16}, {"kind": BF16, "always_bfloat16": True}]


@pytest.mark.parametrize("dtypes", NARROW_TYPES, ids=str)
def test_rounding_is_not_reported_as_a_leak_and_hides_no_leak(dtypes):
    own, kind = build_recipe(lw.NextToken(), "CausalEncoder"), dtypes.get("kind", torch.float32)
    form = {name: value for name, value in dtypes.items() if name != "kind"}
    reads, writes = map(len, own.layout.vocabs(own.task))
    for seed in range(2 if LONG else 1):
        torch.manual_seed(seed)
        for module in (DeepEncoder(reads, writes, **form), BatchedGRU(reads, writes)):
            check_model(SinglePass(module.to(kind)), own)
        leaks = {
            "looks ahead": DeepEncoder(reads, writes, **form, ahead=1),
            "UnmaskedEncoder looks ahead": UnmaskedEncoder(reads, writes),
            "LooksAheadInAnswer looks ahead": LooksAheadInAnswer(reads, writes),
        }
        for message, module in leaks.items():
            with pytest.raises(lw.UsageError, match=message):
                check_model(SinglePass(module.to(kind)), own)


@pytest.mark.parametrize("positions", [5, 30])
def test_rows_longer_than_the_position_table_are_refused_in_one_line(positions):
    """Rows longer than a module's position table give one clear error, in training and in evaluation."""
    own = lw.Parity()
    for lost in (DeepEncoder(4, 4, positions=positions), SlicedPositions(4, 4, positions)):
        message = rf"^{type(lost).__name__} fails on rows of \d+ positions .*: if its position table"
        with pytest.raises(lw.UsageError, match=message):
            lw.evaluate(lost, [4, 40], task=own, trained_to=9, samples=3, quiet=True)
    with pytest.raises(lw.UsageError, match="has too few embeddings for the 4 symbols"):
        lw.evaluate(DeepEncoder(3, 4), 4, task=own, samples=3, quiet=True)


SHORT_TABLE = "layout=NextToken model.positions=Learned(size=16) lengths=Uniform(top=4) loops=Constant steps=2 batch=4"
SHORT_TABLE = [*SHORT_TABLE.split(), "watch.every=0"]  # with a position table that ends at 14 bits


def test_a_size_beyond_the_table_of_positions_is_refused_before_anything_is_measured():
    own = lw.find("looped-parity", *SHORT_TABLE)
    whole, seen = Weights("short", own, own.build()), []
    for measure in (evaluate, evaluate_families):
        with pytest.raises(lw.UsageError, match=r"17 positions does not fit .*; .* the largest that fits is 14$"):
            seen += measure(whole, [8, 14, 15], samples=2)
    with pytest.raises(lw.UsageError, match=r"; of the sizes to measure, none fits$"):
        seen += evaluate(whole, [15], samples=2)
    assert not seen and len(list(evaluate(whole, [8, 14], samples=2))) == 2


@pytest.mark.parametrize("stack", [[], ["--stack", "--seeds", "2"]])
def test_a_size_beyond_the_table_of_positions_is_refused_before_training(stack, capsys):
    command = ["train", "looped-parity", *SHORT_TABLE, "--lengths", "8,30", "--quiet", "--device", "cpu", *stack]
    assert entry._run(entry.parse(command)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a row of 32 positions" in line and line.endswith("the largest that fits is 8")
    assert not Run.locate(lw.find("looped-parity", *SHORT_TABLE)).folder.exists()


class SlicedPositions(CausalEncoder):
    """A model that adds a slice of a learned position table, and fails on rows that are longer than this table."""

    def __init__(self, reads, writes, positions):
        super().__init__(reads, writes)
        self.positions = nn.Parameter(torch.randn(positions, 1))

    def forward(self, tokens):
        return super().forward(tokens) + self.positions[: tokens.shape[1]]


def test_a_replaced_block_is_checked_too():
    class LookAheadBlock(Block):
        def forward(self, x, context, injection=None, cache=None):
            return super().forward(x, context, injection, cache) + x.flip(1)

    own = catalog.find_recipe("looped-copy")
    model = own.build()
    check_model(model, own)
    model.blocks[0].__class__ = LookAheadBlock
    with pytest.raises(lw.UsageError, match="looks ahead"):
        check_model(model, own)


class LooksAheadInAnswer(CausalEncoder):
    """A model that sees one token ahead from the = (symbol 11) on, and no token ahead before it."""

    def forward(self, tokens):
        answering = (tokens == 11).cummax(1).values
        index = torch.arange(tokens.shape[1])
        return self.attend(tokens, index <= index[:, None] + answering[..., None])


@pytest.mark.parametrize("pauses", [0, 4])
@pytest.mark.parametrize("lengths", [lw.Uniform(8), lw.Uniform(8, 8), lw.Uniform(20, 16), lw.Uniform(30, 20)], ids=repr)
def test_a_model_that_looks_ahead_within_the_answer_only_is_refused(lengths, pauses):
    own = build_recipe(lw.NextToken(pauses), "CausalEncoder").change([], lengths=lengths)
    reads, writes = own.layout.vocabs(own.task)
    check_model(SinglePass(CausalEncoder(len(reads), len(writes))), own)
    for rows in ([], ["task.order=most"]):
        with pytest.raises(lw.UsageError, match="LooksAheadInAnswer looks ahead"):
            check_model(SinglePass(LooksAheadInAnswer(len(reads), len(writes))), own.change(rows))


class FaultyFromPosition(CausalEncoder):
    """A model that is correct up to position 32, and has one of several faults from there on."""

    def __init__(self, reads, writes, fault):
        super().__init__(reads, writes)
        self.fault = fault

    def forward(self, tokens):
        found, width = super().forward(tokens), tokens.shape[1]
        later = torch.nn.functional.pad(found[:, 1:], (0, 0, 0, 1))
        far = (torch.arange(width) >= 32)[:, None]
        if self.fault == "chunks":
            parts = found.split(32, 1)
            return torch.cat([*parts[:1], *(part + part.mean(1, keepdim=True) for part in parts[1:])], 1)
        if self.fault == "nan":
            return found.masked_fill(far, torch.nan)
        return found + (later * far if self.fault == "later" else width * (width > 60))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("later", "FaultyFromPosition looks ahead"),
        ("chunks", "FaultyFromPosition looks ahead"),
        ("width", "FaultyFromPosition reads padding, or other rows"),
        ("nan", r"FaultyFromPosition returns logits that are NaN for a batch with rows of \d+ positions"),
    ],
)
def test_faults_in_long_rows_are_found_when_those_are_trained_or_measured(fault, message):
    """Faults that only long rows show are found if such rows are used; copy rows have 2 n + 2 positions."""
    reads, writes = lw.NextToken().vocabs(lw.Copy())
    torch.manual_seed(0)
    net = FaultyFromPosition(len(reads), len(writes), fault)
    known = {"task": lw.Copy(), "layout": lw.NextToken()}
    assert lw.evaluate(net, [10, 14], trained_to=10, samples=4, quiet=True, **known)
    for lengths in ([40], [10, 40], [80]):
        with pytest.raises(lw.UsageError, match=message):
            lw.evaluate(net, lengths, trained_to=10, samples=4, quiet=True, **known)
    with pytest.raises(lw.UsageError, match=message):
        lw.train(net, "steps=1", "watch.every=0", lengths=40, quiet=True, **known)


def test_long_rows_are_checked_few_at_a_time(monkeypatch):
    widths = []
    compute = causality._compute_logits
    monkeypatch.setattr(causality, "_compute_logits", lambda m, x: widths.append(x.tokens.shape) or compute(m, x))
    own = build_recipe(lw.Pairs(), "MaskedEncoder")
    check_model(own.build(), own, [1000])
    assert max(rows * width for rows, width in widths) <= 6 * 1100
    monkeypatch.setattr(causality, "MAX_POSITIONS", 2000)
    widths.clear()
    check_model(own.build(), own, [1000])
    assert max(rows * width for rows, width in widths) <= 2 * 1100


class UnstableRecurrence(nn.Module):
    """A causal recurrence with weights so large that rounding errors grow from position to position."""

    def __init__(self, reads, writes):
        super().__init__()
        self.embedding, self.head = nn.Embedding(reads, 16), nn.Linear(16, writes)
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, tokens):
        x, states = self.embedding(tokens), []
        x = x * (1 + len(x) * torch.finfo(x.dtype).eps)  # on some machines rounding depends on the row count
        state = torch.zeros_like(x[:, 0])
        for inputs in x.unbind(1):
            state = torch.sin(state @ self.weight + inputs)
            states.append(state)
        return self.head(torch.stack(states, 1))


def test_rounding_errors_that_grow_along_a_row_are_not_reported_as_a_leak():
    torch.manual_seed(0)
    reads, writes = lw.NextToken().vocabs(lw.Copy())
    net = UnstableRecurrence(len(reads), len(writes))
    known = {"task": lw.Copy(), "layout": lw.NextToken()}
    rows = torch.randint(len(reads), (6, 160))
    alone, together = (net.double()(part)[0] for part in (rows[:1], rows))
    assert (alone - together).abs().max() > 1e-3  # otherwise the test would be vacuous
    net.float()
    assert lw.evaluate(net, [10, 80], trained_to=10, samples=4, quiet=True, **known)


def test_a_task_whose_answers_contradict_its_reference_is_neither_trained_nor_measured():
    @dataclass(frozen=True)
    class ReversedCopy(lw.Copy):
        """Its answers are copies, while its reference reverses them."""

        def reference(self, prompt):
            return prompt[::-1]

    message = r"^ReversedCopy: the problem '\d+' has the answer '\d+', but reference returns '\d+'$"
    with pytest.raises(lw.UsageError, match=message):
        lw.train("looped-copy", "steps=1", task=ReversedCopy(), quiet=True)
    with pytest.raises(lw.UsageError, match=message):
        lw.evaluate(CausalEncoder(4, 4), [4], task=ReversedCopy(), layout=lw.NextToken(), trained_to=4, quiet=True)
    assert not list(get_runs_folder().glob("*"))
