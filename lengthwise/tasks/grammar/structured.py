"""Structured expressions: the families of arithmetic expressions.

Each function writes one random expression of ``size`` characters, 3 or more. The task draws again if its value is too
long.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Writer = Callable[[int, Random], str]


def only_plus(size: int, draw: Random) -> str:
    """Only plus signs: 3+8+4."""
    return _write_chain(size, draw, "+")


def only_minus(size: int, draw: Random) -> str:
    """Only minus signs: 3-8-4."""
    return _write_chain(size, draw, "-")


def only_times(size: int, draw: Random) -> str:
    """Only times signs, and mostly ones: 1*3*1."""
    return _write_chain(size, draw, "*", lambda: draw.choice("1111111111123459"))


def times_zero(size: int, draw: Random) -> str:
    """A product with a zero in it, or a one in the same position: 3*0*4, 3*1*4."""
    return _replace_factor(draw.choice("01"), _write_chain(size, draw, "*", lambda: draw.choice("11112")), draw)


def plus_and_minus(size: int, draw: Random) -> str:
    """Plus and minus signs in turn: 3+8-4."""
    return _write_chain(size, draw, "+-")


def sum_of_products(size: int, draw: Random) -> str:
    """Plus and times signs in turn: 3+8*4."""
    return _write_chain(size, draw, draw.choice(("+*", "*+", "-*")))


def ones(size: int, draw: Random) -> str:
    """Only ones, with any operators: 1-1*1."""
    return _write_chain(size, draw, "", lambda: "1")


def nearly_zeros(size: int, draw: Random) -> str:
    """Zeros, with any operators; for even sizes, one number of two digits: 0*0+0."""
    return _write_chain(size, draw, "", lambda: "0")


def one_digit_throughout(size: int, draw: Random) -> str:
    """One digit throughout, with plus and minus signs: 7+7-7."""
    digit = draw.choice("123456789")
    return _write_chain(size, draw, "+-", lambda: digit)


def cancelling(size: int, draw: Random) -> str:
    """A number minus itself: 372-372, -37+37."""
    number = _draw_number(draw, (size - 1) // 2)
    return f"{number}-{number}" if size % 2 else f"-{number}+{number}"


def nearly_cancelling(size: int, draw: Random) -> str:
    """A number minus another that differs in its last digit: 372-374, -37+39."""
    number = _draw_number(draw, (size - 1) // 2)
    other = number[:-1] + draw.choice("123456789".replace(number[-1], ""))
    return f"{number}-{other}" if size % 2 else f"-{number}+{other}"


def signs(size: int, draw: Random) -> str:
    """Products of 1 and -1: 1*-1*1*-1."""
    # k factors of one digit and k - 1 operators; the other characters are minus signs, at most one per factor.
    count = draw.randint(-(-(size + 1) // 3), (size + 1) // 2)
    minus = draw.sample(range(count), size + 1 - 2 * count)
    return "*".join("-1" if number in minus else "1" for number in range(count))


def nested_left(size: int, draw: Random) -> str:
    """Parentheses of the largest possible depth, or one less, from the left: ((3+8)-4)+1."""

    def core(depth: int) -> str:
        ends = "".join(f"){_draw_sign(draw)}{_draw_digit(draw)}" for _ in range(depth))
        return "(" * depth + f"{_draw_digit(draw)}{_draw_sign(draw)}{_draw_digit(draw)}" + ends

    return _fill_core(size, draw, core, 4)


def nested_right(size: int, draw: Random) -> str:
    """Parentheses of the largest possible depth, or one less, to the right: 1-(4-(8+3))."""

    def core(depth: int) -> str:
        starts = "".join(f"{_draw_digit(draw)}{_draw_sign(draw)}(" for _ in range(depth))
        return starts + f"{_draw_digit(draw)}{_draw_sign(draw)}{_draw_digit(draw)}" + ")" * depth

    return _fill_core(size, draw, core, 4)


def side_by_side(size: int, draw: Random) -> str:
    """Parentheses side by side: (3+8)-(4-1)."""

    def core(count: int) -> str:
        groups = (f"({_draw_digit(draw)}{_draw_sign(draw)}{_draw_digit(draw)})" for _ in range(count + 1))
        return draw.choice("+-").join(groups)

    return _fill_core(size, draw, core, 6)


def long_numbers(size: int, draw: Random) -> str:
    """Numbers of up to four digits, with plus and minus signs in turn: 4372-981."""
    parts = [5] * ((size + 1) // 5) + [(size + 1) % 5] * ((size + 1) % 5 > 0)
    if parts[-1] == 1:
        parts[-2:] = [3, 3]
    if len(parts) == 1:
        parts = [parts[0] - 2, 2]
    numbers = [_draw_number(draw, part - 1) for part in parts]
    return numbers[0] + "".join("-+"[at % 2] + number for at, number in enumerate(numbers[1:]))


WRITERS: tuple[Writer, ...] = (
    only_plus, only_minus, only_times, times_zero, plus_and_minus, sum_of_products, ones, nearly_zeros,
    one_digit_throughout, cancelling, nearly_cancelling, signs, nested_left, nested_right, side_by_side, long_numbers,
)  # fmt: skip


def _write_chain(size: int, draw: Random, operators: str, digit: Callable[[], str] | None = None) -> str:
    """Write numbers of one digit with these operators in turn (empty: random); for even sizes, one has two digits."""
    digit = digit or (lambda: _draw_digit(draw))
    count = (size + 1) // 2
    numbers = [digit() for _ in range(count)]
    if size % 2 == 0:
        at = draw.randrange(count)
        numbers[at] = (numbers[at] if numbers[at] != "0" else "1") + digit()
    between = [operators[at % len(operators)] if operators else draw.choice("+-*") for at in range(count - 1)]
    return numbers[0] + "".join(operator + number for operator, number in zip(between, numbers[1:], strict=True))


def _fill_core(size: int, draw: Random, core: Callable[[int], str], unit: int) -> str:
    """Write the largest core that leaves 0 or at least 2 characters, and fill these with terms."""
    for count in range(size // unit, -1, -1):
        text = core(count)
        room = size - len(text)
        if room == 0 or room > 1:
            odd = f"{draw.choice('+-')}{_draw_number(draw, 2)}" if room % 2 else ""
            return (
                text + odd + "".join(f"{draw.choice('+-')}{_draw_digit(draw)}" for _ in range((room - len(odd)) // 2))
            )
    return _write_chain(size, draw, "+-")


def _replace_factor(digit: str, text: str, draw: Random) -> str:
    """Replace a random one-digit factor of a product by this digit."""
    numbers = text.split("*")
    numbers[draw.choice([index for index, number in enumerate(numbers) if len(number) == 1])] = digit
    return "*".join(numbers)


def _draw_number(draw: Random, digits: int) -> str:
    return draw.choice("123456789") + "".join(_draw_digit(draw) for _ in range(digits - 1))


def _draw_digit(draw: Random) -> str:
    return draw.choice("0123456789")


def _draw_sign(draw: Random) -> str:
    return draw.choice("+-")
