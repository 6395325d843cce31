"""One request to an OpenAI-compatible endpoint: the reply, or what its failure means."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any

from lengthwise.ask.folder import TOKENS, Row
from lengthwise.ask.inquiry import Inquiry
from lengthwise.ask.key import Key
from lengthwise.base.types import UsageError

INSTALL = "pip install 'openai>=1.60'"


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


class Client:
    """An open connection to the endpoint of an inquiry."""

    def __init__(self, connection: Any, inquiry: Inquiry, key: Key, timeout: float) -> None:
        self.connection, self.inquiry, self.key, self.timeout = connection, inquiry, key, timeout

    @staticmethod
    @asynccontextmanager
    async def open(inquiry: Inquiry, key: Key, timeout: float) -> AsyncIterator[Client]:
        """A client, closed at the end; ``timeout`` is in seconds, for one request from its start to the reply's end."""
        openai = client_library()
        # A redirect would be a request that nobody counted, and might lead the key elsewhere.
        transport = openai.DefaultAsyncHttpxClient(follow_redirects=False)
        async with openai.AsyncOpenAI(
            api_key=key.value or "none",
            base_url=inquiry.endpoint,
            timeout=timeout,
            max_retries=0,
            http_client=transport,
        ) as connection:
            yield Client(connection, inquiry, key, timeout)

    async def ask(self, prompt: str) -> Row:
        """One request, greedy: what ``read_reply`` finds. Failure, Refusal, or UsageError."""
        openai = client_library()
        message = {"role": "user", "content": self.inquiry.message(prompt)}
        try:
            # The client's time limit is on each read: a reply that trickles in would never be late.
            async with asyncio.timeout(self.timeout):
                response = await self.connection.chat.completions.with_raw_response.create(
                    model=self.inquiry.model, messages=[message], temperature=0
                )
            return read_reply(response.text)
        except (TimeoutError, openai.APITimeoutError):
            raise Failure(f"no reply within {self.timeout:g} s") from None
        except openai.APIStatusError as error:
            raise self._problem(error) from None
        except openai.OpenAIError as error:
            raise Failure(f"{error} {error.__cause__ or ''}") from None

    def _problem(self, error: Any) -> Exception:
        """What a status means."""
        status = error.status_code
        quoted = f"{status}{_quoted(error.body)}"
        if status in (408, 409, 425, 429) or status >= 500:
            return Failure(f"the endpoint says {quoted}", _wait(error.response.headers))
        if about := self._mistake(status, quoted):
            return UsageError(f"{self.inquiry.endpoint}: {one_line(self.key.hide(about))}")
        return Refusal(f"the endpoint refuses a prompt ({quoted})")

    def _mistake(self, status: int, quoted: str) -> str | None:
        """What a status says that makes all further requests useless. Bodies are quoted without the key, and that of
        401 not at all: it is about the key."""
        if status < 400:
            return f"it has moved ({status}): name the address where it is now"
        variable, model = self.key.variable, self.inquiry.model
        about = {
            401: f"the key in {variable} is refused (401)"
            if self.key.value
            else f"it asks for a key (401): set {variable}, or name another variable by --key-variable",
            402: f"it asks to be paid ({quoted})",
            403: f"it forbids this ({quoted})",
            404: f"no model {model} there, or no such address, which mostly ends in /v1 ({quoted})",
        }
        return about.get(status)


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


def one_line(text: str) -> str:
    """A text in one line that cannot play with the terminal."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= 240 else f"{text[:239]}…"


def read_reply(text: str) -> Row:
    """The reply in a chat completion's JSON: ``said`` (its text), ``finish``, ``served`` (the model by its own account)
    and tokens as the endpoint counted them. Failure if there is none: a proxy's page, a body cut short, no choices."""
    try:
        tree = json.loads(text)
        content = tree["choices"][0]["message"].get("content")
    except (ValueError, RecursionError):
        raise Failure("the endpoint's reply is not JSON") from None
    except (LookupError, TypeError, AttributeError):
        raise Failure("the endpoint's reply holds no message") from None
    if not isinstance(content, str | None):
        raise Failure("the endpoint's message is not text")
    finish, served, usage = tree["choices"][0].get("finish_reason"), tree.get("model"), tree.get("usage")
    return {
        "said": content
        or "",  # none: the model had nothing to say, or was cut off while it thought; that is its answer
        "finish": finish if isinstance(finish, str) else None,
        "served": served if isinstance(served, str) else None,
        **{name: _count(usage, name) for name in TOKENS},
    }


def _count(usage: Any, name: str) -> int:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and count >= 0 else 0
