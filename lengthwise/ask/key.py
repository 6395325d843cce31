"""The endpoint's key: from an environment variable to the request's headers, and nowhere else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from lengthwise.ask.inquiry import Inquiry
from lengthwise.base.types import UsageError

PIECE = 12  # so many characters of a key on end are taken for the key
SHORT = 4  # what has fewer is no key, but put where a local endpoint wants one: 0, x, no


@dataclass(frozen=True)
class Key:
    """A secret from an environment variable; without a value, the endpoint is asked without one."""

    variable: str
    value: str = field(default="", repr=False)

    @staticmethod
    def read(variable: str | None) -> Key:
        """The key in a variable that must be set, or that in OPENAI_API_KEY, if it is. UsageError never shows it."""
        name = variable or "OPENAI_API_KEY"
        value = os.environ.get(name, "").strip()
        if variable and not value:
            raise UsageError(f"--key-variable: the environment has no {name}, or it is empty")
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise UsageError(f"the key in {name} has characters that no key has: set it anew")
        return Key(name, value)

    def hide(self, text: str) -> str:
        """A text without the key: each word that has it, or a long piece of it, is replaced."""
        if len(self.value) < SHORT:
            return text
        pieces = {self.value[i : i + PIECE] for i in range(max(1, len(self.value) - PIECE + 1))}
        text = text.replace(self.value, "[key]")
        return re.sub(r"\S+", lambda word: "[key]" if any(piece in word[0] for piece in pieces) else word[0], text)

    def refuse(self, inquiry: Inquiry) -> None:
        """UsageError if the inquiry, which is written down, holds the key."""
        texts = (inquiry.endpoint, inquiry.model, inquiry.instruction)
        if len(self.value) >= PIECE and any(self.hide(text) != text for text in texts):
            raise UsageError(f"the endpoint, the model or the question holds the key in {self.variable}: leave it out")
