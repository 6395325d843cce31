"""Checks and measurements that need a GPU and a quarter of an hour. ``make gpu`` runs the script, which writes a table,
gpu.md, beside this file. Differences are relative to the largest value. The parts:

- same: each shipped model's loss and gradients in float32 differ from those on a CPU by at most 1e-3.
- recorded: each shipped model's recorded steps (runners/graphs.py) give the plain runner's gradients within 1e-5, in
  float32 and without dropout. In float64 the model's weights after 20 steps differ by at most 1e-9.
- no reads: each model's whole training step runs in CUDA's sync debug mode, which forbids the host to wait for the GPU.
- resumes: three steps, a checkpoint, and three further steps give the weights of six steps, bit for bit.
- scores: exact match of shipped weights at the training length differs from that on a CPU by at most 0.01.
- learns: parity of up to 8 bits is learned to exact match 0.99, in fp32 and in bf16.
- evaluated: milliseconds to answer a batch of the published recipes for parity and addition, by replaying a recorded
  loop (runners/loop_graphs.py) and by the plain runner; logits differ by at most 1e-3.
- captured: milliseconds of a recorded training step of published recipes, and seconds to record it.
- peers: milliseconds of a step of published parity by layers of other libraries, by a plain loop (plain.py), and by
  this loop compiled in torch's mode for small steps (reduce-overhead).
- compiled: milliseconds of a step by the compiled runner, seconds to compile it, and the difference of its loss and
  gradients from the plain runner's, at most 1e-3 in fp32.
- stacked: milliseconds of a recorded step of 16 stacked seeds of published parity in bf16: for all seeds, per seed, and
  for the host alone. In fp32, loss and gradients of two seeds differ from the plain runner's by at most 1e-3.

If a part fails, the failure is reported and the other parts run. Each part's duration goes to standard error.
``--only PART ...`` and ``--of NAME ...`` measure only these parts or recipes, and write no table. ``--quick`` tries the
script itself on tiny sizes, on a CPU if there is no GPU.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from common import QUICK, measure_step_ms, print_result, read_synchronized_clock
from plain import compute_logits_by_loop
from torch import nn

from lengthwise.api import catalog
from lengthwise.base.rng import stream
from lengthwise.evaluation import scores
from lengthwise.experiment import data
from lengthwise.experiment.recipe import Recipe, Watch
from lengthwise.experiment.source import Finite, Fresh
from lengthwise.models.transformer import Transformer
from lengthwise.runners import Runner
from lengthwise.runners.compiled import has_dropout
from lengthwise.runners.loop_graphs import LoopGraphs
from lengthwise.runners.plain import Plain
from lengthwise.runs.folder import list_shipped_weights
from lengthwise.runs.run import Run, load
from lengthwise.training.arithmetic import autocast, computation_settings
from lengthwise.training.choice import Bf16, RunnerChoice
from lengthwise.training.loop import prefetch_batches, train
from lengthwise.training.stacked import RecordedSteps, advance_together
from lengthwise.training.trainer import Trainer

PUBLISHED_RECIPES = ("paper-fop-loop-adaptive-parity", "paper-fop-loop-adaptive-addition")
CAPTURED_RECIPES = (
    *PUBLISHED_RECIPES,
    "blog-abacus-addition", "paper-abacus-8x2", "paper-retran-small", "paper-gpt-small", "paper-lstm-small",
)  # fmt: skip
BATCH_ROWS = {"paper-abacus-8x2": 2048}  # rows, where the published batch does not fit in a GPU's memory
PARITY_CHANGES = ["lengths=Curriculum(top=8,every=60)", "steps=1200"]
PARTS = ("same", "recorded", "no reads", "resumes", "scores", "learns", "evaluated", "captured", "peers", "compiled",
         "stacked")  # fmt: skip
CPU = torch.device("cpu")
Measurement = bool | float | dict[str, float | None] | None

STACKED_SEEDS = 16  # of a stack


def simplify(recipe: Recipe, **changes) -> Recipe:
    """Return the recipe with these changes and fresh problems, without measurements; keep its last weights."""
    return replace(recipe, source=Fresh(), watch=Watch(), keep="last", **changes)


def load_published_recipe(name: str, *, quick: bool, **changes) -> Recipe:
    """Return a published recipe; with ``quick``, its model and batch are smaller."""
    recipe = simplify(catalog.find_recipe(name), **changes)
    small = ["batch=2", "model.width=16", *["model.heads=2"] * hasattr(recipe.model, "heads")]
    return recipe.change(small) if quick else recipe


def load_shipped_recipes() -> list[Recipe]:
    """Return the recipes of all shipped weights."""
    return [simplify(load(name).recipe, batch=16) for name in list_shipped_weights()]


def compute_loss_and_gradients(recipe: Recipe, runner: Runner, step: int) -> list[torch.Tensor]:
    """Return the loss of a step's batch and its gradients, as tensors on the CPU."""
    loss = recipe.objective(runner, *data.draw_batch(recipe, step), stream(0, "objective"))
    gradients = torch.autograd.grad(loss.value, list(runner.model.parameters()))
    return [loss.value.detach().cpu(), *(one.cpu() for one in gradients)]


def compare_with_cpu(recipe: Recipe, device: torch.device) -> float:
    """Return the largest relative difference of loss and gradients from those on a CPU."""
    model, last = recipe.build().eval(), recipe.steps - 1  # without dropout, which other devices draw otherwise
    here = compute_loss_and_gradients(recipe, Plain(model), last)
    return compute_relative_difference(here, compute_loss_and_gradients(recipe, Plain(model.to(device)), last))


def compute_relative_difference(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> float:
    """Return the largest difference in any pair of tensors, as a share of the expected tensor's largest number."""
    pairs = zip(expected, actual, strict=True)
    return max(float((one - two).abs().max() / one.abs().max().clamp(min=1e-3)) for one, two in pairs)


def runs_without_waits(recipe: Recipe, device: torch.device) -> bool:
    """Return whether the host never waits for the GPU during a step; CUDA raises an error if it does."""
    trainee = Trainer(recipe, device)
    trainee.advance()  # the first one allocates
    if device.type != "cuda":
        return True
    torch.cuda.set_sync_debug_mode("error")
    try:
        with prefetch_batches([trainee]):
            trainee.advance()
    except RuntimeError as error:
        print(f"{recipe.name}: {error}", file=sys.stderr)
        return False
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return True


def compare_resumed_run(recipe: Recipe, device: torch.device, steps: int = 3) -> float:
    """Return the largest relative difference of a resumed run's weights from an uninterrupted run's."""
    whole, first, second = (Trainer(recipe, device, graphs=True) for _ in range(3))
    with TemporaryDirectory() as folder, computation_settings(1):
        advance_by(whole, 2 * steps)
        advance_by(first, steps)
        first.save_checkpoint(run := Run.of(recipe, Path(folder)))
        second.restore_checkpoint(run)
        advance_by(second, steps)
    return compute_relative_difference(
        *([one.detach().cpu() for one in kept.model_to_evaluate().parameters()] for kept in (whole, second))
    )


def advance_by(trainee: Trainer, steps: int) -> None:
    for _ in range(steps):
        trainee.advance()


def compare_exact_match(name: str, device: torch.device, count: int) -> float:
    """Return the exact match of shipped weights at the training length on the device, minus that on a CPU."""
    recipe, models = load(name).recipe, [load(name, str(place)).model for place in (device, CPU)]
    sizes = recipe.sizes(recipe.lengths.top)
    here, on_cpu = (scores.measure_exact_match(model, recipe, sizes, count) for model in models)
    return here - on_cpu


def train_parity(device: torch.device, matmul: str, *, quick: bool) -> float:
    recipe = simplify(catalog.find_recipe("looped-parity", PARITY_CHANGES))
    if quick:
        recipe = replace(recipe, steps=2, batch=2)
    with TemporaryDirectory() as folder:
        run = train(recipe, folder, device=str(device), matmul=matmul)
        return scores.measure_exact_match(run.model, recipe, recipe.sizes(8), 10 if quick else 1000)


def measure_compiled(name: str, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Return milliseconds of a compiled step, seconds to compile it, and its relative difference from a plain step."""
    recipe = load_published_recipe(name, quick=quick)
    found: dict[str, float | None] = {}
    for matmul in ("fp32",) if quick else ("fp32", "bf16"):
        with computation_settings(1):
            trainee = Trainer(recipe, device, matmul=matmul, compile=True)
            trainee.step = recipe.steps // 2
            runner = trainee.runners.choose(trainee.parts)
            plain = Plain(trainee.model) if matmul == "fp32" else Bf16(Plain(trainee.model))
            start, exact = read_synchronized_clock(device), compute_loss_and_gradients(recipe, plain, trainee.step)
            compiled = compute_loss_and_gradients(recipe, runner, trainee.step)
            found[f"{matmul}, apart"] = compute_relative_difference(exact, compiled)
            found[f"{matmul}, seconds to compile"] = read_synchronized_clock(device) - start
            with prefetch_batches([trainee], on_any_device=True):
                found[f"{matmul}, ms"] = measure_step_ms(trainee.advance, device, 1 if quick else 20)
    return found


def measure_recorded(recipe: Recipe, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Return relative differences of recorded from plain steps: in gradients, and in weights after 20 float64 steps."""
    draws = {field.name for field in fields(recipe.model)} & {"dropout", "noise"}
    recipe = replace(recipe, model=replace(recipe.model, **dict.fromkeys(draws, 0.0)))
    if recipe.objective.takes_several_steps:  # they are not recorded
        return {}
    trainer, last, weights = Trainer(recipe, device, graphs=True), recipe.steps - 1, []
    exact = compute_loss_and_gradients(recipe, Plain(trainer.model), last)
    for _ in range(2):  # the second is a replay
        trainer.optimizer.zero_grad()
        loss = next(trainer.compute_losses(*data.draw_batch(recipe, last)))
    read = [loss.value.detach(), *(one.grad for one in trainer.model.parameters())]
    for graphs in (False, True):
        own = Trainer(recipe, device, graphs=graphs)
        own.model.double()
        if own.average:
            own.average.double()
        own.runners = RunnerChoice(own.model, own.processes, matmul="fp32", compile=False, graphs=graphs)
        advance_by(own, 2 if quick else 20)
        weights.append([one.detach().cpu() for one in own.model.parameters()])
    if reason := own.runners.graphs.reason or trainer.runners.graphs.reason:
        raise RuntimeError(reason)
    return {
        "gradients": compute_overall_difference(exact, [one.cpu() for one in read]),
        "weights": compute_overall_difference(*weights),
    }


def compute_overall_difference(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> float:
    """Return the largest difference in all pairs of tensors, as a share of the largest number in ``expected``."""
    differences = [float((one - two).abs().max()) for one, two in zip(expected, actual, strict=True)]
    return max(differences) / max(float(one.abs().max()) for one in expected)


@torch.no_grad()
def measure_evaluation(name: str, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Return milliseconds of a pass without gradients at the top length, with the plain runner and with recorded loops,
    and the largest relative difference of their logits."""
    recipe = load_published_recipe(name, quick=quick)
    problems = data.draw_recipe_problems(recipe, recipe.lengths.top, 4 if quick else 1000, seed=0)
    batch, model, found, logits = recipe.layout.write(problems, recipe.task), recipe.build().to(device).eval(), {}, {}
    loops = recipe.loops.planned(batch.rounds)
    for kind in (Plain, LoopGraphs):
        runner = kind(model)

        def compute_logits(runner: Runner = runner) -> torch.Tensor:
            return runner.last(batch.inputs, loops, batch.answer_slots)

        logits[kind] = compute_logits()
        found[f"{kind.__name__}, ms"] = measure_step_ms(compute_logits, device, 1 if quick else 10)
    return {**found, "apart": compute_relative_difference([logits[Plain].cpu()], [logits[LoopGraphs].cpu()])}


def measure_captured(name: str, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Return milliseconds of a recorded step of a published recipe, and seconds to record it. A finite training set is
    replaced by a smaller one, which is drawn faster."""
    recipe = load_published_recipe(name, quick=quick, **({"batch": BATCH_ROWS[name]} if name in BATCH_ROWS else {}))
    if isinstance(catalog.find_recipe(name).source, Finite):
        recipe = replace(recipe, source=Finite(64 if quick else 20_000))
    step, times, found = (2 if quick else recipe.steps // 2), (1 if quick else 50), {}
    kinds = ("fp32", "bf16") if isinstance(recipe.model, Transformer) and not has_dropout(recipe.build()) else ("tf32",)
    for matmul in kinds if device.type == "cuda" else ("fp32",):
        with computation_settings(1):
            trainer, start = Trainer(recipe, device, matmul=matmul, graphs=True), read_synchronized_clock(device)
            trainer.step = step
            next(trainer.compute_losses(*trainer.draw_batch(step)))
            trainer.optimizer.zero_grad()
            found[f"{matmul}, seconds to record"] = read_synchronized_clock(device) - start
            with prefetch_batches([trainer], on_any_device=True):
                advance_by(trainer, times)  # records all shapes of these steps
                trainer.step = step
                found[f"{matmul}, ms"] = measure_step_ms(lambda trainer=trainer: trainer.advance(), device, times)
            if trainer.runners.graphs.reason:
                raise RuntimeError(trainer.runners.graphs.reason)
    return found


def measure_peers(name: str, device: torch.device, *, quick: bool) -> dict[str, float]:
    """Return milliseconds of whole steps with AdamW, in fp32 and bf16, by a plain loop with and without compilation and
    by layers of other libraries. These layers have the same width and number of loops, and add the input in each
    loop."""
    recipe = load_published_recipe(name, quick=quick)
    batch, loops = data.draw_batch(recipe, recipe.steps // 2)
    spec, most, model, found = recipe.model, int(loops.max()), recipe.build().to(device), {}
    rows = replace(batch, inputs=batch.inputs.to(device), targets=batch.targets.to(device),
                   loss_mask=batch.loss_mask.to(device))  # fmt: skip
    last, row = (loops - 1).to(device), torch.arange(len(loops), device=device)
    at = rows.loss_mask.flatten().nonzero()[:, 0]

    def compute_plain_loss() -> torch.Tensor:
        logits = torch.stack(compute_logits_by_loop(model, rows.inputs, most))[last, row].flatten(0, 1)
        return nn.functional.cross_entropy(logits[at], rows.targets.flatten()[at])

    def compute_layer_loss(layer: nn.Module) -> torch.Tensor:
        state = torch.zeros_like(x := table(rows.inputs.tokens))
        for _ in range(most):
            state = layer(state + x)
        return state.square().mean()

    table = nn.Embedding(100, spec.width, device=device)
    losses: dict[str, tuple[nn.Module, Callable[[], torch.Tensor]]] = {"plain loop": (model, compute_plain_loss)}
    if device.type == "cuda":  # a CPU compiles for a minute
        losses["compiled plain loop"] = model, torch.compile(compute_plain_loss, mode="reduce-overhead")
    losses |= {
        kind: (layer, lambda layer=layer: compute_layer_loss(layer))
        for kind, layer in build_library_layers(recipe, device).items()
    }
    for kind, (part, loss) in losses.items():
        for matmul in ("fp32", "bf16"):
            optimizer = torch.optim.AdamW([*part.parameters()], fused=device.type == "cuda")

            def step(loss=loss, matmul=matmul, optimizer=optimizer) -> None:
                if device.type == "cuda":
                    torch.compiler.cudagraph_mark_step_begin()
                with autocast(device, matmul):
                    value = loss()
                value.backward()
                optimizer.step()
                optimizer.zero_grad()

            with computation_settings(1):
                for _ in range(3):
                    step()
                found[f"{kind}, {matmul}"] = measure_step_ms(step, device, 1 if quick else 20)
    return found


def build_library_layers(recipe: Recipe, device: torch.device) -> dict[str, nn.Module]:
    """Return layers of other libraries in the recipe's sizes, with the fused attention that these libraries choose."""
    spec = recipe.model
    known = {"batch_first": True, "norm_first": True, "dropout": 0.0, "activation": "gelu", "device": device}
    found: dict[str, nn.Module] = {"nn.TransformerEncoder": nn.TransformerEncoder(
        nn.TransformerEncoderLayer(spec.width, spec.heads, spec.mlp * spec.width, **known), spec.layers,
        enable_nested_tensor=False)}  # fmt: skip
    with contextlib.suppress(ImportError):
        from x_transformers import Encoder

        size = {"dim": spec.width, "depth": spec.layers, "heads": spec.heads}
        found["x-transformers"] = Encoder(**size, attn_dim_head=spec.width // spec.heads, attn_flash=True).to(device)
    return found


def measure_stacked(name: str, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Return milliseconds of a recorded step of stacked seeds: in total, per seed, and for the host alone; also the
    seconds to record it, and the relative difference from the plain runner."""
    recipe = load_published_recipe(name, quick=quick)
    found: dict[str, float | None] = {}
    for matmul, count in ("fp32", 2), ("bf16", 2 if quick else STACKED_SEEDS):
        seeds = [Trainer(recipe.with_seed(seed), device, matmul=matmul) for seed in range(count)]
        for one in seeds:
            one.step = 2 if quick else recipe.steps // 2
        with computation_settings(1):
            parts = measure_stacked_steps(seeds, 1 if quick else 20)
        found |= {f"{matmul}, {part}": value for part, value in parts.items()}
    return found


def measure_stacked_steps(seeds: Sequence[Trainer], times: int) -> dict[str, float | None]:
    first, device, found = seeds[0], seeds[0].device, {}
    plain = Plain(first.model) if first.matmul == "fp32" else Bf16(Plain(first.model))
    exact, steps = compute_loss_and_gradients(first.recipe, plain, first.step), RecordedSteps(seeds)
    start, descend = read_synchronized_clock(device), steps.update_weights
    steps.update_weights = lambda losses: [  # the first step only computes
        one.count_step([{"loss": loss.value}]) for one, loss in zip(seeds, losses, strict=True)
    ]
    advance_together(seeds, steps)
    recorded = [first.sums["loss"].cpu(), *(one.grad.cpu() for one in first.model.parameters())]
    found["seconds to record"] = read_synchronized_clock(device) - start
    found["apart"] = compute_relative_difference(exact, recorded)
    steps.update_weights = descend
    with prefetch_batches(seeds, on_any_device=True):
        for _ in range(3):  # the first updates allocate, and then they are captured
            advance_together(seeds, steps)
        found[f"step of {len(seeds)}"] = whole = measure_step_ms(lambda: advance_together(seeds, steps), device, times)
        found["a seed"] = whole / len(seeds)
        found["compiled"] = steps.graphs.compiles
        if steps.graphs.reason:
            raise RuntimeError(steps.graphs.reason)
        for recording in steps.graphs.recordings.values():
            recording.forward = recording.backward = lambda: None
        steps.replayed_update.captured = {
            key: (lambda: None, logs) for key, (_, logs) in steps.replayed_update.captured.items()
        }
        found["host"] = measure_step_ms(lambda: advance_together(seeds, steps), device, times)
    return found


def format_table(result: dict) -> str:
    """Return the results as a Markdown table."""
    lines = [f"# {result['device']}, torch {torch.__version__}", "", "| what | of | measured |", "| --- | --- | --- |"]
    for what in PARTS:
        for name, value in result.get(what, {}).items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            shown = ", ".join(f"{part} {format_value(number)}".strip() for part, number in parts if number is not None)
            lines.append(f"| {what} | {name} | {shown or 'failed'} |")
    return "\n".join(
        [*lines, "", f"All as claimed: {'yes' if result['met'] else 'no'}. {result['seconds']:.0f} s.", ""]
    )


def format_value(value: bool | float) -> str:
    return f"{value:.4g}" if not isinstance(value, bool) else "yes" if value else "no"


def try_measurement(part: str, name: str, measure: Callable[[], Measurement]) -> Measurement:
    """Return the result of ``measure``; if it raises an error, print the error and return None."""
    start = time.perf_counter()
    try:
        found = measure()
    except Exception as error:
        found = None
        print(f"{part} {name}: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"{part} {name}: {found} in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return found


def measure_parts(device: torch.device, parts: Sequence[str], only: Sequence[str], *, quick: bool) -> dict:
    start, count = time.perf_counter(), 10 if quick else 1000
    names = ["looped-parity"] if quick else list_shipped_weights()
    small = load_published_recipe("looped-parity", quick=True).change(["lengths.top=4"])
    recipes = [small] if quick else load_shipped_recipes()
    known, few = {recipe.name: recipe for recipe in recipes}, PUBLISHED_RECIPES[: 1 if quick else 2]
    captured = (*few, "paper-lstm-small") if quick else CAPTURED_RECIPES
    ways: dict[str, tuple[Sequence[str], Callable[[str], Measurement]]] = {
        "same": (list(known), lambda name: compare_with_cpu(known[name], device)),
        "no reads": (list(known), lambda name: runs_without_waits(known[name], device)),
        "resumes": (list(known), lambda name: compare_resumed_run(known[name], device)),
        "scores": (names, lambda name: compare_exact_match(name, device, count)),
        "learns": (("fp32", "bf16"), lambda matmul: train_parity(device, matmul, quick=quick)),
        "recorded": (list(known), lambda name: measure_recorded(known[name], device, quick=quick)),
        "peers": (PUBLISHED_RECIPES[:1], lambda name: measure_peers(name, device, quick=quick)),
        "compiled": (few, lambda name: measure_compiled(name, device, quick=quick)),
        "evaluated": (few, lambda name: measure_evaluation(name, device, quick=quick)),
        "captured": (captured, lambda name: measure_captured(name, device, quick=quick)),
        "stacked": (few[:1], lambda name: measure_stacked(name, device, quick=quick)),
    }
    result: dict[str, dict[str, Measurement]] = {}
    for what in parts:
        of, measure = ways[what]
        of = [name for name in of if not only or name in only]
        result[what] = {
            name: try_measurement(what, name, lambda name=name, measure=measure: measure(name)) for name in of
        }
    seconds = time.perf_counter() - start
    about = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device), "seconds": seconds}
    return {**about, **result, "met": meets_claims(result)}


def meets_claims(result: dict) -> bool:
    """Return whether no part failed and all results are as claimed."""
    found = {what: list(result.get(what, {}).values()) for what in PARTS}
    if any(value is None for values in found.values() for value in values):
        return False
    differences = [*found["same"], *(one["apart"] for one in found["evaluated"])]
    differences += [one["fp32, apart"] for one in (*found["compiled"], *found["stacked"])]
    return (
        max(differences, default=0) < 1e-3
        and max((one.get("gradients", 0) for one in found["recorded"]), default=0) < 1e-5
        and max((one.get("weights", 0) for one in found["recorded"]), default=0) < 1e-9
        and max(found["resumes"], default=0) == 0
        and all(found["no reads"])
        and max(map(abs, found["scores"]), default=0) <= 0.01
        and min(found["learns"], default=1) >= 0.99
    )


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    here = torch.cuda.is_available()
    asked.add_argument("--device", default="cpu" if QUICK and not here else "cuda")
    asked.add_argument("--quick", action="store_true", help="test the script on tiny sizes")
    asked.add_argument("--only", nargs="+", choices=PARTS)
    asked.add_argument("--of", nargs="+", default=(), help="measure only these recipes or weights")
    args = asked.parse_args()
    if args.device == "cuda" and not here:
        print_result("gpu", skipped="there is no CUDA device here")
        sys.exit()
    # A CPU compiles for a minute.
    parts = args.only or [part for part in PARTS if part != "compiled" or args.device != "cpu"]
    found = measure_parts(torch.device(args.device), parts, args.of, quick=args.quick)
    if args.quick:
        print(format_table(found), file=sys.stderr)
    elif not (args.only or args.of):
        Path(__file__).with_name("gpu.md").write_text(format_table(found))
    print_result("gpu", **found)
