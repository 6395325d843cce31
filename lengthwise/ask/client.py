"""Send many prompts to an OpenAI-compatible endpoint concurrently, retry failures that may be temporary, and save each
reply at once. The key is read from an environment variable, sent in headers, and masked in replies and errors."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from lengthwise.ask.inquiry import InquiryRun, Item, judge_reply, read_token_counts
from lengthwise.base.extras import import_library
from lengthwise.base.fields import Config
from lengthwise.base.process import on_stop_signals
from lengthwise.base.ranges import NotNegative, Positive, Size, Whole
from lengthwise.base.score_rows import Row
from lengthwise.base.types import UsageError

MAX_TRIES = 6  # maximum number of requests per prompt in one call
MAX_WAIT_SECONDS = 60.0  # maximum seconds between two tries, unless the endpoint asks for more
MAX_REQUESTED_WAIT_SECONDS = 120.0  # if the endpoint asks for a longer wait, the call ends, and can be repeated later


@dataclass(frozen=True)
class Key:
    """An API key, read from an environment variable; ``value`` is empty if the variable is not set."""

    variable: str
    value: str = field(default="", repr=False)

    @staticmethod
    def read(variable: str | None) -> Key:
        """Read the key from an environment variable: ``variable``, which must be set, or by default OPENAI_API_KEY.
        Raises UsageError, without showing the key, if the key is missing or has invalid characters."""
        name = variable or "OPENAI_API_KEY"
        value = os.environ.get(name, "").strip()
        if variable and not value:
            # The name is not repeated, since it may be the key itself.
            reason = "or it is empty; give the variable's name, not the key"
            raise UsageError(f"--key-variable: the environment has no variable of that name, {reason}")
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise UsageError(f"the key in {name} has invalid characters: set it again")
        return Key(name, value)

    def redact(self, text: str) -> str:
        """Return the text with ``[key]`` in place of the key. A key of fewer than 4 characters, which may be a
        placeholder, is not replaced."""
        return text.replace(self.value, "[key]") if len(self.value) >= 4 else text


class TemporaryFailure(Exception):
    """Raised when a request fails, but may succeed if it is repeated. ``seconds_to_wait`` is the wait that the endpoint
    requests, or None; ``has_response`` is False if the endpoint sent no response."""

    def __init__(self, reason: str, seconds_to_wait: float | None = None, *, has_response: bool = True) -> None:
        super().__init__(reason)
        self.seconds_to_wait, self.has_response = seconds_to_wait, has_response


class RejectedPrompt(Exception):
    """Raised when the endpoint rejects a prompt, so that a retry would not help."""


def import_client() -> Any:
    """Import the module ``openai``, which is slow, and return it. Raises UsageError if it is not installed."""
    return import_library("openai", "ask", "ask needs the openai client, which is not installed")


def _read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the number of seconds in the header ``Retry-After``; None if it is missing or not a number."""
    text = headers.get("retry-after", "")
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d+)?", text) else None


def to_one_line(text: str) -> str:
    """Return a text as one line of at most 240 printable characters, safe to print to a terminal."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= 240 else f"{text[:239]}…"


def read_reply(text: str) -> Row:
    """Return a row for a chat completion in JSON: its text (``said``), the reason why it ended (``finish``), the name
    of the model in the reply (``served``), and token counts. Raises TemporaryFailure if ``text`` is malformed."""
    try:
        tree = json.loads(text)
        content = tree["choices"][0]["message"].get("content")
    except (ValueError, RecursionError):
        raise TemporaryFailure("the endpoint's reply is not JSON") from None
    except (LookupError, TypeError, AttributeError):
        raise TemporaryFailure("the endpoint's reply holds no message") from None
    if not isinstance(content, str | None):
        raise TemporaryFailure("the endpoint's message is not text")
    finish, served, usage = tree["choices"][0].get("finish_reason"), tree.get("model"), tree.get("usage")
    return {
        "said": content or "",  # null, e.g. if the model ran out of tokens while reasoning, counts as an empty answer
        "finish": finish if isinstance(finish, str) else None,
        "served": served if isinstance(served, str) else None,
        **read_token_counts(usage),
    }


# Many requests


@dataclass(frozen=True)
class RequestOptions(Config):
    """Options for sending requests. They do not affect the replies. Raises UsageError if a number is out of range."""

    key: Key
    max_requests: Whole | None = None  # maximum number of requests, retries included
    concurrency: Size = 8
    timeout: Positive = 60.0  # seconds per request, until the reply is complete
    backoff: NotNegative = 1.0  # approximate seconds before the second try; doubled for each further try


@dataclass(frozen=True)
class CollectionSummary:
    """The result of one call of ``collect_replies``."""

    reply_count: int
    request_count: int
    missing_count: int  # prompts without a reply
    reason: str  # why some prompts have no reply


def collect_replies(
    run: InquiryRun, items: Sequence[Item], options: RequestOptions, on_reply: Callable[[int, int], None]
) -> CollectionSummary:
    """Send each distinct prompt that has no reply yet. Each reply is saved before ``on_reply`` is called
    with the numbers of replies and of requests so far. Raises UsageError if every further request would fail too."""
    known_replies = run.replies()
    missing = {item.prompt: item for item in items if item.prompt not in known_replies}
    if not missing:
        return CollectionSummary(0, 0, 0, "")
    asker = _RequestWorkers(run, options, on_reply, has_replies=bool(known_replies))
    if asyncio.run(_run_until_signal(asker.run(missing.values()))):
        raise KeyboardInterrupt
    return CollectionSummary(asker.replies, asker.requests, len(missing) - asker.replies, asker.reason)


async def _run_until_signal(work: Awaitable[None]) -> bool:
    """Await the work. Return True if a stop signal cancelled it: the caller then raises KeyboardInterrupt, which the
    event loop would report as an error if it were raised here."""
    task, loop, signals = asyncio.current_task(), asyncio.get_running_loop(), []

    def stop(signal_number: int, frame: object) -> None:
        signals.append(signal_number)
        if task:
            loop.call_soon_threadsafe(task.cancel)

    with on_stop_signals(stop):
        try:
            await work
        except asyncio.CancelledError:
            if not signals:
                raise
    return bool(signals)


class _RequestWorkers:
    """The workers of one call of ``collect_replies``; each takes one prompt at a time from a queue."""

    def __init__(
        self, run: InquiryRun, options: RequestOptions, on_reply: Callable[[int, int], None], *, has_replies: bool
    ) -> None:
        self.inquiry_run, self.options, self.on_reply, self.has_replies = run, options, on_reply, has_replies
        self.replies = self.requests = 0
        self.failed_prompts = 0  # prompts that failed since the last reply
        self.last_error, self.limit_reached = "", False
        self.wait_until = 0.0  # the time until which all workers wait, if the endpoint requested a wait
        self.closed = asyncio.Event()  # once it is set, no further request is sent
        self.silent_requests = 0  # requests without a response since the last response

    @property
    def reason(self) -> str:
        """The reason why some prompts have no reply."""
        capped = [f"--limit {self.options.max_requests} is reached"] * self.limit_reached
        return "; ".join(capped + [f"the last error: {self.last_error}"] * bool(self.last_error))

    async def run(self, items: Iterable[Item]) -> None:
        """Send the prompts of all items. Raises UsageError if every further request would fail too."""
        queue, options = deque(items), self.options

        async def process_queue() -> None:
            while queue and not self.closed.is_set():
                await self._ask(queue.popleft())

        openai = import_client()
        # A redirect would be an uncounted request, and could send the key to another host.
        transport = openai.DefaultAsyncHttpxClient(follow_redirects=False)
        settings = {"base_url": self.inquiry_run.inquiry.endpoint, "timeout": options.timeout, "max_retries": 0}
        key = options.key.value or "none"
        try:
            client = openai.AsyncOpenAI(api_key=key, http_client=transport, **settings)
        except Exception as error:  # raised by the library that parses the address
            raise UsageError(f"--endpoint: {error}") from None
        async with client as self.connection:
            try:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(min(options.concurrency, len(queue))):
                        workers.create_task(process_queue())
            except ExceptionGroup as group:
                raise group.exceptions[0] from None

    async def _ask(self, item: Item) -> None:
        """Send one prompt until there is a reply or no try is left."""
        for attempt in range(MAX_TRIES):
            await self._back_off(attempt)
            if self.options.max_requests is not None and self.requests >= self.options.max_requests:
                self.limit_reached = True
                self.closed.set()
            if self.closed.is_set():
                return
            self.requests += 1
            try:
                start = time.monotonic()
                reply = await self._send(item.prompt)
            except TemporaryFailure as failure:
                self._record_error(str(failure), failure.seconds_to_wait)
                self.silent_requests = 0 if failure.has_response else self.silent_requests + 1
                if self.silent_requests >= max(MAX_TRIES, 2 * self.options.concurrency):
                    self.closed.set()
            except RejectedPrompt as refusal:
                self.silent_requests = 0
                self._record_error(str(refusal))
                if not self.has_replies:
                    raise UsageError(f"{self.inquiry_run.inquiry.endpoint}: {self.last_error}") from None
                return
            else:
                self.silent_requests = 0
                row = reply | {"tries": attempt + 1, "seconds": round(time.monotonic() - start, 3)}
                row |= judge_reply(self.inquiry_run.inquiry.task, reply["said"], item.right)
                hidden = {name: self.options.key.redact(v) if isinstance(v, str) else v for name, v in row.items()}
                self.inquiry_run.append("replies", asdict(item) | hidden)
                self.replies, self.failed_prompts, self.has_replies = self.replies + 1, 0, True
                self.on_reply(self.replies, self.requests)
                return
        self.failed_prompts += 1
        if self.failed_prompts >= max(3, self.options.concurrency):
            self.closed.set()

    async def _back_off(self, attempt: int) -> None:
        """Wait before a repeated request, with exponential back-off and jitter, or longer if the endpoint requests it.
        Return early once ``closed`` is set."""
        wait = min(MAX_WAIT_SECONDS, self.options.backoff * 2 ** (attempt - 1)) * random.uniform(0.5, 1)
        until = time.monotonic() + (wait if attempt else 0.0)
        while not self.closed.is_set() and (left := max(until, self.wait_until) - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.closed.wait()

    def _record_error(self, reason: str, seconds_to_wait: float | None = None) -> None:
        self.last_error = to_one_line(self.options.key.redact(reason))
        if seconds_to_wait is not None and seconds_to_wait > MAX_REQUESTED_WAIT_SECONDS:
            self.last_error = f"{self.last_error}; it asks to wait {seconds_to_wait:.0f} s"
            self.closed.set()
        elif seconds_to_wait:
            self.wait_until = max(self.wait_until, time.monotonic() + seconds_to_wait)

    async def _send(self, prompt: str) -> Row:
        """Send one request; return ``read_reply``'s row. Raises TemporaryFailure, RejectedPrompt or UsageError."""
        openai, inquiry, timeout = import_client(), self.inquiry_run.inquiry, self.options.timeout
        try:
            # The client's own timeout applies to each read, so a slow stream of bytes would never time out.
            async with asyncio.timeout(timeout):
                response = await self.connection.chat.completions.with_raw_response.create(
                    model=inquiry.model, messages=inquiry.build_messages(prompt), **inquiry.get_sampling_parameters()
                )
            return read_reply(response.content.decode(errors="replace"))  # JSON is UTF-8, whatever its header says
        except (TimeoutError, openai.APITimeoutError):
            raise TemporaryFailure(f"no reply within {timeout:g} s", has_response=False) from None
        except openai.APIStatusError as error:
            raise self._translate_status(error) from None
        except openai.OpenAIError as error:
            raise TemporaryFailure(f"{error} {error.__cause__ or ''}", has_response=False) from None

    def _translate_status(self, error: Any) -> Exception:
        """Return the exception for an HTTP error status: UsageError if all further requests would fail too. The body of
        a 401 response is not quoted, since it may contain the key."""
        status, key, inquiry = error.status_code, self.options.key, self.inquiry_run.inquiry
        inner = error.body.get("error", error.body) if isinstance(error.body, dict) else error.body
        message = inner.get("message", inner) if isinstance(inner, dict) else inner
        quoted = f"{status}: {message}" if message else f"{status}"
        no_key = f"it needs a key (401): set {key.variable}, or name another variable by --key-variable"
        mistakes = {
            401: f"the key in {key.variable} is refused (401)" if key.value else no_key,
            402: f"it needs payment ({quoted})",
            403: f"it forbids this ({quoted})",
            404: f"it has no model {inquiry.model}, or its address is wrong (most end in /v1) ({quoted})",
        }
        if status < 400:
            mistakes[status] = f"it has moved ({status}): give its new address"
        if status == 429 and "insufficient_quota" in (error.code, error.type):
            mistakes[status] = f"the quota is used up ({quoted})"
        if status in mistakes:
            return UsageError(f"{inquiry.endpoint}: {to_one_line(key.redact(mistakes[status]))}")
        if status in (408, 409, 425, 429) or status >= 500:
            return TemporaryFailure(f"the endpoint reports error {quoted}", _read_retry_after(error.response.headers))
        return RejectedPrompt(f"the endpoint refuses a prompt ({quoted})")
