"""A large language model as a row: fresh problems of a task → an OpenAI-compatible endpoint → replies → scores.

    Inquiry → Asked          what is asked of which model, and its folder
    items(...) → Item        problems as people write them
    collect(...) → Outcome   asks what has no reply yet; each reply is kept at once
    scores(...)              rows as `Score.row` has them

The folder is ``runs/ask-<model>-<task>-<id>/`` (or under ``$LENGTHWISE_RUNS``):

    asked.json      the inquiry
    replies.jsonl   what was said, a row per prompt
    scores.jsonl    exact match, a row per size of which every prompt has its reply

The key stands in none of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lengthwise.base import fields
from lengthwise.base.types import Kind, Score, UsageError
from lengthwise.recipe.data import fresh_problems
from lengthwise.recipe.recipe import import_parts
from lengthwise.recipe.source import FRESH, Source
from lengthwise.run import Folder, runs_folder, write_json
from lengthwise.tasks import Task

ALONE = "Reply with the answer alone: no other words, no spaces, no punctuation around it."
INSTALL = "pip install 'openai>=1.60'"
TRIES = 6  # of one prompt in one call
LONGEST = 60.0  # seconds between two of them, at most, unless the endpoint asks for more
PATIENCE = 120.0  # seconds that an endpoint may ask us to wait: beyond, the call ends and can be given again later
PIECE = 12  # so many characters of a key on end are taken for the key
SHORT = 4  # what has fewer is no key, but put where a local endpoint wants one: 0, x, no
TOKENS = ("prompt_tokens", "completion_tokens")  # as endpoints call them

Row = dict[str, Any]


# What is asked


@dataclass(frozen=True)
class Inquiry:
    """All that decides what is asked of whom. Sizes and numbers of problems do not: a folder may grow. Problems are
    those of ``data.fresh_problems``, which calls ``problems`` their kind and explains ``bottom`` and ``source``."""

    endpoint: str
    model: str
    task: Task
    instruction: str
    seed: int = 0
    problems: Kind = "uniform"
    bottom: int = 1
    source: Source = FRESH

    def __post_init__(self) -> None:
        if not _is_address(self.endpoint):  # not repeated in the error, as it may hold a password
            raise UsageError(
                "--endpoint: an address such as http://localhost:8000/v1, without user, password or question mark; "
                "a key comes from the environment alone"
            )
        if not self.model.strip():
            raise UsageError("--model: name the model as its endpoint does")

    @staticmethod
    def of(endpoint: str, model: str, task: Task, *, question: str | None = None, **choices: Any) -> Inquiry:
        """What the task asks, or another question, and that the answer is to stand alone. ``choices`` are the fields
        from ``seed`` on."""
        return Inquiry(endpoint.rstrip("/"), model, task, f"{question or task.question} {ALONE}", **choices)

    @property
    def id(self) -> str:
        """Ten hexadecimal digits that differ wherever the inquiry does; fields at their defaults do not enter."""
        return hashlib.blake2b(json.dumps(fields.essence(self)).encode(), digest_size=5).hexdigest()

    @property
    def name(self) -> str:
        """Its folder's, of characters that any file system takes."""
        model = re.sub(r"[^A-Za-z0-9.]+", "-", self.model).strip("-.")[:60]
        return f"ask-{model}-{self.task.name}-{self.id}"

    def message(self, prompt: str) -> str:
        """What the model is told."""
        return f"{self.instruction}\n\n{prompt}"


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # a ValueError where it is no number
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment) and text.isprintable()
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain and " " not in text


@dataclass(frozen=True)
class Item:
    """A problem as a person writes it, and its right answer as a person reads it."""

    sizes: tuple[int, ...]
    prompt: str
    right: str


def items(inquiry: Inquiry, sizes: Iterable[int | tuple[int, ...]], samples: int) -> list[Item]:
    """The problems on which `evaluate` measures models, given the same seed and ``samples``. A bare number is taken on
    all of the task's axes. An item's sizes are those asked for, as a score's are."""
    task, found = inquiry.task, []
    where: dict[str, Any] = {"kind": inquiry.problems, "bottom": inquiry.bottom, "source": inquiry.source}
    for size in dict.fromkeys(size if isinstance(size, tuple) else (size,) * len(task.axes) for size in sizes):
        problems = fresh_problems(task, size, samples, seed=inquiry.seed, **where)
        for row in range(samples):
            prompt = problems.prompt[row, : int(problems.prompt_length[row])]
            answer = problems.answer[row, : int(problems.answer_length[row])]
            found.append(Item(size, task.typed(prompt), task.format(answer)))
    return found


# The folder


class Asked(Folder):
    """The folder of an inquiry: rows of ``replies`` and ``scores``."""

    def __init__(self, folder: Path, inquiry: Inquiry) -> None:
        super().__init__(folder)
        self.inquiry = inquiry

    @staticmethod
    def of(inquiry: Inquiry, folder: Path | None = None) -> Asked:
        """The folder of this inquiry, new or begun. UsageError if it holds anything else."""
        place = folder or runs_folder() / inquiry.name
        if (place / "asked.json").exists():
            if Asked.open(place).inquiry != inquiry:
                raise UsageError(f"{place}: something else was asked there; name another folder")
        elif place.is_dir() and any(not path.name.startswith(".") for path in place.iterdir()):
            raise UsageError(f"{place}: holds other files; name another folder")
        else:
            write_json(place / "asked.json", fields.encode(inquiry))
        return Asked(place, inquiry)

    @staticmethod
    def open(folder: Path) -> Asked:
        """A folder that exists. UsageError if it is none of ours."""
        path = folder / "asked.json"
        import_parts()
        try:
            return Asked(folder, fields.decode(Inquiry, json.loads(path.read_bytes())))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        except (OSError, ValueError, RecursionError):
            raise UsageError(f"{path}: cannot be read as what was asked") from None

    @staticmethod
    def named(name: str | Path) -> Asked | None:
        """A folder by its path, or by its name among the runs; None where nothing was asked."""
        places = (Path(name), runs_folder() / name)
        return next((Asked.open(place) for place in places if (place / "asked.json").is_file()), None)

    def replies(self) -> dict[str, Row]:
        """The rows of ``replies``, by prompt. UsageError if a row lacks what is needed."""
        needed = {"prompt": str, "correct": bool, **dict.fromkeys(TOKENS, int)}
        found: dict[str, Row] = {}
        for number, row in enumerate(self.rows("replies"), 1):
            if not all(isinstance(row.get(name), kind) for name, kind in needed.items()):
                raise UsageError(f"{self.folder / 'replies.jsonl'}: row {number} is not a reply; take it out")
            found.setdefault(row["prompt"], row)
        return found


# The key


@dataclass(frozen=True)
class Key:
    """A secret from an environment variable; without a value, the endpoint is asked without one."""

    variable: str
    value: str = field(default="", repr=False)

    @staticmethod
    def read(variable: str | None) -> Key:
        """The key in a variable that must be set, or that in OPENAI_API_KEY, if it is. UsageError never shows it."""
        name = variable or "OPENAI_API_KEY"
        value = os.environ.get(name, "").strip()
        if variable and not value:
            raise UsageError(f"--key-variable: the environment has no {name}, or it is empty")
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise UsageError(f"the key in {name} has characters that no key has: set it anew")
        return Key(name, value)

    def hide(self, text: str) -> str:
        """A text without the key: each word that has it, or a long piece of it, is replaced."""
        if len(self.value) < SHORT:
            return text
        pieces = {self.value[i : i + PIECE] for i in range(max(1, len(self.value) - PIECE + 1))}
        text = text.replace(self.value, "[key]")
        return re.sub(r"\S+", lambda word: "[key]" if any(piece in word[0] for piece in pieces) else word[0], text)

    def refuse(self, inquiry: Inquiry) -> None:
        """UsageError if the inquiry, which is written down, holds the key."""
        texts = (inquiry.endpoint, inquiry.model, inquiry.instruction)
        if len(self.value) >= PIECE and any(self.hide(text) != text for text in texts):
            raise UsageError(f"the endpoint, the model or the question holds the key in {self.variable}: leave it out")


# Asking


@dataclass(frozen=True)
class Manner:
    """How to ask; nothing of it changes what is said."""

    key: Key
    limit: int | None = None  # requests to send at most, those sent again included
    concurrency: int = 8
    timeout: float = 60.0  # seconds for one request, from its start to the reply's end
    backoff: float = 1.0  # seconds before a second try, about; each further wait is twice as long

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"--limit must be 0 or more, not {self.limit}")
        if self.concurrency < 1:
            raise UsageError(f"--concurrency must be 1 or more, not {self.concurrency}")
        if not 0 < self.timeout < float("inf"):
            raise UsageError(f"--timeout must be a number of seconds above 0, not {self.timeout}")
        if not 0 <= self.backoff < float("inf"):
            raise UsageError(f"--backoff must be a number of seconds, 0 or more, not {self.backoff}")


@dataclass(frozen=True)
class Outcome:
    """What one call came to."""

    replies: int
    requests: int
    left: int  # prompts that still have no reply
    reason: str  # why, where some are left


class Failure(Exception):
    """A try that came to nothing, and may be repeated; after so many seconds, where the endpoint says so."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class Refusal(Exception):
    """The endpoint will not take this prompt: to send it again would change nothing."""


def client_library() -> Any:
    """The module ``openai``. UsageError where it is not installed. It is slow to import."""
    try:
        return importlib.import_module("openai")
    except ImportError:
        raise UsageError(f"ask needs the openai client, which is not installed: {INSTALL}") from None


def collect(
    asked: Asked, items: Sequence[Item], manner: Manner, seen: Callable[[int, int], None] = lambda replies, sent: None
) -> Outcome:
    """Ask what has no reply yet, a prompt that occurs several times only once. Each reply is in the folder before
    ``seen`` is told how many came and how many requests were sent. UsageError where going on is of no use: a wrong
    key, an unknown model, a full disk."""
    known = asked.replies()
    missing = {item.prompt: item for item in items if item.prompt not in known}
    if not missing:
        return Outcome(0, 0, 0, "")
    asker = _Asker(asked, manner, seen, fruitful=bool(known))
    asyncio.run(asker.run(missing.values()))
    return Outcome(asker.replies, asker.requests, len(missing) - asker.replies, asker.reason)


class _Asker:
    """One call: so many workers, each asking one prompt at a time until there is an end to it."""

    def __init__(self, asked: Asked, manner: Manner, seen: Callable[[int, int], None], *, fruitful: bool) -> None:
        self.asked, self.manner, self.seen, self.fruitful = asked, manner, seen, fruitful
        self.replies = self.requests = self.in_vain = 0  # in vain: prompts given up since the last reply
        self.trouble, self.capped = "", False
        self.rest_until = 0.0  # an endpoint that asks us to wait means all workers
        self.closed = asyncio.Event()  # no further request is sent

    @property
    def reason(self) -> str:
        """Why some prompts have no reply."""
        capped = [f"--limit {self.manner.limit} is reached"] if self.capped else []
        return "; ".join([*capped, *([f"the last trouble: {self.trouble}"] if self.trouble else [])])

    async def run(self, items: Iterable[Item]) -> None:
        """Ask all of these. UsageError where going on is of no use."""
        openai, queue = client_library(), deque(items)
        # A redirect would be a request that nobody counted, and might lead the key elsewhere.
        transport = openai.DefaultAsyncHttpxClient(follow_redirects=False)
        async with openai.AsyncOpenAI(
            api_key=self.manner.key.value or "none",
            base_url=self.asked.inquiry.endpoint,
            timeout=self.manner.timeout,
            max_retries=0,
            http_client=transport,
        ) as client:
            try:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(min(self.manner.concurrency, len(queue))):
                        workers.create_task(self._work(client, queue))
            except ExceptionGroup as group:
                raise group.exceptions[0] from None

    async def _work(self, client: Any, queue: deque[Item]) -> None:
        while queue and not self.closed.is_set():
            await self._ask(client, queue.popleft())

    async def _ask(self, client: Any, item: Item) -> None:
        """Until there is a reply, or nothing more to try."""
        for attempt in range(TRIES):
            await self._rest(attempt)
            if not self._may_send():
                return
            try:
                start = time.monotonic()
                reply = await self._send(client, item)
            except Failure as failure:
                self._note(str(failure), failure.wait)
            except Refusal as refusal:
                self._note(str(refusal))
                if not self.fruitful:
                    raise UsageError(f"{self.asked.inquiry.endpoint}: {self.trouble}") from None
                return
            else:
                reply |= {"tries": attempt + 1, "seconds": round(time.monotonic() - start, 3)}
                self._keep(item, reply)
                return
        self.in_vain += 1
        if self.in_vain >= max(3, self.manner.concurrency):
            self.closed.set()

    async def _rest(self, attempt: int) -> None:
        """Exponential back-off with jitter, and as long as the endpoint asks for; no longer than there is a use."""
        wait = min(LONGEST, self.manner.backoff * 2 ** (attempt - 1)) * random.uniform(0.5, 1) if attempt else 0.0
        until = time.monotonic() + wait
        while not self.closed.is_set() and (left := max(until, self.rest_until) - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self.closed.wait()
            except TimeoutError:
                pass

    def _may_send(self) -> bool:
        """May another request be sent? If so, it is counted."""
        if self.manner.limit is not None and self.requests >= self.manner.limit:
            self.capped = True
            self.closed.set()
        if self.closed.is_set():
            return False
        self.requests += 1
        return True

    def _note(self, reason: str, wait: float | None = None) -> None:
        self.trouble = _line(self.manner.key.hide(reason))
        if wait is not None and wait > PATIENCE:
            self.trouble = f"{self.trouble} (it asks to wait {wait:.0f} s)"
            self.closed.set()
        elif wait:
            self.rest_until = max(self.rest_until, time.monotonic() + wait)

    def _keep(self, item: Item, reply: Row) -> None:
        row = judged(self.asked.inquiry.task, reply["said"], item.right)
        said = {name: self.manner.key.hide(v) if isinstance(v, str) else v for name, v in (reply | row).items()}
        self.asked.append("replies", {"sizes": item.sizes, "prompt": item.prompt, "right": item.right} | said)
        self.replies, self.in_vain, self.fruitful = self.replies + 1, 0, True
        self.seen(self.replies, self.requests)

    async def _send(self, client: Any, item: Item) -> Row:
        """One request, greedy. Failure, Refusal, or UsageError."""
        openai, inquiry = client_library(), self.asked.inquiry
        message = {"role": "user", "content": inquiry.message(item.prompt)}
        try:
            # The client's time limit is on each read: a reply that trickles in would never be late.
            async with asyncio.timeout(self.manner.timeout):
                response = await client.chat.completions.with_raw_response.create(
                    model=inquiry.model, messages=[message], temperature=0
                )
            return read_reply(response.text)
        except (TimeoutError, openai.APITimeoutError):
            raise Failure(f"no reply within {self.manner.timeout:g} s") from None
        except openai.APIStatusError as error:
            raise self._problem(error) from None
        except openai.OpenAIError as error:
            raise Failure(f"{error} {error.__cause__ or ''}") from None

    def _problem(self, error: Any) -> Exception:
        """What a status means. Bodies are quoted without the key, and that of 401 not at all: it is about the key."""
        status, inquiry, key = error.status_code, self.asked.inquiry, self.manner.key
        said = f"{status}{_quoted(error.body)}"
        if status in (408, 409, 425, 429) or status >= 500:
            return Failure(f"the endpoint says {said}", _wait(error.response.headers))
        about = {
            401: f"the key in {key.variable} is refused (401)"
            if key.value
            else f"it asks for a key (401): set {key.variable}, or name another variable by --key-variable",
            402: f"it asks to be paid ({said})",
            403: f"it forbids this ({said})",
            404: f"no model {inquiry.model} there, or no such address, which mostly ends in /v1 ({said})",
        }
        if status < 400:
            about[status] = f"it has moved ({status}): name the address where it is now"
        if status in about:
            return UsageError(f"{inquiry.endpoint}: {_line(key.hide(about[status]))}")
        return Refusal(f"the endpoint refuses a prompt ({said})")


def _wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that ``Retry-After`` asks for: a number, or a date; None where it says nothing sensible."""
    try:
        if text := headers.get("retry-after-ms"):
            seconds = float(text) / 1000
        elif text := headers.get("retry-after", ""):
            seconds = float(text) if re.fullmatch(r"[\d.]+", text) else _until(text)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _until(date: str) -> float:
    return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())


def _quoted(body: Any) -> str:
    """An error's own words, wherever its body has them."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    words = inner.get("message", inner) if isinstance(inner, dict) else inner
    return f": {words}" if words else ""


def _line(text: str) -> str:
    """In one line that cannot play with the terminal."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= 240 else f"{text[:239]}…"


# Replies


def read_reply(text: str) -> Row:
    """What was said, from a chat completion's JSON: ``said``, ``finish``, ``served`` (the model by its own account),
    and tokens as it counted them. Failure where it is none: a proxy's page, a body cut short, no choices."""
    try:
        tree = json.loads(text)
        said = tree["choices"][0]["message"].get("content")
    except (ValueError, RecursionError):
        raise Failure("the endpoint's reply is not JSON") from None
    except (LookupError, TypeError, AttributeError):
        raise Failure("the endpoint's reply holds no message") from None
    if not isinstance(said, str | None):
        raise Failure("the endpoint's message is not text")
    finish, served, usage = tree["choices"][0].get("finish_reason"), tree.get("model"), tree.get("usage")
    return {
        "said": said or "",  # none: the model had nothing to say, or was cut off while it thought; that is its answer
        "finish": finish if isinstance(finish, str) else None,
        "served": served if isinstance(served, str) else None,
        **{name: _count(usage, name) for name in TOKENS},
    }


def _count(usage: Any, name: str) -> int:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and count >= 0 else 0


def judged(task: Task, said: str, right: str) -> Row:
    """A reply as said, and whether it is right: the whole of it, blanks around it aside, is the right answer letter by
    letter, without further words, a full stop, a plus, leading zeros or separators of thousands. ``answer`` is it where
    all of it is written in the task's symbols; None where it is chatter."""
    text = said.strip()
    written = text == right or (text != "" and set(text) <= set("".join(task.symbols)))
    return {"said": said, "answer": text if written else None, "correct": text == right}


def scores(inquiry: Inquiry, items: Iterable[Item], replies: Mapping[str, Row]) -> list[Row]:
    """A row per size of which any prompt has its reply: those of `Score.row`, with ``asked``, the number of problems
    asked for, of which ``count`` have replies, and ``chatter``, the number of these that are no answer at all."""
    rows = []
    for sizes, group in groupby(items, lambda item: item.sizes):
        wanted = list(group)
        if known := [(item.right, replies[item.prompt]) for item in wanted if item.prompt in replies]:
            row = _score(inquiry, sizes, known).row()
            chatter = sum(reply.get("answer") is None for _, reply in known)
            rows.append(row | {"seed": inquiry.seed, "asked": len(wanted), "chatter": chatter})
    return rows


def _score(inquiry: Inquiry, sizes: tuple[int, ...], known: Sequence[tuple[str, Row]]) -> Score:
    exact = sum(reply["correct"] for _, reply in known) / len(known)
    hits = sum(a == b for right, reply in known for a, b in zip(right, reply.get("answer") or "", strict=False))
    return Score(
        task=inquiry.task.name,
        weights=inquiry.model,
        stopping="",
        problems=inquiry.problems,
        sizes=sizes,
        count=len(known),
        exact=exact,
        whole_row=exact,
        token_accuracy=hits / sum(len(right) for right, _ in known),
        loops=0.0,
    )


def keep_scores(asked: Asked, rows: Iterable[Row]) -> None:
    """Add rows to the folder that it does not have yet. What is half measured is not kept: prompts that fail again and
    again may well be the hard ones."""
    known = asked.rows("scores")
    if new := [row for row in rows if row["count"] == row["asked"] and row not in known]:
        asked.append("scores", *new)


def spent(replies: Iterable[Row]) -> dict[str, int]:
    """Tokens as the endpoint counted them, summed."""
    rows = list(replies)
    return {name: sum(row[name] for row in rows) for name in TOKENS}
