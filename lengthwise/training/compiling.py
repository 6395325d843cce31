"""Compilation or recording of a training's steps before the first one."""

from __future__ import annotations

from lengthwise.base.errors import UsageError, message_of, remove_controls
from lengthwise.base.progress import Progress
from lengthwise.base.streams import suppress_warnings
from lengthwise.runners import cpu
from lengthwise.training.trainer import Trainer


def prepare_steps(trainer: Trainer, shown: Progress, *, note: bool = False) -> None:
    """Compile or record the shapes of the first step, if anything is; with ``note``, say why it is useless here. Raises
    UsageError if torch cannot compile."""
    runners, name = trainer.runners, trainer.recipe.name
    if note and runners.compile and trainer.processes.first and (reason := _why_useless(trainer)):
        shown.note(f"{name}: {reason}")
    if not runners.compiles and not runners.replaying(parts=1):
        return
    line = shown.line(f"{name}: {'compiling' if runners.compiles else 'recording a step'}", 1.0)
    try:
        with suppress_warnings(), trainer.borrowed():  # the compiler's warnings are for those who write kernels
            next(trainer.losses(*trainer.batch(trainer.recipe.start)))
    except RuntimeError as error:
        if not runners.compiles:
            raise
        reason = remove_controls(message_of(error).partition("Set TORCHDYNAMO")[0])[:200].strip()
        raise UsageError(f"{name}: torch cannot compile here ({reason}); leave compile out") from None
    if note and runners.graphs and runners.graphs.reason:
        shown.note(f"{name}: runs without CUDA graphs: {runners.graphs.reason}")
    trainer.optimizer.zero_grad()
    line.show(1.0)


def _why_useless(trainer: Trainer) -> str:
    """Return the reason why compiling does not help here; empty if it may."""
    if reason := cpu.why_not_compiled(trainer.model):
        return f"runs uncompiled: {reason}"
    if trainer.device.type == "cpu":
        return "compiled on a CPU, a step took 3.3 times as long as the package's own runner; leave compile out"
    return ""
