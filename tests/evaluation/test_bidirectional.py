"""Bidirectional models train on every task; their rows do not show the answer."""

from dataclasses import dataclass

import pytest
import torch
from conftest import LONG
from specs import list_parts
from torch import nn

import lengthwise as lw
from lengthwise.experiment.data import draw_batch

BIDIRECTIONAL = lw.FullOutput(causal=False)


class Encoder(nn.Module):
    """torch's own encoder with sinusoidal positions and a padding mask."""

    def __init__(self, reads, writes, width=16):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embedding, self.head = nn.Embedding(reads, width), nn.Linear(width, writes)
        self.rates = nn.Buffer(torch.logspace(0, -2, width // 2))

    def forward(self, tokens, padding_mask):
        angle = torch.arange(tokens.shape[1])[:, None] * self.rates
        x = self.embedding(tokens) + torch.cat([angle.sin(), angle.cos()], -1)
        return self.head(self.layers(x, src_key_padding_mask=~padding_mask))


TASKS = [task for task in list_parts("tasks") if BIDIRECTIONAL.accepts(task)]


class NextInputPredictor(nn.Module):
    """A model that predicts the next input token."""

    def __init__(self, count):
        super().__init__()
        self.count, self.scale = count, nn.Parameter(torch.ones(()))

    def forward(self, tokens, padding_mask):
        following = nn.functional.pad((tokens * padding_mask)[:, 1:], (0, 1))
        return self.scale * 9 * nn.functional.one_hot(following, self.count).float()


@pytest.mark.parametrize("task", TASKS if LONG else TASKS[::4])
def test_an_encoder_of_torch_trains_on_every_task(task, runs):
    reads, writes = BIDIRECTIONAL.vocabs(task)
    sizes = lw.Uniform(top=task.smallest + 4, bottom=task.smallest)
    options = {"task": task, "layout": BIDIRECTIONAL, "lengths": sizes, "steps": 3, "batch": 4, "quiet": True}
    run = lw.train(Encoder(len(reads), len(writes)), **options)
    (score,) = lw.evaluate(run, [task.round_to_valid_size(task.smallest + 6)], samples=8, quiet=True)
    assert score.count == 8


def test_a_bidirectional_model_learns_to_copy_short_rows(runs):
    """A bidirectional model learns to copy with the whole row visible in every answer slot."""
    torch.manual_seed(0)
    task = lw.Copy()
    module = Encoder(*map(len, BIDIRECTIONAL.vocabs(task)), width=32)
    options = {"task": task, "layout": BIDIRECTIONAL, "lengths": lw.Uniform(top=4), "optimizer": lw.AdamW(rate=3e-3)}
    run = lw.train(module, steps=250, batch=32, quiet=True, **options)
    assert lw.evaluate(run, [3], samples=100, quiet=True)[0].exact > 0.9


def test_a_module_that_copies_the_answer_is_refused_or_has_nothing_to_copy(runs):
    """Next-token rows hold the answer, so looking ahead is refused; the message suggests a layout whose rows do not."""
    task = lw.Addition()
    module = NextInputPredictor(len(BIDIRECTIONAL.vocabs(task)[0]))
    with pytest.raises(lw.UsageError, match=r"layout=FullOutput\(causal=false\)"):
        lw.evaluate(module, [5], task=task, layout=lw.NextToken(), samples=20)
    (score,) = lw.evaluate(module, [5], task=task, layout=BIDIRECTIONAL, samples=20)
    assert score.exact == 0


@dataclass(frozen=True)
class AnswerShown(lw.FullOutput):
    """A layout whose rows hold their answer although every position sees the whole row."""

    decodes = False

    def write(self, problems, task):
        return lw.NextToken().write(problems, task)


def test_a_layout_that_shows_the_answer_is_refused(runs):
    module = NextInputPredictor(len(BIDIRECTIONAL.vocabs(lw.Addition())[0]))
    for call in (lw.train, lambda module, **options: lw.evaluate(module, [5], **options)):
        with pytest.raises(lw.UsageError, match="shows the answer: tokens changes with the answer"):
            call(module, task=lw.Addition(), layout=AnswerShown(causal=False), quiet=True)


def test_training_rows_do_not_show_how_long_the_answer_is():
    """Rows of one prompt have the same tokens and the same padding, however long their answers are."""
    recipe = lw.find("looped-parity", "lengths=Uniform(top=6)").change(task=lw.Addition(), layout=BIDIRECTIONAL)
    written, _ = draw_batch(recipe, 0)
    slots = recipe.task.answer_slots(written.sizes) + 1
    assert torch.equal(written.answer_slots.sum(1), slots)
    trimmed, _ = draw_batch(recipe.change(layout=lw.FullOutput()), 0)
    assert (trimmed.answer_slots.sum(1) < slots).any()  # a causal model cannot see this
