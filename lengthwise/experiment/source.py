"""The source of training problems: new problems in every batch, or a fixed set in epochs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.fields import Config
from lengthwise.base.ranges import Count, Seed
from lengthwise.base.types import Problems, Purpose


class Source(Config):
    """Base class of rules that assign problems to training, validation and test. Subclasses are frozen dataclasses."""

    @abstractmethod
    def mask_part(self, purpose: Purpose, problems: Problems) -> Bool[Tensor, " b"]:
        """Return a mask of the problems that may be used for ``purpose``."""


@dataclass(frozen=True)
class Fresh(Source):
    """New problems in every batch. Training and test problems are drawn from separate random streams, but at sizes with
    few different problems, test problems also occur in training."""

    def mask_part(self, purpose: Purpose, problems: Problems) -> Bool[Tensor, " b"]:
        return torch.ones(len(problems), dtype=torch.bool)


FRESH = Fresh()
# A problem belongs to the part whose range contains the hash of its prompt mod 13.
RESIDUES: dict[Purpose, range] = {"train": range(10), "validation": range(10, 12), "test": range(12, 13)}


@dataclass(frozen=True)
class Finite(Source):
    """A fixed set of ``rows`` different problems, in a new order in every epoch; a last incomplete batch is dropped.

    Runs with different seeds share the set, which depends on the ``seed`` of this class. A hash of the prompt assigns
    each problem to one part: 10/13 of all problems to training, 2/13 to validation, 1/13 to test.
    """

    rows: Count  # number of different training problems
    seed: Seed = 0  # another seed gives another set

    def mask_part(self, purpose: Purpose, problems: Problems) -> Bool[Tensor, " b"]:
        residues = RESIDUES[purpose]
        residue = hash_prompts(problems) % sum(map(len, RESIDUES.values()))
        return (residue >= residues.start) & (residue < residues.stop)


def hash_prompts(problems: Problems) -> Int[Tensor, " b"]:
    """Return a 63-bit hash of each prompt without its padding: FNV-1a, then MurmurHash3's finaliser. It is the same on
    every machine and in every version."""
    code = torch.full_like(problems.prompt_length, -3750763034362895579, dtype=torch.long)
    for position, symbols in enumerate(problems.prompt.T):
        code = torch.where(position < problems.prompt_length, (code ^ symbols) * 1099511628211, code)
    for factor in (-49064778989728563, -4265267296055464877):
        code = (code ^ (code >> 33 & 0x7FFFFFFF)) * factor
    return (code ^ (code >> 33 & 0x7FFFFFFF)) & 0x7FFFFFFFFFFFFFFF


def describe_repeats(from_fixed_set: bool, problems: Problems) -> dict[str, Any]:
    """Return the fields of a Score that describe repeated problems; an empty dictionary if all problems differ."""
    distinct = len(hash_prompts(problems).unique())
    return {} if distinct == len(problems) else {"distinct": distinct, "fixed_set": from_fixed_set or None}
