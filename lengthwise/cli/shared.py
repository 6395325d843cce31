"""Options that several commands share. ``cli.parser`` reads them from the source: a field's type and default are those
of the option; the comment beside or above the field is its help, with the value's placeholder before a colon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lengthwise.base.errors import UsageError
from lengthwise.base.ranges import Amount, Seeds, Size, ThreadCount

Argument = str  # a positional argument: one word
Arguments = Sequence[str]  # a positional argument: one or more words
Words = Sequence[str]  # a positional argument: any number of words, or none
Texts = Sequence[str]  # an option that may be given several times
Several = Sequence[str]  # an option that takes one or more words


@dataclass(kw_only=True)
class OutputOptions:
    """Options of every command."""

    json: bool = False  # print the result as JSON on standard output
    # MODULE: first import your own module: its classes and recipes are then known by name
    import_: Texts = ()


@dataclass(kw_only=True)
class ProgressOptions:
    """An option of commands that show progress."""

    quiet: bool = False  # show no progress


@dataclass(kw_only=True)
class RecipeOptions:
    """A recipe with changed fields."""

    recipe: Argument  # RECIPE: a recipe's name, a recipe in a JSON file, or a run's folder
    changes: Words = ()  # name=value: changed fields, e.g. model.width=32 steps=500


@dataclass(kw_only=True)
class KindOptions:
    """Options for kinds of problems other than uniform ones."""

    hard: bool = False  # use the task's harder set (sums: long carries)
    # use the task's own distribution over sizes, up to each length; above the training length, only sizes beyond it
    natural: bool = False


@dataclass(kw_only=True)
class MeasurementOptions(KindOptions):
    """The problems on which weights are measured, and the stopping rules."""

    # SIZES: 8,12,16 or 1-60 or 10-100:10 or 2x15 (default: 1, 1.5, 2, 3, 5 times the training length)
    lengths: str | None = None
    # RULE: e.g. Oracle, After(loops=10), MaxConfidence(extra=20), Converged; may be given several times
    stopping: Texts = ()
    # measure all families of structured problems too; `train`: up to twice the training length, and not on grids
    families: bool = False
    wait: bool = False  # wait if another process works on this run


@dataclass(kw_only=True)
class PlanOptions(MeasurementOptions):
    """Options for the measurements after training."""

    samples: Amount = 1000  # N: fresh problems per length (default: 1000); 0: do not measure
    curve: str | None = None  # SIZES: further lengths, measured on fewer problems
    curve_samples: Size = 128  # N: problems per length of the curve (default: 128)
    far_families: bool = False  # with --families: measure families beyond twice the training length too


@dataclass(kw_only=True)
class DeviceOptions:
    """The device on which weights run."""

    device: str = "auto"  # cpu, cuda, cuda:1, mps, or auto (default): the first available of CUDA, MPS and CPU


@dataclass(kw_only=True)
class ComputeOptions(DeviceOptions):
    """The device and the number of CPU threads that run the weights."""

    threads: ThreadCount = 1  # N: CPU threads (default: 1, best for small models)


@dataclass(kw_only=True)
class TrainingOptions(DeviceOptions, OutputOptions, ProgressOptions):
    """The options of commands that train several runs."""

    seeds: Seeds = 1  # K: train K seeds (default: 1)
    jobs: Size | None = None  # J: processes at a time (default: number of cores, at most 2)
    # ENGINE: where to train: local (default), slurm, ray, or Slurm(partition=main, minutes=60, gpus=1)
    on: str = "local"
    dry_run: bool = False  # print the cost on each available engine, and stop
    measure: bool = False  # with --dry-run: time some steps of each recipe on this machine (minutes)
    # precision of matrix products in training; all else stays in 32 bits (default: fp32)
    matmul: Literal["fp32", "tf32", "bf16"] = "fp32"
    # let torch compile the model's loops, 5 to 50 s for each shape: for GPUs; transformers only
    compile: bool = False
    # launch each operation of a training step separately: no CUDA graphs (GPUs use them by default)
    no_graphs: bool = False
    allow_divergence: bool = False  # continue when the loss is NaN or infinite; rows then hold null

    def __post_init__(self) -> None:
        if self.measure and not self.dry_run:
            raise UsageError("--measure works only with --dry-run: add it, or omit --measure")
        if getattr(self, "stack", False) and self.compile:
            raise UsageError("--stack does not support --compile: omit one of them")
