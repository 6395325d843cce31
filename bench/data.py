"""Problems per second, written as rows, on one thread. Claims: in batches of 1,024, parity at least 200k and 20-digit
decimal addition at least 100k; in batches of about a million positions, with padding, every task at least 50 times as
many as a straightforward generator that writes row by row in plain Python. The plain generator's time per row does not
depend on the batch; the package makes about a hundred calls per batch, which dominate in small ones, so ratios are also
measured for batches of 32 and 1,024."""

import random
import statistics
import string
from collections.abc import Callable

import torch
from common import QUICK, print_result, seconds

from lengthwise.base.rng import stream
from lengthwise.base.types import EQUALS
from lengthwise.experiment.layout import FullOutput, Layout, NextToken, Pairs
from lengthwise.tasks import Task
from lengthwise.tasks.arithmetic import Addition, Multiplication
from lengthwise.tasks.bits import BinarySum, BitwiseOr, FlippedCopy
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.sorting import Sorting
from lengthwise.tasks.strings import Copy, UniqueSet

SIZE, REPEATS, TIMES, CLAIM = 20, 1 if QUICK else 7, 2 if QUICK else 10, 50
SMALL, BATCH, POSITIONS = (2, 8, 1 << 10) if QUICK else (32, 1024, 1 << 20)
Prompt = Callable[[random.Random], str]


def digits(chance: random.Random, count: int, base: int = 10, zeros: bool = False) -> str:
    """A random number of ``count`` digits, least significant first."""
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


def ours(task: Task, sizes: tuple[int, ...], layout: Layout, batch: int) -> float:
    """The package's seconds per row, the median of several batches."""
    loss_mask = torch.tensor([sizes]).expand(batch, -1)
    taken = [
        seconds(lambda step=step: layout.write(task.sample(loss_mask, stream(0, "bench", step)), task))
        for step in range(TIMES)
    ]
    return statistics.median(taken) / batch


def plain(task: Task, layout: Layout, prompt: Prompt, step: int) -> object:
    """The plain generator: row by row, a prompt from Python's ``random``, its answer from the reference, as padded
    lists."""
    ids = {symbol: i for i, symbol in enumerate(layout.vocabs(task)[0].symbols)}
    end = ids["$"]
    chance, tokens, targets, loss_mask = random.Random(step), [], [], []
    for _ in range(BATCH):
        question = prompt(chance)
        answer = [ids[symbol] for symbol in task.reference(question)]
        before = [ids[symbol] for symbol in question + EQUALS]
        tokens.append(before + (answer if layout.decodes else [ids[EQUALS]] * len(answer)))
        targets.append([end] * (len(before) - 1) + [*answer, end])
        loss_mask.append([False] * (len(before) - 1) + [True] * (len(answer) + 1))
    width = max(map(len, tokens))
    return [
        torch.tensor([row + [fill] * (width - len(row)) for row in rows])
        for rows, fill in ((tokens, end), (targets, end), (loss_mask, False))
    ]


def ratios(name: str) -> dict[str, float]:
    """The time per row in plain Python over that of the package, per batch size; both measured alternately."""
    task, sizes, layout, prompt = TASKS[name]
    width = layout.write(task.sample(torch.tensor([sizes]), stream(0, "width")), task).targets.shape[1]
    found: dict[str, list[float]] = {"small": [], "batch": [], "large": []}
    for step in range(REPEATS + 1):
        row = seconds(lambda step=step: plain(task, layout, prompt, step)) / BATCH
        for each, batch in zip(found.values(), (SMALL, BATCH, POSITIONS // width), strict=True):
            each.append(row / ours(task, sizes, layout, batch))
    # The first time is left out: it includes filling caches.
    return {size: round(statistics.median(each[1:]), 1) for size, each in found.items()}


def keep_memory() -> None:
    """Free a large block of memory, as every training process soon does. Before that, the C library returns freed
    memory to the system, and getting it back takes longer than a batch."""
    torch.zeros(3 << 20, dtype=torch.long)


def main() -> None:
    torch.set_num_threads(1)
    keep_memory()
    rates = {name: 1 / ours(task, sizes, layout, BATCH) for name, (task, sizes, layout, _) in TASKS.items()}
    rates["addition, stacked"] = 1 / ours(STACKED, (SIZE,), Pairs(), BATCH)
    against = {name: ratios(name) for name in TASKS}
    fast = rates["parity"] >= 200e3 and min(rates["addition"], rates["addition, stacked"]) >= 100e3
    result = {
        "problems_per_second": {name: round(rate) for name, rate in rates.items()},
        "ratio_to_plain_python": against,
        "met": fast and min(ratio["large"] for ratio in against.values()) >= CLAIM,
    }
    print_result("data", **result)


if __name__ == "__main__":
    main()
