"""Lengthwise: do small sequence models that are trained on short problems also solve longer ones?

    import lengthwise as lw

    run = lw.train("looped-parity", seed=1)              # or a Recipe, a model's configuration, a torch module
    scores = lw.evaluate(run, lengths=[20, 40, 60])      # rows; scores.plot(), .frame(), .compare(other)
    lw.load("looped-pairs").solve("128+9").text
    lw.check(MyTask())                                   # test the laws that your own part should keep

Names are imported when they are first used, so that ``lengthwise --help`` need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lengthwise.api import *

__version__ = "0.3.0"


__all__ = [
    "LAMB", "LSTM", "ALiBi", "AdamW", "Addition", "After", "Answer", "Attention", "AttentionContext", "Batch",
    "ChosenOn", "Comparison", "Constant", "Converged", "Copy", "Curriculum", "Encoding", "Every", "ExtraLoops",
    "Family", "File", "Final", "Finite", "Fresh", "FullOutput", "Grid", "Inputs", "Interrupted", "Labelled",
    "Layout", "Learned", "Lengths", "Listing", "Local", "LogUniform", "Loops", "Loss", "Mastery", "MaxConfidence",
    "Mixer", "MixerSpec", "Model", "ModelSpec", "Natural", "NextToken", "NoPE", "Objective", "OneOf", "Optimizer",
    "Oracle", "Pairs", "Panel", "Parity", "PerRound", "Position", "ProblemSet", "Problems", "Progressive", "Range",
    "ReTran", "Recipe", "Restarts", "RoPE", "Run", "Runner", "SampledLengths", "Schedule", "Score", "Scores",
    "Segments", "SequenceTask", "Settled", "Solver", "Source", "SquareGridTask", "Stopping", "Study", "Tagged",
    "Task", "Trace", "Transformer", "Uniform", "UsageError", "Vocab", "Watch", "Weights", "check", "compare",
    "depth", "detach", "evaluate", "families", "find", "list_models", "list_recipes", "list_tasks", "load", "plain",
    "problems", "stream", "style", "train", "train_stacked", "unroll",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # For any other name the interface must not be imported: `from lengthwise import data` calls this function too.
    if name not in __all__:
        raise AttributeError(f"lengthwise has no {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module("lengthwise.api"), name)


def __dir__() -> list[str]:
    return __all__
