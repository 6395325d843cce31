"""Randomness by address: every random number's generator is named, never counted.

Seeds built by adding (``seed + index``) make neighbours share their data; a hash of the whole path does not.
"""

from __future__ import annotations

import hashlib
import json

import torch


def address(seed: int, *path: str | int) -> int:
    """A 63-bit seed for this path; any other seed or path gives an unrelated one."""
    digest = hashlib.blake2b(json.dumps([seed, *path]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(seed: int, *path: str | int) -> torch.Generator:
    """A fresh CPU generator for this path, e.g. ``stream(recipe.data_seed, "train", 17)``."""
    return torch.Generator().manual_seed(address(seed, *path))
