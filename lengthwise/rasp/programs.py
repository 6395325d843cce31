"""n-RASP-L programs for the six tasks of Fan et al. 2025 (section 3 and appendix A sketch three of them).

Each program runs on rows of a prompt, ``=``, and an end symbol ``$`` per answer slot. A looped model
would have to compute one step per loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

from jaxtyping import Int
from torch import Tensor

from lengthwise.base.fields import to_kebab_case
from lengthwise.base.types import END, EQUALS, UsageError
from lengthwise.rasp.language import (
    SymbolSequence,
    aggregate,
    both,
    compare,
    count,
    each,
    latest,
    positions,
    seen,
    select,
    shift,
)
from lengthwise.rasp.program import Program, State
from lengthwise.tasks import Task
from lengthwise.tasks.arithmetic import Addition, Multiplication
from lengthwise.tasks.bits import BinarySum
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.strings import Copy, UniqueSet


class ParityProgram(Program):
    """The program of parity. Each step moves the bits right by one position; the bit that arrives at the ``=`` is XORed
    into the answer there."""

    def prepare(self, row: SymbolSequence) -> State:
        return {"bits": _keep_bits(row), "answer": each(lambda s: "0" if s == EQUALS else None, row)}

    def step(self, state: State, row: SymbolSequence) -> State:
        bits = shift(state["bits"], None)

        def update_answer(symbol: str, bit: str | None, answer: str | None) -> str | None:
            flips = symbol == EQUALS and bit == "1"
            return answer if not flips else "1" if answer == "0" else "0"

        return {"bits": bits, "answer": each(update_answer, row, bits, state["answer"])}

    def finish(self, state: State, row: SymbolSequence) -> SymbolSequence:
        return each(lambda answer: answer or END, state["answer"])


class CopyProgram(Program):
    """The program of copying. Each step moves the row right by one position; after n steps the first symbol is at the
    ``=``."""

    def prepare(self, row: SymbolSequence) -> State:
        return {"moving": each(lambda s: END if s == EQUALS else s, row)}

    def step(self, state: State, row: SymbolSequence) -> State:
        return {"moving": shift(state["moving"], END)}

    def finish(self, state: State, row: SymbolSequence) -> SymbolSequence:
        return state["moving"]


class AdditionProgram(Program):
    """The program of addition. Digits are first added without carries (XOR for bits), and carries are computed
    separately (AND). Each step adds the carries to the next higher digits, and moves the digits one position right,
    towards the answer slots.

    If the most significant digit comes first, carries stay in place, and each step moves the next higher digits to
    them. If the least significant digit comes first, carries move right by two positions per step, and digits by one.
    """

    task: Addition

    def __init__(self, task: Addition) -> None:
        if not (task.equal_lengths and task.leading_zeros):
            raise UsageError("the addition program needs equal_lengths=true leading_zeros=true, as published")
        super().__init__(task)

    def prepare(self, row: SymbolSequence) -> State:
        base, is_most_first = self.task.base, self.task.order == "most"
        second = seen(each(lambda s: s == "+", row))
        operand = each(lambda s, second: None if not _is_digit(s) else "second" if second else "first", row, second)
        # Digits with equal rank within their operands are added.
        rank = count(select(operand, operand))
        partner = both(select(operand, operand, lambda k, q: (k, q) == ("first", "second")), select(rank, rank))
        partner_digit = aggregate(partner, row)
        # This position gets a digit 0 above the highest digit, for the last carry.
        zero = "+" if is_most_first else EQUALS

        def add_digits(symbol: str, partner_digit: str | None) -> int | None:
            return int(symbol) + int(partner_digit) if _is_digit(symbol) and _is_digit(partner_digit) else None

        def write_digit(symbol: str, total: int | None) -> str | None:
            if total is not None:
                return str(total % base)
            return "0" if symbol == zero else END if symbol in (EQUALS, END) else None

        totals = each(add_digits, row, partner_digit)
        return {
            "digits": each(write_digit, row, totals),
            "carries": each(lambda total: total is not None and total >= base, totals),
        }

    def step(self, state: State, row: SymbolSequence) -> State:
        base, digits, carries = self.task.base, shift(state["digits"], None), state["carries"]
        if self.task.order == "least":
            carries = shift(shift(carries, False), False)

        def add_carry(digit: str | None, carry: bool) -> str | None:
            return str((int(digit) + 1) % base) if carry and _is_digit(digit) else digit

        return {
            "digits": each(add_carry, digits, carries),
            "carries": each(lambda digit, carry: carry and digit == str(base - 1), digits, carries),
        }

    def finish(self, state: State, row: SymbolSequence) -> SymbolSequence:
        return shift(state["digits"], None) if self.task.order == "most" else state["digits"]


class BinarySumProgram(Program):
    """The program of binary sums. Each step moves the bits right by one position, and a binary counter counts the ones
    that arrive at the ``=``. A digit of the counter flips if all lower digits are 1; a digit that has never flipped is
    not written."""

    def prepare(self, row: SymbolSequence) -> State:
        slot = seen(each(lambda s: s == EQUALS, row))
        return {
            "bits": _keep_bits(row),
            "counter": each(lambda slot: "0" if slot else None, slot),
            "written": each(lambda s: s == EQUALS, row),
        }

    def step(self, state: State, row: SymbolSequence) -> State:
        bits, counter = shift(state["bits"], None), state["counter"]
        arrived = latest(bits, each(lambda s: s == EQUALS, row), None)
        below = seen(shift(each(lambda digit: digit == "0", counter), False))  # True where some lower digit is 0
        turns = each(lambda bit, digit, zero: bit == "1" and digit is not None and not zero, arrived, counter, below)
        return {
            "bits": bits,
            "counter": each(lambda d, turns: d if not turns else "1" if d == "0" else "0", counter, turns),
            "written": each(lambda written, turns: written or turns, state["written"], turns),
        }

    def finish(self, state: State, row: SymbolSequence) -> SymbolSequence:
        return each(lambda digit, written: digit if written else END, state["counter"], state["written"])


class MultiplicationProgram(Program):
    """The program of multiplication, for a first operand of one or two bits. In each step, a mark and a carry move one
    position to the right along the answer, lowest digit first. The second operand moves two positions to the right, so
    that its bits pass the mark, lowest first. At the mark, a bit and the next lower bit are multiplied by the bits of
    the first operand and added to the carry."""

    def __init__(self, task: Multiplication) -> None:
        if task != Multiplication():
            raise UsageError("the multiplication program supports only the published task: binary, with leading zeros")
        super().__init__(task)

    def count_rounds(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        if int(sizes[:, 0].max()) > 2:
            raise UsageError(f"this program needs a first operand of 1 or 2 bits, not {int(sizes[:, 0].max())}")
        return sizes.prod(1)

    def prepare(self, row: SymbolSequence) -> State:
        times = each(lambda s: s == "*", row)
        bits = _keep_bits(row)
        low, high = shift(bits, None), shift(shift(bits, None), None)
        return {
            "second": each(lambda bit, is_second: bit == "1" and is_second, bits, seen(times)),
            "low": each(lambda bit: bit == "1", latest(low, times, None)),
            "high": each(lambda bit: bit == "1", latest(high, times, None)),
            "mark": each(lambda s: s == EQUALS, row),
            "carry": each(lambda _: False, row),
            "product": each(lambda _: "0", row),
        }

    def step(self, state: State, row: SymbolSequence) -> State:
        def add_column(mark: bool, low_bit: bool, high_bit: bool, bit: bool, lower_bit: bool, carry: bool) -> int:
            return mark * (low_bit * bit + high_bit * lower_bit + carry)

        def write_digit(mark: bool, column_sum: int, digit: str) -> str:
            return str(column_sum % 2) if mark else digit

        passing, carry = shift(state["second"], False), shift(state["carry"], False)
        column_sums = each(add_column, state["mark"], state["low"], state["high"], passing, state["second"], carry)
        return {
            "second": shift(passing, False),
            "low": state["low"],
            "high": state["high"],
            "mark": shift(state["mark"], False),
            "carry": each(lambda column_sum: column_sum >= 2, column_sums),
            "product": each(write_digit, state["mark"], column_sums, state["product"]),
        }

    def finish(self, state: State, row: SymbolSequence) -> SymbolSequence:
        bit, slot = each(lambda s: s in ("0", "1"), row), seen(each(lambda s: s == EQUALS, row))
        bits = count(select(bit, bit, lambda key, _: key))
        slots = count(select(slot, slot, lambda key, _: key))
        return each(lambda inside, digit: digit if inside else END, compare(slots, bits, "<="), state["product"])


class UniqueSetProgram(Program):
    """The program of the unique set. A mark moves along the prompt; a symbol at the mark that did not occur before is
    written to the first empty answer slot."""

    def prepare(self, row: SymbolSequence) -> State:
        earlier = both(select(row, row), select(positions(row), positions(row), "<"))
        repeated = aggregate(earlier, each(lambda _: True, row), False)
        start = shift(each(lambda _: True, row), False)
        return {
            "new": each(lambda repeated: not repeated, repeated),
            "mark": each(lambda further: not further, start),
            "set": each(lambda _: None, row),
        }

    def step(self, state: State, row: SymbolSequence) -> State:
        symbol, new = latest(row, state["mark"], None), latest(state["new"], state["mark"], False)
        slot = seen(each(lambda s: s == EQUALS, row))
        empty = each(lambda slot, kept_symbol: slot and kept_symbol is None, slot, state["set"])
        first = each(lambda empty, before: empty and not before, empty, seen(shift(empty, False)))
        takes = each(lambda first, new: first and new, first, new)
        return {
            "new": state["new"],
            "mark": shift(state["mark"], False),
            "set": each(
                lambda kept_symbol, takes, symbol: symbol if takes else kept_symbol, state["set"], takes, symbol
            ),
        }

    def finish(self, state: State, row: SymbolSequence) -> SymbolSequence:
        return each(lambda kept_symbol: kept_symbol or END, state["set"])


def _keep_bits(row: SymbolSequence) -> SymbolSequence:
    """Return the row with all symbols except 0 and 1 replaced by None."""
    return each(lambda s: s if s in ("0", "1") else None, row)


def _is_digit(symbol: str | None) -> TypeGuard[str]:
    return symbol is not None and symbol.isdigit()


PUBLISHED_TASKS = (Parity(), Copy(), Addition(2, "most", True, True), BinarySum(), Multiplication(), UniqueSet())
PROGRAMS: dict[type[Task], Callable[[Any], Program]] = {
    Parity: ParityProgram,
    Copy: CopyProgram,
    Addition: AdditionProgram,
    BinarySum: BinarySumProgram,
    Multiplication: MultiplicationProgram,
    UniqueSet: UniqueSetProgram,
}


def find_program(task: Task) -> Program:
    """Return a task's program. Raises UsageError if the task has none."""
    if type(task) not in PROGRAMS:
        known_tasks = ", ".join(to_kebab_case(kind.__name__) for kind in PROGRAMS)
        raise UsageError(f"{task.name} has no n-RASP-L program; these tasks have one: {known_tasks}")
    return PROGRAMS[type(task)](task)
