"""Convert frozen dataclasses to and from JSON and apply ``name=value`` overrides, with checks of types and ranges.

A dataclass is written as ``{"kind": "Parity", …}``. The kind is looked up among the imported subclasses of the field's
declared type, so a file can only name classes that the program has already imported, and it cannot run code. A wrong
name raises UsageError, which suggests the closest valid one.

A field's type is a number, a word, ``Literal``, a tuple, a part, or one of these types or None; ``Annotated`` adds a
range (see ``ranges``). ``TypedDict`` describes rows of files; its values may also be dictionaries.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import re
import types
import typing
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING
from functools import cache
from itertools import chain
from numbers import Integral, Real
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, NotRequired, ParamSpec, TypeVar, cast

from lengthwise.base.errors import UsageError, quote_value
from lengthwise.base.literals import WORD_PATTERN, parse_literal

PLAIN_KINDS: dict[type, Any] = {int: Integral, float: Real, str: PurePath}  # also accepted, such as numpy's numbers
T = TypeVar("T")
P = ParamSpec("P")


class Config(ABC):  # noqa: B024 (its subclasses are abstract)
    """Base class of the parts of a recipe. Subclasses are frozen dataclasses of plain values, tuples and other parts.

    Creating a part checks each field against its declared type and range, and raises UsageError if one does not fit. A
    subclass that defines ``__post_init__`` first calls that of its base class. A renamed field is declared with its
    class: after ``class Oracle(Stopping, former_names={"more": "offset"})``, files and changes may use either name."""

    former_names: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, former_names: Mapping[str, str] | None = None, **keywords: Any) -> None:
        """Raise UsageError for a field called ``kind``, which in JSON is the name of the class."""
        super().__init_subclass__(**keywords)
        cls.former_names = {**cls.former_names, **(former_names or {})}
        annotation = inspect.get_annotations(cls).get("kind")
        if annotation is not None and "ClassVar" not in str(annotation):
            raise UsageError(f"{cls.__name__}.kind: a field cannot be called kind: rename it")

    def __post_init__(self) -> None:
        for name, hint in get_field_types(type(self)).items():
            object.__setattr__(self, name, validate(hint, getattr(self, name), f"{type(self).__name__}.{name}"))


def validate_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function: arguments that are plain values or parts are validated against their annotations."""
    signature, kinds = inspect.signature(function), typing.get_type_hints(function, include_extras=True)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name for name, parameter in signature.parameters.items() if parameter.kind not in variadic}
    checkable = {name: kind for name, kind in kinds.items() if name in named and _is_checkable(kind)}

    @functools.wraps(function)
    def call_validated(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            wrong = next((name for name in kwargs if name not in signature.parameters), "")
            raise TypeError(f"{function.__name__}: {error}{suggest(wrong, signature.parameters)}") from None
        for name in checkable.keys() & bound.arguments.keys():
            bound.arguments[name] = validate(checkable[name], bound.arguments[name], name)
        return function(*bound.args, **bound.kwargs)

    return call_validated


def _is_checkable(annotation: Any) -> bool:
    options = [option for option in typing.get_args(annotation) if option is not type(None)]
    if typing.get_origin(annotation) in (Annotated, typing.Union, types.UnionType):
        has_one_type = typing.get_origin(annotation) is Annotated or len(options) == 1
        return has_one_type and _is_checkable(options[0])
    is_plain = annotation in (bool, int, float, str) or typing.get_origin(annotation) is Literal
    return is_plain or (isinstance(annotation, type) and issubclass(annotation, Config))


@cache
def get_field_types(cls: type) -> Mapping[str, Any]:
    """Return the declared types of a dataclass's fields, or of a TypedDict's keys."""
    hints = typing.get_type_hints(cls, include_extras=True)
    if dataclasses.is_dataclass(cls):
        return {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    # A key that is not required still has its declared type where it is present.
    optional = {name for name, hint in hints.items() if typing.get_origin(hint) is NotRequired}
    return {name: typing.get_args(hint)[0] if name in optional else hint for name, hint in hints.items()}


def encode(value: Any) -> Any:
    """Convert a dataclass, recursively, to JSON values."""
    return _encode_fields(value, lambda part: {f.name: f.name for f in dataclasses.fields(part)})


def identity_fields(value: Any) -> Any:
    """Encode a part for ids. Fields at their defaults are left out, as are fields with the metadata ``identity=False``,
    which do not change results. A renamed field has its former name, so that ids stay."""

    def choose_fields(part: Any) -> dict[str, str]:
        former_names = {name: former for former, name in getattr(part, "former_names", {}).items()}
        named = [f.name for f in _list_non_default_fields(part) if f.metadata.get("identity", True)]
        return {name: former_names.get(name, name) for name in named}

    return _encode_fields(value, choose_fields)


def _encode_fields(value: Any, choose_fields: Callable[[Any], Mapping[str, str]]) -> Any:
    # ``choose_fields`` maps the names of the fields to encode to the keys to write.
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        chosen = choose_fields(value).items()
        tree = {key: _encode_fields(getattr(value, name), choose_fields) for name, key in chosen}
        return {"kind": recorded_name(type(value))} | tree
    if isinstance(value, tuple):
        return [_encode_fields(part, choose_fields) for part in value]
    return value


def _list_non_default_fields(part: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(part) if getattr(part, f.name) != f.default]


def decode(annotation: type[T], value: Any, path: str = "") -> T:
    """Convert JSON values to the type ``annotation``. Raises UsageError, with the field's path, if they do not fit."""
    try:
        return validate(annotation, value, path)
    except RecursionError:
        raise UsageError("parts are nested too deeply: nest fewer") from None


def override(part: T, changes: Iterable[str]) -> T:
    """Return a copy with ``name=value`` changes applied in order, e.g. ``model=Transformer model.width=32``.

    Values are numbers, words, ``true``, ``false``, ``none``, classes with or without fields (``Curriculum(top=20,
    every=60)``), and tuples. Raises UsageError if a name, a type or a value is wrong.
    """
    return decode(type(part), _apply_changes(encode(part), changes))


def build(cls: type[T], changes: Iterable[str]) -> T:
    """Build a part from its defaults and changes (see ``override``). Raises UsageError if a field is missing."""
    defaults = {f.name: encode(f.default) for f in dataclasses.fields(cast(Any, cls)) if f.default is not MISSING}
    return decode(cls, _apply_changes({"kind": cls.__name__} | defaults, changes))


def _apply_changes(tree: Any, changes: Iterable[str]) -> Any:
    for change in changes:
        validate(str, change, "a change")
        name, equals, text = change.partition("=")
        if not equals or not name:
            raise UsageError(f"write a change as name=value, not {quote_value(change)}")
        _set_at_path(tree, name.split("."), parse_literal(text, name), name)
    return tree


def _set_at_path(tree: Any, path: list[str], value: Any, full_name: str) -> None:
    *parents, last = path
    for step in parents:
        if isinstance(tree, list) and step in map(str, range(len(tree))):
            tree = tree[int(step)]
        elif isinstance(tree, dict) and step in tree:
            tree = tree[step]
        else:
            names = [key for key in tree if key != "kind"] if isinstance(tree, dict) else []
            raise UsageError(f"{full_name}: there is no such field as {step}{suggest(step, names)}")
    if isinstance(tree, list) and last in map(str, range(len(tree))):
        tree[int(last)] = value
    elif isinstance(tree, dict):
        if isinstance(value, str) and isinstance(tree.get(last), dict):
            value = {"kind": value}  # so that later changes can name its fields
        tree.pop(last, None)  # a later change wins, even if one of them uses a field's former name
        tree[last] = value
    else:
        raise UsageError(f"{full_name}: there is no such field as {last}")


def iterate_parts(value: Any) -> Iterator[Any]:
    """Yield a dataclass and, recursively, the dataclasses in its fields and tuples."""
    if isinstance(value, tuple):
        yield from chain.from_iterable(map(iterate_parts, value))
    elif dataclasses.is_dataclass(value):
        yield value
        yield from chain.from_iterable(iterate_parts(getattr(value, f.name)) for f in dataclasses.fields(value))


def format_part(part: Any) -> str:
    """Return a part as a user would type it: ``MaxConfidence(per=batch)``. Fields at their defaults and fields with the
    metadata ``shown=False`` are left out."""
    if isinstance(part, tuple):
        return f"({', '.join(map(format_part, part))}{',' if len(part) == 1 else ''})"
    if not dataclasses.is_dataclass(part):
        return repr(part) if isinstance(part, str) and not re.fullmatch(WORD_PATTERN, part) else str(part)
    named = [f.name for f in _list_non_default_fields(part) if f.metadata.get("shown", True)]
    field_texts = ", ".join(f"{name}={format_part(getattr(part, name))}" for name in named)
    return type(part).__name__ + (f"({field_texts})" if field_texts else "")


def format_changed_fields(part: Any) -> list[tuple[str, str]]:
    """Return the name, and the value as a user would type it, of each field that is not at its default."""
    return [(f.name, format_part(getattr(part, f.name))) for f in _list_non_default_fields(part)]


def validate(annotation: Any, value: Any, path: str) -> Any:
    """Convert a value to its declared type: an integer to a float, a class's name to an instance, a single value to a
    tuple of one. Raises UsageError, with the field's path, if the value does not fit."""
    origin, options = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        value = validate(options[0], value, path)
        for rule in options[1:]:
            if broken := rule.find_broken_limit(value):
                raise UsageError(f"{path} must be {broken}, not {quote_value(value)}")
        return value
    if origin is Literal:
        value = "none" if value is None and "none" in options else value  # `parse_literal` reads the word none as None
        if any(type(value) is type(option) and value == option for option in options):
            return value
        raise UsageError(f"{path}: {quote_value(value)} is not one of: {', '.join(map(str, options))}")
    if origin in (typing.Union, types.UnionType):
        (option,) = [option for option in options if option is not type(None)]
        return None if value is None and type(None) in options else validate(option, value, path)
    if origin is tuple:
        values = value if isinstance(value, (list, tuple)) else [value]
        kinds = (options[0],) * len(values) if len(options) == 2 and options[1] is Ellipsis else options
        if len(kinds) != len(values):
            raise UsageError(f"{path}: needs {len(kinds)} values, not {len(values)}")
        return tuple(validate(k, v, f"{path}.{i}") for i, (k, v) in enumerate(zip(kinds, values, strict=True)))
    if annotation in (bool, int, float, str):
        is_inexact = annotation is float and isinstance(value, Integral) and abs(int(value)) >= 2**53
        if isinstance(value, PLAIN_KINDS.get(annotation, ())) and type(value) is not bool and not is_inexact:
            value = annotation(value)
        if type(value) is not annotation or (isinstance(value, float) and not math.isfinite(value)):
            names = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
            is_whole = annotation is int and isinstance(value, float) and value % 1 == 0 and abs(value) < 2**53
            advice = f": write {int(value)}" if is_whole else ""
            raise UsageError(f"{path}: {quote_value(value)} is not {names[annotation]}{advice}")
        return value
    if not (origin is dict or typing.is_typeddict(annotation)):
        return _validate_part(annotation, value, path)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {quote_value(value)} is not a JSON object")
    if origin is dict:
        for name, part in value.items():
            validate(options[0], name, f"{path}: a key")
            validate(options[1], part, f"{path}.{name}")
        return value
    for name, hint in get_field_types(annotation).items():  # a TypedDict may have further keys
        if name in value:
            validate(hint, value[name], f"{path}: {name}")
        elif name in annotation.__required_keys__:
            raise UsageError(f"{path}: the field {name} is missing")
    return value


def _validate_part(base_class: Any, value: Any, path: str) -> Any:
    where = path or "recipe"
    if not isinstance(base_class, type) or not (issubclass(base_class, Config) or dataclasses.is_dataclass(base_class)):
        raise UsageError(f"{where}: a field is a number, a word, a tuple or a part, not {base_class}")
    if isinstance(value, base_class):
        if not getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False):
            advice = "write @dataclass(frozen=True) above it"
            raise UsageError(f"{type(value).__name__} is not a frozen dataclass: {advice}")
        return value
    if isinstance(value, str) and "(" in value:
        value = parse_literal(value, where)
    if isinstance(value, str | type):  # a class, or its name, stands for an instance with default fields
        value = {"kind": value if isinstance(value, str) else recorded_name(value)}
    classes = find_part_classes(base_class)
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        advice = f"; {where}.FIELD=VALUE changes one of its fields" * isinstance(value, (int, float, list))
        raise UsageError(f"{where}: {quote_value(value)} is not one of: {', '.join(classes)}{advice}")
    name = value["kind"]
    if name not in classes:
        advice = suggest(name, classes) or "; if it is your own, import its module first"
        raise UsageError(f"{where}: {quote_value(name)} is not one of: {', '.join(classes)}{advice}")
    return _build_part(classes[name], {name: part for name, part in value.items() if name != "kind"}, path)


def _build_part(cls: type, values: Mapping[str, Any], path: str) -> Any:
    inside = f"{path}." if path else ""
    checked, types, former_names = {}, get_field_types(cls), getattr(cls, "former_names", {})
    for given_name, value in values.items():
        name = given_name if given_name in types else former_names.get(given_name, given_name)
        if name not in types:
            known = f"{cls.__name__} has: {', '.join(types) or 'none'}{suggest(name, types)}"
            raise UsageError(f"{inside}{name:.80}: there is no such field; {known}")
        checked[name] = validate(types[name], value, f"{inside}{name}")
    needed = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is MISSING]
    where = f"{path}: " if path else ""
    if missing_methods := sorted(getattr(cls, "__abstractmethods__", ())):
        plural = "s" * (len(missing_methods) > 1)
        raise UsageError(f"{where}{cls.__name__} lacks the method{plural} {' and '.join(missing_methods)}")
    if missing := [name for name in needed if name not in checked]:
        raise UsageError(f"{where}{cls.__name__} needs {', '.join(missing)}, e.g. {cls.__name__}({missing[0]}=…)")
    return cls(**checked)


def find_part_classes(base_class: type) -> dict[str, type]:
    """Return all imported dataclasses that a field of this type may hold, by name. Raises UsageError if a user's class
    has the name of a class of the package: it would replace that class in every recipe."""
    classes: dict[str, type] = {}
    for cls in sorted(iterate_subclasses(base_class), key=lambda cls: cls.__name__):
        same_name = (classes.get(recorded_name(cls), cls), cls)
        foreign = [f"{other.__module__}.{other.__name__}" for other in same_name
                   if other.__module__.split(".")[0] != "lengthwise"]  # fmt: skip
        if len(foreign) == 1:
            raise UsageError(f"{foreign[0]}: the package has a part of this name; rename your class")
        classes[recorded_name(cls)] = cls
    return classes


def recorded_name(cls: type) -> str:
    """Return a part's name in files and ids: the class's name or, if the class was renamed, its attribute
    ``recorded_name``."""
    return vars(cls).get("recorded_name", cls.__name__)


def iterate_subclasses(base_class: type) -> Iterator[type]:
    """Yield all imported dataclasses that a field of type ``base_class`` may hold, even if some have the same name."""
    if dataclasses.is_dataclass(base_class) and not base_class.__name__.startswith("_"):
        yield base_class
    for subclass in base_class.__subclasses__():
        yield from iterate_subclasses(subclass)


def to_kebab_case(name: str) -> str:
    """Return a class's name as typed in the shell: ``BinarySum`` → ``binary-sum``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def suggest(name: str, names: Iterable[str], display_texts: Mapping[str, str] | None = None) -> str:
    """Return ``" (did you mean …?)"`` with the closest of ``names``, ignoring case, or ``""`` if none is close.
    ``display_texts`` maps each name to the text to show for it, by default the name itself."""
    by_lower_case = {other.lower(): other for other in names}
    # Only 100 characters are compared: the comparison takes time in proportion to both lengths.
    close = difflib.get_close_matches(name[:100].lower(), by_lower_case, 1)
    if not close:
        return ""
    found = by_lower_case[close[0]]
    return f" (did you mean {display_texts[found] if display_texts else found}?)"
