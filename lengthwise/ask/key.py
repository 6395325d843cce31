"""The endpoint's key: read from an environment variable, sent in request headers, and hidden everywhere else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from lengthwise.ask.inquiry import Inquiry
from lengthwise.base.types import UsageError

PIECE = 12  # this many consecutive characters of the key are hidden like the full key
SHORT = 4  # a shorter value, such as x, is a placeholder for a local endpoint, and not hidden
NAME = re.compile(r"[A-Z]+(_[A-Z]+)*_?\d?")  # certainly a variable's name


@dataclass(frozen=True)
class Key:
    """A key from an environment variable; an empty value means that the endpoint needs none."""

    variable: str
    value: str = field(default="", repr=False)

    @staticmethod
    def read(variable: str | None) -> Key:
        """Read the key from ``variable``, which must then be set, or by default from OPENAI_API_KEY, if that is set.

        Raises UsageError, without showing the key, if the variable is not set or contains invalid characters.
        """
        name = variable or "OPENAI_API_KEY"
        value = os.environ.get(name, "").strip()
        if variable and not value:
            # The name is not repeated unless it is surely one: it may be the key itself.
            called = name if NAME.fullmatch(name) else "variable of that name"
            raise UsageError(
                f"--key-variable: the environment has no {called}, or it is empty; "
                "give the variable's name, not the key"
            )
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise UsageError(f"the key in {name} has invalid characters: set it again")
        return Key(name, value)

    def redact(self, text: str) -> str:
        """Replace the key, and each word that contains ``PIECE`` consecutive characters of it, by ``[key]``."""
        if len(self.value) < SHORT:
            return text
        pieces = {self.value[i : i + PIECE] for i in range(max(1, len(self.value) - PIECE + 1))}
        text = text.replace(self.value, "[key]")
        return re.sub(r"\S+", lambda word: "[key]" if any(piece in word[0] for piece in pieces) else word[0], text)

    def check_absent(self, inquiry: Inquiry) -> None:
        """Raise UsageError if the inquiry, which is written to a file, contains the key."""
        texts = (inquiry.endpoint, inquiry.model, inquiry.instruction)
        if len(self.value) >= PIECE and any(self.redact(text) != text for text in texts):
            raise UsageError(f"the endpoint, the model or the question contains the key in {self.variable}: remove it")
