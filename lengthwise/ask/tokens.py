"""Estimate the tokens of an inquiry before it is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lengthwise.ask.folder import TOKENS, Row
from lengthwise.ask.inquiry import Inquiry

AROUND = 4  # tokens that a chat template adds to a message


def estimate(inquiry: Inquiry, missing: Mapping[str, str], known: Mapping[str, Row]) -> dict[str, int]:
    """Estimate tokens in and out for prompts that lack a reply, each with its answer. The counts of ``known`` replies
    scale the estimate: they show how the endpoint counts tokens, and how much the model writes besides the answer."""
    guessed = _guess(inquiry, {prompt: row["right"] for prompt, row in known.items()})
    spent = [sum(row[name] for row in known.values()) for name in TOKENS]
    times = [took / guess if took and guess else 1.0 for took, guess in zip(spent, guessed, strict=True)]
    wanted = _guess(inquiry, missing)
    return {name: round(count * more) for name, count, more in zip(TOKENS, wanted, times, strict=True)}


def _guess(inquiry: Inquiry, prompts: Mapping[str, str]) -> tuple[int, int]:
    """Estimate tokens in and out from the texts alone; each reply ends with an extra token."""
    texts = [message["content"] for prompt in prompts for message in inquiry.messages(prompt)]
    return sum(AROUND + count(text) for text in texts), sum(1 + count(right) for right in prompts.values())


def count(text: str) -> int:
    """Estimate the tokens of a text: one or more per word, one per three digits, one per sign."""
    words = re.findall(r"[^\W\d]+|\d{1,3}|[^\w\s]", text)
    return sum(1 + len(word) // 8 for word in words)
