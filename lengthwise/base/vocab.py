"""Vocabularies: symbols and their ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.types import UsageError

UNKNOWN = "�"
EQUALS, END, PAUSE, START, PAD = "=", "$", "#", "^", "_"  # the symbols of layouts


@dataclass(frozen=True)
class Vocab:
    """An ordered set of symbols; a symbol's id is its index. Raises ValueError if a symbol occurs twice."""

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.symbols)) != len(self.symbols):
            raise ValueError(f"a vocabulary must not repeat a symbol: {' '.join(self.symbols)}")

    def __len__(self) -> int:
        return len(self.symbols)

    def id(self, symbol: str) -> int:
        """Return the id of one symbol. Raises ValueError for a symbol that is not in the vocabulary."""
        return self.symbols.index(symbol)

    @property
    def separator(self) -> str:
        """The separator of symbols in a text: a space if any symbol has several letters, else empty."""
        return " " * any(len(symbol) > 1 for symbol in self.symbols)

    def split(self, text: str) -> list[str]:
        """Return the symbols of a text: its words if any symbol has several letters, else its characters."""
        return text.split() if self.separator else list(text)

    def encode(self, text: Iterable[str]) -> Int[Tensor, " n"]:
        """Return the ids of a text's symbols. Raises UsageError with the position (from 1) of an unknown symbol."""
        ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        symbols = self.split(text) if isinstance(text, str) else list(text)
        for position, symbol in enumerate(symbols, 1):
            if symbol not in ids:
                raise UsageError(f"{symbol!r} at position {position} is not one of: {' '.join(self.symbols)}")
        return torch.tensor([ids[symbol] for symbol in symbols], dtype=torch.long)

    def decode(self, ids: Int[Tensor, " n"]) -> str:
        """Return the symbols with these ids as one text; ``UNKNOWN`` replaces ids without a symbol."""
        return self.separator.join(self.symbols[i] if i < len(self) else UNKNOWN for i in ids.tolist())
