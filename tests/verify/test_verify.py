"""Verification: honest weights pass, and each spoof is exposed by the check designed for it."""

import json
import random
import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from conftest import LONG, command
from half_trained import NTP_COPY, PAIRS, train_briefly
from torch import nn

import lengthwise as lw
from lengthwise.base.csv_files import write_csv
from lengthwise.base.errors import Diverged
from lengthwise.base.files import write_json
from lengthwise.base.progress import ProgressLine
from lengthwise.cli import verify as verbs_verify
from lengthwise.experiment.recipe import Recipe, build_outline
from lengthwise.models.single_pass import SinglePass
from lengthwise.runs.folder import SHIPPED_FOLDER, list_shipped_weights
from lengthwise.runs.run import Run, Weights, load
from lengthwise.training.loop import train
from lengthwise.verify import claims, verification
from lengthwise.verify.claims import Claims, read_claims
from lengthwise.verify.perturbation import count_changed_answers
from lengthwise.verify.verification import count_operations, find_longest_solved_size, sign_record, verify

PARITY_RECIPE = replace(NTP_COPY, task=lw.Parity(), name="spoken-parity")  # bits, "=" (id 2), their parity, "$" (id 3)


@pytest.fixture(autouse=True)
def reduce_perturbations(monkeypatch, no_type_checks):
    monkeypatch.setattr(verification, "PERTURBED_PROBLEMS", 32)
    monkeypatch.setattr(claims, "MAX_CLAIMS", 1)


def run_checks(weights, claims=None, sizes=(6,), **options):
    """Return the checks of a quick verification by name."""
    options = {"seed": 7, "samples": 25, "seconds": 0.001} | options
    return {check["name"]: check for check in verify(weights, claims, list(sizes), **options)["checks"]}


def find_exposed_checks(*arguments, **options):
    return {name for name, check in run_checks(*arguments, **options).items() if check["verdict"] == "exposed"}


def wrap_module(module, recipe=PARITY_RECIPE):
    return Weights("wrapped", recipe, SinglePass(module))


def build_claim(size, exact=1.0, recipe=PARITY_RECIPE, **fields):
    score = lw.Score(recipe.task.name, "w", recipe.stopping.name, "uniform", (size,), 1000, exact, exact, exact, 1.0)
    return score.row() | fields


# Honest weights


@pytest.fixture(scope="module")
def pairs_weights():
    return load("looped-pairs")


@pytest.mark.timeout(1800)  # also on a busy machine
@pytest.mark.skipif(not LONG, reason="minutes")
@pytest.mark.parametrize("name", list_shipped_weights())
def test_shipped_weights_pass_verification(name, monkeypatch):
    monkeypatch.undo()
    found = verify(load(name), read_claims(SHIPPED_FOLDER / name), seconds=10)
    assert not [check for check in found["checks"] if check["verdict"] == "exposed"]


def test_a_partly_trained_model_is_not_exposed(monkeypatch):
    weights, notes = train_briefly(PAIRS), []
    monkeypatch.setattr(ProgressLine, "update", lambda line, done, note="": notes.append(note))
    found = verify(weights, None, [4], seed=3, samples=10, seconds=0.001)
    steps = [note.removesuffix("x4") for note in notes]  # both operands have 4 digits
    assert steps[1:] == ["exact match on short problems", "exact match at 4", "claimed scores", "looking for failures"]
    assert {check["verdict"] for check in found["checks"]} <= {"passed", "open"}
    counts = {(row["sizes"][0], row["problems"]): row["count"] for row in found["scores"]}
    assert counts[4, "uniform"] == 10 and counts[1, "every"] == 4
    assert found["parameters"] == sum(value.numel() for value in weights.model.parameters())


def test_the_attack_is_omitted_and_its_verdict_open_if_no_attack_is_possible():
    """Weights are not attacked if their rule needs a batch of problems, or if their position table is too short."""
    weights = train_briefly(PAIRS)
    many = replace(weights.recipe, stopping=lw.MaxConfidence(per="batch"))
    model = lw.Transformer(width=8, heads=1, positions=(lw.Learned(10),))
    short = replace(PARITY_RECIPE, model=model, lengths=lw.Uniform(6))
    for found, reason in (
        (run_checks(replace(weights, recipe=many)), "needs a batch of problems"),
        (run_checks(Weights("short", short, short.build()), sizes=(7,), seconds=5.0), "does not fit"),
    ):
        assert found["attack"]["verdict"] == "open" and reason in found["attack"]["told"]


@pytest.mark.parametrize(("size", "verdict"), [((2, 4), "exposed"), ((3, 3), "passed"), ((2, 5), "passed")])
def test_a_size_counts_as_beyond_training_if_one_axis_is_longer_than_in_training(size, verdict):
    recipe = lw.find("looped-multiplication").change(
        ["lengths=Curriculum(top=4,every=1,max_per_axis=(2,4))", "steps=10"]
    )
    assert verification._check_training(recipe, [size], Claims()).verdict == verdict


def test_a_record_that_cannot_be_written_is_refused_before_measuring(tmp_path, monkeypatch):
    monkeypatch.setattr(verbs_verify, "verify", lambda *_, **__: pytest.fail("it measures"))
    (tmp_path / "file").write_text("")
    for out, message in ((tmp_path, "that is a folder"), (tmp_path / "file" / "x", "cannot be written")):
        done = command("verify", "looped-parity", "--out", out)
        assert (done.returncode, done.stdout) == (2, "") and message in done.stderr and done.stderr.count("\n") == 1


def test_counted_operations_equal_those_of_matrix_products():
    """A row has 8 positions: 6 bits, "=" and the answer. A linear layer from 4 to 4 features takes 2 · 4 · 4 operations
    per position, and the model reads the row twice."""
    module = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
    assert count_operations(wrap_module(module), (6,)) == 2 * 4 * 4 * (6 + 2) * 2


# Spoofs


class TrainableParity(nn.Module):
    """The base class of spoofs: an untrained network, whose parameters subclasses keep but need not use."""

    def __init__(self):
        super().__init__()
        self.embedding, self.readout = nn.Embedding(4, 8), nn.Linear(8, 4)

    def forward(self, tokens):
        return self.readout(self.embedding(tokens))

    def answer_logits(self, tokens, answer):
        """Return logits that predict ``answer`` (shape "b t") after "=", and the end symbol elsewhere."""
        return 9 * nn.functional.one_hot(torch.where(tokens == 2, answer, 3), 4).float()


class HandCodedParity(TrainableParity):
    """A spoof that computes the answer in code and adds a little of the network's output."""

    def forward(self, tokens):
        return self.answer_logits(tokens, (tokens == 1).long().cumsum(1) % 2) + 1e-3 * super().forward(tokens)


class WeightCheckingParity(HandCodedParity):
    """A hand-coded spoof that answers only while its weights are unchanged."""

    def forward(self, tokens):
        known = self.__dict__.setdefault("known", self.readout.weight.sum().item())
        return super().forward(tokens) * (self.readout.weight.sum().item() == known)


class RandomErrorParity(HandCodedParity):
    """A hand-coded spoof that makes random errors."""

    def forward(self, tokens):
        return super().forward(tokens) + 20 * (torch.rand(*tokens.shape, 1) < 0.1) * torch.eye(4)[0]


class LookupTable(TrainableParity):
    """A spoof that stores the answers to all rows of up to 9 bits in a table."""

    def __init__(self, *, is_buffer=False):
        super().__init__()
        numbers = torch.arange(1024)
        ones = sum((numbers >> bit) & 1 for bit in range(10)) % 2
        if is_buffer:
            self.register_buffer("table", ones.float())
        else:
            self.table = nn.Parameter(ones.float())

    def forward(self, tokens):
        number = torch.zeros(len(tokens), dtype=torch.long)
        numbers = []
        for column in tokens.T:
            number = torch.where(column < 2, number * 2 + column, number)
            numbers.append(number.clamp(max=1023))
        return self.answer_logits(tokens, self.table[torch.stack(numbers, 1)].round().long().clamp(0, 1))


SPOOF_CHECKS = "depends on its weights", "robust to rounding", "deterministic"


@pytest.mark.parametrize(
    ("module", "check"), [*zip((HandCodedParity, WeightCheckingParity, RandomErrorParity), SPOOF_CHECKS, strict=True)]
)
def test_answers_from_code_are_exposed(module, check):
    assert find_exposed_checks(wrap_module(module())) >= {check, "recipe track"}


def test_a_lookup_table_is_exposed_beyond_its_length():
    found = run_checks(wrap_module(LookupTable()), Claims([build_claim(6), build_claim(30)]), [30], samples=200)
    assert found["operations"]["verdict"] == found["claimed scores"]["verdict"] == "exposed"
    assert "uniform at 30: 1.000 is claimed, 0." in found["claimed scores"]["told"]
    assert find_exposed_checks(wrap_module(LookupTable(is_buffer=True))) >= {"parameters", "depends on its weights"}


def test_parameters_without_an_effect_are_exposed():
    weights = train_briefly(replace(NTP_COPY, steps=1))
    whole = replace(weights, model=weights.recipe.build())
    assert "uses its parameters" not in find_exposed_checks(whole)
    whole.model.register_parameter("idle", nn.Parameter(torch.ones(1000)))
    found = run_checks(whole)["uses its parameters"]
    assert (found["verdict"], found["told"][-4:]) == ("exposed", "idle")


def test_training_at_the_tested_length_is_exposed():
    weights = Weights("long", long := replace(PARITY_RECIPE, lengths=lw.Uniform(12)), long.build())
    assert "training lengths" in find_exposed_checks(weights, Claims([build_claim(12)]), [12])
    assert "training lengths" not in find_exposed_checks(weights, Claims([build_claim(12)]), [13])
    told = Claims([build_claim(12)], outline=replace(build_outline(long), top=3, tops=(3,)))
    assert "stated facts" in find_exposed_checks(weights, told, [13])


def test_scores_of_other_weights_are_exposed():
    weights = Weights("new", PARITY_RECIPE, PARITY_RECIPE.build())
    assert find_exposed_checks(weights, Claims([build_claim(6, sealed="0123456789")])) >= {"stated facts"}
    assert find_exposed_checks(weights, Claims([build_claim(6)]), samples=200) == {"claimed scores"}
    assert "claimed scores" in find_exposed_checks(weights, Claims([build_claim(8)]), samples=200), "not yet measured"
    assert not find_exposed_checks(weights, Claims([build_claim(6, exact=0.0)]), samples=200)


def test_edited_files_are_exposed(tmp_path, pairs_weights):
    folder, wrong = shutil.copytree(SHIPPED_FOLDER / "looped-pairs", tmp_path / "claimed"), []
    about = json.loads((folder / "about.json").read_text())
    for change in ({"parameters": 4072}, {"outline": about["outline"] | {"steps": 60}}):
        write_json(folder / "about.json", about | change)
        wrong += verification.find_contradictions(read_claims(folder), pairs_weights, 40726)
    found = ["4,072 parameters are claimed, but there are 40,726", "steps 60 is claimed, but the recipe says 6000"]
    assert wrong == found
    write_json(folder / "about.json", about)
    write_csv(folder / "scores.csv", [build_claim(400, recipe=pairs_weights.recipe)])
    assert max(row["sizes"][0] for row in read_claims(folder).rows) == 400


# Scores


def test_a_size_counts_as_solved_only_if_every_family_and_smaller_size_is_solved():
    def build_row(size, exact, problems="uniform", low=None):
        return build_claim(size, exact, problems=problems, low=exact if low is None else low)

    assert find_longest_solved_size([build_row(8, 1.0), build_row(16, 1.0)]) == (16,)
    assert find_longest_solved_size([build_row(8, 1.0), build_row(16, 1.0), build_row(16, 0.98, "runs")]) == (8,)
    assert find_longest_solved_size([build_row(8, 1.0), build_row(12, 0.9), build_row(16, 1.0)]) == (8,)
    every = build_row(2, 1.0, "every", 0.5)  # all problems were measured, so the interval does not count
    assert find_longest_solved_size([every, build_row(8, 1.0)]) == (8,)
    assert find_longest_solved_size([build_row(2, 0.75, "every", 0.5), build_row(8, 1.0)]) is None


def test_a_size_that_takes_too_long_is_left_out():
    found = verify(train_briefly(PAIRS), None, [4, 900], seed=1, samples=10, seconds=0.001, minutes=0.1)
    assert found["left_out"] == ["900x900"] and max(row["sizes"][0] for row in found["scores"]) < 900


# The command


@pytest.fixture
def trained_run():
    return train(replace(PARITY_RECIPE, steps=3, batch=4))


QUICK_OPTIONS = ("--lengths", "4", "--samples", "20", "--seconds", "0.001", "--quiet")


def test_the_record_describes_the_verification_and_edits_are_detected(trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(verification, "RETRAINED_SAMPLES", 20)
    out = tmp_path / "record.json"
    done = command("verify", trained_run.folder, *QUICK_OPTIONS, "--seed", "5", "--retrain", "--out", out)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "its recipe reproduces these weights, bit for bit" in " ".join(done.stdout.split())
    record = json.loads(out.read_text())
    assert record == sign_record(record) and record["about"]["seed"] == 5
    assert len(record["about"]["files"]["model.safetensors"]) == 64
    assert command("verify", out).returncode == 0
    write_json(out, record | {"longest": "400"})
    assert "its digest does not match its content" in command("verify", out).stderr
    write_json(out, {})
    assert command("verify", out).stderr.count("\n") == 1
    out.unlink()
    assert command("verify", out).stderr.startswith(f"lengthwise: {out}: no such record")


def test_retraining_passes_only_if_the_new_weights_reach_the_claimed_scores(trained_run, monkeypatch):
    monkeypatch.setattr(verification, "RETRAINED_SAMPLES", 40)
    other = Weights("other", trained_run.recipe, Recipe.build(replace(trained_run.recipe, seed=9)))
    assert verification.retrain_and_compare(other, [build_claim(4, 0.0)], seed=0).verdict == "passed"
    assert verification.retrain_and_compare(other, [build_claim(4)], seed=0).verdict == "exposed"


def test_a_recipe_that_diverges_is_exposed_and_the_record_is_kept(trained_run, tmp_path, monkeypatch):
    asked = {}

    def raise_diverged(*_, **options):
        asked.update(options)
        raise Diverged("the loss is not finite at step 10")

    monkeypatch.setattr(verification, "train", raise_diverged)
    # Two threads that share one processor would wait for each other.
    monkeypatch.setattr(verbs_verify, "computation_settings", lambda threads: nullcontext(asked.update(of=threads)))
    out = tmp_path / "record.json"
    options = [*QUICK_OPTIONS, "--retrain", "--out", out, "--device", "cpu", "--threads", "2"]
    done = command("verify", trained_run.folder, *options)
    assert done.returncode == 1 and "training its recipe failed" in " ".join(done.stdout.split())
    assert (asked["device"], asked["threads"], asked["of"]) == ("cpu", 2, 2)
    assert json.loads(out.read_text())["checks"][-1]["verdict"] == "exposed"
    monkeypatch.setattr(verification, "train", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    out.unlink()
    assert command("verify", trained_run.folder, *QUICK_OPTIONS, "--retrain", "--out", out).returncode == 130
    assert sign_record(kept := json.loads(out.read_text())) == kept


def test_each_verification_draws_new_problems(trained_run, tmp_path):
    weights = Run.open(trained_run.folder).weights()
    seeds = {verify(weights, None, [4], samples=2, seconds=0.001)["about"]["seed"] for _ in range(2)}
    assert len(seeds) == 2


def test_halves_of_a_batch_with_different_widths_are_compared():
    """Halves of a batch that are answered separately have different widths if only one holds the longest answers."""
    weights = train_briefly(PAIRS)
    task = weights.recipe.task
    rows = [task.parse(text) for text in ("1+1", "1+0", "10101+11011", "11111+1")]
    again, reverse = count_changed_answers(weights, lw.Problems.join(rows))
    assert again == reverse == 0


def test_global_generators_are_not_changed():
    weights = train_briefly(PAIRS)
    before = torch.get_rng_state(), random.getstate()
    count_changed_answers(weights, weights.recipe.task.parse("1+1"))
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
