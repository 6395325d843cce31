"""The configuration of an inquiry, its problems as text, the scores of replies, and its folder.
``lengthwise.runs.folder`` describes the folder's files; replies are stored with the key masked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from lengthwise.base import fields
from lengthwise.base.files import read_json_object, remove, remove_empty_folder, write_json
from lengthwise.base.ranges import Count, NotNegative, OneLine, Range, Seed, Size
from lengthwise.base.results import AnySize, InquiryOutline
from lengthwise.base.score_rows import Row
from lengthwise.base.types import Kind, Score, UsageError
from lengthwise.experiment.data import draw_fresh_problems, find_smallest_natural_size
from lengthwise.experiment.recipe import import_parts
from lengthwise.experiment.source import FRESH, Source
from lengthwise.runs.folder import InquiryFolder, get_runs_folder
from lengthwise.tasks import Task, iterate_texts

MAX_EXAMPLES = 100  # solved problems in a request; each is larger than the one before, and slower to draw
TOKEN_COUNT_NAMES = ("prompt_tokens", "completion_tokens")  # names in the endpoint's JSON
ANSWER_ONLY_TEXT = "Reply with the answer alone: no other words, no spaces, no punctuation around it."


@dataclass(frozen=True)
class Inquiry(fields.Config):
    """A language model, its endpoint, and the kind of problems to ask, without sizes and numbers of problems, so that a
    later call can add more. ``problems``, ``bottom`` (unless ``top`` overrides it) and ``source`` are arguments of
    ``draw_fresh_problems``. Raises UsageError if ``endpoint`` is not a plain http(s) address, or ``model`` is blank."""

    endpoint: str
    model: OneLine
    task: Task
    instruction: str
    seed: Seed = 0
    problems: Kind = "uniform"
    bottom: Size = 1
    source: Source = FRESH
    temperature: NotNegative | None = 0.0  # None: the endpoint's default
    max_tokens: Count | None = None  # maximum tokens per reply; None: the endpoint's default
    examples: tuple[tuple[str, str], ...] = ()  # prompts with their answers, shown before each question
    top: Size | None = None  # natural problems requested for a larger size are all longer than ``top``

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            is_plain = urlsplit(self.endpoint).port != 0 and self.endpoint.isprintable()
        except ValueError:  # a wrong port or IPv6 address
            is_plain = False
        if not is_plain or not re.fullmatch("https?://[^ :/@?#][^ /@?#]*(/[^ ?#]*)?", self.endpoint, re.IGNORECASE):
            # The error does not quote the address, since it may contain a password.
            raise UsageError(
                "--endpoint: give an address such as http://localhost:8000/v1, without user, password or question "
                "mark; put an API key in an environment variable (--key-variable)"
            )
        if not self.model.strip():
            raise UsageError("--model: give the name that the endpoint uses for the model")

    @staticmethod
    def of(
        endpoint: str, model: str, task: Task, *, question: str | None = None, examples: int = 0, **other_fields: Any
    ) -> Inquiry:
        """Build an inquiry. Its instruction is ``question`` (by default the task's own), followed by a request for the
        answer alone. ``examples`` is the number of solved problems, of the shortest sizes, before each prompt."""
        fields.validate(Annotated[int, Range(0, MAX_EXAMPLES)], examples, "--examples")
        shortest = [(size,) * len(task.axes) for size in task.list_smallest_sizes(examples)]
        # The examples use another random stream than the questions, but a short problem may be among both.
        drawn = (draw_fresh_problems(task, size, 1, seed=0, step=0) for size in shortest)
        texts = tuple(next(iterate_texts(task, problem)) for problem in drawn)
        instruction = f"{question or task.question} {ANSWER_ONLY_TEXT}"
        return Inquiry(endpoint.rstrip("/"), model, task, instruction, examples=texts, **other_fields)

    @property
    def id(self) -> str:
        """A hash of the inquiry in ten hexadecimal digits; fields with default values do not affect it."""
        return hashlib.blake2b(json.dumps(fields.identity_fields(self)).encode(), digest_size=5).hexdigest()

    @property
    def name(self) -> str:
        """The name of the inquiry's folder, valid on any file system."""
        model = re.sub(r"[^A-Za-z0-9.]+", "-", self.model).strip("-.")[:60]
        return f"ask-{model}-{self.task.name}-{self.id}"

    @property
    def outline(self) -> InquiryOutline:
        """The facts about the inquiry that reports show."""
        task = self.task
        return InquiryOutline(self.id, self.model, task.name, tuple(task.axes), self.problems, self.seed)

    def build_messages(self, prompt: str) -> list[dict[str, str]]:
        """Return all messages of one request; examples become earlier turns of the conversation."""
        turns = []
        for question, answer in (*self.examples, (prompt, "")):
            turns.append({"role": "user", "content": f"{self.instruction}\n\n{question}"})
            turns.append({"role": "assistant", "content": answer})
        return turns[:-1]

    def get_sampling_parameters(self) -> dict[str, Any]:
        """Return temperature and token limit by name; those that are None are left to the endpoint."""
        options = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Item:
    """A problem and its correct answer, as text."""

    sizes: tuple[int, ...]
    prompt: str
    right: str


def draw_items(inquiry: Inquiry, sizes: Iterable[AnySize], samples: int) -> list[Item]:
    """Return the problems on which ``evaluate`` measures models with the same seed and ``samples``. A size given as
    one number applies to all of the task's axes. ``Item.sizes`` are the requested sizes, as in a score."""
    axes = len(inquiry.task.axes)
    each_once = dict.fromkeys(size if isinstance(size, tuple) else (size,) * axes for size in sizes)
    items = []
    for size in each_once:
        bottom = find_smallest_natural_size(size, inquiry.bottom, inquiry.top)
        chosen = {"kind": inquiry.problems, "bottom": bottom, "source": inquiry.source}
        problems = draw_fresh_problems(inquiry.task, size, samples, seed=inquiry.seed, **chosen)
        items += [Item(size, *texts) for texts in iterate_texts(inquiry.task, problems)]
    return items


# Scores


def judge_reply(task: Task, reply: str, right_answer: str) -> Row:
    """Return a row of three fields. ``said`` is the reply. ``correct`` is True if the reply, without white space around
    it, is the right answer: a full stop or leading zeros make it wrong. ``answer`` is that text if it has only symbols
    of the task, else None (the reply is chatter)."""
    text = reply.strip()
    separators = {" ", "/"} & set(right_answer)  # of words, and of the lines of a grid
    written = text == right_answer or (text != "" and set(text) <= set("".join(task.symbols)) | separators)
    return {"said": reply, "answer": text if written else None, "correct": text == right_answer}


def is_leniently_right(task: Task, reply: str, right_answer: str) -> bool:
    """Return whether the last possible answer in a reply is right. Other words, Markdown, LaTeX and the format of
    numbers are ignored: a model may know the answer, but not the required format."""
    # LaTeX's thousands separator, and the minus sign U+2212.
    reply = reply.replace("{,}", ",").replace("\N{MINUS SIGN}", "-")
    if task.answers_numbers:
        numbers = re.findall(r"[+-]?\d+", re.sub(r"(?<=\d)[,_](?=\d{3}(?!\d))", "", reply))
        return bool(numbers) and _normalize_number(numbers[-1]) == _normalize_number(right_answer)
    # Strip signs that Markdown uses too, such as the * of products.
    if task.vocab.separator:
        words = [word if word in task.symbols else word.strip(".,:;*_`") for word in reply.split()]
        parts = [" ".join(group) for is_symbol, group in groupby(words, task.symbols.__contains__) if is_symbol]
    else:
        marks = re.escape("".join(task.symbols) + "/" * ("/" in right_answer))
        parts = [part for match in re.findall(f"[{marks}]+", reply) if (part := match.strip(",:;*_"))]
    return bool(parts) and parts[-1] == right_answer


def _normalize_number(answer: str) -> str:
    """Return a number without plus sign or leading zeros, and any other text unchanged."""
    number = re.fullmatch(r"([+-]?)0*(\d+)", answer)
    return f"{number[1].strip('+')}{number[2]}" if number else answer


def score_replies(inquiry: Inquiry, items: Iterable[Item], replies: Mapping[str, Row]) -> list[Row]:
    """Return a row per size that has replies: ``Score.row`` and three more fields. ``asked`` is the number of problems,
    of which ``count`` have replies; ``chatter`` is the number of replies that are not an answer alone; ``lenient`` is
    the fraction of replies that end in the right answer."""
    rows = []
    for sizes, group in groupby(items, lambda item: item.sizes):
        items_of_size = list(group)
        if answered := [(item.right, replies[item.prompt]) for item in items_of_size if item.prompt in replies]:
            exact = sum(reply["correct"] for _, reply in answered) / len(answered)
            pairs = [zip(right, reply.get("answer") or "", strict=False) for right, reply in answered]
            length = sum(len(right) for right, _ in answered)
            same = sum(a == b for pair in pairs for a, b in pair) / length if length else exact
            about = inquiry.task.name, inquiry.model, "", inquiry.problems, sizes, len(answered)
            score = Score(*about, exact, whole_row=exact, token_accuracy=same, loops=0.0)
            chatter = sum(reply.get("answer") is None for _, reply in answered)
            right = sum(is_leniently_right(inquiry.task, reply.get("said", ""), right) for right, reply in answered)
            extra_columns = {"asked": len(items_of_size), "chatter": chatter, "lenient": right / len(answered)}
            rows.append(score.row() | {"seed": inquiry.seed} | extra_columns)
    return rows


# Folder


class InquiryRun(InquiryFolder):
    """The folder of an inquiry, with rows of ``replies`` and ``scores``."""

    def __init__(self, folder: Path, inquiry: Inquiry) -> None:
        super().__init__(folder)
        self.inquiry = inquiry

    @staticmethod
    def of(inquiry: Inquiry, folder: Path | None = None) -> InquiryRun:
        """Open the folder of an inquiry, creating it if needed. Raises UsageError if the folder holds other files."""
        run = InquiryRun.locate(inquiry, folder)
        if not (path := run.folder / "asked.json").exists():
            write_json(path, fields.encode(inquiry) | {"outline": fields.encode(inquiry.outline)})
        return run

    @staticmethod
    def locate(inquiry: Inquiry, folder: Path | None = None) -> InquiryRun:
        """Return the folder of an inquiry as ``of`` does, without creating it."""
        path = folder or get_runs_folder() / inquiry.name
        if (path / "asked.json").exists():
            if InquiryRun.open(path).inquiry != inquiry:
                raise UsageError(f"{path} belongs to an inquiry with other settings; choose another folder")
        elif path.is_dir() and any(not file.name.startswith(".") for file in path.iterdir()):
            raise UsageError(f"{path} holds other files, not an inquiry; choose another folder")
        return InquiryRun(path, inquiry)

    @staticmethod
    def open(folder: Path) -> InquiryRun:
        """Open an existing folder. Raises UsageError if it is not the folder of an inquiry."""
        path = folder / "asked.json"
        import_parts()
        tree = read_json_object(path)
        tree.pop("outline", None)
        try:
            return InquiryRun(folder, fields.decode(Inquiry, tree))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def remove_if_empty(self) -> None:
        """Remove the folder if there are no replies in it."""
        if (self.folder / "replies.jsonl").exists():
            return
        for name in ("asked.json", ".owner", ".lock"):
            remove(self.folder / name)
        remove_empty_folder(self.folder)

    def config(self) -> Row:
        """Return the inquiry as plain values, with defaults for fields that its file lacks."""
        return fields.encode(self.inquiry)

    @cached_property
    def outline(self) -> InquiryOutline:
        """The facts about the inquiry that reports show."""
        return self.inquiry.outline

    def replies(self) -> dict[str, Row]:
        """Return the first saved reply to each prompt, by prompt."""
        replies_by_prompt: dict[str, Row] = {}
        for row in self.rows("replies"):
            replies_by_prompt.setdefault(row["prompt"], row)
        return replies_by_prompt

    def save_scores(self, rows: Iterable[Row]) -> None:
        """Append new scores. Scores of sizes with missing replies are left out, since they would be biased: prompts
        that fail repeatedly may be the hard ones."""
        self.append_new("scores", *(row for row in rows if row["count"] == row["asked"]))

    def sum_token_counts(self) -> dict[str, int]:
        """Return the endpoint's token counts, summed over all replies."""
        return {name: sum(row[name] for row in self.rows("replies")) for name in TOKEN_COUNT_NAMES}


def read_token_counts(usage: Any) -> dict[str, int]:
    """Return the token counts that an endpoint reports for a reply, each 0 if it is missing or implausible."""
    counts = {name: usage.get(name) if isinstance(usage, dict) else None for name in TOKEN_COUNT_NAMES}
    return {name: n if type(n) is int and 0 <= n <= 10**9 else 0 for name, n in counts.items()}


def estimate_tokens(inquiry: Inquiry, answers_by_prompt: Mapping[str, str]) -> dict[str, int]:
    """Return the estimated token counts of the prompts, and of replies that consist of the right answers alone."""

    def count_tokens(text: str) -> int:  # at least 1 token per word, 1 per three digits, 1 per sign
        words = re.findall(r"[^\W\d]+|\d{1,3}|[^\w\s]", text)
        return sum(1 + len(word) // 8 for word in words)

    texts = [message["content"] for prompt in answers_by_prompt for message in inquiry.build_messages(prompt)]
    asked = sum(4 + count_tokens(text) for text in texts)  # a chat template adds tokens
    replied = sum(1 + count_tokens(right) for right in answers_by_prompt.values())  # one more ends a reply
    return dict(zip(TOKEN_COUNT_NAMES, (asked, replied), strict=True))
