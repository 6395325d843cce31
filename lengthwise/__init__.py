"""Lengthwise: trained on short problems, do small sequence models solve longer ones?

    import lengthwise as lw

    run = lw.train("looped-parity", seed=1)              # or a Recipe of your own
    scores = lw.evaluate(run, lengths=range(1, 101))     # rows; scores.frame() if pandas is installed
    lw.load("looped-pairs").solve("128+9").text

Names are imported when they are first used, so that ``lengthwise --help`` need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lengthwise.api import *

__version__ = "0.1.0"


__all__ = [
    "AdamW", "Addition", "After", "Answer", "Attention", "Batch", "Constant", "Converged", "Copy", "Curriculum",
    "Encoding", "Every", "ExtraLoops", "Family", "Final", "FullOutput", "Inputs", "Layout", "Learned", "Lengths",
    "Listed", "Local", "Loops", "Loss", "Mastery", "MaxConfidence", "Mixer", "MixerSpec", "Model", "ModelSpec",
    "NextToken", "NoPE", "Objective", "Optimizer", "Oracle", "Pairs", "Panel", "Parity", "PerRound", "Position",
    "Problems", "Progressive", "Recipe", "RoPE", "Run", "Runner", "Schedule", "Score", "Scores", "Sight", "Solver",
    "Stopping", "Study", "Task", "Trace", "Transformer", "Uniform", "UsageError", "Vocab", "Watch", "Weights",
    "evaluate", "families", "find", "load", "plain", "stream", "style", "train", "unroll",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Asked for any other name, the interface must not be imported: `from lengthwise import data` comes by here.
    if name not in __all__:
        raise AttributeError(f"lengthwise has no {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module("lengthwise.api"), name)


def __dir__() -> list[str]:
    return __all__
