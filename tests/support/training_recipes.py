"""Small recipes that cover all kinds of training, and functions that compare their outcomes and stop them at a step."""

import itertools
import os
import signal
import tempfile
from dataclasses import replace
from functools import cache

import lengthwise as lw
from lengthwise.experiment.loops import AnyLoops, ExtraLoops, PerRound
from lengthwise.objectives import Halting
from lengthwise.training import loop as training
from lengthwise.training import stacked
from lengthwise.training.loop import train
from lengthwise.training.trainer import TRIAL_ROWS

MODEL = lw.Transformer(width=8, heads=2)
PLAIN = lw.Recipe(
    "plain", lw.Parity(), lw.FullOutput(), lw.Uniform(4), PerRound(), MODEL, lw.Final(), steps=13, batch=6
)
RICH = lw.Recipe(
    "rich", lw.Addition(3, "least"), lw.Pairs(), lw.Uniform(4, longest=0.5), ExtraLoops(1, 2),
    replace(MODEL, dropout=0.2, positions=(lw.Local(1),)), lw.Progressive(truncated=True), steps=15, batch=6,
    optimizer=lw.AdamW(5e-3), schedule=lw.Schedule("cosine", warmup=0.2), ema=0.8, ema_start=3, hard=0.3,
    stopping=lw.MaxConfidence(extra=1), watch=lw.Watch(every=4, sizes=(1, 2), count=10), keep="best",
)  # fmt: skip
LAMB = replace(PLAIN, name="large", optimizer=lw.LAMB(5e-3), schedule=lw.Schedule("exponential", floor=0.05))
SEGMENTED = replace(
    PLAIN,
    name="segmented",
    loops=ExtraLoops(extra=2),
    model=replace(MODEL, noise=0.5, dropout=0.1),
    objective=lw.Segments(count=3),
    ema=0.8,
)
MASTERED = replace(PLAIN, name="mastered", lengths=lw.Mastery(4, every=3, pass_accuracy=0.0, count=4))


def read_outcome(run):
    """Return a run's weights file and its metrics without times, which must not depend on how training was carried
    out."""
    rows = [{k: v for k, v in row.items() if not k.endswith("_s")} for row in run.rows("metrics")]
    return (run.folder / "model.safetensors").read_bytes(), rows


@cache
def train_uninterrupted(recipe):
    """Train a recipe without interruption, and return ``read_outcome`` of the run."""
    with tempfile.TemporaryDirectory() as folder:
        return read_outcome(train(recipe, folder))


def stop_at(monkeypatch, steps, stop):
    """Make training call ``stop`` after each of these steps, once per step."""
    steps, advance = set(steps), training.Trainer.advance

    def advance_and_stop(trainer):
        advance(trainer)
        if trainer.step in steps and trainer.recipe.batch > TRIAL_ROWS:
            steps.discard(trainer.step)
            stop()

    monkeypatch.setattr(training.Trainer, "advance", advance_and_stop)


def stop_stack_after(monkeypatch, *steps):
    """Make the training of a stack send SIGTERM to this process after each of these steps."""
    step, taken = stacked.advance_together, itertools.count(1)

    def advance_and_stop(trainers, recording=None):
        found = step(trainers, recording)
        if trainers[0].stacked > 1 and next(taken) in steps:  # the others belong to try_training
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(stacked, "advance_together", advance_and_stop)


UNEVEN = replace(PLAIN, batch=7, clip=0.1)  # a batch size that processes cannot share evenly
RECIPES = {
    "final": (UNEVEN, 20),
    "every": (replace(UNEVEN, objective=lw.Every()), 3),
    "progressive": (replace(UNEVEN, objective=lw.Progressive(truncated=True)), 3),
    "halting": (replace(UNEVEN, objective=Halting(), loops=AnyLoops(extra=2)), 3),
    "next-token": (replace(UNEVEN, layout=lw.NextToken()), 3),
    "rich": (replace(RICH, batch=3, model=replace(RICH.model, dropout=0.0)), 3),
    "segmented": (replace(SEGMENTED, batch=7, model=MODEL, ema=0.0), 3),
    "mastered": (replace(MASTERED, batch=7), 6),
}


def vary_seeds(recipe, count):
    return [replace(recipe, seed=seed, data_seed=seed) for seed in range(count)]
