"""A task folder for EleutherAI's lm-evaluation-harness, with the problems of ``evaluate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lengthwise.base.errors import UsageError
from lengthwise.base.files import write
from lengthwise.base.score_rows import format_size
from lengthwise.experiment.data import draw_fresh_problems
from lengthwise.tasks import Task, iterate_texts


def write_harness_task(
    folder: Path, task: Task, sizes: Sequence[tuple[int, ...]], samples: int, *, seed: int = 0
) -> list[Path]:
    """Write a task of the harness and a file of problems for each size, and a group of all these tasks; return the
    paths of the files. The problems are those of ``evaluate`` with this ``seed``, in the usual notation. The harness's
    ``exact_match`` equals Lengthwise's for equal answers. Raises UsageError if the task lacks a size."""
    name, question, files = f"lengthwise_{task.name.replace('-', '_')}", task.question, []
    for size in sizes:
        problems, test_name = draw_fresh_problems(task, size, samples, seed=seed), f"{name}_{format_size(size)}"
        texts = ({"prompt": prompt, "answer": answer} for prompt, answer in iterate_texts(task, problems))
        lines = [json.dumps(text, ensure_ascii=False) + "\n" for text in texts]
        rows = folder / f"{test_name}.jsonl"
        write(rows, "".join(lines).encode())
        max_tokens = max(len(task.vocab.decode(row)) for row in problems.answer) + 8
        config = {
            "task": test_name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(rows.resolve())}},
            "test_split": "test",
            "output_type": "generate_until",
            "description": f"{question}\n\n",
            "doc_to_text": "{{prompt}} = ",
            "doc_to_target": "{{answer}}",
            "target_delimiter": "",
            "num_fewshot": 0,
            "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": max_tokens},
            "filter_list": [
                {"name": "strip", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}
            ],
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
            "metadata": {"version": 1, "size": list(size), "seed": seed},
        }
        files += [rows, folder / f"{test_name}.yaml"]
        write(files[-1], (json.dumps(config, indent=1, ensure_ascii=False) + "\n").encode())  # JSON is YAML
    if not files:
        raise UsageError("a task folder needs one or more sizes")
    tasks = [file.stem for file in files if file.suffix == ".yaml"]
    write(folder / f"{name}.yaml", (json.dumps({"group": name, "task": tasks}, indent=1) + "\n").encode())
    return [*files, folder / f"{name}.yaml"]
