"""Random generators seeded by a hash of the seed and a named path.

Seeds made by addition (``seed + index``) give neighbouring runs the same data; a hash of the full path does not.
"""

from __future__ import annotations

import hashlib
import json

import torch


def address(seed: int, *path: str | int) -> int:
    """A 63-bit seed, the hash of ``seed`` and ``path``; any other seed or path gives an unrelated one."""
    digest = hashlib.blake2b(json.dumps([seed, *path]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(seed: int, *path: str | int) -> torch.Generator:
    """A new CPU generator seeded by ``address``, e.g. ``stream(recipe.data_seed, "train", 17)``."""
    return torch.Generator().manual_seed(address(seed, *path))
