"""Asking many prompts: several at a time, tried again where that may help, each reply kept as it comes."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lengthwise.ask.client import Client, Failure, Refusal, one_line
from lengthwise.ask.folder import Asked, Row
from lengthwise.ask.inquiry import Item
from lengthwise.ask.key import Key
from lengthwise.ask.scoring import judged
from lengthwise.base.types import UsageError

TRIES = 6  # of one prompt in one call
LONGEST = 60.0  # seconds between two of them, at most, unless the endpoint asks for more
PATIENCE = 120.0  # seconds that an endpoint may ask us to wait: beyond, the call ends and can be given again later


@dataclass(frozen=True)
class Manner:
    """How to ask; nothing of it changes what is replied."""

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
        queue, manner = deque(items), self.manner
        async with Client.open(self.asked.inquiry, manner.key, manner.timeout) as client:
            try:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(min(manner.concurrency, len(queue))):
                        workers.create_task(self._work(client, queue))
            except ExceptionGroup as group:
                raise group.exceptions[0] from None

    async def _work(self, client: Client, queue: deque[Item]) -> None:
        while queue and not self.closed.is_set():
            await self._ask(client, queue.popleft())

    async def _ask(self, client: Client, item: Item) -> None:
        """Until there is a reply, or nothing more to try."""
        for attempt in range(TRIES):
            await self._rest(attempt)
            if not self._may_send():
                return
            try:
                start = time.monotonic()
                reply = await client.ask(item.prompt)
            except Failure as failure:
                self._note(str(failure), failure.wait)
            except Refusal as refusal:
                self._note(str(refusal))
                if not self.fruitful:
                    raise UsageError(f"{self.asked.inquiry.endpoint}: {self.trouble}") from None
                return
            else:
                self._keep(item, reply | {"tries": attempt + 1, "seconds": round(time.monotonic() - start, 3)})
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
        self.trouble = one_line(self.manner.key.hide(reason))
        if wait is not None and wait > PATIENCE:
            self.trouble = f"{self.trouble} (it asks to wait {wait:.0f} s)"
            self.closed.set()
        elif wait:
            self.rest_until = max(self.rest_until, time.monotonic() + wait)

    def _keep(self, item: Item, reply: Row) -> None:
        row = reply | judged(self.asked.inquiry.task, reply["said"], item.right)
        shown = {name: self.manner.key.hide(v) if isinstance(v, str) else v for name, v in row.items()}
        self.asked.append("replies", {"sizes": item.sizes, "prompt": item.prompt, "right": item.right} | shown)
        self.replies, self.in_vain, self.fruitful = self.replies + 1, 0, True
        self.seen(self.replies, self.requests)
