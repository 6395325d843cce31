"""Judges replies and computes scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from lengthwise.ask.folder import Row
from lengthwise.ask.inquiry import Inquiry, Item
from lengthwise.base.types import Score
from lengthwise.tasks import Task


def judged(task: Task, reply: str, right: str) -> Row:
    """Judge a reply: it is correct if, without surrounding white space, it equals the correct answer exactly.

    Further words, a full stop, a plus sign, leading zeros or thousands separators make it wrong. ``answer`` is the
    reply if it consists of the task's symbols only, else None (chatter).
    """
    text = reply.strip()
    written = text == right or (text != "" and set(text) <= set("".join(task.symbols)))
    return {"said": reply, "answer": text if written else None, "correct": text == right}


def scores(inquiry: Inquiry, items: Iterable[Item], replies: Mapping[str, Row]) -> list[Row]:
    """A row per size with any replies: ``Score.row`` plus ``asked``, the number of problems, of which ``count`` have
    replies, and ``chatter``, the number of replies that are no answer."""
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
