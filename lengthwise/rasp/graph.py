"""Export a program as data: the graph of its operations, with the tables of its functions, so that it can run without
Python. The graph is valid for any symbols and any length, since a program's operations depend on neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lengthwise.rasp.language import Call, Row, record
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
    with record() as calls:
        state = program.prepare(row)
    prepared, steps = _part(calls, {"row": row}, state), []
    while len(steps) < 2 or steps[-1] != steps[-2]:
        assert len(steps) <= GROWING + 1, "the state's alphabets do not stop growing: `check` rejects such a program"
        with record() as calls:
            following = program.step(state, row)
        steps.append(_part(calls, {"row": row, **state}, following))
        state = following
    with record() as calls:
        output = program.finish(state, row)
    return {"prepare": prepared, "steps": steps[:-1], "finish": _part(calls, {"row": row, **state}, {"said": output})}


def _part(calls: list[Call], known: Mapping[str, Any], out: State) -> Graph:
    references: dict[int, int | str] = {id(value): name for name, value in known.items()}
    nodes = []
    for call in calls:
        nodes.append({"op": call.name, "of": [references[id(value)] for value in call.reads]} | call.facts)
        references[id(call.result)] = len(nodes) - 1
    return {"nodes": nodes, "out": {name: references[id(value)] for name, value in out.items()}}
