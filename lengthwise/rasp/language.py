"""The operations of RASP-L (Zhou et al. 2023, section 4), on batches of rows.

A ``SymbolSequence`` holds a symbol of a small alphabet at each position. ``Places`` hold a position or a count at each
position; these numbers can be compared, and increased or decreased by 1, but not used in other arithmetic. Every
operation is causal: its result at a position depends only on that position and earlier ones.

``shift``, ``seen`` and ``latest`` can be defined in terms of the core operations. They are implemented directly, in
time linear in the row's length; tests compare them with their definitions.

An abstract row has an alphabet but no symbols. Operations on abstract rows compute only the alphabets of their results.
So a run on abstract rows shows all operations of a program, for inputs of any length.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple, NoReturn, ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.types import UsageError

Symbol = Hashable
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
ResultAndSettings = tuple[Result, dict[str, Any]]  # an operation's result, and the settings of its ``Call``
MAX_COMBINATIONS = 10_000  # largest number of combinations of symbols that ``each`` tabulates


class RaspError(UsageError):
    """Raised if a program does something that RASP-L does not allow."""


class _OpaqueValue:
    """A value that a program may pass to operations but not inspect, so that the program's control flow cannot depend
    on data or length."""

    def _refuse(self, *_: Any) -> NoReturn:
        name = type(self).__name__
        raise RaspError(f"RASP-L has no arithmetic, conditions or indexing on {name}: use lengthwise.rasp.language")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = __truediv__ = _refuse
    __neg__ = __invert__ = __and__ = __or__ = __xor__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __len__ = __iter__ = __getitem__ = __int__ = __index__ = __float__ = __contains__ = _refuse


@dataclass(frozen=True, eq=False)
class SymbolSequence(_OpaqueValue):
    """A row of symbols, stored as indices in ``alphabet``; an abstract row if ``ids`` is None."""

    alphabet: tuple[Symbol, ...]
    ids: Int[Tensor, "b t"] | None


@dataclass(frozen=True, eq=False)
class Places(_OpaqueValue):
    """A row of positions or counts; −1 means that there is no position."""

    numbers: Int[Tensor, "b t"] | None


@dataclass(frozen=True, eq=False)
class Selector(_OpaqueValue):
    """A mask [b, q, k] that is True if position q selects position k, as in an attention pattern."""

    mask: Bool[Tensor, "b t t"] | None


class Call(NamedTuple):
    """An executed operation: its name, inputs and result."""

    name: str
    inputs: tuple[SymbolSequence | Places | Selector, ...]
    result: Any
    settings: dict[str, Any]  # the operation's tables, alphabets, relation and defaults, as JSON-compatible values


_records: list[list[Call]] = []  # the recordings in progress


@contextmanager
def record() -> Iterator[list[Call]]:
    """Record the operations that a ``with`` block executes. Each result is a new object, so that it can be traced to
    the operations that read it."""
    calls: list[Call] = []
    _records.append(calls)
    try:
        yield calls
    finally:
        _records.remove(calls)


def _operation(function: Callable[Arguments, ResultAndSettings[Result]]) -> Callable[Arguments, Result]:
    """Turn a function that returns a result and the settings of its ``Call`` into an operation, which records the call
    and returns only the result."""

    @functools.wraps(function)
    def run_and_record(*inputs: Arguments.args, **options: Arguments.kwargs) -> Result:
        result, settings = function(*inputs, **options)
        if _records:
            result = copy.copy(result)
        call_inputs = tuple(value for value in inputs if isinstance(value, (SymbolSequence, Places, Selector)))
        for calls in _records:
            calls.append(Call(function.__name__, call_inputs, result, settings))
        return result

    return run_and_record


# Core


@_operation
def each(function: Callable[..., Symbol], *rows: SymbolSequence) -> ResultAndSettings[SymbolSequence]:
    """Apply a function to the symbols of one or several rows at each position, like RASP-L's ``tok_map`` and
    ``seq_map``. A feed-forward layer can compute the result.

    The function is called once for each combination of symbols, so it can depend on nothing else. Raises RaspError if
    there are more than ``MAX_COMBINATIONS``.
    """
    combinations = list(product(*(row.alphabet for row in rows)))
    if len(combinations) > MAX_COMBINATIONS:
        raise RaspError(
            f"`each` got {len(combinations)} combinations of symbols; at most {MAX_COMBINATIONS} are allowed"
        )
    results = [function(*symbols) for symbols in combinations]
    alphabet = tuple(sorted(set(results), key=lambda symbol: (str(type(symbol)), symbol)))  # type: ignore[type-var]
    position = {symbol: i for i, symbol in enumerate(alphabet)}
    table = [position[result] for result in results]
    settings = {"alphabets": [row.alphabet for row in rows], "symbols": alphabet, "table": table}
    code: Tensor | int = 0
    for row in rows:
        if row.ids is None:
            return SymbolSequence(alphabet, None), settings
        code = code * len(row.alphabet) + row.ids
    return SymbolSequence(alphabet, torch.tensor(table)[code]), settings


@_operation
def positions(row: SymbolSequence) -> ResultAndSettings[Places]:
    """Return the positions 0, 1, 2 and so on of a row, as RASP-L's ``indices`` does."""
    return Places(None if row.ids is None else torch.arange(row.ids.shape[1]).expand_as(row.ids)), {}


@_operation
def before(places: Places) -> ResultAndSettings[Places]:
    """Return the places, each decreased by 1."""
    return Places(None if places.numbers is None else places.numbers - 1), {}


@_operation
def after(places: Places) -> ResultAndSettings[Places]:
    """Return the places, each increased by 1."""
    return Places(None if places.numbers is None else places.numbers + 1), {}


@_operation
def compare(left: Places, right: Places, relation: str) -> ResultAndSettings[SymbolSequence]:
    """Return a row that is True where ``left`` has the ``relation`` to ``right``: ==, <, <=, > or >=."""
    compared, settings = _get_comparison(relation), {"relation": relation}
    if left.numbers is None or right.numbers is None:
        return SymbolSequence((False, True), None), settings
    return SymbolSequence((False, True), compared(left.numbers, right.numbers).long()), settings


_RELATIONS = {"==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _get_comparison(relation: Any) -> Callable[[Any, Any], Any]:
    if relation not in _RELATIONS:
        raise RaspError(f"places can be compared only by {' '.join(_RELATIONS)}")
    return _RELATIONS[relation]


@_operation
def select(
    keys: SymbolSequence | Places, queries: SymbolSequence | Places, relation: str | Callable[[Any, Any], bool] = "=="
) -> ResultAndSettings[Selector]:
    """Select, for each query position, the positions up to it whose key has the ``relation`` to the query.

    For symbols, ``relation`` is == or a function (key, query) → bool; for places, it is ==, <, <=, > or >=, with the
    key on the left. Raises RaspError for other relations, and if keys and queries are of different types.
    """
    if isinstance(keys, SymbolSequence) and isinstance(queries, SymbolSequence):
        if isinstance(relation, str) and relation != "==":
            raise RaspError(f"symbols have no order: compare them by == or a function of two symbols, not {relation}")
        related = operator.eq if isinstance(relation, str) else relation
        table = [[int(bool(related(key, query))) for key in keys.alphabet] for query in queries.alphabet]
        settings = {"keys": keys.alphabet, "queries": queries.alphabet, "table": table}
        if keys.ids is None or queries.ids is None:
            return Selector(None), settings
        mask = torch.tensor(table, dtype=torch.bool)[queries.ids[:, :, None], keys.ids[:, None, :]]
    elif isinstance(keys, Places) and isinstance(queries, Places):
        compared, settings = _get_comparison(relation), {"relation": relation}
        if keys.numbers is None or queries.numbers is None:
            return Selector(None), settings
        mask = compared(keys.numbers[:, None, :], queries.numbers[:, :, None])
    else:
        raise RaspError("symbols can be compared only with symbols, and places only with places")
    return Selector(mask & torch.ones(mask.shape[1:], dtype=torch.bool).tril()), settings  # causal


@_operation
def both(*selectors: Selector) -> ResultAndSettings[Selector]:
    """Return the selector of the positions that all of these selectors select."""
    masks = [selector.mask for selector in selectors if selector.mask is not None]
    return Selector(torch.stack(masks).all(0) if len(masks) == len(selectors) else None), {}


@_operation
def aggregate(
    selector: Selector, values: SymbolSequence | Places, default: Symbol = None, how: Literal["max", "min"] = "max"
) -> ResultAndSettings[Any]:
    """Return, for each position, the largest or smallest value at the positions that it selects. Symbols are ordered as
    in their alphabet. A position that selects nothing gets the default symbol or, for ``Places``, −1."""
    settings: dict[str, Any] = {"default": default, "how": how}
    if isinstance(values, SymbolSequence):
        values = _extend_alphabet(values, default)
        settings["symbols"] = values.alphabet
        result, data = functools.partial(SymbolSequence, values.alphabet), values.ids
        fallback = values.alphabet.index(default)
    else:
        result, data, fallback = Places, values.numbers, -1
    if selector.mask is None or data is None:
        return result(None), settings
    none = -1 if how == "max" else torch.iinfo(torch.long).max
    spread = torch.where(selector.mask, data[:, None, :], none)
    # Ids are ordered like the alphabet, so comparing ids compares symbols.
    best = spread.amax(2) if how == "max" else spread.amin(2)
    return result(torch.where(selector.mask.any(2), best, fallback)), settings


@_operation
def count(selector: Selector) -> ResultAndSettings[Places]:
    """Return, for each position, the number of positions that it selects, as RASP-L's ``sel_width`` does. (In Zhou et
    al., counts have 8 bits; here they are unlimited, as programs must run at any length.)"""
    return Places(None if selector.mask is None else selector.mask.sum(2)), {}


# Library


@_operation
def shift(row: SymbolSequence, default: Symbol) -> ResultAndSettings[SymbolSequence]:
    """Move symbols one position to the right, with ``default`` at position 0. The definition is
    ``aggregate(select(after(positions(row)), positions(row)), row, default)``."""
    row, settings = _extend_alphabet(row, default), {"default": default}
    if row.ids is None:
        return row, settings
    edge = torch.full_like(row.ids[:, :1], row.alphabet.index(default))
    return SymbolSequence(row.alphabet, torch.cat([edge, row.ids[:, :-1]], 1)), settings


@_operation
def seen(marks: SymbolSequence) -> ResultAndSettings[SymbolSequence]:
    """Return a row that is True at and after the first True in ``marks``, a row of True and False. The definition is
    ``aggregate(select(marks, marks, lambda key, _: True), marks)``."""
    marks = _to_booleans(marks)
    return marks if marks.ids is None else SymbolSequence(marks.alphabet, marks.ids.cummax(1).values), {}


@_operation
def latest(values: SymbolSequence, marks: SymbolSequence, default: Symbol) -> ResultAndSettings[SymbolSequence]:
    """Return, for each position, the value at the last position up to this one where ``marks`` is True, or ``default``
    if there is none."""
    values, marks, settings = _extend_alphabet(values, default), _to_booleans(marks), {"default": default}
    if values.ids is None or marks.ids is None:
        return SymbolSequence(values.alphabet, None), settings
    position = torch.arange(values.ids.shape[1])
    last = torch.where(marks.ids == 1, position, -1).cummax(1).values
    value = values.ids.gather(1, last.clamp(min=0))
    return SymbolSequence(values.alphabet, torch.where(last < 0, values.alphabet.index(default), value)), settings


def _extend_alphabet(row: SymbolSequence, symbol: Symbol) -> SymbolSequence:
    """Return the row, with ``symbol`` appended to its alphabet if the alphabet lacks it."""
    return row if symbol in row.alphabet else SymbolSequence((*row.alphabet, symbol), row.ids)


def _to_booleans(marks: SymbolSequence) -> SymbolSequence:
    if not set(marks.alphabet) <= {False, True}:
        raise RaspError("marks must be True or False: create them with `each`")
    if marks.alphabet == (False, True):
        return marks
    ids = None if marks.ids is None else torch.tensor([int(bool(s)) for s in marks.alphabet])[marks.ids]
    return SymbolSequence((False, True), ids)
