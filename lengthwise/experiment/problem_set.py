"""Problems for other programs: as text, as JSON Lines, as tensors, and in batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.fields import validate_arguments
from lengthwise.base.ranges import Count
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Kind, Problems, Purpose, UsageError
from lengthwise.experiment.data import NoProblemsLeft, check_size, choose_source, get_sampler
from lengthwise.experiment.layout import Layout
from lengthwise.experiment.source import Finite
from lengthwise.tasks import Task, separate_lines

PROBLEMS_PER_CHUNK = 65_536  # problems drawn in one call
MAX_EMPTY_CHUNKS = 1000  # successive empty chunks after which a part counts as empty
SPLIT_SOURCE = Finite(rows=1)  # assigns problems to parts by a hash of the prompt


class ProblemSet(Sequence[dict[str, Any]]):
    """Problems of a task, in the order in which they were drawn.

    An item is a dictionary with ``prompt``, ``answer``, ``size`` (on two axes ``sizes``) and ``rounds``, as a torch
    ``DataLoader`` needs. ``problems`` holds the same problems as tensors of symbol ids.
    """

    def __init__(self, task: Task, problems: Problems) -> None:
        self.task, self.problems = task, problems

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            rows = torch.tensor(range(len(self))[index], dtype=torch.long)  # slices of a tensor need a step above 0
            return ProblemSet(self.task, self.problems.take(rows))
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, rows: list[int]) -> list[dict[str, Any]]:
        """Return the items at the indices ``rows``; a torch ``DataLoader`` calls this method for each batch."""
        return [json.loads(line) for line in format_json_lines(self.task, self.problems.take(torch.tensor(rows)))]

    def __repr__(self) -> str:
        return f"ProblemSet({len(self):,} of {self.task.name}, digest {self.digest})"

    def lines(self) -> Iterator[str]:
        """Yield each problem as a line of JSON, as in a file that ``File`` reads."""
        for start in range(0, len(self), PROBLEMS_PER_CHUNK):
            yield from format_json_lines(self.task, self.problems.take(slice(start, start + PROBLEMS_PER_CHUNK)))

    @property
    def digest(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of ``lines``, equal to ``File.digest`` of a file with them."""
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line.encode())
        return digest.hexdigest()[:16]

    @validate_arguments
    def batches(self, rows: Count, layout: Layout) -> Iterator[Batch]:
        """Yield batches of ``rows`` problems, written by a layout: tokens, targets and masks as in training."""
        for start in range(0, len(self), rows):
            yield layout.write(self.problems.take(slice(start, start + rows)), self.task)


def draw_problems(
    task: Task,
    sizes: Sequence[tuple[int, ...]],
    count: int,
    *,
    split: Purpose | None = None,
    seed: int = 0,
    kind: Kind = "uniform",
) -> Iterator[Problems]:
    """Yield ``count`` problems of a kind, in chunks of at most ``PROBLEMS_PER_CHUNK``; each problem's size is drawn
    uniformly from ``sizes``. With ``split``, yield only problems of that part: a hash of the prompt assigns each
    problem to one part. Raises UsageError if the task lacks the size or kind, NoProblemsLeft if a part has no problem
    of these sizes."""
    task = task if split is None else task.select_part(split)
    if kind == "natural":
        raise UsageError("natural problems follow the task's own distribution over sizes: give one size")
    sample, address = get_sampler(task, kind), () if kind == "uniform" else (kind,)
    for size in sizes:
        check_size(task, size, kind)
    if not sizes or count < 1:
        raise UsageError("problems: give one size or more, and a count from 1 up")
    size_table, yielded, number, empty_chunks = torch.tensor([list(size) for size in sizes]), 0, 0, 0
    while yielded < count:
        draw = stream(seed, "problems", task.name, *address, split or "all", number)
        # Always draw a full chunk, so that a smaller ``count`` gives the first problems of a larger one.
        problems = sample(size_table[torch.randint(len(size_table), (PROBLEMS_PER_CHUNK,), generator=draw)], draw)
        if split and choose_source(task, SPLIT_SOURCE) is SPLIT_SOURCE:
            problems = problems.take(SPLIT_SOURCE.mask_part(split, problems))
        problems = problems.take(slice(count - yielded)).to_smallest_type(len(task.symbols))
        number, yielded, empty_chunks = number + 1, yielded + len(problems), 0 if len(problems) else empty_chunks + 1
        if empty_chunks == MAX_EMPTY_CHUNKS:
            raise NoProblemsLeft(f"{task.name} has no problems of these sizes in its {split} part: use larger sizes")
        yield problems


def format_json_lines(task: Task, problems: Problems) -> Iterator[str]:
    """Yield each problem as a line of JSON, with prompt and answer in the task's own symbols and digit order."""
    sizes, rounds = problems.sizes.tolist(), problems.rounds.tolist()
    plain = all(json.dumps(symbol, ensure_ascii=False) == f'"{symbol}"' for symbol in task.symbols)
    for (prompt, answer), size, count in zip(format_problems(task, problems), sizes, rounds, strict=True):
        sizes_text = f'"size": {size[0]}' if len(size) == 1 else f'"sizes": {size}'
        first, second = (f'"{text}"' if plain else json.dumps(text, ensure_ascii=False) for text in (prompt, answer))
        yield f'{{"prompt": {first}, "answer": {second}, {sizes_text}, "rounds": {count}}}\n'


def format_problems(task: Task, problems: Problems) -> list[tuple[str, str]]:
    """Return each problem's prompt and answer as text in the task's symbols and digit order; / separates the lines of a
    grid."""
    prompts = format_symbols(task, problems.prompt, problems.prompt_length)
    answers = format_symbols(task, problems.answer, problems.answer_length)
    if len(problems) and task.shape(problems.sizes[0].tolist()) is not None:
        columns = [shape[1] for size in problems.sizes.tolist() if (shape := task.shape(size))]
        prompts, answers = ([*map(separate_lines, texts, columns)] for texts in (prompts, answers))
    return list(zip(prompts, answers, strict=True))


def format_symbols(task: Task, ids: Int[Tensor, "b n"], length: Int[Tensor, " b"]) -> list[str]:
    """Return the text of the first ``length`` symbol ids of each row; a million rows take seconds."""
    symbols, lengths = task.symbols, length.tolist()
    if between := task.vocab.separator:
        return [between.join(symbols[i] for i in row[:end]) for row, end in zip(ids.tolist(), lengths, strict=True)]
    codes = np.array([ord(symbol) for symbol in symbols], dtype=np.uint32)[ids.numpy()]
    text, width = codes.tobytes().decode("utf-32-le"), ids.shape[1]
    return [text[row * width : row * width + end] for row, end in enumerate(lengths)]
