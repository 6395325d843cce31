"""Export a program as data: the graph of its operations, with the tables of its functions, so that it can run without
Python. The graph is valid for any symbols and any length, since a program's operations depend on neither."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from lengthwise.rasp.language import Call, Places, Row, Selector, follow
from lengthwise.rasp.program import GROWING, Program, State, alphabet

Graph = dict[str, Any]


def graph(program: Program) -> Graph:
    """Return the program as JSON-compatible values:

        {"prepare": part, "steps": [part, …], "finish": part}

    with part = {"nodes": [node, …], "out": {name: reference}}. A node has its operation's name, ``of`` (references to
    its inputs) and further arguments. A reference is a node's index, the name of a part of the previous state, or
    ``row``. The last step is the one to repeat: earlier ones differ only in tables, while the state's alphabets grow.
    """
    row = Row(alphabet(program.task), None)
    with follow() as calls:
        state = program.prepare(row)
    prepared, steps = _part(calls, {"row": row}, state), []
    while len(steps) < 2 or steps[-1] != steps[-2]:
        assert len(steps) <= GROWING + 1, "the state's alphabets do not stop growing: `check` rejects such a program"
        with follow() as calls:
            following = program.step(state, row)
        steps.append(_part(calls, {"row": row, **state}, following))
        state = following
    with follow() as calls:
        output = program.finish(state, row)
    return {"prepare": prepared, "steps": steps[:-1], "finish": _part(calls, {"row": row, **state}, {"said": output})}


def _part(calls: list[Call], known: Mapping[str, Any], out: State) -> Graph:
    references: dict[int, int | str] = {id(value): name for name, value in known.items()}
    nodes = []
    for call in calls:
        read = [value for value in call.given if isinstance(value, (Row, Places, Selector))]
        given = {"op": call.name, "of": [references[id(value)] for value in read]}
        nodes.append(given | _STATIC.get(call.name, _nothing)(call))
        references[id(call.result)] = len(nodes) - 1
    return {"nodes": nodes, "out": {name: references[id(value)] for name, value in out.items()}}


def _nothing(call: Call) -> Graph:
    return {}


def _each(call: Call) -> Graph:
    function, *rows = call.given
    results = [call.result.alphabet.index(function(*symbols)) for symbols in product(*(row.alphabet for row in rows))]
    return {"alphabets": [row.alphabet for row in rows], "symbols": call.result.alphabet, "table": results}


def _select(call: Call) -> Graph:
    keys, queries, *relation = call.given
    related = (relation or [call.options.get("relation", "==")])[0]
    if isinstance(keys, Places):
        return {"relation": related}
    same = isinstance(related, str)
    table = [[int(k == q if same else bool(related(k, q))) for k in keys.alphabet] for q in queries.alphabet]
    return {"keys": keys.alphabet, "queries": queries.alphabet, "table": table}


def _aggregate(call: Call) -> Graph:
    options = dict(zip(("default", "how"), call.given[2:], strict=False)) | call.options
    order = {"symbols": call.result.alphabet} if isinstance(call.result, Row) else {}
    return {"default": options.get("default"), "how": options.get("how", "max"), **order}


_STATIC = {
    "each": _each,
    "select": _select,
    "aggregate": _aggregate,
    "compare": lambda call: {"relation": call.options.get("relation", call.given[-1])},
    "shift": lambda call: {"default": call.options.get("default", call.given[-1])},
    "latest": lambda call: {"default": call.options.get("default", call.given[-1])},
}
