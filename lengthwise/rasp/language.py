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
Recorded = tuple[Result, dict[str, Any]]  # an operation's result, and the facts of its ``Call``
MAX_COMBINATIONS = 10_000  # at most this many combinations of symbols are tabulated by ``each``


class Forbidden(UsageError):
    """The error of a program that does something which RASP-L does not allow."""


class _Opaque:
    """A value that a program may pass to operations but not inspect, so that the program's control flow cannot depend
    on data or length."""

    def _refuse(self, *_: Any) -> NoReturn:
        name = type(self).__name__
        raise Forbidden(f"RASP-L has no arithmetic, conditions or indexing on {name}: use lengthwise.rasp.language")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = __truediv__ = _refuse
    __neg__ = __invert__ = __and__ = __or__ = __xor__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __len__ = __iter__ = __getitem__ = __int__ = __index__ = __float__ = __contains__ = _refuse


@dataclass(frozen=True, eq=False)
class SymbolSequence(_Opaque):
    """A row of symbols, stored as indices in ``alphabet``; an abstract row if ``ids`` is None."""

    alphabet: tuple[Symbol, ...]
    ids: Int[Tensor, "b t"] | None


@dataclass(frozen=True, eq=False)
class Places(_Opaque):
    """A row of positions or counts; −1 means that there is no position."""

    numbers: Int[Tensor, "b t"] | None


@dataclass(frozen=True, eq=False)
class Selector(_Opaque):
    """A mask [b, q, k] that is True if position q selects position k, as in an attention pattern."""

    mask: Bool[Tensor, "b t t"] | None


class Call(NamedTuple):
    """An executed operation: its name, inputs and result."""

    name: str
    inputs: tuple[SymbolSequence | Places | Selector, ...]
    result: Any
    facts: dict[str, Any]  # the operation's tables, alphabets, relation and defaults, as JSON-compatible values


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


def _operation(function: Callable[Arguments, Recorded[Result]]) -> Callable[Arguments, Result]:
    """Decorate a function that returns a result and the facts of its ``Call``, so that it returns the result alone and
    the call is recorded."""

    @functools.wraps(function)
    def run_and_record(*inputs: Arguments.args, **options: Arguments.kwargs) -> Result:
        result, facts = function(*inputs, **options)
        if _records:
            result = copy.copy(result)
        call_inputs = tuple(value for value in inputs if isinstance(value, (SymbolSequence, Places, Selector)))
        for calls in _records:
            calls.append(Call(function.__name__, call_inputs, result, facts))
        return result

    return run_and_record


# Core


@_operation
def each(function: Callable[..., Symbol], *rows: SymbolSequence) -> Recorded[SymbolSequence]:
    """Apply a function to the symbols of one or several rows at each position, as RASP-L's ``tok_map`` and ``seq_map``
    do and a feed-forward layer can.

    The function is called once for each combination of symbols, so it can depend on nothing else. Raises Forbidden if
    there are more than ``MAX_COMBINATIONS``.
    """
    combinations = list(product(*(row.alphabet for row in rows)))
    if len(combinations) > MAX_COMBINATIONS:
        raise Forbidden(
            f"`each` got {len(combinations)} combinations of symbols; at most {MAX_COMBINATIONS} are allowed"
        )
    results = [function(*symbols) for symbols in combinations]
    alphabet = tuple(sorted(set(results), key=lambda symbol: (str(type(symbol)), symbol)))  # type: ignore[type-var]
    position = {symbol: i for i, symbol in enumerate(alphabet)}
    table = [position[result] for result in results]
    facts = {"alphabets": [row.alphabet for row in rows], "symbols": alphabet, "table": table}
    code: Tensor | int = 0
    for row in rows:
        if row.ids is None:
            return SymbolSequence(alphabet, None), facts
        code = code * len(row.alphabet) + row.ids
    return SymbolSequence(alphabet, torch.tensor(table)[code]), facts


@_operation
def positions(row: SymbolSequence) -> Recorded[Places]:
    """Return the positions 0, 1, 2 and so on of a row, as RASP-L's ``indices`` does."""
    return Places(None if row.ids is None else torch.arange(row.ids.shape[1]).expand_as(row.ids)), {}


@_operation
def before(places: Places) -> Recorded[Places]:
    """Return places that are smaller by 1."""
    return Places(None if places.numbers is None else places.numbers - 1), {}


@_operation
def after(places: Places) -> Recorded[Places]:
    """Return places that are larger by 1."""
    return Places(None if places.numbers is None else places.numbers + 1), {}


@_operation
def compare(left: Places, right: Places, relation: str) -> Recorded[SymbolSequence]:
    """Return a row that is True where ``left`` and ``right`` are in ``relation``: ==, <, <=, > or >=."""
    compared, facts = _get_comparison(relation), {"relation": relation}
    if left.numbers is None or right.numbers is None:
        return SymbolSequence((False, True), None), facts
    return SymbolSequence((False, True), compared(left.numbers, right.numbers).long()), facts


_RELATIONS = {"==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _get_comparison(relation: Any) -> Callable[[Any, Any], Any]:
    if relation not in _RELATIONS:
        raise Forbidden(f"places can be compared only by {' '.join(_RELATIONS)}")
    return _RELATIONS[relation]


@_operation
def select(
    keys: SymbolSequence | Places, queries: SymbolSequence | Places, relation: str | Callable[[Any, Any], bool] = "=="
) -> Recorded[Selector]:
    """Select, for each query position, the positions up to this one whose key is in ``relation`` to the query.

    For symbols, ``relation`` is == or a function (key, query) → bool; for places, it is ==, <, <=, > or >=, with the
    key on the left. Raises Forbidden for other relations, and if keys and queries are of different types.
    """
    if isinstance(keys, SymbolSequence) and isinstance(queries, SymbolSequence):
        if isinstance(relation, str) and relation != "==":
            raise Forbidden(f"symbols have no order: compare them by == or a function of two symbols, not {relation}")
        related = operator.eq if isinstance(relation, str) else relation
        table = [[int(bool(related(key, query))) for key in keys.alphabet] for query in queries.alphabet]
        facts = {"keys": keys.alphabet, "queries": queries.alphabet, "table": table}
        if keys.ids is None or queries.ids is None:
            return Selector(None), facts
        mask = torch.tensor(table, dtype=torch.bool)[queries.ids[:, :, None], keys.ids[:, None, :]]
    elif isinstance(keys, Places) and isinstance(queries, Places):
        compared, facts = _get_comparison(relation), {"relation": relation}
        if keys.numbers is None or queries.numbers is None:
            return Selector(None), facts
        mask = compared(keys.numbers[:, None, :], queries.numbers[:, :, None])
    else:
        raise Forbidden("symbols can be compared only with symbols, and places only with places")
    return Selector(mask & torch.ones(mask.shape[1:], dtype=torch.bool).tril()), facts  # causal


@_operation
def both(*selectors: Selector) -> Recorded[Selector]:
    """Return the selector of the positions that all of these selectors select."""
    masks = [selector.mask for selector in selectors if selector.mask is not None]
    return Selector(torch.stack(masks).all(0) if len(masks) == len(selectors) else None), {}


@_operation
def aggregate(
    selector: Selector, values: SymbolSequence | Places, default: Symbol = None, how: Literal["max", "min"] = "max"
) -> Recorded[Any]:
    """Return, for each position, the largest or smallest value at the positions that it selects. Symbols are ordered as
    in their alphabet. A position that selects nothing gets the default symbol or, for ``Places``, −1."""
    facts: dict[str, Any] = {"default": default, "how": how}
    if isinstance(values, SymbolSequence):
        values = _extend_alphabet(values, default)
        facts["symbols"] = values.alphabet
        result, data = functools.partial(SymbolSequence, values.alphabet), values.ids
        fallback = values.alphabet.index(default)
    else:
        result, data, fallback = Places, values.numbers, -1
    if selector.mask is None or data is None:
        return result(None), facts
    none = -1 if how == "max" else torch.iinfo(torch.long).max
    spread = torch.where(selector.mask, data[:, None, :], none)
    # Ids are ordered like the alphabet, so comparing ids compares symbols.
    best = spread.amax(2) if how == "max" else spread.amin(2)
    return result(torch.where(selector.mask.any(2), best, fallback)), facts


@_operation
def count(selector: Selector) -> Recorded[Places]:
    """Return, for each position, the number of positions that it selects, as RASP-L's ``sel_width`` does. (In Zhou et
    al., counts have 8 bits; here they are unlimited, as programs must run at any length.)"""
    return Places(None if selector.mask is None else selector.mask.sum(2)), {}


# Library


@_operation
def shift(row: SymbolSequence, default: Symbol) -> Recorded[SymbolSequence]:
    """Move symbols one position to the right, with ``default`` at position 0. The definition is
    ``aggregate(select(after(positions(row)), positions(row)), row, default)``."""
    row, facts = _extend_alphabet(row, default), {"default": default}
    if row.ids is None:
        return row, facts
    edge = torch.full_like(row.ids[:, :1], row.alphabet.index(default))
    return SymbolSequence(row.alphabet, torch.cat([edge, row.ids[:, :-1]], 1)), facts


@_operation
def seen(marks: SymbolSequence) -> Recorded[SymbolSequence]:
    """Return a row that is True at and after the first True in ``marks``, a row of True and False. The definition is
    ``aggregate(select(marks, marks, lambda key, _: True), marks)``."""
    marks = _to_booleans(marks)
    return marks if marks.ids is None else SymbolSequence(marks.alphabet, marks.ids.cummax(1).values), {}


@_operation
def latest(values: SymbolSequence, marks: SymbolSequence, default: Symbol) -> Recorded[SymbolSequence]:
    """Return, for each position, the value at the last position up to this one where ``marks`` is True, or ``default``
    if there is none."""
    values, marks, facts = _extend_alphabet(values, default), _to_booleans(marks), {"default": default}
    if values.ids is None or marks.ids is None:
        return SymbolSequence(values.alphabet, None), facts
    position = torch.arange(values.ids.shape[1])
    last = torch.where(marks.ids == 1, position, -1).cummax(1).values
    value = values.ids.gather(1, last.clamp(min=0))
    return SymbolSequence(values.alphabet, torch.where(last < 0, values.alphabet.index(default), value)), facts


def _extend_alphabet(row: SymbolSequence, symbol: Symbol) -> SymbolSequence:
    """Return the row, with ``symbol`` appended to its alphabet if the alphabet lacks it."""
    return row if symbol in row.alphabet else SymbolSequence((*row.alphabet, symbol), row.ids)


def _to_booleans(marks: SymbolSequence) -> SymbolSequence:
    if not set(marks.alphabet) <= {False, True}:
        raise Forbidden("marks must be True or False: create them with `each`")
    if marks.alphabet == (False, True):
        return marks
    ids = None if marks.ids is None else torch.tensor([int(bool(s)) for s in marks.alphabet])[marks.ids]
    return SymbolSequence((False, True), ids)
