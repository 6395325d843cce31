"""Options of the command line that several verbs share, as arguments of ``argparse``; ``typed`` is the option's name
where it differs from the key."""

from __future__ import annotations

from typing import Any

OPTIONS: dict[str, dict[str, Any]] = {
    "json": {"action": "store_true", "help": "the result as JSON on standard output"},
    "quiet": {"action": "store_true", "help": "no progress"},
    "seed": {"type": int, "metavar": "N", "help": "seed of weights and problems (default: the recipe's)"},
    "seed-of-problems": {"typed": "seed", "type": int, "metavar": "N", "help": "seed of the problems (default: 0)"},
    "seeds": {"type": int, "default": 1, "metavar": "K", "help": "train K seeds (default: 1)"},
    "stack": {"action": "store_true", "help": "train a recipe's seeds together in one process, their weights stacked"},
    "jobs": {"type": int, "metavar": "J", "help": "processes at a time (default: the cores, at most 2)"},
    "on": {
        "default": "local",
        "metavar": "ENGINE",
        "help": "where to train: local (default), slurm, ray, or Slurm(partition=main, minutes=60, gpus=1)",
    },
    "dry-run": {"action": "store_true", "help": "say what it would take, on each engine at hand, and stop"},
    "measure": {"action": "store_true", "help": "with --dry-run: run some steps of each recipe here (minutes)"},
    "steps": {"type": int, "metavar": "N", "help": "train for N steps instead of the recipe's"},
    "device": {
        "default": "auto",
        "help": "cpu, cuda, cuda:1, mps, or auto: the first of CUDA, MPS, the CPU (default)",
    },
    "matmul": {
        "choices": ("fp32", "tf32", "bf16"),
        "default": "fp32",
        "help": "arithmetic of matrix products in training; all else stays in 32 bits (default: fp32)",
    },
    "compile": {
        "action": "store_true",
        "help": "let torch compile the model's loops, 5 to 50 s for each shape: for GPUs; transformers only",
    },
    "no-graphs": {
        "action": "store_true",
        "help": "launch each operation of a training step by itself: no CUDA graphs (GPUs use them by default)",
    },
    "threads": {"type": int, "default": 1, "metavar": "N", "help": "CPU threads (default: 1, best for small models)"},
    "save-every": {"type": float, "default": 60.0, "metavar": "S", "help": "seconds between checkpoints (default: 60)"},
    "keep-state": {
        "action": "store_true",
        "help": "keep the optimizer's state at the end of training, so that --from can go on to the bit",
    },
    "track": {
        "metavar": "NAME",
        "action": "append",
        "default": [],
        "help": "send the run to tensorboard, trackio or wandb too; may be given several times",
    },
    "allow-divergence": {"action": "store_true", "help": "go on when the loss is no number any more; rows say null"},
    "lengths": {
        "metavar": "SIZES",
        "help": "8,12,16 or 1-60 or 10-100:10 or 2x15 (default: 1, 1.5, 2, 3, 5 times the training length)",
    },
    "lengths-of-depth": {
        "typed": "lengths",
        "metavar": "SIZE",
        "help": "one size, e.g. 20 or 2x11 (default: the largest trained on)",
    },
    "lengths-to-attack": {
        "typed": "lengths",
        "metavar": "SIZES",
        "help": "8,12,16 or 1-60 or 2x15 (default: half the training length, all of it, and one and a half)",
    },
    "loops": {
        "metavar": "N,N",
        "help": "stop after so many loops, each in turn: --loops 1,8 is short for After(loops=…)",
    },
    "grid": {"metavar": "NxM", "help": "every pair of sizes, for a task of two"},
    "samples": {"type": int, "default": 1000, "metavar": "N", "help": "fresh problems per length (default: 1000)"},
    "wait": {"action": "store_true", "help": "where another process works on this run, wait for it"},
    "hard": {"action": "store_true", "help": "the task's harder set (sums: long carries)"},
    "seconds": {"type": float, "default": 30.0, "metavar": "S", "help": "how long to search (default: 30)"},
    "tries": {"type": int, "metavar": "N", "help": "end after N problems instead: the same seed then finds the same"},
    "family": {"metavar": "NAME", "help": "one of the task's families of structured problems, e.g. palindrome"},
    "families": {
        "action": "store_true",
        "help": "all families of structured problems too; train: to twice the training length, not on maps",
    },
    "far-families": {"action": "store_true", "help": "with --families: beyond twice the training length too"},
    "uniform-only": {"action": "store_true", "help": "leave families of structured problems out"},
    "natural": {
        "action": "store_true",
        "help": "the task's own distribution over sizes, up to each length (beyond training: from where it ends)",
    },
    "curve": {"metavar": "SIZES", "help": "further lengths, measured on fewer problems"},
    "curve-samples": {"type": int, "default": 128, "metavar": "N", "help": "problems per length there (default: 128)"},
    "stopping": {
        "metavar": "RULE",
        "action": "append",
        "default": [],
        "help": "e.g. Oracle, After(loops=10), MaxConfidence(extra=20), Converged; may be given several times",
    },
    "rule": {
        "typed": "stopping",
        "metavar": "RULE",
        "action": "append",
        "default": [],
        "help": "another stopping rule than the recipe's, e.g. Oracle, After(loops=10), MaxConfidence(extra=20)",
    },
    "out": {"metavar": "FOLDER", "help": "where tables and figures go"},
    "import": {
        "metavar": "MODULE",
        "action": "append",
        "default": [],
        "help": "import a module of your own first: its classes and recipes are then known by name",
    },
}
