"""The n-RASP-L programs. Claim: each program solves every problem in exactly T(n) rounds. There are 1,000 new problems
of six tasks at each length 1–64 and at 200, with addition in both digit orders, and multiplication of one and of two
bits by n bits."""

import time
from collections.abc import Sequence

import torch
from common import QUICK, print_result

from lengthwise.experiment.data import draw_fresh_problems
from lengthwise.rasp.program import Program, check_program, execute
from lengthwise.rasp.programs import PUBLISHED_TASKS, find_program
from lengthwise.tasks.arithmetic import Addition

LENGTHS, COUNT = ((1, 4), 5) if QUICK else ((*range(1, 65), 200), 1000)
POSITIONS = 20_000  # in all rows run at once: some programs compare all pairs of positions


def count_solved(runner: Program, size: Sequence[int]) -> int:
    """Return the number of problems of this size that a program solves in every symbol and in T(n) rounds."""
    problems = draw_fresh_problems(runner.task, size, COUNT, seed=0)
    rows, found = max(1, POSITIONS // (3 * max(size))), 0
    for start in range(0, COUNT, rows):
        part = problems.take(slice(start, start + rows))
        execution = execute(runner, part)
        found += int((execution.is_right & (part.rounds == len(execution.states) - 1)).sum())
    return found


def main() -> None:
    torch.set_num_threads(1)
    result = {}
    for task in (*PUBLISHED_TASKS, Addition(2, "least", True, True)):
        runner = find_program(task)
        check_program(runner)
        for more in ((1,), (2,)) if len(task.axes) == 2 else ((),):
            start = time.perf_counter()
            found = sum(count_solved(runner, (*more, n)) for n in LENGTHS)
            words = [task.name, *(f"{bits} x n" for bits in more)]
            name = " ".join([*words, task.order] if isinstance(task, Addition) else words)
            seconds = round(time.perf_counter() - start, 1)
            result[name] = {"right": found, "of": COUNT * len(LENGTHS), "seconds": seconds}
    met = all(row["right"] == row["of"] for row in result.values())
    print_result("programs", **result, met=met)


if __name__ == "__main__":
    main()
