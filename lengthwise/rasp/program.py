"""n-RASP-L programs (prepare, a step repeated T(n) times, finish): execution, checks, and export as data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.types import END, Problems
from lengthwise.experiment.layout import FullOutput
from lengthwise.rasp.language import Call, Places, RaspError, SymbolSequence, record
from lengthwise.tasks import Task

State = dict[str, Any]  # name → ``SymbolSequence`` or ``Places``
Operation = tuple[str, int, dict[str, Any]]  # the name, number of inputs and settings of a ``Call``


class Program(ABC):
    """A task's algorithm in a form that a looped model could run. Every step can read the input row, as with input
    injection: the prompt, ``=``, and an end symbol ``$`` in each answer slot, as ``FullOutput`` writes them."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def prepare(self, row: SymbolSequence) -> State:
        """Compute the state before the first step."""

    @abstractmethod
    def step(self, state: State, row: SymbolSequence) -> State:
        """Compute one step: a RASP-L program of fixed size, the same in every round."""

    @abstractmethod
    def finish(self, state: State, row: SymbolSequence) -> SymbolSequence:
        """Compute the output row: the answer and its end symbol ``$`` start at the position of ``=``."""

    def count_rounds(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        """Return T(n), the number of steps, for problems of these sizes. By default it is n."""
        return sizes[:, 0]


@dataclass(frozen=True)
class Execution:
    """A program's run on problems that all take the same number of rounds."""

    row: SymbolSequence  # the input rows
    states: list[State]  # the prepared state, then the state after each step
    output: SymbolSequence
    answer_slots: Bool[Tensor, "b t"]
    loss_mask: Bool[Tensor, "b t"]
    is_right: Bool[Tensor, " b"]  # True if every answer symbol is correct, the end included


def execute(
    program: Program, problems: Problems, on_round: Callable[[int, int], None] = lambda number, rounds: None
) -> Execution:
    """Run a program on problems. After each round, ``on_round`` is called with the number of finished rounds and their
    total number. Raises ValueError if the problems take different numbers of rounds."""
    rounds = program.count_rounds(problems.sizes).unique().tolist()
    if len(rounds) != 1:
        raise ValueError(f"problems must all take the same number of rounds, not {rounds}")
    batch = FullOutput().write(problems, program.task)
    row = SymbolSequence(get_input_alphabet(program.task), batch.inputs.tokens)
    states = [program.prepare(row)]
    for number in range(rounds[0]):
        states.append(program.step(states[-1], row))
        on_round(number + 1, rounds[0])
    output = program.finish(states[-1], row)
    assert output.ids is not None
    symbols = torch.tensor([row.alphabet.index(s) if s in row.alphabet else -1 for s in output.alphabet])[output.ids]
    is_right = ((symbols == batch.targets) | ~batch.loss_mask).all(1)
    return Execution(row, states, output, batch.answer_slots, batch.loss_mask, is_right)


def get_input_alphabet(task: Task) -> tuple[str, ...]:
    """Return the alphabet of a program's input row."""
    return FullOutput().vocabs(task)[0].symbols


CHECKED_STEP_COUNT = 64  # number of steps that must execute the same operations
MAX_GROWING_STEPS = 8  # number of steps during which a state's alphabets may grow


def check_program(program: Program) -> None:
    """Raise RaspError, with a one-line message, if a program does something that n-RASP-L does not allow.

    The program runs on abstract rows, so it cannot read data or length. Every step must execute the same operations,
    and the alphabets of its state must stop growing after ``MAX_GROWING_STEPS`` steps. On rows with symbols, which are
    tried at two lengths, the program must execute the same operations as on abstract rows.
    """
    alphabet = get_input_alphabet(program.task)
    try:
        names, operations = _record_run(program, SymbolSequence(alphabet, None), CHECKED_STEP_COUNT)
        for length in (2, 9):
            row = SymbolSequence(alphabet, torch.arange(length)[None] % len(alphabet))
            if _record_run(program, row, MAX_GROWING_STEPS) != (names, operations[: MAX_GROWING_STEPS + 2]):
                raise RaspError("operations differ between rows, but they may depend on neither data nor length")
    except RaspError as error:
        raise RaspError(f"{type(program).__name__}: {error}") from None
    except (AttributeError, TypeError) as error:
        # An abstract row has no data: a program that reads it gets None.
        name = type(program).__name__
        raise RaspError(f"{name}: the program reads the data of rows ({error}): use lengthwise.rasp.language") from None


def _record_run(program: Program, row: SymbolSequence, step_count: int) -> tuple[list[str], list[list[Operation]]]:
    """Return the names of the state's parts, and the operations of ``prepare``, ``finish`` and each step."""
    with record() as prepared:
        state = _validate_state(program.prepare(row))
    step_operations: list[list[Operation]] = []
    has_grown = False  # whether the last step changed the alphabets
    for number in range(step_count):
        with record() as calls:
            following = _validate_state(program.step(state, row))
        operations = _list_operations(calls)
        if following.keys() != state.keys():
            raise RaspError(f"the state's parts may not change: {', '.join(state)} became {', '.join(following)}")
        grows = _list_alphabets(following) != _list_alphabets(state)
        if grows and number >= MAX_GROWING_STEPS:
            raise RaspError(f"the state's alphabet is still growing after {number} steps")
        previous = step_operations[-1] if step_operations else operations
        # Tables depend on alphabets, so they may change while alphabets grow.
        compared = [[call[0] if has_grown else call for call in part] for part in (operations, previous)]
        if compared[0] != compared[1]:
            raise RaspError("the operations of `step` differ between rounds: a step may not count rounds")
        step_operations.append(operations)
        has_grown, state = grows, following
    with record() as finished:
        if not isinstance(program.finish(state, row), SymbolSequence):
            raise RaspError("finish must return a row of symbols")
    return list(state), [_list_operations(prepared), _list_operations(finished), *step_operations]


def _list_operations(calls: Sequence[Call]) -> list[Operation]:
    return [(call.name, len(call.inputs), call.settings) for call in calls]


def _validate_state(state: State) -> State:
    if not isinstance(state, dict) or not all(isinstance(part, (SymbolSequence, Places)) for part in state.values()):
        raise RaspError("a state must be a dict of rows and places")
    return state


def _list_alphabets(state: State) -> dict[str, Any]:
    return {name: part.alphabet if isinstance(part, SymbolSequence) else None for name, part in state.items()}


def format_rounds(execution: Execution) -> list[dict[str, str]]:
    """Return the first problem's states as text: for each round, a dictionary from the names of the state's parts to
    strings with a character per position."""
    return [{name: format_row(part) for name, part in state.items()} for state in execution.states]


def format_row(part: SymbolSequence | Places) -> str:
    """Format the first row of a state's part: True as ``^``, False and None as ``·``, places as numbers with spaces."""
    if isinstance(part, Places):
        assert part.numbers is not None
        return " ".join(map(str, part.numbers[0].tolist()))
    assert part.ids is not None
    characters = ["·" if s in (None, False) else "^" if s is True else str(s) for s in part.alphabet]
    return "".join([characters[i] for i in part.ids[0].tolist()])


def format_answer(execution: Execution, task: Task) -> str:
    """Return the first problem's answer as text."""
    symbols = format_row(execution.output)
    start = int(execution.answer_slots[0].long().argmax())
    return task.format(task.vocab.encode(symbols[start:].split(END)[0]))


def export_program(program: Program) -> dict[str, Any]:
    """Return the program as JSON-compatible values, from which it can run without Python, on prompts of any length:

        {"prepare": part, "steps": [part, …], "finish": part}

    where part = {"nodes": [node, …], "out": {name: reference}}. A node has its operation's name (``op``), references to
    its inputs (``of``) and further arguments. A reference is a node's index, the name of a part of the previous state,
    or ``row``. The last step is repeated; earlier steps, in which the state's alphabets grow, differ from it only in
    their tables.
    """
    row = SymbolSequence(get_input_alphabet(program.task), None)
    with record() as calls:
        state = program.prepare(row)
    prepared, steps = _export_part(calls, {"row": row}, state), []
    while len(steps) < 2 or steps[-1] != steps[-2]:
        assert len(steps) <= MAX_GROWING_STEPS + 1, "the alphabets keep growing: `check_program` rejects such a program"
        with record() as calls:
            following = program.step(state, row)
        steps.append(_export_part(calls, {"row": row, **state}, following))
        state = following
    with record() as calls:
        output = program.finish(state, row)
    finished = _export_part(calls, {"row": row, **state}, {"said": output})
    return {"prepare": prepared, "steps": steps[:-1], "finish": finished}


def _export_part(calls: list[Call], inputs: Mapping[str, Any], outputs: State) -> dict[str, Any]:
    references: dict[int, int | str] = {id(value): name for name, value in inputs.items()}
    nodes = []
    for call in calls:
        nodes.append({"op": call.name, "of": [references[id(value)] for value in call.inputs]} | call.settings)
        references[id(call.result)] = len(nodes) - 1
    return {"nodes": nodes, "out": {name: references[id(value)] for name, value in outputs.items()}}
