"""A recipe that trains in seconds, and a function that lists what trackers log of its runs."""

import lengthwise as lw
from lengthwise.runs import tracking

MODEL = lw.Transformer(width=8, heads=2, init_std=0.3)
SMALL_RECIPE = lw.Recipe(
    "small", lw.Parity(), lw.FullOutput(), lw.Uniform(3), lw.PerRound(), MODEL, lw.Final(), steps=30, batch=4
)


def list_tracked_points(run):
    """Return the points (axis, value on it, metrics) that trackers log from a run's rows."""
    metrics = [("step", row["step"], dict(tracking._flatten_numbers(row))) for row in run.rows("metrics")]
    return metrics + [("size", max(row["sizes"]), tracking._label_score(row, run)) for row in run.rows("scores")]
