"""Problems per second, written as rows, on one thread. Claims: parity at least 200k, 20-digit decimal addition at least
100k; and every task at least 50 times a straightforward generator that writes row by row in plain Python."""

import json
import random
import statistics
import string
import time
from collections.abc import Callable

import torch

from lengthwise.layout import EQUALS, FullOutput, Layout, NextToken, Pairs
from lengthwise.rng import stream
from lengthwise.tasks import Task
from lengthwise.tasks.addition import Addition
from lengthwise.tasks.binary_sum import BinarySum
from lengthwise.tasks.bitwise_or import BitwiseOr
from lengthwise.tasks.copy import Copy
from lengthwise.tasks.flipped_copy import FlippedCopy
from lengthwise.tasks.multiplication import Multiplication
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.sorting import Sorting
from lengthwise.tasks.unique_set import UniqueSet

BATCH, SIZE, REPEATS, PLAIN_REPEATS, CLAIM = 1024, 20, 30, 5, 50
Prompt = Callable[[random.Random], str]


def digits(chance: random.Random, count: int, base: int = 10, zeros: bool = False) -> str:
    """A number of exactly so many digits, least significant first."""
    found = [str(chance.randrange(base)) for _ in range(count - 1)]
    return "".join([*found, str(chance.randrange(0 if zeros or count == 1 else 1, base))])


def listed(task: Task) -> Prompt:
    return lambda chance: "".join(chance.choice(task.symbols) for _ in range(SIZE))


def two(sign: str, first: int, second: int, base: int = 10, zeros: bool = False) -> Prompt:
    return lambda chance: sign.join(digits(chance, count, base, zeros) for count in (first, second))


def one_and_none(chance: random.Random) -> str:
    one = ["0"] * SIZE
    one[chance.randrange(SIZE)] = "1"
    vectors = ["".join(one), "0" * SIZE]
    chance.shuffle(vectors)
    return "|".join(vectors)


def labelled(chance: random.Random) -> str:
    alphabet = string.ascii_uppercase + string.ascii_lowercase
    start = chance.randrange(len(alphabet))
    labels = [alphabet[(start + i) % len(alphabet)] for i in range(10)]
    return ",".join(f"{label}:{digits(chance, chance.randint(1, 10))}" for label in labels)


BINARY = Addition(base=2, equal_lengths=True, leading_zeros=True)
DECIMAL = Addition(order="least")
STACKED = Addition(order="least", equal_lengths=True, leading_zeros=True)
BINARY_PRODUCT = Multiplication()
PRODUCT = Multiplication(base=10, order="least", product="least", leading_zeros=False)
TASKS: dict[str, tuple[Task, tuple[int, ...], Layout, Prompt]] = {
    "parity": (Parity(), (SIZE,), FullOutput(), listed(Parity())),
    "copy": (Copy(), (SIZE,), FullOutput(), listed(Copy())),
    "flipped copy": (FlippedCopy(), (SIZE,), FullOutput(), listed(FlippedCopy())),
    "binary sum": (BinarySum(), (SIZE,), FullOutput(), listed(BinarySum())),
    "unique set": (UniqueSet(), (SIZE,), FullOutput(), listed(UniqueSet())),
    "binary addition": (BINARY, (SIZE,), FullOutput(), two("+", SIZE, SIZE, 2, True)),
    "binary product": (BINARY_PRODUCT, (2, 11), FullOutput(), two("*", 2, 11, 2, True)),
    "addition": (DECIMAL, (SIZE, SIZE), NextToken(), two("+", SIZE, SIZE)),
    "product": (PRODUCT, (8, 8), NextToken(), two("*", 8, 8)),
    "sorting": (Sorting(), (10, 10), NextToken(), labelled),
    "bitwise or": (BitwiseOr(), (SIZE, SIZE), NextToken(), one_and_none),
}  # fmt: skip


def per_second(make: Callable[[int], object], repeats: int) -> float:
    """Problems per second, the median of so many batches; in processor time."""
    seconds = []
    for step in range(repeats):
        start = time.process_time()
        make(step)
        seconds.append(time.process_time() - start)
    return BATCH / statistics.median(seconds)


def ours(task: Task, sizes: tuple[int, ...], layout: Layout) -> float:
    asked = torch.tensor([sizes]).expand(BATCH, -1)
    return per_second(lambda step: layout.write(task.sample(asked, stream(0, "bench", step)), task), REPEATS)


def plain(task: Task, layout: Layout, prompt: Prompt) -> float:
    """Row by row: a prompt by Python's own generator, its answer by the reference, both as numbers in padded lists."""
    ids = {symbol: i for i, symbol in enumerate(layout.vocabs(task)[0].symbols)}
    end = ids["$"]

    def make(step: int) -> object:
        chance, tokens, targets, asked = random.Random(step), [], [], []
        for _ in range(BATCH):
            question = prompt(chance)
            answer = [ids[symbol] for symbol in task.reference(question)]
            before = [ids[symbol] for symbol in question + EQUALS]
            tokens.append(before + (answer if layout.decodes else [ids[EQUALS]] * len(answer)))
            targets.append([end] * (len(before) - 1) + [*answer, end])
            asked.append([False] * (len(before) - 1) + [True] * (len(answer) + 1))
        width = max(map(len, tokens))
        return [
            torch.tensor([row + [fill] * (width - len(row)) for row in rows])
            for rows, fill in ((tokens, end), (targets, end), (asked, False))
        ]

    return per_second(make, PLAIN_REPEATS)


def main() -> None:
    torch.set_num_threads(1)
    rates = {name: ours(task, sizes, layout) for name, (task, sizes, layout, _) in TASKS.items()}
    rates["addition, stacked"] = ours(STACKED, (SIZE,), Pairs())
    ratios = {name: rates[name] / plain(task, layout, prompt) for name, (task, _, layout, prompt) in TASKS.items()}
    fast = rates["parity"] >= 200e3 and min(rates["addition"], rates["addition, stacked"]) >= 100e3
    result = {
        "problems_per_second": {name: round(rate) for name, rate in rates.items()},
        "ratio_to_plain_python": {name: round(ratio, 1) for name, ratio in ratios.items()},
        "met": fast and min(ratios.values()) >= CLAIM,
    }
    print(json.dumps({"bench": "data", "batch": BATCH, **result}))


if __name__ == "__main__":
    main()
