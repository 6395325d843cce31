"""Parse values as users type them, e.g. ``32``, ``none``, ``Curriculum(top=20, every=60)``; no code is run."""

from __future__ import annotations

import ast
import re
from keyword import iskeyword
from typing import Any

from lengthwise.base.errors import UsageError, quote_value

WORD_PATTERN = r"[^\W\d][\w-]*"
NUMBER_PATTERN = r"\d[\d_]*[eE][+-]?\d+|0[xX][\da-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+"  # with a letter: 1e5, 0xff
NUMBER_WORD_PATTERN = rf"(?<!\.)(?!(?:{NUMBER_PATTERN})(?![\w-]))\d+[^\W\d_][\w-]*"  # begins with a number: 8GB
# A path without spaces: with a slash in it, or an ending such as .jsonl.
PATH_PATTERN = r"[~\w.-]*/[\w./~-]+|(?!\d+\.[eE])\w[\w-]*(?:\.[\w-]+)*\.[^\W\d]\w*"
# Matches quoted strings (group 1), paths (group 2) and words in a text.
WORDS_PATTERN = rf"(?<![\w-])(?:{WORD_PATTERN}|{NUMBER_WORD_PATTERN})"
TOKEN_PATTERN = re.compile(rf"""("[^"]*"|'[^']*')|(?<![\w.-])({PATH_PATTERN})|{WORDS_PATTERN}""")
VALUE_KEYWORDS = ("True", "False", "None")  # Python keywords that are values


def parse_literal(text: str, name: str = "value") -> Any:
    """Parse a number, a word, a class with fields or a tuple into JSON values, without running any code in it."""
    try:
        return _to_value(ast.parse(TOKEN_PATTERN.sub(_quote_word, text.strip()), mode="eval").body)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        known = "a number, a word, a class like Uniform(top=20), nor a tuple; several words need quotes"
        raise UsageError(f"{name}: {quote_value(text)} is neither {known}") from None


def _quote_word(match: re.Match[str]) -> str:
    """Quote a match that Python would misread: a dash as subtraction, a slash as division, or a keyword."""
    word = match[0]
    if match[1]:
        return word
    if match[2]:
        return repr(word)
    return repr(word) if "-" in word or word[0].isdigit() or (iskeyword(word) and word not in VALUE_KEYWORDS) else word


def _to_value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, (bool, int, float, str)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(value, (int, float)):
            return -value
        case ast.Name(id=word):
            return {"true": True, "false": False, "none": None}.get(word.lower(), word)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [_to_value(part) for part in parts]
        case ast.Call(func=ast.Name(id=kind), args=[], keywords=keywords):
            fields: dict[str, Any] = {}
            for keyword in keywords:
                if keyword.arg is None:
                    raise ValueError
                if keyword.arg in fields:
                    raise UsageError(f"{kind}: {keyword.arg} is given twice")
                fields[keyword.arg] = _to_value(keyword.value)
            return {"kind": kind} | fields
        case ast.Call(func=ast.Name(id=kind), args=[_, *_]):
            raise UsageError(f"give fields of {kind} by name, as in Uniform(top=20): {quote_value(ast.unparse(node))}")
    raise ValueError
