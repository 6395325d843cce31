"""Compile a training's loops before its first step, where that is asked for."""

from __future__ import annotations

from lengthwise.base.errors import UsageError, clean, message_of
from lengthwise.base.progress import Progress
from lengthwise.base.streams import suppress_warnings
from lengthwise.runners import cpu
from lengthwise.training.trainer import Trainer


def compile_first(trainee: Trainer, shown: Progress, *, note: bool = False) -> None:
    """Compile what the first step needs, if anything is compiled; ``note`` where compiling is asked for and does not
    help. Raises UsageError where torch cannot."""
    if note and trainee.compile and trainee.processes.first and (reason := _why_no_help(trainee)):
        shown.note(f"{trainee.recipe.name}: {reason}")
    if not trainee.compiled:
        return
    line = shown.line(f"{trainee.recipe.name}: compiling", 1.0)
    try:
        with suppress_warnings(), trainee.borrowed():  # the compiler's warnings are for those who write kernels
            trainee.backward(*trainee.batch(0))
    except RuntimeError as error:
        reason = clean(message_of(error).partition("Set TORCHDYNAMO")[0])[:200].strip()
        raise UsageError(f"{trainee.recipe.name}: torch cannot compile here ({reason}); leave compile out") from None
    trainee.optimizer.zero_grad()
    line.show(1.0)


def _why_no_help(trainee: Trainer) -> str:
    """Return the reason why compiling does not help here; empty where it may."""
    if reason := cpu.why_not_compiled(trainee.model):
        return f"runs uncompiled: {reason}"
    if trainee.device.type == "cpu":
        return "compiled on a CPU, a step took 3.3 times as long as the package's own runner; leave compile out"
    return ""
