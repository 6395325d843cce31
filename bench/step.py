"""A training step of looped models, forward and backward: rows stop when they are done, and padding is not computed.
Claims, compared with the plain loop (plain.py), with lengths uniform in 1…20: 2.5 times as fast at the published size
of parity and at the package's own sizes, 2.3 times at the published size of addition. Loss and gradients are equal to
1e-6 in float64. At the published size of addition, a step reaches at least half of this machine's rate of matrix
products, and takes at most half of the plain loop's memory.

``bound`` is the ratio of the positions that the plain loop computes to those that the loss needs; positions that a
model cannot tell apart count once. ``libraries`` is the ratio of the time of a step with blocks of other libraries in a
loop (library_models.py) to the package's time, for models without windows.
"""

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from common import QUICK, measure_seconds, print_result, summarize_ratios
from library_models import LIBRARIES, LoopedModel
from plain import compute_plain_loss
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.api import catalog
from lengthwise.base.types import Batch
from lengthwise.experiment import data
from lengthwise.experiment.lengths import Uniform
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import Model
from lengthwise.models.transformer import Transformer
from lengthwise.nn.position import NoPE
from lengthwise.nn.window import Local
from lengthwise.objectives import Final
from lengthwise.runners.cpu import choose_runner
from lengthwise.runners.cpu.fused_loops import index_unique_prefixes, mark_first_occurrences

ADDITION = "paper-fop-loop-adaptive-addition"
CLAIMS = {
    "paper-fop-loop-adaptive-parity": 2.5,
    ADDITION: 2.3,
    "looped-parity": 2.5,
    "looped-addition": 2.5,
    "fop-loop-adaptive-parity": 2.5,
}
WITHOUT_WINDOWS = ("paper-fop-loop-adaptive-parity", "fop-loop-adaptive-parity")


def compute_loss(model: Model, batch: Batch, loops: Tensor) -> Tensor:
    return Final()(choose_runner(model), batch, loops, torch.Generator()).value


LOSSES: dict[str, Callable[[Model, Batch, Tensor], Tensor]] = {"plain": compute_plain_loss, "quick": compute_loss}


def count_batches(name: str) -> int:
    """Return the number of measured batches: more for small models, whose times vary more."""
    if QUICK:
        return 1
    return 5 if name.startswith("paper") else 25


def load_recipe(name: str) -> Recipe:
    return replace(
        catalog.find_recipe(name), **({"lengths": Uniform(4), "batch": 3} if QUICK else {"lengths": Uniform(20)})
    )


def compute_gradients(variant: str, model: Model, batch: Batch, loops: Tensor) -> list[Tensor]:
    model.zero_grad()
    value = LOSSES[variant](model, batch, loops)
    value.backward()
    return [value.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def measure_difference(name: str) -> float:
    """Return the largest difference in loss and gradients from the plain loop's, in float64, on eight rows."""
    small = replace(load_recipe(name), batch=2 if QUICK else 8)
    model = small.build().double()
    both = zip(*(compute_gradients(variant, model, *data.draw_batch(small, 0)) for variant in LOSSES), strict=True)
    return max(float((a - b).abs().max()) for a, b in both)


def count_needed_work(spec: Transformer, batch: Batch, loops: Tensor) -> tuple[float, float]:
    """Return the floating-point operations of the matrix products that the loss of a step needs, without the readout,
    and the number of positions that the plain loop computes per needed position. A multiply–add counts as two
    operations."""
    times = count_useful_loops(spec, batch, loops).sum(1).double()
    seen = batch.inputs.padding_mask.sum(1)
    if reach := find_window_reach(spec):
        seen = seen.clamp(max=2 * reach + 1)
    per_place = spec.layers * (8 + 4 * spec.mlp) * spec.width**2 + spec.layers * 4 * spec.width * seen
    computed = batch.inputs.padding_mask.numel() * int(loops.max())
    return 3 * float((per_place * times).sum()), computed / float(times.sum())


def find_window_reach(spec: Transformer) -> int | None:
    """Return the number of neighbours on either side that all heads see; None if there is no window."""
    return next((position.reach for position in spec.positions if isinstance(position, Local)), None)


def count_useful_loops(spec: Transformer, batch: Batch, loops: Tensor) -> Tensor:
    """Return, for each position ("b t"), the number of loops in which its state can influence a supervised position."""
    times = loops[:, None] * batch.inputs.padding_mask
    if spec.positions == (NoPE(),):  # these layouts are causal, so equal prefixes have equal states
        times[~mark_distinct_prefixes(batch, loops)] = 0
    if reach := find_window_reach(spec):
        position = torch.arange(times.shape[1])
        gap = (position - position[:, None]).abs().where(batch.loss_mask[:, None], 10**6).amin(2)
        times = (times - (gap / (spec.layers * reach)).ceil().long()).clamp(min=0)
    return times


def mark_distinct_prefixes(batch: Batch, loops: Tensor) -> Tensor:
    """Return a mask "b t" with one position per distinct prefix, in the first of its rows with the most loops."""
    order = loops.argsort(descending=True, stable=True)
    padding_mask = batch.inputs.padding_mask[order]
    which = index_unique_prefixes(batch.inputs.tokens[order], padding_mask.sum(1).cumsum(0).tolist(), [])
    return torch.zeros_like(padding_mask).masked_scatter_(padding_mask, mark_first_occurrences(which))[order.argsort()]


def measure_product_rate(side: int = 64 if QUICK else 1536) -> float:
    """Return the floating-point operations per second of a large matrix product."""
    one, two = torch.randn(side, side), torch.randn(side, side)
    return 2 * side**3 / measure_seconds(torch.mm, one, two)


def measure(name: str) -> dict[str, object]:
    chosen = load_recipe(name)
    model, spec = chosen.build(), chosen.model
    assert isinstance(spec, Transformer)
    ratios, bounds, shares = [], [], []
    for step in range(count_batches(name) + 1):
        batch, loops = data.draw_batch(chosen, step)
        operations, bound = count_needed_work(spec, batch, loops)
        took = {variant: measure_seconds(compute_gradients, variant, model, batch, loops) for variant in LOSSES}
        ratios.append(took["plain"] / took["quick"])
        bounds.append(bound)
        shares.append(operations / took["quick"] / measure_product_rate())
    found = ratios[1:]  # without the first step, which includes one-time allocations
    return {
        **summarize_ratios(found),
        "bound": round(statistics.median(bounds[1:]), 2),
        "of_the_product_rate": round(statistics.median(shares[1:]), 2),
        "difference": measure_difference(name),
        **({} if name not in WITHOUT_WINDOWS else {"libraries": measure_libraries(name)}),
    }


def measure_libraries(name: str) -> dict[str, float | str]:
    """Return, for each other library, the median ratio of its time per step to the package's; for a library that is not
    installed, a note that it was skipped."""
    chosen = load_recipe(name)
    model, spec, layout = chosen.build(), chosen.model, chosen.layout
    assert isinstance(spec, Transformer)
    reads, writes = (len(vocab) for vocab in layout.vocabs(chosen.task))
    looped, skipped = {}, dict[str, float | str]()
    for library, make in LIBRARIES.items():
        try:
            looped[library] = LoopedModel(make(spec), spec, reads, writes)
        except ImportError as error:
            skipped[library] = f"skipped: {error}; pip install 'lengthwise[bench]'"
    ratios: dict[str, list[float]] = {library: [] for library in looped}
    for step in range(count_batches(name) + 1):
        batch, loops = data.draw_batch(chosen, step)
        ours = measure_seconds(compute_gradients, "quick", model, batch, loops)
        for library, other in looped.items():
            ratios[library].append(measure_seconds(run_step, other, batch, loops) / ours)
    return skipped | {library: round(statistics.median(found[1:]), 2) for library, found in ratios.items()}


def run_step(model: nn.Module, batch: Batch, loops: Tensor) -> None:
    model.zero_grad()
    logits = model(batch.inputs.tokens, loops)
    F.cross_entropy(logits[batch.loss_mask], batch.targets[batch.loss_mask]).backward()


def measure_memory_growth(variant: str) -> int:
    """Return the growth of the process's peak memory, in bytes, during one step of addition."""
    chosen = load_recipe(ADDITION)
    model = chosen.build()
    batch, loops = data.draw_batch(chosen, 0)
    before = read_peak_memory()
    compute_gradients(variant, model, batch, loops)
    return read_peak_memory() - before


def read_peak_memory() -> int:
    """Return the peak memory of this process in bytes. (``getrusage`` would include the parent process.)"""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found, "needs Linux"
    return int(found[1]) * 1024


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", choices=LOSSES)
    parser.add_argument("--quick", action="store_true", help="test the script on tiny sizes")
    parser.add_argument("recipes", nargs="*", default=list(CLAIMS))
    args = parser.parse_args()
    if args.memory:
        print(measure_memory_growth(args.memory))
        return
    result = {name: measure(name) for name in args.recipes}
    met = all(result[name]["ratio"] >= CLAIMS.get(name, 0) and result[name]["difference"] < 1e-6 for name in result)
    share = measure_memory_in_new_process("quick") / max(1, measure_memory_in_new_process("plain"))
    print_result("step", **result, memory=round(share, 2), met=met and share <= 0.5)


def measure_memory_in_new_process(variant: str) -> int:
    """Return the result of ``measure_memory_growth`` in a new process, in which nothing was computed before."""
    if QUICK:
        return measure_memory_growth(variant)
    return int(subprocess.check_output([sys.executable, __file__, "--memory", variant]))


if __name__ == "__main__":
    main()
