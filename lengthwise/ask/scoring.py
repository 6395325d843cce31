"""Judge replies and compute scores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby

from lengthwise.ask.folder import Row
from lengthwise.ask.inquiry import Inquiry, Item
from lengthwise.base.types import Score
from lengthwise.tasks import Task


def judge(task: Task, reply: str, right: str) -> Row:
    """Judge a reply: it is correct if, without surrounding white space, it equals the correct answer exactly.

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


def scores(inquiry: Inquiry, items: Iterable[Item], replies: Mapping[str, Row]) -> list[Row]:
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
