"""Functions that build runs with made-up scores and losses, for tests of reports."""

from dataclasses import replace

import lengthwise as lw
from lengthwise.base.files import format_json
from lengthwise.runs.run import Run

TOP = 8


def recipe(name="looped-parity", seed=0, task=None, **changes):
    parts = lw.FullOutput(), lw.Uniform(TOP), lw.PerRound(), lw.Transformer(width=8, heads=1), lw.Final()
    return replace(lw.Recipe(name, task or lw.Parity(), *parts, steps=100, seed=seed, data_seed=seed), **changes)


def build_run(run_recipe, *scores, folder=None):
    """Build a run of a recipe, with a score row for each (sizes, exact) or (sizes, exact, changes) in ``scores``."""
    run = Run.of(run_recipe, folder)
    for sizes, exact, *changes in scores:
        sizes = sizes if isinstance(sizes, tuple) else (sizes,)
        score = lw.Score(
            run_recipe.task.name, run.folder.name, "Oracle", "uniform", sizes, 100, exact, exact, exact, float(sizes[0])
        )
        run.append("scores", replace(score, **(changes[0] if changes else {})).row())
    return run


def log_losses(run_recipe, losses, exact=()):
    run = Run.of(run_recipe)
    rows = [{"step": 10 * i, "loss": loss} for i, loss in enumerate(losses, 1)]
    rows += [{"step": step, "exact": shares} for step, shares in exact]
    (run.folder / "metrics.jsonl").write_text("".join(format_json(row) + "\n" for row in rows))
    return run
