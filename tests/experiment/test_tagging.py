"""Layouts with an output at every position (Tagged) or one class per row (Labelled): rows, scores and refusals."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import lengthwise as lw
from lengthwise.cli import entry
from lengthwise.testing import laws_of_layouts
from lengthwise.testing.laws import list_laws

EXAMPLES_FOLDER = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class _BalancedBrackets(lw.SequenceTask):
    """Write y if as many brackets open as close, and n if not."""

    symbols = ("(", "n", ")", "y")
    reads, writes = ("(", ")"), ("y", "n")

    def from_rows(self, sizes, rows):
        length = sizes[:, 0]
        even = 2 * (rows == 2).sum(1) == length
        return lw.Problems(sizes, rows, length, torch.where(even, 3, 1)[:, None], torch.ones_like(length), length)

    def reference(self, prompt):
        return "ny"[prompt.count("(") == prompt.count(")")]

    def answer_slots(self, sizes):
        return torch.ones_like(sizes[:, 0])


@pytest.fixture
def tagged_task_module(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES_FOLDER)
    import own_tagged_task

    return own_tagged_task


def test_a_tagged_row_is_the_prompt_and_asks_for_a_symbol_at_each_position(tagged_task_module):
    task, layout = tagged_task_module.RunningParity(), lw.Tagged()
    batch = layout.write(lw.Problems.join([task.parse("1011"), task.parse("1")]), task)
    assert batch.inputs.tokens.tolist() == [[1, 0, 1, 1], [1, 0, 0, 0]]
    assert batch.targets.tolist() == [[1, 1, 0, 1], [1, 0, 0, 0]]
    assert batch.answer_slots.tolist() == batch.loss_mask.tolist() == [[True] * 4, [True, False, False, False]]


def test_a_labelled_row_reads_and_writes_symbols_of_its_own():
    """The class is predicted at the equals sign among the answers' symbols, and mapped back to the task's."""
    task, layout = _BalancedBrackets(), lw.Labelled()
    reads, writes = layout.vocabs(task)
    assert (reads.symbols, writes.symbols) == (("(", ")", "="), ("y", "n"))
    problems = task.sample(torch.tensor([[2], [4], [3]]), lw.stream(1))
    batch = layout.write(problems, task)
    for i, row in enumerate(batch.inputs.tokens):
        prompt = task.vocab.decode(problems.prompt[i, : problems.prompt_length[i]])
        assert reads.decode(row[batch.inputs.padding_mask[i]]) == f"{prompt}="
        asked = batch.targets[i][batch.loss_mask[i]]
        assert writes.decode(asked) == task.reference(prompt) == task.vocab.decode(layout.answer(asked, task))
    assert task.vocab.decode(layout.answer(torch.tensor([2]), task)) == "�"  # an id without a symbol


def test_symbols_missing_from_reads_or_writes_are_reported():
    wrong = type("_Wrong", (_BalancedBrackets,), {"writes": ("y",)})()
    shorter = type("_Shorter", (_BalancedBrackets,), {"answers_each_symbol": True})()
    law = next(law for law in list_laws(_BalancedBrackets) if law.__name__ == "symbols_are_in_reads_and_writes")
    law(_BalancedBrackets())
    for task, message in ((wrong, "`writes` lacks"), (shorter, "not as long")):
        with pytest.raises(AssertionError, match=message):
            law(task)
    assert not [one for one in lw.check(_BalancedBrackets()).broken if "starts with _" not in one.failing_case]
    with pytest.raises(lw.UsageError, match="not one of: \\( \\)"):
        _BalancedBrackets().parse("(y")
    with pytest.raises(lw.UsageError, match="not as long as its prompt"):
        lw.Tagged().write(shorter.parse("(()"), shorter)


def test_tasks_that_a_layout_does_not_accept_are_refused():
    for task, layout in ((lw.Addition(), lw.Tagged()), (lw.Parity(), lw.Tagged()), (lw.Copy(), lw.Labelled())):
        with pytest.raises(lw.UsageError, match="does not accept"):
            lw.find("looped-parity").change(task=task, layout=layout)


def test_scaled_scores_are_shown_only_where_there_is_a_chance_level(tagged_task_module):
    task = tagged_task_module.RunningParity()
    scores = lw.evaluate(AutomatonModel(task.next_state, 2), [8], task=task, layout=lw.Tagged(), samples=50)
    assert scores[0].scaled == scores[0].row()["scaled"] == -0.5 and "-0.500" in str(scores)
    (plain,) = lw.evaluate("looped-pairs", [2], samples=10)
    assert plain.scaled is None and "scaled" not in plain.row()
    assert lw.Labelled().chance(_BalancedBrackets()) == 0.5 and lw.FullOutput().chance(_BalancedBrackets()) is None
    assert lw.Labelled().chance(type("_Mostly", (_BalancedBrackets,), {"chance": 0.75})()) == 0.75


class AutomatonModel(nn.Module):
    """A model that follows an automaton; from position ``wrong_from`` on, its states are off by one."""

    def __init__(self, next_state, wrong_from=10**9):
        super().__init__()
        self.register_buffer("table", torch.tensor(next_state))
        self.wrong_from = wrong_from

    def forward(self, tokens):
        state, states = torch.zeros(len(tokens), dtype=torch.long), []
        for position, symbol in enumerate(tokens.T):
            state = self.table[state, symbol]
            states.append((state + (position >= self.wrong_from)) % len(self.table))
        return 10.0 * nn.functional.one_hot(torch.stack(states, 1), len(self.table))


@pytest.mark.parametrize("name", ["RunningParity", "S3Words"])
def test_families_are_scored_as_uniform_problems_are(tagged_task_module, name):
    """Exact, per-token and scaled scores are right for uniform problems and every family."""
    task = getattr(tagged_task_module, name)()
    for wrong_from, exact, per_token in ((99, 1, 1), (6, 0, 0.75)):
        module = AutomatonModel(task.next_state, wrong_from)
        options = {"samples": 40, "families": True, "rows": True, "quiet": True}
        scores = lw.evaluate(module, [8], task=task, layout=lw.Tagged(), **options)
        assert {score.problems for score in scores} == {"uniform", *lw.families(task)}
        for score in scores:
            assert (score.exact, score.token_accuracy) == (exact, per_token)
            assert score.chance == 1 / len(task.symbols)
            assert score.scaled == pytest.approx((per_token - score.chance) / (1 - score.chance))
            assert all(row["correct"] == (row["answer"] == row["right_answer"]) for row in score.answers)
        assert len(scores.answers) == sum(score.count for score in scores)


@pytest.mark.parametrize("name", ["RunningParity", "S3Words"])
def test_a_user_s_tagging_task_is_trained_and_scored_on_families(name, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES_FOLDER)
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path))
    own = ["--import", "own_tagged_task", "--samples", "20", "--quiet"]
    words = ["train", "lstm-s3-words", f"task={name}", "name=tagged", "steps=3", "batch=4", "lengths=Uniform(top=6)"]
    assert entry._run(entry.parse([*words, "--lengths", "6", *own])) == 0
    (run,) = tmp_path.iterdir()
    capsys.readouterr()
    assert entry._run(entry.parse(["evaluate", str(run), "--lengths", "6,14", "--families", "--json", *own])) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"uniform", "palindrome", "two-blocks"} <= {row["problems"] for row in rows}
    for row in rows:
        assert row["scaled"] == pytest.approx((row["token_accuracy"] - row["chance"]) / (1 - row["chance"]))


def test_solve_returns_the_confidence_of_each_symbol(tagged_task_module, runs):
    recipe = lw.find("looped-parity", "steps=2", "watch.every=0", "lengths=Uniform(top=4)", "name=tagged")
    run = lw.train(recipe.change(task=tagged_task_module.RunningParity(), layout=lw.Tagged()), quiet=True)
    answer = lw.load(run).solve("1011")
    assert len(answer.text) == len(answer.slot_confidence) == 4
    assert all(0.5 <= sure <= 1 for sure in answer.slot_confidence)
    assert answer.confidence == pytest.approx(torch.tensor(answer.slot_confidence).log().mean().exp().item())
    assert lw.load("looped-pairs").solve("1+1").slot_confidence == ()


@dataclass(frozen=True)
class _OwnTaskLayout(lw.Tagged):
    """A user-defined layout that accepts a user-defined task only."""

    def accepts(self, task):
        return isinstance(task, _OwnTask)


@dataclass(frozen=True)
class _OwnTask(lw.Copy):
    """Write the symbols of the prompt again."""


def test_a_layout_for_a_user_s_task_is_checked_on_that_task(monkeypatch):
    monkeypatch.setattr(laws_of_layouts, "find_part_classes", lambda base: {"_OwnTask": _OwnTask})
    (of_its_name,) = lw.check(_OwnTaskLayout()).broken  # the only law that it breaks
    assert "starts with _" in of_its_name.failing_case
    monkeypatch.setattr(laws_of_layouts, "find_part_classes", lambda base: {})
    assert any("no task that you imported" in one.failing_case for one in lw.check(_OwnTaskLayout()).broken)
