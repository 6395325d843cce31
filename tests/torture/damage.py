"""Damage to the files of a run's folder: lost or flipped bytes, values of other types, files of other kinds."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import torch

CONTROL_TEXT = "\x1b]0;title\x07\x1b[31mred\nline\r\x00\u202e\x9b"
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 10**18, 10**30, 0.5, -0.5, 1e300, float("nan"), float("inf"), "", "word", CONTROL_TEXT,
    "[/bold]", "../../up", "x" * 3000, [], [[]], {}, {"kind": "Oracle"}, {"kind": CONTROL_TEXT}, [1, 2, 3], ["a"],
)  # fmt: skip


class PickledCommand:
    """An object that creates a file ``ran`` when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def damage_random_file(folder: Path, rng: random.Random) -> str:
    """Damage a random file of the folder and return a description of the damage."""
    path = rng.choice(sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")))
    ways = [flip_bits, flip_bits, cut_end, repeat_part, write_junk, copy_other_file, write_pickle, replace_by_folder]
    kinds = {".json": change_json, ".jsonl": change_row, ".safetensors": change_header}
    if path.suffix in kinds:
        ways += [kinds[path.suffix]] * 8
    way = rng.choice(ways)
    way(path, rng)
    return f"{path.name} {way.__name__}"


# Bytes


def flip_bits(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    for _ in range(rng.choice([1, 1, 2, 8])):
        content[rng.randrange(min(len(content), rng.choice([64, 4096, 1 << 20])))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut_end(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size + 1)])


def repeat_part(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    at = rng.randrange(len(content) + 1)
    path.write_bytes(content[:at] + content[max(0, at - 64) :])


def write_junk(path: Path, rng: random.Random) -> None:
    contents = [b"", b"\n", b"\0" * 64, b"\xff\xfe\n", b"[" * 100_000, b"{}\n", b"null\n", b"9" * 5000]
    path.write_bytes(rng.choice(contents))


def copy_other_file(path: Path, rng: random.Random) -> None:
    shutil.copy(rng.choice([one for one in path.parent.iterdir() if one.is_file()]), path.with_name("taken"))
    path.with_name("taken").replace(path)


def write_pickle(path: Path, rng: random.Random) -> None:
    if rng.random() < 0.5:
        torch.save({"step": PickledCommand()}, path)
    else:
        path.write_bytes(pickle.dumps(PickledCommand()))


def replace_by_folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


# Values


def change_json(path: Path, rng: random.Random) -> None:
    path.write_text(json.dumps(change_value(json.loads(path.read_text(encoding="utf-8")), rng)), encoding="utf-8")


def change_row(path: Path, rng: random.Random) -> None:
    lines = path.read_text(encoding="utf-8").splitlines() or ["{}"]
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(change_value(json.loads(lines[at]), rng))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def change_header(path: Path, rng: random.Random) -> None:
    """Change a value in the JSON header of a safetensors file, which starts with the header's length."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.dumps(change_value(json.loads(content[8 : 8 + length]), rng)).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def change_value(tree: Any, rng: random.Random) -> Any:
    """Return the tree with one value replaced, removed, added or renamed."""
    steps = [*_list_paths(tree)]
    if not steps:
        return rng.choice(VALUES)
    *parents, last = rng.choice(steps)
    inner = tree
    for step in parents:
        inner = inner[step]
    match rng.randrange(5):
        case 0:
            del inner[last]
        case 1 if isinstance(inner, dict):
            inner[rng.choice([CONTROL_TEXT, "[/red]", "kind", "x" * 3000])] = rng.choice(VALUES)
        case _:
            inner[last] = rng.choice(VALUES)
    return tree


def _list_paths(tree: Any, limit: int = 400) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    if isinstance(tree, dict | list):
        for name in [*tree] if isinstance(tree, dict) else range(len(tree)):
            found += [(name,), *((name, *more) for more in _list_paths(tree[name]))]
    return found[:limit]
