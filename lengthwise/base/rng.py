"""Random generators seeded by a hash of the seed and a named path.

Seeds made by addition (``seed + index``) give neighbouring runs the same data; a hash of the full path does not.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

_TURN = threading.RLock()  # held by the thread that uses torch's global generators


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
    (torch.manual_seed if _has_accelerator() else torch.default_generator.manual_seed)(number)


@contextmanager
def borrow_torch_generators() -> Iterator[None]:
    """Hold torch's global generators for this thread, and leave them as they were.

    They belong to the process: a thread that seeds them or draws from them would change the numbers of another one. So
    whatever builds, trains or checks a model does it in here, where other threads wait for their turn.
    """
    with _TURN:
        used, state = torch.cuda.is_initialized(), torch.get_rng_state()
        of_gpus = torch.cuda.get_rng_state_all() if used else []
        try:
            yield
        finally:
            torch.set_rng_state(state)
            # Of GPUs that were not used yet there is only the seed to keep: to ask for more would set one up.
            if used:
                torch.cuda.set_rng_state_all(of_gpus)
            elif torch.cuda.is_available():
                torch.cuda.manual_seed_all(torch.initial_seed())


@contextmanager
def preserve_generators() -> Iterator[None]:
    """``borrowed``, which leaves Python's global generator as it was too: code of a user's own may draw from both."""
    with borrow_torch_generators():
        before = random.getstate()
        try:
            yield
        finally:
            random.setstate(before)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()
