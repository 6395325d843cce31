"""Symbols ↔ ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.types import UsageError


@dataclass(frozen=True)
class Vocab:
    """An ordered set of symbols; a symbol's id is its place."""

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.symbols)) != len(self.symbols):
            raise ValueError(f"a vocabulary holds each symbol once: {' '.join(self.symbols)}")

    def __len__(self) -> int:
        return len(self.symbols)

    def id(self, symbol: str) -> int:
        """The id of one symbol. ValueError if it is not in the vocabulary."""
        return self.symbols.index(symbol)

    def encode(self, text: Iterable[str]) -> Int[Tensor, " n"]:
        """Ids of the symbols of a text. UsageError names the first foreign symbol and its place, counted from 1."""
        ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        symbols = list(text)
        for position, symbol in enumerate(symbols, 1):
            if symbol not in ids:
                raise UsageError(f"{symbol!r} at position {position} is not one of: {' '.join(self.symbols)}")
        return torch.tensor([ids[symbol] for symbol in symbols], dtype=torch.long)

    def decode(self, ids: Int[Tensor, " n"]) -> str:
        """The symbols of these ids, joined."""
        return "".join(self.symbols[i] for i in ids.tolist())
