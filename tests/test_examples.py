"""The examples of the README, as a user runs them: outside the package, in under 40 lines each."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*words, cwd):
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=os.environ, capture_output=True, text=True, timeout=280, check=True
    ).stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_under_40_lines(path):
    assert len(path.read_text().splitlines()) < 40


def test_own_task_obeys_its_reference(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import torch
    from own_task import Reverse

    import lengthwise as lw

    task = Reverse()
    problems = task.sample(torch.tensor([[1], [4], [7]]), lw.stream(0))
    for i in range(3):
        prompt = task.vocab.decode(problems.prompt[i, : problems.prompt_length[i]])
        assert task.vocab.decode(problems.answer[i, : problems.answer_length[i]]) == task.reference(prompt)
    assert task.format(task.parse("123").answer[0]) == "321"


def test_own_task_from_the_shell(tmp_path):
    shutil.copy(EXAMPLES / "own_task.py", tmp_path)
    words = ["steps=5", "batch=8", "--import", "own_task", "--lengths", "2", "--samples", "10", "--quiet"]
    assert "looped-reverse" in run("-m", "lengthwise", "train", "looped-reverse", *words, cwd=tmp_path)


def test_own_model_trains_is_evaluated_and_answers(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from own_model import gru_parity

    import lengthwise as lw

    done = lw.train(gru_parity(), "steps=150", "batch=16", "lengths=Uniform(top=2)", "watch.every=0")
    scores = lw.evaluate(done, [1, 2], samples=50)
    assert [score.sizes for score in scores] == [(1,), (2,)]
    assert scores[0].exact == 1.0  # one bit is its own parity
    assert lw.load(done).solve("1").text == "1"
