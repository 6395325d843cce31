"""A run that is trained in no time, and what a tracker keeps of it."""

from lengthwise.experiment.layout import FullOutput
from lengthwise.experiment.lengths import Uniform
from lengthwise.experiment.loops import PerRound
from lengthwise.experiment.recipe import Recipe
from lengthwise.models.transformer import Transformer
from lengthwise.objectives.final import Final
from lengthwise.runs import tracking
from lengthwise.tasks.parity import Parity

MODEL = Transformer(width=8, heads=2, init_std=0.3)
SMALL = Recipe("small", Parity(), FullOutput(), Uniform(3), PerRound(), MODEL, Final(), steps=30, batch=4)


def told(run):
    """The points that a run's rows are."""
    metrics = [("step", row["step"], dict(tracking._named_numbers(row))) for row in run.rows("metrics")]
    return metrics + [("size", max(row["sizes"]), tracking._named_scores(row, run)) for row in run.rows("scores")]
