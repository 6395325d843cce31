"""The cost of an answer at each length, in processor time and in floating-point operations of matrix products, for the
shipped weights of parity with two stopping rules, the oracle and confidence. There is no claim, but time should grow as
operations do. ``--out`` writes the figure."""

import argparse
import json
import statistics
from pathlib import Path

import torch
from common import QUICK, measure_seconds, print_result
from matplotlib.figure import Figure
from torch.utils.flop_counter import FlopCounterMode

from lengthwise.base.files import write_json
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.stopping import MaxConfidence, Oracle, Stopping
from lengthwise.report.lines import line_style
from lengthwise.report.style import fix_layout, new_figure, save, style
from lengthwise.runs.run import Weights, load

LENGTHS, SAMPLES, REPEATS = ((2, 5), 4, 1) if QUICK else ((5, 10, 20, 40, 60, 80, 100), 128, 5)
RULES: dict[str, Stopping] = {"known loops": Oracle(), "most confident": MaxConfidence(extra=20)}
Costs = dict[str, list[tuple[float, float]]]  # of each rule, milliseconds and millions of operations by length


def measure_answer_cost(weights: Weights, length: int, rule: Stopping) -> tuple[float, float]:
    """Return milliseconds and millions of operations per problem."""
    asked = {"samples": SAMPLES, "stopping": rule}
    with FlopCounterMode(display=False) as counter:
        list(evaluate(weights, [length], **asked))
    taken = [measure_seconds(lambda: list(evaluate(weights, [length], **asked))) for _ in range(REPEATS)]
    return statistics.median(taken) / SAMPLES * 1e3, counter.get_total_flops() / SAMPLES / 1e6


@style()
def draw_costs(costs: Costs) -> Figure:
    """Draw time and operations against length, on logarithmic axes."""
    figure = new_figure("page", 3.0)
    for axes, part, unit in zip(figure.subplots(1, 2), (0, 1), ("milliseconds", "million operations"), strict=True):
        for number, (name, found) in enumerate(costs.items()):
            axes.plot(LENGTHS, [cost[part] for cost in found], **line_style(number, name=name).to_matplotlib())
        axes.set(xscale="log", yscale="log", xlabel="length", ylabel=f"{unit} per problem")
        axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
        axes.minorticks_off()
    figure.axes[0].legend()
    title = "What an answer of looped-parity costs; it is trained on up to 20 bits"
    figure.suptitle(title, fontsize=9, fontweight="bold", x=0.01, ha="left")
    return fix_layout(figure)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="folder for length.json and length.png")
    parser.add_argument("--rows", type=Path, help="a length.json to draw again, instead of measuring")
    parser.add_argument("--quick", action="store_true", help="test the script on tiny sizes")
    args = parser.parse_args()
    if args.rows:
        costs: Costs = json.loads(args.rows.read_text())
    else:
        weights = load("looped-parity")
        costs = {
            name: [measure_answer_cost(weights, length, rule) for length in LENGTHS] for name, rule in RULES.items()
        }
    if args.out:
        write_json(args.out / "length.json", costs)
        save(draw_costs(costs), args.out / "length")
    shown = {
        name: {"ms": [round(ms, 3) for ms, _ in found], "million_operations": [round(count, 2) for _, count in found]}
        for name, found in costs.items()
    }
    print_result("length", lengths=LENGTHS, **shown)


if __name__ == "__main__":
    main()
