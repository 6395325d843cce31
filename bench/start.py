"""The time from the start of a process to the answer of ``lengthwise solve`` with shipped weights. Claim: under three
seconds on an idle machine. ``help`` is the time of ``lengthwise --help``, ``torch`` that of importing torch alone."""

import statistics
import subprocess
import sys
import time

from common import QUICK, print_result

REPEATS = 1 if QUICK else 7
COMMANDS = {
    "solve": ["-m", "lengthwise", "solve", "looped-addition", "1011+0110"],
    "help": ["-m", "lengthwise", "--help"],
    "torch": ["-c", "import torch"],
}
if QUICK:
    COMMANDS = {"solve": COMMANDS["solve"]}


def main() -> None:
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(REPEATS):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            found[name].append(time.perf_counter() - start)
    result = {name: round(statistics.median(seconds), 2) for name, seconds in found.items()}
    print_result("start", seconds=result, met=result["solve"] < 3)


if __name__ == "__main__":
    main()
