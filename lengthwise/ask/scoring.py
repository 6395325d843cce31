"""Replies → scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from lengthwise.ask.folder import Row
from lengthwise.ask.inquiry import Inquiry, Item
from lengthwise.base.types import Score
from lengthwise.tasks import Task


def judged(task: Task, reply: str, right: str) -> Row:
    """A reply, and whether it is right: without the blanks around it, it must equal the right answer letter by letter.
    Further words, a full stop, a plus, leading zeros and separators of thousands make it wrong. ``answer`` is the reply
    if it is written in the task's symbols alone; None if it is chatter."""
    text = reply.strip()
    written = text == right or (text != "" and set(text) <= set("".join(task.symbols)))
    return {"said": reply, "answer": text if written else None, "correct": text == right}


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
