"""The folder of an inquiry, and its tokens. ``lengthwise.runs.folder`` describes its files; none contains the key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from lengthwise.ask.inquiry import Inquiry
from lengthwise.base import fields
from lengthwise.base.files import path_inside, read_json_object, write_json
from lengthwise.base.results import InquiryOutline
from lengthwise.base.score_rows import Row
from lengthwise.base.types import UsageError
from lengthwise.experiment.recipe import import_parts
from lengthwise.runs.folder import InquiryFolder, runs_folder

TOKENS = ("prompt_tokens", "completion_tokens")  # names in the endpoint's JSON
AROUND = 4  # tokens that a chat template adds to a message
MAX_TOKENS = 10**9  # tokens per reply; a larger count is an error of the endpoint


class InquiryRun(InquiryFolder):
    """The folder of an inquiry: rows of ``replies`` and ``scores``."""

    def __init__(self, folder: Path, inquiry: Inquiry) -> None:
        super().__init__(folder)
        self.inquiry = inquiry

    @staticmethod
    def of(inquiry: Inquiry, folder: Path | None = None) -> InquiryRun:
        """Open the folder of an inquiry, creating it if needed. Raises UsageError if it holds anything else."""
        run = InquiryRun.locate(inquiry, folder)
        if not (path := run.folder / "asked.json").exists():
            write_json(path, fields.encode(inquiry) | {"outline": fields.encode(inquiry.outline)})
        return run

    @staticmethod
    def locate(inquiry: Inquiry, folder: Path | None = None) -> InquiryRun:
        """Return the folder of an inquiry as ``of`` does, without creating it."""
        path = folder or path_inside(runs_folder(), inquiry.name)
        if (path / "asked.json").exists():
            if InquiryRun.open(path).inquiry != inquiry:
                raise UsageError(f"{path}: belongs to an inquiry with other settings; choose another folder")
        elif path.is_dir() and any(not file.name.startswith(".") for file in path.iterdir()):
            raise UsageError(f"{path}: holds other files; choose another folder")
        return InquiryRun(path, inquiry)

    @staticmethod
    def open(folder: Path) -> InquiryRun:
        """Open an existing folder. Raises UsageError if it is not an inquiry's."""
        path = folder / "asked.json"
        import_parts()
        tree = read_json_object(path)
        tree.pop("outline", None)
        try:
            return InquiryRun(folder, fields.decode(Inquiry, tree))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def config(self) -> Row:
        """Return the inquiry as plain values, with defaults for fields that its file lacks."""
        return fields.encode(self.inquiry)

    @cached_property
    def outline(self) -> InquiryOutline:
        """The inquiry's facts that reports show."""
        return self.inquiry.outline

    def replies(self) -> dict[str, Row]:
        """Return the rows of ``replies``, by prompt; damaged ones are left out (``damaged_replies``)."""
        found: dict[str, Row] = {}
        for row in self.rows("replies"):
            found.setdefault(row["prompt"], row | token_counts(row))
        return found

    def save_scores(self, rows: Iterable[Row]) -> None:
        """Append new scores. Sizes with missing replies are not saved: prompts that fail repeatedly may be the hard
        ones, so these scores would be biased."""
        self.append_new("scores", *(row for row in rows if row["count"] == row["asked"]))

    def tokens_spent(self) -> dict[str, int]:
        """Return the endpoint's token counts, summed over all replies."""
        counts = [token_counts(row) for row in self.rows("replies")]
        return {name: sum(count[name] for count in counts) for name in TOKENS}


def token_counts(usage: Any) -> dict[str, int]:
    """Return the token counts that an endpoint reports for a reply, each 0 if it is missing or implausible."""
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in TOKENS]
    return {name: n if type(n) is int and 0 <= n <= MAX_TOKENS else 0 for name, n in zip(TOKENS, counts, strict=True)}


def estimate_tokens(inquiry: Inquiry, missing: Mapping[str, str], known: Mapping[str, Row]) -> dict[str, int]:
    """Estimate the tokens of ``missing`` prompts, each given with its right answer, and of their replies. The counts of
    ``known`` replies scale the estimate, since endpoints count tokens differently, and models write more than the
    answer."""
    guessed = _estimate_from_text(inquiry, {prompt: row["right"] for prompt, row in known.items()})
    spent = [sum(row[name] for row in known.values()) for name in TOKENS]
    times = [took / guess if took and guess else 1.0 for took, guess in zip(spent, guessed, strict=True)]
    wanted = _estimate_from_text(inquiry, missing)
    return {name: round(count * more) for name, count, more in zip(TOKENS, wanted, times, strict=True)}


def _estimate_from_text(inquiry: Inquiry, prompts: Mapping[str, str]) -> tuple[int, int]:
    """Estimate the tokens of prompts and of replies from the texts alone; each reply ends with an extra token."""
    texts = [message["content"] for prompt in prompts for message in inquiry.messages(prompt)]
    return sum(AROUND + _estimate_tokens(text) for text in texts), sum(
        1 + _estimate_tokens(right) for right in prompts.values()
    )


def _estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: one or more per word, one per three digits, one per sign."""
    words = re.findall(r"[^\W\d]+|\d{1,3}|[^\w\s]", text)
    return sum(1 + len(word) // 8 for word in words)
