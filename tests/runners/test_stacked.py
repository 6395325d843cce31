"""Seeds trained as one stack equal seeds trained alone, in their weights and in the files that are written."""

import contextlib
import re
from dataclasses import dataclass, replace

import pytest
import torch
from conftest import LONG, command, run_through_crashes
from meta_device import MetaReadCounter, build_meta_trainer, build_small_recipe
from specs import MODELS, READS, SPECS, WRITES, add_noise, assert_all_close, build_rows, list_ids, run_each_loop
from torch import nn
from training_recipes import LAMB, PLAIN, RECIPES, RICH, SEGMENTED, UNEVEN, read_outcome, stop_stack_after, vary_seeds

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.errors import Diverged, UsageError
from lengthwise.cli import reproduce
from lengthwise.experiment import resources
from lengthwise.objectives import Objective, compute_loss_and_accuracy
from lengthwise.runners.plain import Plain
from lengthwise.runners.stacked import Query, QueryReplayer, compute_answers
from lengthwise.runs.run import Run
from lengthwise.training.loop import train
from lengthwise.training.stacked import RecordedSteps, advance_together, train_stacked
from lengthwise.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_type_checks")
CPU = torch.device("cpu")
DETERMINISTIC = replace(RICH, model=replace(RICH.model, dropout=0.0))  # so it can be stacked
SHORT_RECIPE = replace(DETERMINISTIC, steps=6, batch=3, lengths=lw.Uniform(12)) if LONG else replace(PLAIN, steps=3)


# Values and gradients

# torch's recurrent kernels cannot be stacked.
STACKABLE = [pair for pair in MODELS if not re.search("TorchLSTM|TorchGRU|LSTMLayer|GRULayer", repr(pair[0]))]
FORMS = STACKABLE if LONG else [(SPECS[14], False), (SPECS[22], True)]  # positions that differ by row; a blank key
LOOPS = [[2, 1, 3, 1], [1, 1, 2, 1], [4, 1, 3, 5]]
ROWS = [build_rows([5, 9, 2, 3], seed=0), build_rows([4, 3, 7, 1], seed=1), build_rows([9, 12, 2, 5], seed=2)]


def compute_gradients(logits, model):
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    value = (logits * weights).sum() + logits.square().sum()
    found = torch.autograd.grad(value, list(model.parameters()), materialize_grads=True, retain_graph=True)
    return [logits.detach(), *found]


@pytest.mark.parametrize(("spec", "causal"), FORMS, ids=list_ids(FORMS))
def test_answers_of_a_stack_equal_those_of_each_model(spec, causal):
    """Rows and loops differ between the models; values and gradients are equal after the last loop and after every
    loop."""
    without_noise = {name: 0.0 for name in ("dropout", "noise") if hasattr(spec, name)}
    spec = replace(spec, **without_noise)
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(add_noise(spec.build(READS, WRITES, causal=causal)).train())
    for each, no_grad_loops in [(False, [0, 2, 1]), (False, [1, 1, 1]), (True, [0, 0, 0])]:
        questions = [Query(rows, torch.tensor(loops), rows.padding_mask, first, each)
                     for rows, loops, first in zip(ROWS, LOOPS, no_grad_loops, strict=True)]  # fmt: skip
        found = compute_answers(models, questions)
        for model, question, answer, loops in zip(models, questions, found, LOOPS, strict=True):
            replay = QueryReplayer(model, [question], [answer])
            rows, at = question.inputs, question.positions
            if each:
                both = [run_each_loop(runner, rows, loops, at) for runner in (replay, Plain(model))]
            else:
                given = rows, torch.tensor(loops), at
                both = [runner.last(*given, no_grad_loops=question.no_grad_loops) for runner in (replay, Plain(model))]
            assert_all_close(*(compute_gradients(read, model) for read in both))


class GrowingModel(lw.Model):
    """A model whose state soon becomes infinite."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1e100, dtype=torch.double))

    def embed(self, inputs):
        return inputs.tokens[..., None].double() + 1

    def start(self, context):
        return context

    def advance(self, state, context):
        return state * self.weight

    def read(self, state):
        return state


def test_rows_are_not_advanced_beyond_their_own_loops():
    """A row of another seed with more loops must not make a row's state infinite or NaN."""
    models, counts = [GrowingModel(), GrowingModel()], [torch.tensor([1, 2]), torch.tensor([5, 5])]
    rows = build_rows([2, 3])
    first, _ = compute_answers(models, [Query(rows, loops, rows.padding_mask) for loops in counts])
    (first / 1e200).sum().backward()
    assert models[0].weight.grad.isfinite()


RECIPES = {name: recipe for name, (recipe, _) in RECIPES.items() if not recipe.objective.takes_several_steps} | {
    "large": LAMB
}


def assert_stack_equals_single_runs(recipe, steps, batch=None):
    recipe = replace(recipe, batch=batch or recipe.batch)
    alone, together = ([Trainer(one, CPU) for one in vary_seeds(recipe, 3)] for _ in range(2))
    for one in [*alone, *together]:
        one.model.double()
        if one.average:
            one.average.double()
    for _ in range(steps):
        for one in alone:
            one.advance()
            one.take_exam()
        for one in advance_together(together):
            one.take_exam()
    for one, other in zip(alone, together, strict=True):
        assert one.exams_passed == other.exams_passed and one.sums.keys() == other.sums.keys()
        for name, value in [*one.model_to_evaluate().state_dict().items(), *one.model.state_dict().items()]:
            both = other.model_to_evaluate().state_dict(), other.model.state_dict()
            assert min(float((value - found[name]).abs().max()) for found in both) < 1e-5
        for name, value in one.sums.items():
            assert abs(float(value - other.sums[name])) < 1e-5
    assert not torch.equal(next(together[0].model.parameters()), next(together[1].model.parameters()))


@pytest.mark.parametrize("name", RECIPES if LONG else ["mastered"])
def test_each_stacked_seed_equals_its_single_run(name):
    """The recipes cover all objectives, averages, clipping, LAMB and seeds with different curricula, in float64."""
    assert_stack_equals_single_runs(RECIPES[name], 100 if LONG else 4)


@dataclass(frozen=True)
class RunnerlessObjective(Objective):
    """An objective that runs the model without the given runner, and penalizes the norm of the model's weights."""

    def __call__(self, runner, batch, loops, generator):
        logits = Plain(runner.model).last(batch.inputs, loops, batch.loss_mask)
        value, right = compute_loss_and_accuracy(logits, batch.targets[batch.loss_mask])
        penalty = sum(weight.square().sum() for weight in runner.model.parameters())
        return lw.Loss(value + penalty, {"loss": value.detach(), "token_accuracy": right})


def test_an_objective_that_runs_the_model_itself_is_stacked():
    assert_stack_equals_single_runs(replace(PLAIN, objective=RunnerlessObjective()), 2)


def test_a_step_of_a_stack_reads_nothing_from_the_device(monkeypatch):
    """Neither recorded nor unrecorded steps read from the device."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # no meta device
    together = [build_meta_trainer(recipe) for recipe in vary_seeds(build_small_recipe("looped-parity"), 2)]
    recorded = RecordedSteps(together)
    with MetaReadCounter() as reads:
        advance_together(together)
        for _ in range(3):
            advance_together(together, recorded)
    assert not reads.found and recorded.graphs.recordings


# Files and interruptions


def test_a_stack_that_crashed_at_any_write_resumes_bit_identically(monkeypatch, tmp_path):
    """After a crash, seeds may have checkpoints of different steps, and only some may be finished."""
    recipes = vary_seeds(SHORT_RECIPE, 2)
    runs, crashes = run_through_crashes(lambda: train_stacked(recipes, save_every=0), monkeypatch, first_crash=8)
    assert crashes > 2
    monkeypatch.undo()
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / "uninterrupted"))
    assert [read_outcome(run) for run in runs] == [read_outcome(run) for run in train_stacked(recipes)]


TRAIN_COMMAND = ["train", "looped-parity", "steps=3", "batch=4", "model.width=8", "lengths=Uniform(top=4)",
                 "watch.every=0", "keep=last", "--lengths", "2,5", "--samples", "4", "--quiet"]  # fmt: skip


def test_train_stack_trains_and_measures_all_seeds(runs):
    done = command(*TRAIN_COMMAND, "--seeds", 2, "--stack")
    assert done.returncode == 0 and not done.stderr
    about = [Run.open(folder).about()["stacked"] for folder in runs.iterdir()]
    assert about == [2, 2] and all(len(Run.open(folder).rows("scores")) == 2 for folder in runs.iterdir())


def test_train_stacked_sets_seeds_and_matches_single_runs():
    runs = lw.train_stacked(PLAIN, "steps=3", "seed=5", seeds=2, quiet=True)
    assert [(run.recipe.seed, run.recipe.data_seed, run.about()["stacked"]) for run in runs] == [(5, 5, 2), (6, 6, 2)]
    for run in runs:
        alone = train(run.recipe, run.folder.with_name(f"alone-{run.recipe.seed}"))
        assert {path.name for path in run.folder.iterdir()} == {path.name for path in alone.folder.iterdir()}
        torch.testing.assert_close(run.model.state_dict(), alone.model.state_dict(), atol=1e-4, rtol=0)


REPRODUCE_COMMAND = ["reproduce", "pairs", "--stack", "--samples", 4, "--jobs", 2, "--quiet"]


def use_tiny_study(monkeypatch, recipe):
    study = lw.Study("Tiny", (lw.Panel("Tiny", (recipe,), sizes=(3,)),))
    monkeypatch.setattr(catalog, "find_study", lambda *_, **__: study)
    monkeypatch.setattr(reproduce, "_publish", lambda *_: 0)


@pytest.mark.usefixtures("jobs_in_process", "no_type_checks")
def test_a_study_stacks_its_seeds_and_resumes_bit_identically(monkeypatch, tmp_path):
    recipe = replace(PLAIN, steps=3)
    use_tiny_study(monkeypatch, recipe)
    stop_stack_after(monkeypatch, 2)
    stopped = command(*REPRODUCE_COMMAND, "--seeds", 2)
    assert stopped.returncode == 2 and "2 runs failed" in stopped.stderr and "stopped at step 2" in stopped.stderr
    again = command(*REPRODUCE_COMMAND, "--seeds", 2)
    assert (again.returncode, again.stderr) == (0, "")
    runs = [Run.locate(one) for one in vary_seeds(recipe, 2)]
    assert all(run.about()["stacked"] == 2 and run.rows("scores") for run in runs)
    ended = [read_outcome(run) for run in runs]
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / "uninterrupted"))
    assert [read_outcome(run) for run in train_stacked(vary_seeds(recipe, 2))] == ended


@pytest.mark.parametrize("diverged_seeds", [[1], [0, 1]])
def test_diverged_seeds_leave_the_stack_and_the_others_finish(diverged_seeds, monkeypatch):
    def check_finite(trainer):
        if trainer.stacked > 1 and trainer.recipe.seed in diverged_seeds:
            raise Diverged("the loss is not finite")

    monkeypatch.setattr(Trainer, "check_finite", check_finite)
    done = command(*TRAIN_COMMAND, "--seeds", 2, "--stack")
    assert done.returncode == 2 and f"lengthwise: {len(diverged_seeds)} of 2 seeds diverged: " in done.stderr
    assert ("exact match" in done.stdout) == (len(diverged_seeds) == 1)


# Refusals


class _CountingModule(nn.Module):
    def __init__(self, symbol_count):
        super().__init__()
        self.embedding = nn.Embedding(10, symbol_count)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens):
        self.seen += 1
        return self.embedding(tokens)


@dataclass(frozen=True)
class CountingSpec(lw.ModelSpec):
    def build(self, reads, writes, *, causal):
        return _CountingModule(len(writes))


@dataclass(frozen=True)
class LogitDependentObjective(lw.Final):
    def __call__(self, runner, batch, loops, generator):
        more = bool(runner.last(batch.inputs, loops, batch.loss_mask).any())
        return super().__call__(runner, batch, loops + more, generator)


REFUSED_RECIPES = [
    (vary_seeds(replace(RICH, name="random"), 2), "the model draws random numbers in training"),
    (vary_seeds(replace(PLAIN, model=CountingSpec()), 2), "changes its buffers"),
    (vary_seeds(replace(PLAIN, objective=RunnerlessObjective(), model=CountingSpec()), 2), "model without the runner"),
    (vary_seeds(replace(PLAIN, objective=LogitDependentObjective()), 2), "its runner depend on earlier logits"),
    (vary_seeds(SEGMENTED, 2), "Segments takes several steps on a batch, which --stack does not support"),
    ([PLAIN], "two or more different seeds"),
    ([PLAIN, PLAIN], "more different seeds"),
    ([PLAIN, replace(PLAIN, seed=1, batch=5)], "differ only in seed"),
]


@pytest.mark.parametrize(("recipes", "message"), REFUSED_RECIPES, ids=[message for _, message in REFUSED_RECIPES])
def test_seeds_that_cannot_be_stacked_are_refused_before_anything_is_written(recipes, message, runs):
    with pytest.raises(UsageError, match=message):
        train_stacked(recipes)
    assert not runs.exists()


def test_a_stack_that_exceeds_the_memory_is_refused(runs, monkeypatch):
    monkeypatch.setattr(resources, "get_available_memory", lambda: 1.5 * resources.estimate_training(PLAIN).memory)
    with pytest.raises(UsageError, match="plain: training 2 seeds at once takes about"):
        train_stacked(vary_seeds(PLAIN, 2))
    assert not runs.exists()


def test_a_study_that_cannot_be_stacked_is_refused_before_anything_is_written(monkeypatch, runs):
    use_tiny_study(monkeypatch, replace(RICH, name="random"))
    refused = command(*REPRODUCE_COMMAND, "--seeds", 2)
    assert refused.returncode == 2 and "random: its seeds cannot be stacked" in refused.stderr
    assert refused.stderr.count("\n") == 1 and not runs.exists()


def test_stacked_seeds_share_the_processor_time(monkeypatch):
    one, four = (Trainer(UNEVEN, torch.device("cpu"), stacked=count) for count in (1, 4))
    for trainee in (one, four):
        monkeypatch.setattr(trainee.clock, "read", lambda: {"wall_s": 8.0, "cpu_s": 12.0})
    assert one.read_times() == {"wall_s": 8.0, "cpu_s": 12.0} and four.read_times() == {"wall_s": 8.0, "cpu_s": 3.0}


def test_a_stack_runs_only_in_one_process(runs, monkeypatch):
    for words in (["--jobs", "2"], ["--on", "slurm"]):
        refused = command(*TRAIN_COMMAND, "--seeds", 2, "--stack", *words)
        assert refused.returncode == 2 and "omit --jobs and --on" in refused.stderr
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="torchrun"):
        train_stacked(vary_seeds(UNEVEN, 2))
    assert not runs.exists()


def test_a_single_unfinished_run_is_trained_by_the_stacked_runner(runs):
    recipe = catalog.find_recipe("looped-parity", ["steps=1", "batch=2", "lengths=Uniform(top=3)", "watch.every=0"])
    train(recipe.with_seed(0))
    lone = train_stacked([recipe.with_seed(0), recipe.with_seed(1)])[1]
    assert (lone.about()["runner"], lone.about()["stacked"]) == ("Stacked", 1)
