"""Associative recall with several queries (Arora et al. 2024), where a later value replaces an earlier one."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import shift_right, zero_after
from lengthwise.base.types import Problems, UsageError
from lengthwise.tasks import Task, parse_symbols

LETTERS, DIGITS = string.ascii_lowercase, string.digits
# The letters of the pairs, and for each query the index of the pair whose letter it repeats.
Arrangement = tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]


def one_key(keys: Tensor, query_index: Tensor, sizes: Tensor) -> Arrangement:
    """Pairs that all have the same letter, so that the last digit is the answer."""
    return keys[:, :1].expand_as(keys), query_index


def two_keys(keys: Tensor, query_index: Tensor, sizes: Tensor) -> Arrangement:
    """Pairs in which two letters alternate."""
    return keys[:, torch.arange(keys.shape[1]) % 2], query_index


def alphabetical(keys: Tensor, query_index: Tensor, sizes: Tensor) -> Arrangement:
    """Pairs in alphabetical order of their letters."""
    is_padding = torch.arange(keys.shape[1]) >= sizes
    return keys.masked_fill(is_padding, int(keys.max())).sort(1).values, query_index


def rewritten(keys: Tensor, query_index: Tensor, sizes: Tensor) -> Arrangement:
    """Pairs whose second half repeats the letters of the first half, in the same order."""
    half = ((sizes + 1) // 2).clamp(min=1)
    return keys.gather(1, torch.arange(keys.shape[1]) % half), query_index


def in_the_order_given(keys: Tensor, query_index: Tensor, sizes: Tensor) -> Arrangement:
    """Queries in the order of the pairs."""
    return keys, torch.arange(keys.shape[1]).expand_as(query_index)


def in_reverse_order(keys: Tensor, query_index: Tensor, sizes: Tensor) -> Arrangement:
    """Queries in the reverse order of the pairs."""
    return keys, (sizes - 1 - torch.arange(keys.shape[1])).clamp(min=0)


def last_pair_alone(keys: Tensor, query_index: Tensor, sizes: Tensor) -> Arrangement:
    """All queries ask for the letter of the last pair."""
    return keys, (sizes - 1).expand_as(query_index)


def first_pair_alone(keys: Tensor, query_index: Tensor, sizes: Tensor) -> Arrangement:
    """All queries ask for the letter of the first pair."""
    return keys, torch.zeros_like(query_index)


@dataclass(frozen=True)
class Recall(Task):
    """n pairs of a letter and a digit, then n queries, each one of these letters → for each query, the digit of its
    letter's last pair: ``a3b1a7bab`` → ``171`` (multi-query associative recall, Arora et al. 2024, with rewritten
    keys).

    The size is n, so a prompt has 3n symbols. T(n) = n. Letters of pairs and queries are uniform. In the paper's code
    all keys and all values of a row differ, and each key is queried once, at a random position among other tokens.
    """

    keys: Annotated[int, Range(1, 26)] = 26  # number of letters that problems draw from

    axes = ("pairs",)
    writes = tuple(DIGITS)
    question = (
        "This is a list of pairs of a letter and a digit, followed by letters without digits; write, for each of "
        "these, the digit that the letter was given last."
    )

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*LETTERS[: self.keys], *DIGITS)

    patterns = (
        one_key, two_keys, alphabetical, rewritten, in_the_order_given, in_reverse_order, first_pair_alone,
        last_pair_alone,
    )  # fmt: skip

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(lambda keys, query_index, sizes: (keys, query_index), sizes, generator)

    def draw_pattern(self, pattern: Callable, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        shape = len(sizes), int(sizes.max())
        keys = torch.randint(self.keys, shape, generator=generator)
        # The index of the pair whose letter each query repeats.
        query_index = (torch.rand(shape, generator=generator) * sizes).long()
        keys, query_index = pattern(keys, query_index, sizes)
        values = torch.randint(len(DIGITS), shape, generator=generator)
        return self.from_rows(sizes, keys, values, keys.gather(1, query_index.clamp(max=shape[1] - 1)))

    def from_rows(
        self, sizes: Int[Tensor, "b axes"], keys: Tensor, values: Tensor, queries: Int[Tensor, "b n"]
    ) -> Problems:
        """Return problems with their answers, given the pairs' letters and digits, and the queries, as indices."""
        count, (rows, width) = sizes[:, 0], keys.shape
        memory, real = torch.zeros(rows, self.keys, dtype=torch.long), torch.arange(width) < sizes
        for key, value, is_real in zip(*(part.split(1, 1) for part in (keys, values, real)), strict=True):
            memory = memory.scatter(1, key, torch.where(is_real, value, memory.gather(1, key)))
        answer = zero_after((memory.gather(1, queries) + self.keys).to(torch.int8), count)
        pairs = zero_after(torch.stack([keys, values + self.keys], 2).flatten(1), 2 * count)
        queries = shift_right(zero_after(queries, count), 2 * count, 3 * width)
        prompt = torch.nn.functional.pad(pairs, (0, width)) + queries
        return Problems(sizes, prompt.to(torch.int8), 3 * count, answer, count, count)

    def parse(self, text: str) -> Problems:
        ids = parse_symbols(self, text)
        word = self.vocab.decode(ids)
        match = re.fullmatch(r"((?:[a-z]\d)+)([a-z]+)", word)
        if not match or len(match[1]) != 2 * len(match[2]) or not {*match[2]} <= {*match[1]}:
            raise UsageError(f"{self.name}: {text!r} is not n pairs, then n letters of these pairs, such as a3b1ba")
        count = len(match[2])
        pairs, queries = ids[None].long().split([2 * count, count], 1)
        return self.from_rows(torch.tensor([[count]]), pairs[:, ::2], pairs[:, 1::2] - self.keys, queries)

    def reference(self, prompt: str) -> str:
        count = len(prompt) // 3
        last = dict(zip(prompt[: 2 * count : 2], prompt[1 : 2 * count : 2], strict=True))
        return "".join(last[letter] for letter in prompt[2 * count :])

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        count = self.keys * len(DIGITS)
        if size[0] > 1 or count > limit:
            return None
        pair = torch.arange(count)[:, None]
        key = pair // len(DIGITS)
        return self.from_rows(torch.ones(count, 1, dtype=torch.long), key, pair % len(DIGITS), key)

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0]
