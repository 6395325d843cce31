"""Converts frozen dataclasses to and from JSON and applies ``name=value`` overrides, with type checks.

A dataclass is written as ``{"kind": "Parity", …}``. The kind is looked up among the imported subclasses of the field's
declared type, so a file can only name classes that the program has already imported, and it cannot run code. A wrong
name raises UsageError, which suggests the closest valid one.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from lengthwise.base.errors import UnknownPart, UsageError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Convert a dataclass, and all that it contains, to values that JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {
            f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [encode(part) for part in value]
    return value


def essence(value: Any) -> Any:
    """Like ``encode``, without the fields that have their default values, and without those whose metadata say
    ``identity=False``: they do not change what is computed."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = [f for f in _changed(value) if f.metadata.get("identity", True)]
        return {"kind": type(value).__name__} | {f.name: essence(getattr(value, f.name)) for f in told}
    if isinstance(value, tuple):
        return [essence(part) for part in value]
    return value


def _changed(part: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(part) if getattr(part, f.name) != f.default]


def decode(kind: type[T], value: Any, path: str = "") -> T:
    """Build a ``kind`` from JSON values. Raises UsageError, with the field's path, if a value does not fit."""
    return _decode(kind, value, path)


def override(part: T, changes: Iterable[str]) -> T:
    """Return a copy with ``name=value`` changes applied in order, e.g. ``model=Transformer model.width=32``.

    Values are numbers, words, ``true``, ``false``, ``none``, kinds with or without fields (``Curriculum(top=20,
    every=60)``), and tuples. Raises UsageError if a name, a type or a value is wrong.
    """
    tree = encode(part)
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name:
            raise UsageError(f"a change is written name=value, not {change!r}")
        _put(tree, name.split("."), parse(text, name), name)
    return decode(type(part), tree)


def text(part: Any) -> str:
    """Write a part as a user would type it, without default values: ``MaxConfidence(per=batch)``, ``Oracle``."""
    if isinstance(part, tuple):
        return f"({', '.join(map(text, part))}{',' if len(part) == 1 else ''})"
    if not dataclasses.is_dataclass(part):
        return str(part)
    inside = ", ".join(f"{f.name}={text(getattr(part, f.name))}" for f in _changed(part))
    return type(part).__name__ + (f"({inside})" if inside else "")


def lines(part: Any) -> list[tuple[str, str]]:
    """The fields of a part by name, as a user would type them: those that its class gives no default, or another."""
    told = [f for f in dataclasses.fields(part) if f in _changed(part)]
    return [(f.name, text(getattr(part, f.name))) for f in told]


def parse(text: str, name: str = "value") -> Any:
    """Parse an override's value into JSON values, without running any code in it.

    Raises UsageError if it is not a number, a word, a kind with fields, or a tuple.
    """
    if re.fullmatch(r"[^\W\d][\w-]*-[\w-]*", text):
        return text  # a word with dashes, which Python would read as a subtraction
    try:
        return _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(
            f"{name}: {text!r} is neither a number, a word, a kind like Uniform(top=20), nor a tuple"
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
            return {"kind": kind} | {_named(keyword): _read(keyword.value) for keyword in keywords}
    raise ValueError


def _named(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError
    return keyword.arg


def _put(tree: Any, path: list[str], value: Any, name: str) -> None:
    *parents, last = path
    for step in parents:
        if isinstance(tree, list) and _indexes(tree, step):
            tree = tree[int(step)]
        elif isinstance(tree, dict) and step in tree:
            tree = tree[step]
        else:
            names = [key for key in tree if key != "kind"] if isinstance(tree, dict) else []
            raise UsageError(f"{name}: there is no such field as {step}{suggest(step, names)}")
    if isinstance(tree, list) and _indexes(tree, last):
        tree[int(last)] = value
    elif isinstance(tree, dict):
        if isinstance(value, str) and isinstance(tree.get(last), dict):
            value = {"kind": value}  # so that later changes can name its fields
        tree[last] = value
    else:
        raise UsageError(f"{name}: there is no such field as {last}")


def _indexes(parts: list[Any], step: str) -> bool:
    return step.isdecimal() and int(step) < len(parts)


def _decode(kind: Any, value: Any, path: str) -> Any:
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value in options and isinstance(value, tuple({type(option) for option in options})):
            return value
        raise UsageError(f"{path}: {value!r} is not one of: {', '.join(map(str, options))}")
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        (some,) = [option for option in options if option is not type(None)]
        return _decode(some, value, path)
    if origin is tuple:
        return _decode_tuple(options, value, path)
    if kind in (bool, int, float, str):
        return _decode_plain(kind, value, path)
    return _decode_part(kind, value, path)


def _decode_plain(kind: type, value: Any, path: str) -> Any:
    if kind is float and type(value) is int and abs(value) < 2**53:  # larger integers are not exact as floats
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
        raise UsageError(f"{path}: {value!r} is not {names[kind]}")
    return value


def _decode_tuple(options: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        value = [value]
    if len(options) == 2 and options[1] is Ellipsis:
        options = (options[0],) * len(value)
    if len(options) != len(value):
        raise UsageError(f"{path}: needs {len(options)} values, not {len(value)}")
    return tuple(_decode(o, v, f"{path}.{i}") for i, (o, v) in enumerate(zip(options, value, strict=True)))


def _decode_part(base: type, value: Any, path: str) -> Any:
    here = path or "recipe"
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise UsageError(f"{here}: {value!r} is not one of: {', '.join(kinds(base))}")
    known = kinds(base)
    if value["kind"] not in known:
        said = f"{here}: {value['kind']!r} is not one of: {', '.join(known)}{suggest(value['kind'], known)}"
        raise UnknownPart(said)
    cls = known[value["kind"]]
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    inside = f"{path}." if path else ""
    given = {}
    for name, part in value.items():
        if name == "kind":
            continue
        if name not in fields:
            raise UsageError(
                f"{inside}{name}: there is no such field; {cls.__name__} has: "
                f"{', '.join(fields) or 'none'}{suggest(name, fields)}"
            )
        given[name] = _decode(hints[name], part, f"{inside}{name}")
    missing = [n for n, f in fields.items() if n not in given and f.default is f.default_factory is dataclasses.MISSING]
    if missing:
        raise UsageError(f"{here}: {cls.__name__} needs {', '.join(missing)}, e.g. {cls.__name__}({missing[0]}=…)")
    return cls(**given)


def kinds(base: type) -> dict[str, type]:
    """All imported dataclasses that a field of type ``base`` may hold, by name."""
    found = [base] if dataclasses.is_dataclass(base) else []
    for subclass in base.__subclasses__():
        found += kinds(subclass).values()
    return {cls.__name__: cls for cls in sorted(found, key=lambda c: c.__name__) if not cls.__name__.startswith("_")}


def kebab(name: str) -> str:
    """The name by which a class is called from the shell: ``BinarySum`` → ``binary-sum``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def suggest(name: str, names: Iterable[str]) -> str:
    """``" (did you mean …?)"`` with the closest of ``names``, whatever its capitals, or ``""`` if none is close."""
    known = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), known, 1)
    return f" (did you mean {known[close[0]]}?)" if close else ""
