"""The final part of an answer, scored apart from the scratchpad before it."""

import pytest
import torch
from torch import nn

import lengthwise as lw

MARK_ID, EQUALS_ID, END_ID = 2, 3, 4


class WrongScratchpad(nn.Module):
    """A model that writes wrong running parities, then the right parity or, if ``copying``, its last wrong one."""

    def __init__(self, copying):
        super().__init__()
        self.copying, self.scale = copying, nn.Parameter(torch.ones(()))

    def forward(self, tokens):
        seen = (tokens == EQUALS_ID).long().cumsum(1) == 0
        start = seen.sum(1, keepdim=True)
        slot = torch.arange(tokens.shape[1]) - start  # 0 at the equals sign, which predicts the first symbol
        parity = (tokens * (slot < 0) == 1).cumsum(1) % 2
        running = parity.gather(1, slot.clamp(0, tokens.shape[1] - 1))
        last = parity.gather(1, start.clamp(max=tokens.shape[1] - 1).expand_as(tokens))
        symbols = torch.where(slot < start, 1 - running, MARK_ID)
        symbols = torch.where(slot == start + 1, tokens.roll(1, 1) if self.copying else last, symbols)
        symbols = torch.where(slot > start + 1, END_ID, symbols).masked_fill(slot < 0, 0)
        return self.scale * 9 * nn.functional.one_hot(symbols, 5).float()


@pytest.mark.parametrize("layout", [lw.NextToken(), lw.FullOutput()], ids=repr)
@pytest.mark.parametrize("copying", [False, True])
def test_a_final_answer_is_scored_apart_from_its_scratchpad(layout, copying, tmp_path):
    """An answer with a wrong scratchpad is wrong; its final part is scored as decoded, so a model that copies from its
    scratchpad copies its own error."""
    rows = []
    for number in range(256):
        prompt = f"{number:08b}"
        running = [str(prompt[: i + 1].count("1") % 2) for i in range(8)]
        rows.append({"prompt": prompt, "answer": f"{''.join(running)}:{running[-1]}"})
    path = lw.File.of(rows, tmp_path / "scratch.jsonl").path
    scores = lw.evaluate(WrongScratchpad(copying), [8], task=lw.File(path, final_after=":"), layout=layout, samples=18)
    assert (scores[0].exact, scores[0].final) == (0, float(not copying))
    assert scores[0].row()["final"] == scores[0].final and "final part" in str(scores)
    (plain,) = lw.evaluate(WrongScratchpad(copying), [8], task=lw.File(path), layout=layout, samples=18)
    assert plain.final is None and "final" not in plain.row()
    with pytest.raises(lw.UsageError, match="final_after=;: no answer contains this symbol"):
        lw.File(path, final_after=";")
