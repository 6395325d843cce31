"""Problems per second that one thread draws and writes as rows. Claims:

- in batches of 1,024, at least 200k problems of parity and 100k of 20-digit decimal addition per second;
- in batches of about a million positions, padding included, at least 50 times as many problems of each task as a
  straightforward generator that writes row by row in plain Python.

The plain generator's time per row does not depend on the batch. The package makes about a hundred calls per batch,
which dominate in small batches, so ratios are also measured for batches of 32 and 1,024.
"""

import random
import statistics
import string
from collections.abc import Callable

import torch
from common import QUICK, measure_seconds, print_result

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
DrawPrompt = Callable[[random.Random], str]


def draw_number(rng: random.Random, count: int, base: int = 10, leading_zeros: bool = False) -> str:
    """Return a random number of ``count`` digits, least significant first; ``leading_zeros`` allows leading zeros."""
    found = [str(rng.randrange(base)) for _ in range(count - 1)]
    return "".join([*found, str(rng.randrange(0 if leading_zeros or count == 1 else 1, base))])


def build_symbols_prompt(task: Task) -> DrawPrompt:
    return lambda rng: "".join(rng.choice(task.symbols) for _ in range(SIZE))


def build_pair_prompt(sign: str, first: int, second: int, base: int = 10, leading_zeros: bool = False) -> DrawPrompt:
    return lambda rng: sign.join(draw_number(rng, count, base, leading_zeros) for count in (first, second))


def draw_bit_vectors(rng: random.Random) -> str:
    one = ["0"] * SIZE
    one[rng.randrange(SIZE)] = "1"
    vectors = ["".join(one), "0" * SIZE]
    rng.shuffle(vectors)
    return "|".join(vectors)


def draw_labelled_numbers(rng: random.Random) -> str:
    alphabet = string.ascii_uppercase + string.ascii_lowercase
    start = rng.randrange(len(alphabet))
    labels = [alphabet[(start + i) % len(alphabet)] for i in range(10)]
    return ",".join(f"{label}:{draw_number(rng, rng.randint(1, 10))}" for label in labels)


BINARY = Addition(base=2, equal_lengths=True, leading_zeros=True)
DECIMAL = Addition(order="least")
STACKED_DECIMAL = Addition(order="least", equal_lengths=True, leading_zeros=True)
BINARY_PRODUCT = Multiplication()
DECIMAL_PRODUCT = Multiplication(base=10, order="least", product="least", leading_zeros=False)
TASKS: dict[str, tuple[Task, tuple[int, ...], Layout, DrawPrompt]] = {
    "parity": (Parity(), (SIZE,), FullOutput(), build_symbols_prompt(Parity())),
    "copy": (Copy(), (SIZE,), FullOutput(), build_symbols_prompt(Copy())),
    "flipped copy": (FlippedCopy(), (SIZE,), FullOutput(), build_symbols_prompt(FlippedCopy())),
    "binary sum": (BinarySum(), (SIZE,), FullOutput(), build_symbols_prompt(BinarySum())),
    "unique set": (UniqueSet(), (SIZE,), FullOutput(), build_symbols_prompt(UniqueSet())),
    "binary addition": (BINARY, (SIZE,), FullOutput(), build_pair_prompt("+", SIZE, SIZE, 2, True)),
    "binary product": (BINARY_PRODUCT, (2, 11), FullOutput(), build_pair_prompt("*", 2, 11, 2, True)),
    "addition": (DECIMAL, (SIZE, SIZE), NextToken(), build_pair_prompt("+", SIZE, SIZE)),
    "product": (DECIMAL_PRODUCT, (8, 8), NextToken(), build_pair_prompt("*", 8, 8)),
    "sorting": (Sorting(), (10, 10), NextToken(), draw_labelled_numbers),
    "bitwise or": (BitwiseOr(), (SIZE, SIZE), NextToken(), draw_bit_vectors),
}  # fmt: skip


def measure_row_seconds(task: Task, sizes: tuple[int, ...], layout: Layout, batch: int) -> float:
    """Return the package's seconds per row, as the median over several batches."""
    sizes_of_rows = torch.tensor([sizes]).expand(batch, -1)
    taken = [
        measure_seconds(lambda step=step: layout.write(task.sample(sizes_of_rows, stream(0, "bench", step)), task))
        for step in range(TIMES)
    ]
    return statistics.median(taken) / batch


def write_batch_in_python(task: Task, layout: Layout, prompt: DrawPrompt, step: int) -> object:
    """Write a batch row by row in plain Python, with prompts drawn by Python's ``random`` and answers by the reference.
    Return tensors "b t" of tokens, targets and loss mask."""
    ids = {symbol: i for i, symbol in enumerate(layout.vocabs(task)[0].symbols)}
    end = ids["$"]
    rng, tokens, targets, loss_mask = random.Random(step), [], [], []
    for _ in range(BATCH):
        question = prompt(rng)
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


def measure_ratios(name: str) -> dict[str, float]:
    """Return the ratio of plain Python's time per row to the package's, by batch size; both are measured in turns."""
    task, sizes, layout, prompt = TASKS[name]
    width = layout.write(task.sample(torch.tensor([sizes]), stream(0, "width")), task).targets.shape[1]
    found: dict[str, list[float]] = {"small": [], "batch": [], "large": []}
    for step in range(REPEATS + 1):
        row = measure_seconds(lambda step=step: write_batch_in_python(task, layout, prompt, step)) / BATCH
        for each, batch in zip(found.values(), (SMALL, BATCH, POSITIONS // width), strict=True):
            each.append(row / measure_row_seconds(task, sizes, layout, batch))
    # The first time is left out: it includes filling caches.
    return {size: round(statistics.median(each[1:]), 1) for size, each in found.items()}


def warm_up_allocator() -> None:
    """Allocate and free a large block of memory, as training does in its first steps. Before that, the C library
    returns freed memory to the system, and getting it back takes longer than a batch."""
    torch.zeros(3 << 20, dtype=torch.long)


def main() -> None:
    torch.set_num_threads(1)
    warm_up_allocator()
    rates = {
        name: 1 / measure_row_seconds(task, sizes, layout, BATCH) for name, (task, sizes, layout, _) in TASKS.items()
    }
    rates["addition, stacked"] = 1 / measure_row_seconds(STACKED_DECIMAL, (SIZE,), Pairs(), BATCH)
    against = {name: measure_ratios(name) for name in TASKS}
    fast = rates["parity"] >= 200e3 and min(rates["addition"], rates["addition, stacked"]) >= 100e3
    result = {
        "problems_per_second": {name: round(rate) for name, rate in rates.items()},
        "ratio_to_plain_python": against,
        "met": fast and min(ratio["large"] for ratio in against.values()) >= CLAIM,
    }
    print_result("data", **result)


if __name__ == "__main__":
    main()
