"""The configuration of an inquiry, its problems as text, and the scores of replies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

from lengthwise.base import fields
from lengthwise.base.ranges import Count, NotNegative, OneLine, Seed, Size, Whole
from lengthwise.base.results import AnySize, InquiryOutline
from lengthwise.base.score_rows import Row
from lengthwise.base.types import Kind, Score, UsageError
from lengthwise.experiment.data import fresh_problems, smallest_natural_size
from lengthwise.experiment.source import FRESH, Source
from lengthwise.tasks import Task, iterate_texts

ALONE = "Reply with the answer alone: no other words, no spaces, no punctuation around it."


@dataclass(frozen=True)
class Inquiry(fields.Config):
    """The endpoint, the model, and the kind of problems. Sizes and numbers of problems are not part of it, so that a
    folder can be extended. ``problems``, ``bottom`` (unless ``top`` overrides it) and ``source`` are the arguments
    ``kind``, ``bottom`` and ``source`` of ``data.fresh_problems``.

    Raises UsageError if the endpoint is not a plain http(s) address, or the model has no name.
    """

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
    top: Size | None = None  # natural problems of larger sizes start beyond it, as for models trained up to it

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_address(self.endpoint):  # the error does not quote it, as it may contain a password
            raise UsageError(
                "--endpoint: an address such as http://localhost:8000/v1, without user, password or question mark; "
                "a key comes from the environment alone"
            )
        if not self.model.strip():
            raise UsageError("--model: name the model as its endpoint does")

    @staticmethod
    def of(
        endpoint: str, model: str, task: Task, *, question: str | None = None, examples: int = 0, **choices: Any
    ) -> Inquiry:
        """Build an inquiry whose instruction is ``question``, by default the task's, and the request to reply with the
        answer only; ``examples`` solved problems of the shortest sizes are shown. ``choices`` are further fields."""
        fields.validate(Whole, examples, "--examples")
        shortest = [(size,) * len(task.axes) for size in task.first_sizes(examples)]
        # From another random stream than the questions; a short problem may still be one of them.
        drawn = tuple(next(iterate_texts(task, fresh_problems(task, size, 1, seed=0, step=0))) for size in shortest)
        instruction = f"{question or task.question} {ALONE}"
        return Inquiry(endpoint.rstrip("/"), model, task, instruction, examples=drawn, **choices)

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
        """The facts that reports show."""
        task = self.task
        return InquiryOutline(self.id, self.model, task.name, tuple(task.axes), self.problems, self.seed)

    def message(self, prompt: str) -> str:
        """Return the message to the model for one prompt."""
        return f"{self.instruction}\n\n{prompt}"

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """Return all messages of one request; examples become earlier turns of the conversation."""
        turns = [
            {"role": role, "content": text}
            for example, answer in self.examples
            for role, text in (("user", self.message(example)), ("assistant", answer))
        ]
        return [*turns, {"role": "user", "content": self.message(prompt)}]

    def options(self) -> dict[str, Any]:
        """Return the request's other parameters; those that are None are left to the endpoint."""
        options = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in options.items() if value is not None}


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError if it is not a number
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment) and text.isprintable()
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain and " " not in text


@dataclass(frozen=True)
class Item:
    """A problem and its correct answer, as text."""

    sizes: tuple[int, ...]
    prompt: str
    right: str


def draw_items(inquiry: Inquiry, sizes: Iterable[AnySize], samples: int) -> list[Item]:
    """Return the problems on which ``evaluate`` measures models with equal seed and ``samples``. A size given as one
    number applies to all of the task's axes. ``Item.sizes`` are the requested sizes, as in a score."""
    axes = len(inquiry.task.axes)
    each_once = dict.fromkeys(size if isinstance(size, tuple) else (size,) * axes for size in sizes)
    found = []
    for size in each_once:
        bottom = smallest_natural_size(size, inquiry.bottom, inquiry.top)
        chosen = {"kind": inquiry.problems, "bottom": bottom, "source": inquiry.source}
        problems = fresh_problems(inquiry.task, size, samples, seed=inquiry.seed, **chosen)
        found += [Item(size, prompt, answer) for prompt, answer in iterate_texts(inquiry.task, problems)]
    return found


# Scores


def judge(task: Task, reply: str, right: str) -> Row:
    """Judge a reply, which is correct if it equals the correct answer exactly, except for surrounding white space.

    Further words, a full stop, a plus sign, leading zeros or thousands separators make it wrong. ``answer`` is the
    reply if it consists of the task's symbols only, else None (chatter).
    """
    text = reply.strip()
    written = text == right or (text != "" and set(text) <= set("".join(task.symbols)))
    return {"said": reply, "answer": text if written else None, "correct": text == right}


def is_leniently_right(task: Task, reply: str, right: str) -> bool:
    """Return True if the last possible answer in a reply is the correct one. Surrounding words, Markdown and LaTeX
    markup are ignored; in numbers also thousands separators, a plus sign and leading zeros. This shows whether a model
    knows the answer but formats it differently."""
    # LaTeX's thousands separator, and the minus sign U+2212.
    reply = reply.replace("{,}", ",").replace("\N{MINUS SIGN}", "-")
    if task.answers_numbers:
        numbers = re.findall(r"[+-]?\d+", re.sub(r"(?<=\d)[,_](?=\d{3}(?!\d))", "", reply))
        return bool(numbers) and _normalize_number(numbers[-1]) == _normalize_number(right)
    symbols = "".join(symbol for symbol in task.symbols if len(symbol) == 1)
    # Strip signs that Markdown uses too, such as the * of products.
    parts = [part for match in re.findall(f"[{re.escape(symbols)}]+", reply) if (part := match.strip(",:;*_"))]
    return bool(parts) and parts[-1] == right


def _normalize_number(answer: str) -> str:
    """Return a number in normal form; anything else, such as the word for an error, unchanged."""
    number = re.fullmatch(r"([+-]?)0*(\d+)", answer)
    return f"{number[1].strip('+')}{number[2]}" if number else answer


def score_replies(inquiry: Inquiry, items: Iterable[Item], replies: Mapping[str, Row]) -> list[Row]:
    """Return a row per size that has replies: ``Score.row`` plus ``asked``, the number of problems, of which ``count``
    have replies; ``chatter``, the number of replies that are not an answer alone; and ``lenient``, the fraction of
    replies that end in the correct answer."""
    rows = []
    for sizes, group in groupby(items, lambda item: item.sizes):
        wanted = list(group)
        if known := [(item.right, replies[item.prompt]) for item in wanted if item.prompt in replies]:
            exact = sum(reply["correct"] for _, reply in known) / len(known)
            pairs = [zip(right, reply.get("answer") or "", strict=False) for right, reply in known]
            score = Score(
                task=inquiry.task.name,
                weights=inquiry.model,
                stopping="",
                problems=inquiry.problems,
                sizes=sizes,
                count=len(known),
                exact=exact,
                whole_row=exact,
                token_accuracy=sum(a == b for pair in pairs for a, b in pair) / sum(len(right) for right, _ in known),
                loops=0.0,
            )
            chatter = sum(reply.get("answer") is None for _, reply in known)
            right = sum(is_leniently_right(inquiry.task, reply.get("said", ""), right) for right, reply in known)
            more = {"asked": len(wanted), "chatter": chatter, "lenient": right / len(known)}
            rows.append(score.row() | {"seed": inquiry.seed} | more)
    return rows
