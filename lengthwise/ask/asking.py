"""Ask many prompts concurrently, retry failures that may be temporary, and save each reply at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from lengthwise.ask.client import Client, Failure, Key, Refusal, shorten
from lengthwise.ask.inquiry import InquiryRun, Item, judge
from lengthwise.base.fields import Config
from lengthwise.base.process import on_stop_signals
from lengthwise.base.ranges import NotNegative, Positive, Size, Whole
from lengthwise.base.types import UsageError

TRIES = 6  # requests per prompt and call, at most
LONGEST = 60.0  # maximum seconds between two tries, unless the endpoint asks for more
PATIENCE = 120.0  # seconds: if the endpoint asks for a longer wait, the call ends and can be repeated later


@dataclass(frozen=True)
class RequestOptions(Config):
    """Options for sending requests, which do not affect the replies. Raises UsageError if a number is out of range."""

    key: Key
    limit: Whole | None = None  # maximum number of requests, retries included
    concurrency: Size = 8
    timeout: Positive = 60.0  # seconds per request, until the reply is complete
    backoff: NotNegative = 1.0  # approximate seconds before the second try; doubled for each further try


@dataclass(frozen=True)
class Outcome:
    """The result of one call of ``collect_replies``."""

    replies: int
    requests: int
    left: int  # prompts without a reply
    reason: str  # why some prompts have no reply


def collect_replies(
    run: InquiryRun,
    items: Sequence[Item],
    options: RequestOptions,
    on_reply: Callable[[int, int], None] = lambda replies, sent: None,
) -> Outcome:
    """Ask every different prompt that has no reply yet.

    Each reply is saved before ``on_reply`` is called with the numbers of replies and of requests so far. Raises
    UsageError for errors that would repeat: a wrong key, an unknown model, a full disk.
    """
    known = run.replies()
    missing = {item.prompt: item for item in items if item.prompt not in known}
    if not missing:
        return Outcome(0, 0, 0, "")
    asker = _Asker(run, options, on_reply, has_replies=bool(known))
    if asyncio.run(_run_until_signal(asker.run(missing.values()))):
        raise KeyboardInterrupt
    return Outcome(asker.replies, asker.requests, len(missing) - asker.replies, asker.reason)


async def _run_until_signal(work: Awaitable[None]) -> bool:
    """Await the work; return True if a stop signal cancelled it. KeyboardInterrupt is raised by the caller, because an
    event loop would report it as an error."""
    task, loop, signals = asyncio.current_task(), asyncio.get_running_loop(), []

    def stop(number: int, frame: object) -> None:
        signals.append(number)
        if task:
            loop.call_soon_threadsafe(task.cancel)

    with on_stop_signals(stop):
        try:
            await work
        except asyncio.CancelledError:
            if not signals:
                raise
    return bool(signals)


class _Asker:
    """One call of ``collect_replies``: workers that take prompts from a queue, each handling one at a time."""

    def __init__(
        self, run: InquiryRun, options: RequestOptions, on_reply: Callable[[int, int], None], *, has_replies: bool
    ) -> None:
        self.inquiry_run, self.options, self.on_reply, self.has_replies = run, options, on_reply, has_replies
        self.replies = self.requests = self.in_vain = 0  # in_vain: prompts given up since the last reply
        self.trouble, self.capped = "", False
        self.rest_until = 0.0  # a wait that the endpoint asks for applies to all workers
        self.closed = asyncio.Event()  # if set, no further request is sent
        self.silence: int | None = 0  # requests so far without any response; None after the first response

    @property
    def reason(self) -> str:
        """The reason why some prompts have no reply."""
        capped = [f"--limit {self.options.limit} is reached"] * self.capped
        return "; ".join(capped + [f"the last error: {self.trouble}"] * bool(self.trouble))

    async def run(self, items: Iterable[Item]) -> None:
        """Ask all items. Raises UsageError for errors that would repeat."""
        queue, options = deque(items), self.options

        async def work() -> None:
            while queue and not self.closed.is_set():
                await self._ask(client, queue.popleft())

        async with Client.open(self.inquiry_run.inquiry, options.key, options.timeout) as client:
            try:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(min(options.concurrency, len(queue))):
                        workers.create_task(work())
            except ExceptionGroup as group:
                raise group.exceptions[0] from None

    async def _ask(self, client: Client, item: Item) -> None:
        """Ask one prompt until there is a reply or no try is left."""
        for attempt in range(TRIES):
            await self._back_off(attempt)
            if self.options.limit is not None and self.requests >= self.options.limit:
                self.capped = True
                self.closed.set()
            if self.closed.is_set():
                return
            self.requests += 1
            try:
                start = time.monotonic()
                reply = await client.ask(item.prompt)
            except Failure as failure:
                self._record_error(str(failure), failure.wait)
                self._record_response(responded=failure.responded)
            except Refusal as refusal:
                self._record_response(responded=True)
                self._record_error(str(refusal))
                if not self.has_replies:
                    raise UsageError(f"{self.inquiry_run.inquiry.endpoint}: {self.trouble}") from None
                return
            else:
                self._record_response(responded=True)
                row = reply | {"tries": attempt + 1, "seconds": round(time.monotonic() - start, 3)}
                row |= judge(self.inquiry_run.inquiry.task, reply["said"], item.right)
                hidden = {name: self.options.key.redact(v) if isinstance(v, str) else v for name, v in row.items()}
                self.inquiry_run.append("replies", asdict(item) | hidden)
                self.replies, self.in_vain, self.has_replies = self.replies + 1, 0, True
                self.on_reply(self.replies, self.requests)
                return
        self.in_vain += 1
        if self.in_vain >= max(3, self.options.concurrency):
            self.closed.set()

    async def _back_off(self, attempt: int) -> None:
        """Wait: exponential back-off with jitter, at least as long as the endpoint asks for; ends early if closed."""
        wait = min(LONGEST, self.options.backoff * 2 ** (attempt - 1)) * random.uniform(0.5, 1) if attempt else 0.0
        until = time.monotonic() + wait
        while not self.closed.is_set() and (left := max(until, self.rest_until) - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.closed.wait()

    def _record_error(self, reason: str, wait: float | None = None) -> None:
        self.trouble = shorten(self.options.key.redact(reason))
        if wait is not None and wait > PATIENCE:
            self.trouble = f"{self.trouble} (it asks to wait {wait:.0f} s)"
            self.closed.set()
        elif wait:
            self.rest_until = max(self.rest_until, time.monotonic() + wait)

    def _record_response(self, *, responded: bool) -> None:
        """Stop asking an endpoint that never responds."""
        self.silence = None if responded or self.silence is None else self.silence + 1
        if self.silence is not None and self.silence >= max(TRIES, 2 * self.options.concurrency):
            self.closed.set()
