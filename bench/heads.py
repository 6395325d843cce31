"""Attention of small heads over short rows, forward and backward, on one thread. Claim: where the package goes
its own way (fast/small.py), it is 1.1 times as fast as the library's fused kernel, or more.

``shapes`` are rows × heads × places × numbers of a head; with ``dropout``, and queries and keys turned by their angles,
the package always goes its own way.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthwise.fast import small
from lengthwise.nn.position import rotate

# Ours, the published sizes, and the recurrent system's (with dropout).
SHAPES = [(16, 8, 20, 8), (64, 8, 20, 8), (64, 8, 40, 8), (16, 64, 20, 4), (4, 64, 20, 4)]
DROPPED = [(108, 8, 22, 4), (108, 8, 37, 4)]
REPEATS, SHARE, CLAIM = 15, 0.1, 1.1
Attend = Callable[[Tensor], Tensor]


def library(share: float, angles: Tensor | None) -> Attend:
    def attend(projected: Tensor) -> Tensor:
        query, key, value = projected.unbind(2)
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=share)
        return found.transpose(1, 2)

    return attend


def ours(share: float, angles: Tensor | None) -> Attend:
    def attend(projected: Tensor) -> Tensor:
        rows, positions, _, heads, size = projected.shape
        assert small.pays((rows, positions, heads, size), share)
        return small.attend(projected, None, angles, causal=True, probability=share)

    return attend


def seconds(attend: Attend, projected: Tensor, gradient: Tensor) -> float:
    start = time.process_time()
    attend(projected).backward(gradient)
    return time.process_time() - start


def measured(shape: tuple[int, ...], share: float) -> float:
    rows, heads, positions, size = shape
    projected = torch.randn(rows, positions, 3, heads, size, requires_grad=True)
    gradient = torch.randn(rows, positions, heads, size)
    angles = torch.randn(rows, positions, size // 2) if share else None
    ratios = []
    for _ in range(REPEATS + 1):
        took = [seconds(attend(share, angles), projected, gradient) for attend in (library, ours)]
        ratios.append(took[0] / took[1])
    return round(statistics.median(ratios[1:]), 2)


def main() -> None:
    torch.set_num_threads(1)
    found = {name: {} for name in ("shapes", "dropout")}
    for name, shapes, share in (("shapes", SHAPES, 0.0), ("dropout", DROPPED, SHARE)):
        found[name] = {"×".join(map(str, shape)): measured(shape, share) for shape in shapes}
    met = all(ratio >= CLAIM for ratios in found.values() for ratio in ratios.values())
    print(json.dumps({"bench": "heads", **found, "met": met}))


if __name__ == "__main__":
    main()
