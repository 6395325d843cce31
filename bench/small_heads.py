"""Attention of small heads over short rows, forward and backward, on one thread. Claim: runners/cpu/small_heads.py is
at least 1.1 times as fast as torch's fused kernel, for all shapes for which the package uses it.

``shapes`` holds the ratio for each shape (rows × heads × positions × width of a head). ``dropout`` holds ratios with
dropout and rotary encoding, for which the package always uses runners/cpu/small_heads.py.
"""

import statistics
from collections.abc import Callable

import torch
from common import QUICK, measure_seconds, print_result
from torch import Tensor
from torch.nn import functional as F

from lengthwise.nn.mixer import AttentionContext
from lengthwise.nn.position import rotate
from lengthwise.runners.cpu import small_heads
from lengthwise.runners.cpu.packing import Ragged

# This package's recipes, the published sizes, and those of ReTran's baselines (with dropout).
SHAPES = [(16, 8, 20, 8), (64, 8, 20, 8), (64, 8, 40, 8), (16, 64, 20, 4), (4, 64, 20, 4)]
DROPOUT_SHAPES = [(108, 8, 22, 4), (108, 8, 37, 4)]
if QUICK:
    SHAPES, DROPOUT_SHAPES = SHAPES[:1], [(2, 8, 22, 4)]
REPEATS, PROBABILITY, CLAIM = 1 if QUICK else 15, 0.1, 1.1
Attend = Callable[[Tensor], Tensor]


def build_library_attention(probability: float, angles: Tensor | None) -> Attend:
    def attend(projected: Tensor) -> Tensor:
        query, key, value = projected.unbind(2)
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=probability)
        return found.transpose(1, 2)

    return attend


def build_package_attention(probability: float, angles: Tensor | None) -> Attend:
    def attend(projected: Tensor) -> Tensor:
        rows, positions, _, heads, size = projected.shape
        assert small_heads.is_worthwhile((rows, positions, heads, size), probability)
        mask = torch.ones(rows, positions, dtype=torch.bool)
        ragged = Ragged.from_mask(mask)
        context = AttentionContext(mask, causal=True, angles=angles)
        plan = small_heads.AttentionPlan.build(projected, heads, ragged, context)
        return small_heads.attend(projected.flatten(0, 1), plan, probability).view(rows, positions, heads, size)

    return attend


def measure_ratio(shape: tuple[int, ...], probability: float) -> float:
    rows, heads, positions, size = shape
    projected = torch.randn(rows, positions, 3, heads, size, requires_grad=True)
    gradient = torch.randn(rows, positions, heads, size)
    angles = torch.randn(rows, positions, size // 2) if probability else None
    ratios = []
    for _ in range(REPEATS + 1):

        def step(attend: Attend) -> None:
            attend(projected).backward(gradient)

        ways = build_library_attention, build_package_attention
        theirs, own = (measure_seconds(step, build(probability, angles)) for build in ways)
        ratios.append(theirs / own)
    return round(statistics.median(ratios[1:]), 2)


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    for name, shapes, probability in (("shapes", SHAPES, 0.0), ("dropout", DROPOUT_SHAPES, PROBABILITY)):
        found[name] = {"×".join(map(str, shape)): measure_ratio(shape, probability) for shape in shapes}
    met = all(ratio >= CLAIM for ratios in found.values() for ratio in ratios.values())
    print_result("small_heads", **found, met=met)


if __name__ == "__main__":
    main()
