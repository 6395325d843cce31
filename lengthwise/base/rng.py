"""Random generators seeded by a hash of the seed and a named path.

Seeds made by addition (``seed + index``) give neighbouring runs the same data; a hash of the full path does not.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


def address(seed: int, *path: str | int) -> int:
    """A 63-bit seed, the hash of ``seed`` and ``path``; any other seed or path gives an unrelated one."""
    digest = hashlib.blake2b(json.dumps([seed, *path]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(seed: int, *path: str | int) -> torch.Generator:
    """A new CPU generator seeded by ``address``, e.g. ``stream(recipe.data_seed, "train", 17)``."""
    return torch.Generator().manual_seed(address(seed, *path))


def seed_torch(number: int) -> None:
    """``torch.manual_seed``, which prepares for every kind of device, at a hundredth of its price where there is only
    the CPU."""
    (torch.manual_seed if _accelerated() else torch.default_generator.manual_seed)(number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A context after which the global generators of torch and of Python are as they were: whoever calls may draw from
    them too."""
    before, used = random.getstate(), torch.cuda.is_initialized()
    try:
        # Of GPUs that nobody uses yet there is nothing to keep but the seed, and to ask for more would set one up.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if used else []):
            yield
    finally:
        random.setstate(before)
        if torch.cuda.is_available() and not used:
            torch.cuda.manual_seed_all(torch.initial_seed())


@cache
def _accelerated() -> bool:
    return torch.accelerator.is_available()
