"""What only a GPU can show, in a quarter of an hour: ``make gpu``. It writes a table, gpu.md, beside this file.

- same: loss and gradients of every form of shipped model equal those of a CPU, in float32, to 1e-3 of the largest.
- recorded: of each, recorded steps (runners/graphs.py) give the plain runner's gradients to 1e-5 of the largest, in
  float32 and without dropout, and after 20 steps its weights to 1e-9, in float64.
- no reads: a whole training step of each runs while CUDA refuses to wait for the host (its sync debug mode).
- resumes: of each, three steps, a checkpoint, and three steps of what reads it give the weights of six, to the bit.
- scores: shipped weights answer as on a CPU: exact match at the training length differs by 0.01 at most.
- learns: parity of up to 8 bits is learned to 0.99, in fp32 and in bf16.
- evaluated: of the published parity and addition, milliseconds to answer a batch after each row's loops, by replaying a
  recorded loop (runners/loop_graphs.py) and by the plain runner; logits apart by 1e-3 of the largest at most.
- captured: of published recipes, milliseconds of a recorded training step, and the seconds until it was recorded.
- peers: of the published parity, milliseconds of a step of a plain loop (plain.py), also under torch.compile in its
  mode for small steps (reduce-overhead), and of layers of other libraries.
- compiled: of the compiled runner, milliseconds, the seconds until it was compiled, and how far its loss and gradients
  are from the plain runner's, as a share of the largest: 1e-3 at most in fp32.
- stacked: a recorded step of 16 seeds of the published parity as one stack, in bf16: milliseconds, of all, of each seed
  and of the host alone; in fp32, two seeds' loss and gradients: 1e-3 at most from the plain runner's.

A part that fails is reported, and stops no other; how long each takes goes to standard error. ``--only PART ...`` and
``--of NAME ...`` measure these parts or recipes alone, and write no table. ``--quick`` tries the script itself, on a
CPU where there is no GPU.
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
from common import QUICK, print_result, step_time, waited
from plain import run
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
from lengthwise.runs.folder import list_shipped
from lengthwise.runs.run import Run, load
from lengthwise.training.arithmetic import autocast, computation_settings
from lengthwise.training.choice import Bf16, RunnerChoice
from lengthwise.training.loop import prefetch_batches, train
from lengthwise.training.stacked import RecordedSteps, advance_together
from lengthwise.training.trainer import Trainer

PUBLISHED = ("paper-fop-loop-adaptive-parity", "paper-fop-loop-adaptive-addition")
CAPTURED = (
    *PUBLISHED, "blog-abacus-addition", "paper-abacus-8x2", "paper-retran-small", "paper-gpt-small", "paper-lstm-small"
)  # fmt: skip
BATCHES = {"paper-abacus-8x2": 2048}  # rows, where the published batch does not fit in a GPU's memory
PARITY = ["lengths=Curriculum(top=8,every=60)", "steps=1200"]
PARTS = ("same", "recorded", "no reads", "resumes", "scores", "learns", "evaluated", "captured", "peers", "compiled",
         "stacked")  # fmt: skip
CPU = torch.device("cpu")
Measured = bool | float | dict[str, float | None] | None

SEEDS = 16  # of a stack


def plainly(recipe: Recipe, **changes) -> Recipe:
    """Without what belongs to a whole training."""
    return replace(recipe, source=Fresh(), watch=Watch(), keep="last", **changes)


def published(name: str, *, quick: bool, **changes) -> Recipe:
    """A published recipe; for ``quick``, a small one of its form."""
    recipe = plainly(catalog.recipe(name), **changes)
    small = ["batch=2", "model.width=16", *["model.heads=2"] * hasattr(recipe.model, "heads")]
    return recipe.change(small) if quick else recipe


def one_of_each() -> list[Recipe]:
    """Return the recipes of all shipped weights."""
    return [plainly(load(name).recipe, batch=16) for name in list_shipped()]


def gradient(recipe: Recipe, runner: Runner, step: int) -> list[torch.Tensor]:
    """The loss of a step's batch, and its gradients, on the CPU."""
    loss = recipe.objective(runner, *data.draw_batch(recipe, step), stream(0, "objective"))
    return [
        loss.value.detach().cpu(),
        *(one.cpu() for one in torch.autograd.grad(loss.value, list(runner.model.parameters()))),
    ]


def differs(recipe: Recipe, device: torch.device) -> float:
    """The largest difference of loss or gradients from a CPU's, as a share of the largest number."""
    model, last = recipe.build().eval(), recipe.steps - 1  # without dropout, which other devices draw otherwise
    here = gradient(recipe, Plain(model), last)
    return apart(here, gradient(recipe, Plain(model.to(device)), last))


def apart(ones: list[torch.Tensor], twos: list[torch.Tensor]) -> float:
    """The largest difference, as a share of the largest number."""
    pairs = zip(ones, twos, strict=True)
    return max(float((one - two).abs().max() / one.abs().max().clamp(min=1e-3)) for one, two in pairs)


def reads_nothing(recipe: Recipe, device: torch.device) -> bool:
    """Does a step run without a wait? CUDA raises where the host waits."""
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


def resumed(recipe: Recipe, device: torch.device, steps: int = 3) -> float:
    """Return how far the weights of a resumed run are from those of an uninterrupted one."""
    whole, first, second = (Trainer(recipe, device, graphs=True) for _ in range(3))
    with TemporaryDirectory() as folder, computation_settings(1):
        advance_by(whole, 2 * steps)
        advance_by(first, steps)
        first.save_checkpoint(run := Run.of(recipe, Path(folder)))
        second.restore_checkpoint(run)
        advance_by(second, steps)
    return apart(*([one.detach().cpu() for one in kept.model_to_evaluate().parameters()] for kept in (whole, second)))


def advance_by(trainee: Trainer, steps: int) -> None:
    for _ in range(steps):
        trainee.advance()


def exact(name: str, device: torch.device, count: int) -> float:
    weights = load(name, str(device))
    recipe = weights.recipe
    return scores.exact_match(weights.model, recipe, recipe.sizes(recipe.lengths.top), count)


def learned(device: torch.device, matmul: str, *, quick: bool) -> float:
    recipe = plainly(catalog.recipe("looped-parity", PARITY))
    if quick:
        recipe = replace(recipe, steps=2, batch=2)
    with TemporaryDirectory() as folder:
        run = train(recipe, folder, device=str(device), matmul=matmul)
        return scores.exact_match(run.model, recipe, recipe.sizes(8), 10 if quick else 1000)


def compiled(name: str, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Measure the compiled runner."""
    recipe = published(name, quick=quick)
    found: dict[str, float | None] = {}
    for matmul in ("fp32",) if quick else ("fp32", "bf16"):
        with computation_settings(1):
            trainee = Trainer(recipe, device, matmul=matmul, compile=True)
            trainee.step = recipe.steps // 2
            runner = trainee.runners.choose(trainee.parts)
            plain = Plain(trainee.model) if matmul == "fp32" else Bf16(Plain(trainee.model))
            start, exact = waited(device), gradient(recipe, plain, trainee.step)
            found[f"{matmul}, apart"] = apart(exact, gradient(recipe, runner, trainee.step))
            found[f"{matmul}, seconds to compile"] = waited(device) - start
            with prefetch_batches([trainee], on_any_device=True):
                found[f"{matmul}, ms"] = step_time(trainee.advance, device, 1 if quick else 20)
    return found


def recorded(recipe: Recipe, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Compare recorded steps with the plain runner's: gradients, and weights after some steps in float64."""
    draws = {field.name for field in fields(recipe.model)} & {"dropout", "noise"}
    recipe = replace(recipe, model=replace(recipe.model, **dict.fromkeys(draws, 0.0)))
    if recipe.objective.takes_several_steps:  # they are not recorded
        return {}
    trainer, last, weights = Trainer(recipe, device, graphs=True), recipe.steps - 1, []
    exact = gradient(recipe, Plain(trainer.model), last)
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
    return {"gradients": of_largest(exact, [one.cpu() for one in read]), "weights": of_largest(*weights)}


def of_largest(ones: list[torch.Tensor], twos: list[torch.Tensor]) -> float:
    """The largest difference, as a share of the largest number of all."""
    differences = [float((one - two).abs().max()) for one, two in zip(ones, twos, strict=True)]
    return max(differences) / max(float(one.abs().max()) for one in ones)


@torch.no_grad()
def evaluated(name: str, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Measure a pass without gradients at a recipe's longest training length."""
    recipe = published(name, quick=quick)
    problems = data.evaluation_problems(recipe, recipe.lengths.top, 4 if quick else 1000, seed=0)
    batch, model, found, logits = recipe.layout.write(problems, recipe.task), recipe.build().to(device).eval(), {}, {}
    loops = recipe.loops.planned(batch.rounds)
    for kind in (Plain, LoopGraphs):
        runner = kind(model)

        def answer(runner: Runner = runner) -> torch.Tensor:
            return runner.last(batch.inputs, loops, batch.answer_slots)

        logits[kind] = answer()
        found[f"{kind.__name__}, ms"] = step_time(answer, device, 1 if quick else 10)
    return {**found, "apart": apart([logits[Plain].cpu()], [logits[LoopGraphs].cpu()])}


def captured(name: str, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Measure recorded steps of a published recipe. What reads a finite set reads a small one here, drawn once, as
    theirs, before any step."""
    recipe = published(name, quick=quick, **({"batch": BATCHES[name]} if name in BATCHES else {}))
    if isinstance(catalog.recipe(name).source, Finite):
        recipe = replace(recipe, source=Finite(64 if quick else 20_000))
    step, times, found = (2 if quick else recipe.steps // 2), (1 if quick else 50), {}
    kinds = ("fp32", "bf16") if isinstance(recipe.model, Transformer) and not has_dropout(recipe.build()) else ("tf32",)
    for matmul in kinds if device.type == "cuda" else ("fp32",):
        with computation_settings(1):
            trainer, start = Trainer(recipe, device, matmul=matmul, graphs=True), waited(device)
            trainer.step = step
            next(trainer.compute_losses(*trainer.draw_batch(step)))
            trainer.optimizer.zero_grad()
            found[f"{matmul}, seconds to record"] = waited(device) - start
            with prefetch_batches([trainer], on_any_device=True):
                advance_by(trainer, times)  # records all shapes of these steps
                trainer.step = step
                found[f"{matmul}, ms"] = step_time(lambda trainer=trainer: trainer.advance(), device, times)
            if trainer.runners.graphs.reason:
                raise RuntimeError(trainer.runners.graphs.reason)
    return found


def peers(name: str, device: torch.device, *, quick: bool) -> dict[str, float]:
    """Measure a plain loop, compiled and not, and layers of other libraries of the same width and as many loops, with
    the input added in each: whole steps with AdamW, in fp32 and bf16."""
    recipe = published(name, quick=quick)
    batch, loops = data.draw_batch(recipe, recipe.steps // 2)
    spec, most, model, found = recipe.model, int(loops.max()), recipe.build().to(device), {}
    rows = replace(batch, inputs=batch.inputs.to(device), targets=batch.targets.to(device),
                   loss_mask=batch.loss_mask.to(device))  # fmt: skip
    last, row = (loops - 1).to(device), torch.arange(len(loops), device=device)
    at = rows.loss_mask.flatten().nonzero()[:, 0]

    def plain_loss() -> torch.Tensor:
        logits = torch.stack(run(model, rows.inputs, most))[last, row].flatten(0, 1)
        return nn.functional.cross_entropy(logits[at], rows.targets.flatten()[at])

    def loss_of(layer: nn.Module) -> torch.Tensor:
        state = torch.zeros_like(x := table(rows.inputs.tokens))
        for _ in range(most):
            state = layer(state + x)
        return state.square().mean()

    table = nn.Embedding(100, spec.width, device=device)
    losses: dict[str, tuple[nn.Module, Callable[[], torch.Tensor]]] = {"plain loop": (model, plain_loss)}
    if device.type == "cuda":  # a CPU compiles for a minute
        losses["compiled plain loop"] = model, torch.compile(plain_loss, mode="reduce-overhead")
    losses |= {kind: (layer, lambda layer=layer: loss_of(layer)) for kind, layer in layers(recipe, device).items()}
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
                found[f"{kind}, {matmul}"] = step_time(step, device, 1 if quick else 20)
    return found


def layers(recipe: Recipe, device: torch.device) -> dict[str, nn.Module]:
    """The recipe's layers as other libraries have them, with the fused attention that they choose."""
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


def stacked(name: str, device: torch.device, *, quick: bool) -> dict[str, float | None]:
    """Measure recorded steps of ``SEEDS`` stacked seeds: milliseconds, also of one seed and of the host alone, seconds
    of the first recording, and distance from the plain runner."""
    recipe = published(name, quick=quick)
    found: dict[str, float | None] = {}
    for matmul, count in ("fp32", 2), ("bf16", 2 if quick else SEEDS):
        seeds = [Trainer(recipe.with_seed(seed), device, matmul=matmul) for seed in range(count)]
        for one in seeds:
            one.step = 2 if quick else recipe.steps // 2
        with computation_settings(1):
            parts = stacked_steps(seeds, 1 if quick else 20)
        found |= {f"{matmul}, {part}": value for part, value in parts.items()}
    return found


def stacked_steps(seeds: Sequence[Trainer], times: int) -> dict[str, float | None]:
    first, device, found = seeds[0], seeds[0].device, {}
    plain = Plain(first.model) if first.matmul == "fp32" else Bf16(Plain(first.model))
    exact, steps = gradient(first.recipe, plain, first.step), RecordedSteps(seeds)
    start, descend = waited(device), steps.update_weights
    steps.update_weights = lambda losses: [  # the first step only computes
        one.count_step([{"loss": loss.value}]) for one, loss in zip(seeds, losses, strict=True)
    ]
    advance_together(seeds, steps)
    recorded = [first.sums["loss"].cpu(), *(one.grad.cpu() for one in first.model.parameters())]
    found["seconds to record"] = waited(device) - start
    found["apart"] = apart(exact, recorded)
    steps.update_weights = descend
    with prefetch_batches(seeds, on_any_device=True):
        for _ in range(3):  # the first updates allocate, and then they are captured
            advance_together(seeds, steps)
        found[f"step of {len(seeds)}"] = whole = step_time(lambda: advance_together(seeds, steps), device, times)
        found["a seed"] = whole / len(seeds)
        found["compiled"] = steps.graphs.compiles
        if steps.graphs.reason:
            raise RuntimeError(steps.graphs.reason)
        for recording in steps.graphs.recordings.values():
            recording.forward = recording.backward = lambda: None
        steps.replayed.captured = {key: (lambda: None, logs) for key, (_, logs) in steps.replayed.captured.items()}
        found["host"] = step_time(lambda: advance_together(seeds, steps), device, times)
    return found


def table(result: dict) -> str:
    """The table, in Markdown."""
    lines = [f"# {result['device']}, torch {torch.__version__}", "", "| what | of | measured |", "| --- | --- | --- |"]
    for what in PARTS:
        for name, value in result.get(what, {}).items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            shown = ", ".join(f"{part} {_text(number)}".strip() for part, number in parts if number is not None)
            lines.append(f"| {what} | {name} | {shown or 'failed'} |")
    return "\n".join(
        [*lines, "", f"All as claimed: {'yes' if result['met'] else 'no'}. {result['seconds']:.0f} s.", ""]
    )


def _text(value: bool | float) -> str:
    return f"{value:.4g}" if not isinstance(value, bool) else "yes" if value else "no"


def tried(what: str, name: str, measure: Callable[[], Measured]) -> Measured:
    """What is measured of one; None if that fails."""
    start = time.perf_counter()
    try:
        found = measure()
    except Exception as error:
        found = None
        print(f"{what} {name}: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"{what} {name}: {found} in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return found


def measured(device: torch.device, parts: Sequence[str], only: Sequence[str], *, quick: bool) -> dict:
    start, count = time.perf_counter(), 10 if quick else 1000
    names = ["looped-parity"] if quick else list_shipped()
    recipes = [published("looped-parity", quick=True).change(["lengths.top=4"])] if quick else one_of_each()
    known, few = {recipe.name: recipe for recipe in recipes}, PUBLISHED[: 1 if quick else 2]
    ways: dict[str, tuple[Sequence[str], Callable[[str], Measured]]] = {
        "same": (list(known), lambda name: differs(known[name], device)),
        "no reads": (list(known), lambda name: reads_nothing(known[name], device)),
        "resumes": (list(known), lambda name: resumed(known[name], device)),
        "scores": (names, lambda name: exact(name, device, count) - exact(name, CPU, count)),
        "learns": (("fp32", "bf16"), lambda matmul: learned(device, matmul, quick=quick)),
        "recorded": (list(known), lambda name: recorded(known[name], device, quick=quick)),
        "peers": (PUBLISHED[:1], lambda name: peers(name, device, quick=quick)),
        "compiled": (few, lambda name: compiled(name, device, quick=quick)),
        "evaluated": (few, lambda name: evaluated(name, device, quick=quick)),
        "captured": (
            (*few, "paper-lstm-small") if quick else CAPTURED,
            lambda name: captured(name, device, quick=quick),
        ),
        "stacked": (few[:1], lambda name: stacked(name, device, quick=quick)),
    }
    result: dict[str, dict[str, Measured]] = {}
    for what in parts:
        of, measure = ways[what]
        of = [name for name in of if not only or name in only]
        result[what] = {name: tried(what, name, lambda name=name, measure=measure: measure(name)) for name in of}
    seconds = time.perf_counter() - start
    about = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device), "seconds": seconds}
    return {**about, **result, "met": met(result)}


def met(result: dict) -> bool:
    """Is all that was measured as claimed? What failed is not."""
    found = {what: list(result.get(what, {}).values()) for what in PARTS}
    if any(value is None for values in found.values() for value in values):
        return False
    return (
        max(
            [
                *found["same"],
                *(one["fp32, apart"] for one in [*found["compiled"], *found["stacked"]]),
                *(one["apart"] for one in found["evaluated"]),
            ],
            default=0,
        )
        < 1e-3
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
    asked.add_argument("--quick", action="store_true", help="try the script itself, on tiny sizes")
    asked.add_argument("--only", nargs="+", choices=PARTS)
    asked.add_argument("--of", nargs="+", default=(), help="only these recipes or weights")
    args = asked.parse_args()
    if args.device == "cuda" and not here:
        print_result("gpu", skipped="there is no CUDA device here")
        sys.exit()
    # A CPU compiles for a minute.
    parts = args.only or [part for part in PARTS if part != "compiled" or args.device != "cpu"]
    found = measured(torch.device(args.device), parts, args.of, quick=args.quick)
    if args.quick:
        print(table(found), file=sys.stderr)
    elif not (args.only or args.of):
        Path(__file__).with_name("gpu.md").write_text(table(found))
    print_result("gpu", **found)
