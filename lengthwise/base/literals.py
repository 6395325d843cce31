"""Reads values as users type them, ``32``, ``none``, ``Curriculum(top=20, every=60)``, ``(20, 26)``; no code is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from lengthwise.base.errors import UsageError, shown


def parse(text: str, name: str = "value") -> Any:
    """Parse an override's value into JSON values, without running any code in it.

    Raises UsageError if it is not a number, a word, a kind with fields, or a tuple.
    """
    if re.fullmatch(r"[^\W\d][\w-]*-[\w-]*", text):
        return text  # a word with dashes, which Python would read as a subtraction
    try:
        return _read(ast.parse(text.strip(), mode="eval").body)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(
            f"{name}: {shown(text)} is neither a number, a word, a kind like Uniform(top=20), nor a tuple"
        ) from None


def _read(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, (bool, int, float, str)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(value, (int, float)):
            return -value
        case ast.Name(id=word):
            return {"true": True, "false": False, "none": None}.get(word.lower(), word)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [_read(part) for part in parts]
        case ast.Call(func=ast.Name(id=kind), args=[], keywords=keywords):
            return {"kind": kind} | _fields(kind, keywords)
        case ast.Call(func=ast.Name(id=kind), args=[_, *_]):
            raise UsageError(f"say which field of {kind} it is, as in Uniform(top=20): {shown(ast.unparse(node))}")
    raise ValueError


def _fields(kind: str, keywords: Sequence[ast.keyword]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for keyword in keywords:
        if keyword.arg is None:
            raise ValueError
        if keyword.arg in found:
            raise UsageError(f"{kind} has one {keyword.arg}, which is given twice")
        found[keyword.arg] = _read(keyword.value)
    return found
