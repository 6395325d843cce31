"""Compilation of a training's loops before its first step, if requested."""

from __future__ import annotations

from lengthwise.base.errors import UsageError, clean, message_of
from lengthwise.base.progress import Progress
from lengthwise.base.streams import suppress_warnings
from lengthwise.runners import cpu
from lengthwise.training.trainer import Trainer


def compile_first(trainer: Trainer, shown: Progress, *, note: bool = False) -> None:
    """Compile the shapes of the first step, if anything is compiled; with ``note``, say why compiling is useless here.
    Raises UsageError if torch cannot compile."""
    if note and trainer.compile and trainer.processes.first and (reason := _why_no_help(trainer)):
        shown.note(f"{trainer.recipe.name}: {reason}")
    if not trainer.compiled:
        return
    line = shown.line(f"{trainer.recipe.name}: compiling", 1.0)
    try:
        with suppress_warnings(), trainer.borrowed():  # the compiler's warnings are for those who write kernels
            trainer.backward(*trainer.batch(0))
    except RuntimeError as error:
        reason = clean(message_of(error).partition("Set TORCHDYNAMO")[0])[:200].strip()
        raise UsageError(f"{trainer.recipe.name}: torch cannot compile here ({reason}); leave compile out") from None
    trainer.optimizer.zero_grad()
    line.show(1.0)


def _why_no_help(trainer: Trainer) -> str:
    """Return the reason why compiling does not help here; empty if it may."""
    if reason := cpu.why_not_compiled(trainer.model):
        return f"runs uncompiled: {reason}"
    if trainer.device.type == "cpu":
        return "compiled on a CPU, a step took 3.3 times as long as the package's own runner; leave compile out"
    return ""
