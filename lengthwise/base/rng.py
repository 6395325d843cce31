"""Random generators seeded by a hash of a seed and a path of names and numbers. With ``seed + index`` instead,
neighbouring seeds would get the same data."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

_GENERATORS_LOCK = threading.RLock()  # held by the thread that uses torch's global generators


def derive_seed(seed: int, *path: str | int) -> int:
    """Return a hash of ``seed`` and ``path`` as a 63-bit seed; another seed or path gives an unrelated one."""
    digest = hashlib.blake2b(json.dumps([seed, *path]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(seed: int, *path: str | int) -> torch.Generator:
    """Return a new CPU generator seeded by ``derive_seed``, e.g. ``stream(recipe.data_seed, "train", 17)``."""
    return torch.Generator().manual_seed(derive_seed(seed, *path))


def seed_torch(seed: int) -> None:
    """Seed torch's global generators. Without an accelerator, this is 100 times as fast as ``torch.manual_seed``."""
    (torch.manual_seed if _has_accelerator() else torch.default_generator.manual_seed)(seed)


_has_accelerator = cache(torch.accelerator.is_available)


@contextmanager
def borrow_torch_generators() -> Iterator[None]:
    """Reserve torch's global generators, which all threads share, for this thread in a ``with`` block, and restore
    them. All code that builds, trains or checks a model runs in this context."""
    with _GENERATORS_LOCK:
        uses_gpus, state = torch.cuda.is_initialized(), torch.get_rng_state()
        gpu_states = torch.cuda.get_rng_state_all() if uses_gpus else []
        try:
            yield
        finally:
            torch.set_rng_state(state)
            # For GPUs not used yet, restore only the seed: reading their state would initialize them.
            if uses_gpus:
                torch.cuda.set_rng_state_all(gpu_states)
            elif torch.cuda.is_available():
                torch.cuda.manual_seed_all(torch.initial_seed())


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Reserve and restore torch's generators, and restore Python's generator too, which user code may use."""
    with borrow_torch_generators():
        state = random.getstate()
        try:
            yield
        finally:
            random.setstate(state)
