"""Recorded steps of a stack equal those of the unrecorded stack, in values, gradients and weights. On a CPU a recording
computes again from its fixed buffers, which tests everything except the replay."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import specs
import torch
from conftest import LONG, command
from meta_device import build_small_recipe
from shipped_specs import FEW_SPECS, SHIPPED_SPECS
from specs import MODELS, assert_all_close, build_rows, list_ids, run_each_loop
from training_recipes import LAMB, MASTERED, PLAIN, RICH, read_outcome, stop_stack_after, vary_seeds

import lengthwise as lw
from lengthwise.base.progress import Progress
from lengthwise.cli import train
from lengthwise.experiment.data import draw_batch
from lengthwise.runners import stacked_graphs
from lengthwise.runners.graphs import Recording
from lengthwise.runners.stacked import Query, QueryReplayer, compute_answers
from lengthwise.runners.stacked_graphs import StackedGraphs
from lengthwise.runs.run import Run
from lengthwise.training import stacked
from lengthwise.training.stacked import Member, RecordedSteps, Stack, advance_together, train_stacked
from lengthwise.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_type_checks")
CPU = torch.device("cpu")
CASES = MODELS if LONG else FEW_SPECS
CASE_IDS = [SHIPPED_SPECS.get(pair) or list_ids([pair])[0] for pair in CASES]
ROWS = [build_rows([5, 9, 2, 3], seed=0), build_rows([4, 3, 7, 1], seed=1), build_rows([9, 12, 2, 5], seed=2)]
LOOPS = [[2, 1, 3, 1], [1, 1, 2, 1], [4, 1, 3, 5]]


def build_models(spec, causal):
    """Return three different models without dropout and noise."""
    spec = replace(spec, **{name: 0.0 for name in ("dropout", "noise") if hasattr(spec, name)})
    models = [copy.deepcopy(specs.cached_model(spec, causal)).train() for _ in range(3)]
    for number, weight in ((number, weight) for number, model in enumerate(models) for weight in model.parameters()):
        weight.data.mul_(1 + 0.1 * number)
    return models


def build_queries(no_grad_loops=(0, 0, 0), after_each_loop=False, depths=((), (), ()), step=1):
    return [Query(rows, torch.tensor(loops), rows.padding_mask, first, after_each_loop, depth)
            for rows, loops, first, depth in zip(ROWS[::step], LOOPS[::step], no_grad_loops, depths, strict=True)
            ]  # fmt: skip


def run_training_step(models, answer_queries, queries):
    """Return the sums of each model's logits, and the gradients in the parameters."""
    for model in models:
        model.zero_grad()
    read = []
    for model, query, reply in zip(models, queries, answer_queries(queries), strict=True):
        runner = QueryReplayer(model, [query], [reply])
        own = torch.cat(reply) if query.depths else reply
        if query.all_loops:
            own = run_each_loop(runner, query.inputs, query.loops.tolist(), query.positions)
        read.append((own * torch.linspace(-1, 1, own.numel()).view_as(own)).sum() + own.square().sum())
    sum(read).backward()
    weights = [weight for model in models for weight in model.parameters()]
    return [
        *(value.detach() for value in read),
        *(torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in weights),
    ]


def answer_in_new_step(runner, queries):
    runner.begin_step()
    return runner.answer_queries(queries)


QUERY_OPTIONS = [{"no_grad_loops": (0, 2, 1)}, {}, {"no_grad_loops": (1, 1, 1)}, {"after_each_loop": True},
                 {"depths": ((3, 2), (2, 1), (5, 1))}]  # fmt: skip


@pytest.mark.parametrize(("spec", "causal"), CASES, ids=CASE_IDS)
def test_answers_of_a_recorded_stack_equal_those_of_the_stack(spec, causal):
    """Answers are equal in a step that reuses its recording, also if seeds differ in loops without gradients. Other
    queries are tested on one model, since all models' answers are selected from the logits in the same way."""
    models = build_models(spec, causal)
    runner = StackedGraphs(models)
    if answer_in_new_step(runner, build_queries()) is None:
        with pytest.raises(RuntimeError):  # torch.func does not stack it either
            compute_answers(models, build_queries())
        return
    for options in QUERY_OPTIONS if LONG or (spec, causal) == CASES[0] else QUERY_OPTIONS[:1]:
        run_training_step(models, partial(answer_in_new_step, runner), build_queries(**options, step=-1))
        queries, count = build_queries(**options), len(runner.recordings)
        found = run_training_step(models, partial(answer_in_new_step, runner), queries)
        assert runner.reason is None and len(runner.recordings) == count
        assert_all_close(found, run_training_step(models, partial(compute_answers, models), queries))
    assert all(shape.same_positions for shape in runner.recordings)  # although some seeds' rows are narrower


STEP_COUNT = 20 if LONG else 6  # the first records, then the moving average begins, and later steps replay it too
DETERMINISTIC = replace(RICH, model=replace(RICH.model, dropout=0.0))  # seeds differ in no-gradient loops
RECIPE_NAMES = ["looped-parity", "halting-parity", "abacus-addition", "retran-small"]
RECIPES = [*map(build_small_recipe, RECIPE_NAMES), DETERMINISTIC, LAMB, MASTERED]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_many_recorded_steps_give_the_weights_of_unrecorded_ones(recipe):
    recipe = replace(recipe, steps=STEP_COUNT, clip=0.5, ema=0.9, ema_start=3)
    stacks = [[Trainer(one, CPU) for one in vary_seeds(recipe, 3)] for _ in range(2)]
    steps = RecordedSteps(stacks[0])
    for _ in range(STEP_COUNT):
        for one in advance_together(stacks[0], steps) + advance_together(stacks[1]):
            one.take_exam()
    assert steps.graphs.reason is None and steps.replayed_update.captured
    for one, other in zip(*stacks, strict=True):
        assert one.sums.keys() == other.sums.keys() and "gradient_norm" in one.sums
        for model, same in ((one.model, other.model), (one.average.module, other.average.module)):
            found, exact = (torch.cat([part.detach().flatten() for part in each.parameters()])
                            for each in (model, same))  # fmt: skip
            torch.testing.assert_close(found, exact, rtol=0, atol=1e-4 * float(exact.abs().max()))
        assert one.optimizer.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"]


@pytest.mark.filterwarnings("ignore")  # warnings from torch's compiler
@pytest.mark.parametrize("bf16", [False, True][: 1 + LONG])
def test_all_seeds_use_one_compiled_loop(bf16, monkeypatch):
    monkeypatch.setattr(stacked_graphs, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    recipe = build_small_recipe("looped-parity")
    models = [one.build().train() for one in vary_seeds(recipe, 2)]
    batches = [draw_batch(one, 0) for one in vary_seeds(recipe, 2)]
    runner = StackedGraphs(models, bf16=bf16)
    runner.compiles = True
    for skipped, each in [((0, 2), False), ((0, 0), True)][: 1 if bf16 else 2]:
        queries = [Query(rows.inputs, loops + 1, rows.loss_mask, first, each)
                 for (rows, loops), first in zip(batches, skipped, strict=True)]  # fmt: skip
        found = run_training_step(models, partial(answer_in_new_step, runner), queries)
        assert runner.compiles and runner.reason is None
        for one, exact in zip(found, run_training_step(models, partial(compute_answers, models), queries), strict=True):
            torch.testing.assert_close(one, exact, rtol=0, atol=(0.05 if bf16 else 1e-5) * float(exact.abs().max()))
    torch._dynamo.reset()


def test_a_stack_resumes_bit_identically(monkeypatch, tmp_path):
    """A CPU stands in for the GPU. A checkpoint holds the weights of one seed only."""
    monkeypatch.setattr(stacked, "is_worthwhile", lambda device: True)
    recipes = vary_seeds(replace(DETERMINISTIC, steps=5, ema_start=0), 2)
    whole = train_stacked(recipes)
    assert [run.about()["runner"] for run in whole] == ["StackedGraphs"] * 2
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / "parts"))
    stop_stack_after(monkeypatch, 3)
    with pytest.raises(lw.Interrupted, match="stopped at step 3"):
        train_stacked(recipes)
    model = Run.locate(recipes[0]).load_state()["model"]
    assert all(weight.untyped_storage().nbytes() == weight.nbytes for weight in model.values())
    assert [read_outcome(run) for run in train_stacked(recipes)] == [read_outcome(run) for run in whole]


def test_a_stack_is_recorded_again_after_a_seed_leaves(monkeypatch):
    """A stack is recorded again after a seed leaves, and after weights have moved in memory. Its weights equal those of
    unrecorded steps."""
    monkeypatch.setattr(Trainer, "log", lambda self, run: [])
    stacks = [[Trainer(one, CPU) for one in vary_seeds(replace(PLAIN, clip=0.5), 3)] for _ in range(2)]
    stack = Stack([Member(None, one) for one in stacks[0]], Progress(quiet=True), graphs=True)
    for step in range(9):
        if step == 3:
            del stack.members[1], stacks[1][1]
        if step == 6:
            for weight in stacks[0][0].model.parameters():
                weight.data = weight.data.clone()
        stack.advance()
        advance_together(stacks[1])
    assert len(stack.recording.trainers) == 2 and stack.recording.replayed_update.captured
    for one, other in zip(stack.members, stacks[1], strict=True):
        for weight, exact in zip(one.trainer.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(weight, exact, rtol=0, atol=1e-5)


def test_a_stack_that_cannot_be_recorded_trains_unrecorded_with_a_note(monkeypatch):
    monkeypatch.setattr(stacked, "is_worthwhile", lambda device: True)
    monkeypatch.setattr(Recording, "_run_passes", lambda self, times: 1 / 0)
    notes = []
    monkeypatch.setattr(Progress, "note", lambda self, text: notes.append(text))
    runs = train_stacked(vary_seeds(replace(PLAIN, steps=3), 2), progress=Progress(quiet=True))
    assert notes == ["plain: runs without CUDA graphs: its step cannot be recorded (division by zero)"]
    assert [run.about()["runner"] for run in runs] == ["Stacked"] * 2


TRAIN_COMMAND = ["train", "looped-parity", "steps=3", "batch=4", "model.width=8", "lengths=Uniform(top=4)",
                 "watch.every=0", "keep=last", "--lengths", "2", "--samples", "4", "--quiet", "--seeds",
                 "2"]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "memory", "count"),
    [([], 1e12, 2), (["--no-graphs"], 1e12, 2), (["--no-stack"], 1e12, 1), (["--jobs", "1"], 1e12, 1), ([], 1e3, 1),
     (["model.dropout=0.1"], 1e12, 1), (["accumulate=2"], 1e12, 1)],
)  # fmt: skip
def test_a_gpu_with_enough_memory_stacks_seeds_by_default(options, memory, count, monkeypatch, tmp_path):
    """Seeds are stacked only if memory and recipe allow it and no option forbids it. A CPU stands in for the GPU."""
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path))
    monkeypatch.setattr(stacked, "is_worthwhile", lambda device: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory, memory))
    monkeypatch.setattr(train.options, "resolve_jobs", lambda jobs: 1)  # in this process
    done = command(*TRAIN_COMMAND, *options)
    assert (done.returncode, done.stderr) == (0, "")
    about = [Run.open(folder).about() for folder in tmp_path.iterdir()]
    assert [one["stacked"] for one in about] == [count] * 2
    assert count == 1 or about[0]["runner"] == ("Stacked" if options else "StackedGraphs")


def test_contradicting_options_are_refused():
    done = command(*TRAIN_COMMAND, "--stack", "--no-stack")
    assert done.returncode == 2 and "--stack and --no-stack exclude each other" in done.stderr
