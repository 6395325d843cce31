"""Mutations of typed prompts. The task's ``parse`` decides whether the result is a problem."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from lengthwise.tasks import Task

Mutation = Callable[[str, tuple[str, ...], Random], str]  # (text between signs, symbols, chance) → new text


def mutate(text: str, task: Task, chance: Random) -> str:
    """Apply one or two changes: to one part between signs, to all parts, or to their order."""
    signs = "".join(re.escape(sign) for sign in task.signs)
    symbols = tuple(symbol for symbol in task.symbols if symbol not in task.signs)
    for _ in range(chance.choice((1, 1, 2))):
        parts = re.split(f"([{signs}])", text) if signs else [text]
        filled = [index for index, part in enumerate(parts) if part and part not in task.signs]
        if not filled:
            return text
        if len(filled) > 1 and chance.random() < 0.1:
            i, j = chance.sample(filled, 2)
            parts[i], parts[j] = parts[j], parts[i]
        else:
            change = chance.choice(CHANGES)
            for index in filled if chance.random() < 0.3 else [chance.choice(filled)]:
                parts[index] = change(parts[index], symbols, chance)
        text = "".join(parts)
    return text


def one_symbol(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Replace the symbol in one position."""
    at = chance.randrange(len(part))
    return part[:at] + chance.choice(symbols) + part[at + 1 :]


def repeat_symbol(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Repeat one symbol over a span."""
    start, stop = _draw_span(part, chance)
    return part[:start] + part[start] * (stop - start) + part[stop:]


def copy_span(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Copy a span over another of the same length."""
    start, stop = _draw_span(part, chance)
    to = chance.randrange(len(part) - (stop - start) + 1)
    return part[:to] + part[start:stop] + part[to + stop - start :]


def double_symbol(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Double one symbol."""
    at = chance.randrange(len(part))
    return part[: at + 1] + part[at:]


def drop_symbols(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Drop one symbol, or half of them."""
    if len(part) == 1:
        return part
    if chance.random() < 0.2:
        return part[: len(part) // 2]
    at = chance.randrange(len(part))
    return part[:at] + part[at + 1 :]


def complement_span(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Complement a span: the highest symbol for the lowest, and so on."""
    start, stop = _draw_span(part, chance)
    turned = dict(zip(symbols, reversed(symbols), strict=True))
    return part[:start] + "".join(turned.get(symbol, symbol) for symbol in part[start:stop]) + part[stop:]


def fill_part(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Write one symbol throughout."""
    return chance.choice(symbols) * len(part)


CHANGES: tuple[Mutation, ...] = (
    one_symbol,
    repeat_symbol,
    copy_span,
    double_symbol,
    drop_symbols,
    drop_symbols,
    complement_span,
    fill_part,
)


def _draw_span(part: str, chance: Random) -> tuple[int, int]:
    start, stop = sorted((chance.randrange(len(part)), chance.randrange(len(part))))
    return start, stop + 1
