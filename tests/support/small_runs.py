"""A run that is trained in no time, and what a tracker keeps of it."""

import lengthwise as lw
from lengthwise.runs import tracking

MODEL = lw.Transformer(width=8, heads=2, init_std=0.3)
SMALL = lw.Recipe(
    "small", lw.Parity(), lw.FullOutput(), lw.Uniform(3), lw.PerRound(), MODEL, lw.Final(), steps=30, batch=4
)


def told(run):
    """The points that a run's rows are."""
    metrics = [("step", row["step"], dict(tracking._flatten_numbers(row))) for row in run.rows("metrics")]
    return metrics + [("size", max(row["sizes"]), tracking._name_score(row, run)) for row in run.rows("scores")]
