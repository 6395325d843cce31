"""Problems for other programs are equal through every interface, and no prompt is in two parts."""

import hashlib
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base import fields
from lengthwise.cli import entry
from lengthwise.experiment import problem_set
from lengthwise.experiment.problem_set import format_json_lines

yaml = pytest.importorskip("yaml")


@pytest.fixture(autouse=True)
def use_small_chunks(monkeypatch):
    monkeypatch.setattr(problem_set, "PROBLEMS_PER_CHUNK", 64)


def run_cli(capsys, *words):
    assert entry._run(entry.parse(list(map(str, words)))) == 0
    return capsys.readouterr()


@pytest.mark.parametrize("task", ["addition", "parity", "sorting", "expression"])
@pytest.mark.parametrize("split", [None, "train"])
def test_the_digest_is_the_same_from_the_command_line_python_a_loader_and_a_file(task, split, tmp_path, capsys):
    found = lw.problems(task, range(3, 8), 150, split=split)
    words = ["sample", task, "--lengths", "3-7", "--count", 150, "--jsonl", *(["--split", split] if split else [])]
    shell = run_cli(capsys, *words)
    digest = hashlib.sha256(shell.out.encode()).hexdigest()[:16]
    assert digest == found.digest and f"150 problems, digest {digest}" in shell.err
    loader = torch.utils.data.DataLoader(found, batch_size=32)
    loaded = [pair for batch in loader for pair in zip(batch["prompt"], batch["answer"], strict=True)]
    rows = [json.loads(line) for line in shell.out.splitlines()]
    assert loaded == [(row["prompt"], row["answer"]) for row in rows] and [*found] == rows
    named = catalog.find_task(task)
    assert all(named.reference(row["prompt"]) == row["answer"] for row in rows)
    if len(named.axes) == 1:
        (tmp_path / "sample.jsonl").write_text(shell.out, encoding="utf-8")
        assert lw.File(str(tmp_path / "sample.jsonl")).digest == digest


@given(st.integers(1, 130), st.integers(0, 3))
def test_fewer_problems_are_a_prefix_of_more(count, seed):
    more = lw.problems("parity", [3, 9], 130, seed=seed)
    assert [*lw.problems("parity", [3, 9], count, seed=seed)] == [*more][:count] == [*more[:count]]
    assert more[-1] == [*more][-1] and [*more[::-2]] == [*more][::-2]
    with pytest.raises(IndexError):
        more[130]


def test_no_prompt_is_in_two_parts():
    parts = {split: lw.problems("addition", [1, 2, 3], 400, split=split) for split in ("train", "validation", "test")}
    prompts = {split: {row["prompt"] for row in rows} for split, rows in parts.items()}
    assert all(not prompts[a] & prompts[b] for a, b in itertools.combinations(prompts, 2))
    with pytest.raises(lw.UsageError, match="no problems of these sizes in its validation part"):
        lw.problems("parity", 1, 5, split="validation") and lw.problems("parity", 1, 5, split="test")


def test_problems_of_a_kind_are_those_of_the_command_line(capsys):
    found = lw.problems("binary-sum", range(16, 21), 70, kind="15-ones")
    words = ("sample", "binary-sum", "--lengths", "16-20", "--family", "15-ones", "--count", 70, "--jsonl")
    shell = run_cli(capsys, *words)
    assert [*found] == [json.loads(line) for line in shell.out.splitlines()]
    assert {row["prompt"].count("1") for row in found} == {15} and len({row["size"] for row in found}) > 1
    assert [len(batch) for batch in found.batches(32, lw.NextToken())] == [32, 32, 6]
    for kind in ("long-cary", "natural", 3):
        with pytest.raises(lw.UsageError):
            lw.problems("addition", 5, 3, kind=kind)


def test_texts_that_json_escapes_are_written_as_json_does(tmp_path):
    task = lw.File.of([{"prompt": 'a"\\', "answer": "é"}], tmp_path / "escapes.jsonl")
    (line,) = format_json_lines(task, task.enumerate([3], 5))
    assert json.loads(line) == {"prompt": 'a"\\', "answer": "é", "size": 3, "rounds": 3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["parity", "5", "--lengths", "3"], "not both"),
        (["parity"], "give a size"),
        (["parity", "5", "--split", "train"], "--split needs --lengths"),
        (["sorting", "--lengths", "1x1x1"], "names no sizes"),
        (["parity", "--lengths", "3,4", "--natural"], "give one size"),
        (["binary-sum", "--lengths", "3,20", "--family", "15-ones"], "start at size 15, not 3"),
    ],
)
def test_conflicting_options_are_refused(words, message, capsys):
    assert entry._run(entry.parse(["sample", *words])) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("weights", "sizes"), [("looped-parity", "20,40"), ("looped-addition", "4,30")])
def test_a_harness_task_scores_a_model_as_evaluate_does(weights, sizes, tmp_path, capsys):
    """As in the harness, a prompt is given, and the generated text is filtered, then compared with the target."""
    solver, count = lw.load(weights), 6
    task = solver.weights.recipe.task
    changes = [f"{name}={value}" for name, value in fields.format_changed_fields(task)]
    words = ["export", "--lm-eval", task.name, *changes, "--lengths", sizes, "--count", count]
    assert str(tmp_path) in run_cli(capsys, *words, "--out", tmp_path).out
    group = yaml.safe_load((tmp_path / f"lengthwise_{task.name}.yaml").read_text())
    asked = [int(size) for size in sizes.split(",")]
    rule = lw.After(loops=max(asked) // 2)  # too few for some problems
    scores = lw.evaluate(weights, asked, samples=count, stopping=rule, quiet=True)
    assert scores[-1].exact < 1
    for name, score in zip(group["task"], scores, strict=True):
        config = yaml.safe_load((tmp_path / f"{name}.yaml").read_text())
        assert compute_harness_score(
            config, lambda text: f" {solver.solve(text.partition(chr(10) * 2)[2][:-3], rule).text}\n"
        ) == (pytest.approx(score.exact))


def compute_harness_score(config, generate):
    """Return exact_match of a generate_until task after the harness's filters remove_whitespace and take_first."""
    file = Path(config["dataset_kwargs"]["data_files"][config["test_split"]])
    rows, right = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()], 0
    for row in rows:
        filled = {key: value.replace("{{prompt}}", row["prompt"]).replace("{{answer}}", row["answer"])
                  for key, value in config.items() if key.startswith("doc_to_")}  # fmt: skip
        answer = generate(config["description"] + filled["doc_to_text"])
        for stop in config["generation_kwargs"]["until"]:
            answer = answer.partition(stop)[0]
        right += answer.strip() == filled["doc_to_target"]
    assert SimpleNamespace(**config).filter_list[0]["filter"][0] == {"function": "remove_whitespace"}
    return right / len(rows)
