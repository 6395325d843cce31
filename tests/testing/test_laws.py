"""All parts of the package satisfy the laws of their kind, and each law detects a part that breaks it."""

import json
import typing
from dataclasses import dataclass, replace
from pathlib import Path

import conftest
import pytest
import torch
from conftest import command_in_fork
from specs import list_parts
from torch import nn

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.models import SequenceModel
from lengthwise.models.external import ExternalModule
from lengthwise.testing import laws
from lengthwise.testing.laws import Finding, Findings, check_part, list_laws
from lengthwise.testing.laws_of_models import build_small_spec
from lengthwise.testing.laws_of_tasks import question_describes_the_task

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED_NAMES = "name a module of your own, e.g. own_task for own_task.py, or a file of problems (.jsonl or .csv)"
NOT_FOUND = f"neither in {EXAMPLES} nor among the installed packages"
# ``ExternalModule`` stands for a module passed in from Python and cannot be built without one. Tasks and layouts are
# tested by their laws in many variants in their own tests.
PARTS = [(kind, part) for kind in catalog.list_parts() for part in list_parts(kind) if type(part) is not ExternalModule]
TESTED_ELSEWHERE = {"tasks", "layouts"}


@pytest.mark.parametrize(("kind", "part"), [pair for pair in PARTS if pair[0] not in TESTED_ELSEWHERE], ids=str)
def test_every_part_of_the_package_satisfies_its_laws(kind, part):
    if part == lw.Local(0):  # in a softmax over one key a bias has no effect
        part = lw.Local(1)
    if kind == "models" and hasattr(part, "layers"):
        part = replace(part, layers=1)
    found = check_part(part)
    assert len(found) >= 3 and not found.broken


# Parts that each break one law; LAW_BREAKERS names the law


@dataclass(frozen=True)
class _Reverse(lw.SequenceTask):
    """Write these digits in reverse order."""

    symbols = tuple("0123456789")

    def from_rows(self, sizes, rows):
        length, position = sizes[:, :1], torch.arange(rows.shape[1])
        answer = rows.gather(1, (length - 1 - position).clamp(min=0)) * (position < length)
        return lw.Problems(sizes, rows, length[:, 0], answer, length[:, 0], rounds=length[:, 0])

    def reference(self, prompt):
        return prompt[::-1]

    def answer_slots(self, sizes):
        return sizes[:, 0]


@dataclass(frozen=True)
class _WrongTask(_Reverse):
    """A task with one fault, which ``fault`` names."""

    fault: str = ""

    def sample(self, sizes, generator):
        if self.fault == "global":
            rows = torch.randint(1, 9, (len(sizes), int(sizes.max()))).tril(int(sizes.min()) - 1)
            return self.from_rows(sizes, rows)
        return super().sample(sizes + (self.fault == "longer"), generator)

    def from_rows(self, sizes, rows):
        found = super().from_rows(sizes, rows)
        match self.fault:
            case "unpadded":
                return replace(found, answer=found.answer + (torch.arange(rows.shape[1]) >= sizes[:, :1]))
            case "wide":
                return replace(found, answer=nn.functional.pad(found.answer, (0, 1)))
            case "silent":
                return replace(found, answer=found.answer * 0, answer_length=found.answer_length * 0)
            case "roundless":
                return replace(found, rounds=sizes[:, 0] - 1)
        return found

    def reference(self, prompt):
        if self.fault in ("counts", "blind"):
            return len(prompt) if self.fault == "counts" else ""
        return prompt if self.fault == "copies" and len(prompt) > 4 else prompt[::-1]

    def answer_slots(self, sizes):
        return (sizes[:, 0] + {"tight": -1, "roomy": 1}.get(self.fault, 0)).clamp(min=1)

    def parse(self, text):
        if self.fault == "lenient":
            text = "".join(one for one in text if one in self.symbols) or "0"
        return super().parse(text[::-1] if self.fault == "misread" else text)

    def sample_natural(self, count, low, high, generator):
        return super().sample_natural(count, low, low if self.fault == "shallow" else high, generator)

    def enumerate(self, size, most):
        return lw.Problems.join([super().enumerate(size, most)] * (2 if self.fault == "twice" else 1))

    @property
    def families(self):
        name = {"name": "uniform"} if self.fault == "nameless" else {}
        return [replace(family, **name) for family in super().families]


class _MissingWrites(_Reverse):
    writes = tuple("01234")


class _Unary(_Reverse):
    """Write these symbols in reverse order."""

    symbols = ("x",)


class _ThreeSizes(_Reverse):
    """Write up to three digits in reverse order."""

    largest = 3

    def from_rows(self, sizes, rows):
        assert int(sizes.max()) <= 3
        return super().from_rows(sizes, rows)


class _QuestionMark(_Reverse):
    """Write these symbols, which may be question marks, in reverse order."""

    symbols = ("0", "1", "?")


class _WithoutQuestion(_Reverse):
    """Digits → digits"""


class _AsksQuestion(_Reverse):
    """Which digits are these, in reverse order?"""


@dataclass(frozen=True)
class _ModuleSpec(lw.ModelSpec):
    """A model specification that builds a module of this file by name."""

    module: str = "CorrectModule"

    def build(self, reads, writes, *, causal):
        return MODULES[self.module](len(reads), len(writes))


class CorrectModule(nn.Module):
    """A correct module, in which the logits at a position depend only on the token there."""

    def __init__(self, reads, writes):
        super().__init__()
        self.embedding, self.readout = nn.Embedding(reads, 8), nn.Linear(8, writes)

    def mix(self, x, padding_mask):
        return x

    def forward(self, tokens, padding_mask):
        x = self.embedding(tokens) * padding_mask[..., None]
        return self.readout(self.mix(x, padding_mask))


class WrongMix(CorrectModule):
    """Base class of modules that mix positions wrongly, each as its class name states."""

    def mix(self, x, padding_mask):
        match type(self).__name__:
            case "SumsRows":
                return x + x.sum(0)
            case "AddsFirst":
                return x + x[0, 0]
            case "LooksAhead":
                return x + nn.functional.pad(x, (0, 0, 0, 1))[:, 1:]
            case "AddsNoise":
                return x + torch.randn_like(x)
            case "NaNInLongRows":
                return x * (torch.nan if x.shape[1] > 100 else 1.0)
        if x.shape[1] > 100:
            raise RuntimeError("too long")
        return x


WRONG_MIX_NAMES = "SumsRows", "AddsFirst", "LooksAhead", "AddsNoise", "NaNInLongRows", "FailsOnLongRows"
WRONG_MIXES = [type(name, (WrongMix,), {}) for name in WRONG_MIX_NAMES]


class SumsPadding(CorrectModule):
    def forward(self, tokens, padding_mask):
        return self.readout(self.embedding(tokens).flip(1).cumsum(1).flip(1))


class UnusedParameter(CorrectModule):
    def __init__(self, reads, writes):
        super().__init__(reads, writes)
        self.unused = nn.Linear(3, 3)


class UnseededWeights(CorrectModule):
    def __init__(self, reads, writes):
        super().__init__(reads, writes)
        nn.init.normal_(self.readout.weight, generator=torch.Generator().manual_seed(next(SEEDS)))


class ReturnsProbabilities(CorrectModule):
    def forward(self, tokens, padding_mask):
        return super().forward(tokens, padding_mask).softmax(-1)


SEEDS = iter(range(1000))
MODULES = {cls.__name__: cls for cls in (CorrectModule, *CorrectModule.__subclasses__(), *WRONG_MIXES)}


class _LoopNotRun(lw.Oracle):
    def choose(self, trace, planned):
        return trace.loops + 1


class _LimitBelowOne(lw.MaxConfidence):
    def limit(self, planned):
        return planned - 1


class _ReadsLoopsNotRun(lw.MaxConfidence):
    def choose(self, trace, planned):
        return trace.confidence.argmax(0).clamp(max=trace.loops - 1) + 1


class _BatchDependent(lw.MaxConfidence):
    def choose(self, trace, planned):
        return torch.minimum(trace.loops, super().choose(trace, planned).max())


class _ZeroLoops(lw.Constant):
    def planned(self, rounds):
        return rounds - 1


class _UnseededLoops(lw.Constant):
    def draw(self, rounds, generator):
        return rounds + torch.randint(9, rounds.shape)


class _SizesOutOfRange(lw.Uniform):
    def draw(self, step, rows, axes, generator):
        return super().draw(step, rows, axes, generator) + (step > 100)


class _UnseededLengths(lw.Uniform):
    def draw(self, step, rows, axes, generator):
        return super().draw(step, rows, axes, torch.Generator().manual_seed(next(SEEDS)))


@dataclass(frozen=True)
class _WrongLoss(lw.Final):
    """A loss with one fault, which ``fault`` names."""

    fault: str = ""

    def __call__(self, runner, batch, loops, generator):
        if self.fault == "everywhere":
            batch = replace(batch, loss_mask=batch.inputs.padding_mask)
        loss = super().__call__(runner, batch, loops, generator)
        match self.fault:
            case "negative":
                return replace(loss, value=-loss.value)
            case "random":  # from the global generator
                return replace(loss, value=loss.value * (1 + torch.rand(())))
            case "flat":
                return replace(loss, value=loss.value * 0 + loss.value.detach())
        return loss


class _NoSteps(lw.Final):
    """An objective that is wrong only in ``steps``, which training calls."""

    def steps(self, runner, batch, loops, generator):
        yield from ()


class _ValueSteps(lw.Segments):
    def steps(self, runner, batch, loops, generator):
        for loss in super().steps(runner, batch, loops, generator):
            yield loss.value


class _ReversedAnswer(lw.FullOutput):
    def answer(self, predicted, task):
        return super().answer(predicted, task).flip(0)


@dataclass(frozen=True)
class _WrongRows(lw.FullOutput):
    """A layout that writes rows with one fault, which ``fault`` names."""

    fault: str = ""

    def write(self, problems, task):
        batch = super().write(problems, task)
        inputs, slots = batch.inputs, batch.answer_slots
        match self.fault:
            case "crowded":
                return replace(batch, answer_slots=slots & ~batch.loss_mask)
            case "strange":
                return replace(batch, targets=batch.targets + len(self.vocabs(task)[1]))
            case "telling":
                return replace(batch, inputs=replace(inputs, tokens=inputs.tokens.where(~slots, batch.targets)))
            case "fitted":
                return replace(batch, answer_slots=batch.loss_mask)
            case "centred":
                position = inputs.position - batch.targets.shape[1] // 2
                return replace(batch, inputs=replace(inputs, position=position))
            case "hurried":
                return replace(batch, rounds=problems.rounds - 1)
        if len(batch) > 1:  # narrow: a batch of several rows is cut to a single column
            inputs = replace(inputs, **{name: value[:, :1] for name, value in vars(inputs).items()})
            cut = {name: getattr(batch, name)[:, :1] for name in ("targets", "loss_mask", "answer_slots")}
            batch = replace(batch, inputs=inputs, **cut)
        return batch


class _TargetsInInputs(lw.NextToken):
    def write(self, problems, task):
        batch = super().write(problems, task)
        tokens = batch.inputs.tokens.where(~batch.loss_mask, batch.targets)
        return replace(batch, inputs=replace(batch.inputs, tokens=tokens))


class _AcceptsNoTask(lw.FullOutput):
    def accepts(self, task):
        return isinstance(task, _Reverse)


class _PartByRowNumber(lw.Fresh):
    def mask_part(self, part, problems):
        return torch.arange(len(problems)) % 2 == 0


class _IgnoresRate(lw.AdamW):
    def build(self, parameters):
        return torch.optim.AdamW(parameters, lr=0.1)


class _RateByStepCount(torch.optim.SGD):
    count = 0

    def step(self):
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 1 / self.count if group["lr"] else 0.0
        super().step()


class _IncompleteState(lw.AdamW):
    def build(self, parameters):
        return _RateByStepCount(parameters, lr=self.rate)


class _FactorAboveOne(lw.Schedule):
    def factor(self, step, steps):
        return 1 + step / steps


@dataclass
class _NotFrozen(lw.Oracle.__base__):
    """Not frozen."""

    def limit(self, planned):
        return planned


@dataclass(frozen=True)
class _WithoutDocstring(lw.Oracle):
    pass


@dataclass(frozen=True)
class _ChangedByJson(lw.Oracle):
    """A rule that differs from its copy that was written as JSON and read back."""

    def __post_init__(self):
        object.__setattr__(self, "offset", self.offset + 1)


class ForgetfulSum(lw.Mixer):
    """A mixer that returns the sum up to each position, and whose ``step`` wrongly forgets a tenth of the sum."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x, context, cache=None):
        return (x * self.scale).cumsum(1)

    def step(self, x, state):
        found = (x * self.scale).cumsum(1) + (0 if state is None else 0.9 * state)
        return found, found[:, -1:]


class HiddenLoopCount(SequenceModel):
    """A model that counts its loops outside its state."""

    def __init__(self, reads, writes):
        super().__init__()
        self.embedding, self.readout = nn.Embedding(reads, 8), nn.Linear(8, writes)

    def start(self, context):
        self.loops = 0
        return context

    def advance(self, state, context):
        self.loops += 1
        return state + self.loops * context


@dataclass(frozen=True)
class _HiddenLoopCountSpec(lw.ModelSpec):
    def build(self, reads, writes, *, causal):
        return HiddenLoopCount(len(reads), len(writes))


@dataclass(frozen=True)
class _ForgetfulSumSpec(lw.MixerSpec):
    """A mixer whose outputs computed step by step differ from those computed for the whole row."""

    def build(self, width, heads):
        return ForgetfulSum()


LAW_BREAKERS = {
    "part_equals_its_json_copy": _ChangedByJson(),
    "part_is_frozen": _NotFrozen(),
    "part_has_a_docstring": _WithoutDocstring(),
    "every_answer_is_right": _WrongTask(fault="copies"),
    "problems_have_requested_sizes": _WrongTask(fault="longer"),
    "symbols_are_in_reads_and_writes": _MissingWrites(),
    "rows_are_padded_with_zeros": _WrongTask(fault="unpadded"),
    "answers_fit_their_slots": _WrongTask(fault="tight"),
    "some_answer_fills_its_slots": _WrongTask(fault="roomy"),
    "rounds_are_whole_numbers": _WrongTask(fault="roundless"),
    "problems_depend_only_on_the_generator": _WrongTask(fault="global"),
    "typed_prompts_are_parsed": _WrongTask(fault="misread"),
    "other_text_is_rejected": _WrongTask(fault="lenient"),
    "question_describes_the_task": _WithoutQuestion(),
    "natural_problems_are_as_requested": _WrongTask(fault="shallow"),
    "families_are_named": _WrongTask(fault="nameless"),
    "enumerate_lists_every_problem_once": _WrongTask(fault="twice"),
    "outputs_are_logits": _ModuleSpec("ReturnsProbabilities"),
    "logits_do_not_depend_on_other_rows": _ModuleSpec("SumsRows"),
    "padding_is_ignored": _ModuleSpec("SumsPadding"),
    "the_order_of_rows_does_not_matter": _ModuleSpec("AddsFirst"),
    "causal_models_do_not_look_ahead": _ModuleSpec("LooksAhead"),
    "carried_states_continue_a_run": _HiddenLoopCountSpec(),
    "every_parameter_affects_logits": _ModuleSpec("UnusedParameter"),
    "weights_come_from_the_seed": _ModuleSpec("UnseededWeights"),
    "evaluation_is_deterministic": _ModuleSpec("AddsNoise"),
    "long_rows_have_finite_logits": _ModuleSpec("NaNInLongRows"),
    "decoding_in_pieces_gives_the_same_logits": build_small_spec(_ForgetfulSumSpec()),
    "every_row_has_a_limit": _LimitBelowOne(),
    "chosen_loop_was_run": _LoopNotRun(),
    "loops_not_run_are_ignored": _ReadsLoopsNotRun(),
    "choices_do_not_depend_on_other_rows": _BatchDependent(),
    "every_row_has_a_loop": _ZeroLoops(),
    "drawn_loops_come_from_the_generator": _UnseededLoops(),
    "sizes_stay_in_the_range": _SizesOutOfRange(9),
    "drawn_problems_come_from_the_generator": _UnseededLengths(9),
    "the_loss_is_a_number": _WrongLoss(fault="negative"),
    "the_loss_comes_from_the_generator": _WrongLoss(fault="random"),
    "loss_depends_only_on_masked_targets": _WrongLoss(fault="everywhere"),
    "gradients_are_finite_and_not_all_zero": _WrongLoss(fault="flat"),
    "accepts_some_task": _AcceptsNoTask(),
    "targets_are_the_answer": _ReversedAnswer(),
    "masks_lie_inside_rows": _WrongRows(fault="crowded"),
    "ids_are_in_the_vocabulary": _WrongRows(fault="strange"),
    "inputs_hide_the_answer": _WrongRows(fault="telling"),
    "slots_do_not_depend_on_the_answer": _WrongRows(fault="fitted"),
    "rows_do_not_depend_on_the_batch": _WrongRows(fault="centred"),
    "rounds_and_sizes_do_not_change": _WrongRows(fault="hurried"),
    "purposes_do_not_depend_on_other_problems": _PartByRowNumber(),
    "optimizer_uses_its_rate": _IgnoresRate(),
    "optimizer_state_is_complete": _IncompleteState(),
    "the_rate_factor_is_a_fraction": _FactorAboveOne(),
}


@pytest.mark.parametrize("law", LAW_BREAKERS)
def test_each_law_detects_a_part_that_breaks_it(law):
    part = LAW_BREAKERS[law]
    (function,) = [one for one in list_laws(type(part)) if one.__name__ == law]
    (found,) = laws.check_laws(part, "mine", [function])
    assert not found.holds and found.failing_case and "\n" not in found.failing_case and found.law.endswith(".")


DESCRIBED_CASES = [
    (
        "rows_are_padded_with_zeros",
        _WrongTask(fault="wide"),
        "6 columns have lengths 1 to 5: the longest must fill the last column",
    ),
    ("rows_are_padded_with_zeros", _WrongTask(fault="silent"), "uniform answers are all empty"),
    ("rows_do_not_depend_on_the_batch", _WrongRows(fault="narrow"), "] beside other rows"),
    ("every_answer_is_right", _WrongTask(fault="counts"), "reference must return text, not int"),
    (
        "enumerate_lists_every_problem_once",
        _WrongTask(fault="blind"),
        "enumerated problem '0' has the answer '0', but reference returns ''",
    ),
    ("inputs_hide_the_answer", _TargetsInInputs(), "a different answer changes tokens at position"),
    ("long_rows_have_finite_logits", _ModuleSpec("FailsOnLongRows"), "RuntimeError in test_laws.py, line "),
    ("the_loss_is_a_number", _NoSteps(), "`steps` yields no loss"),
    ("the_loss_is_a_number", _ValueSteps(), "_ValueSteps must return lw.Loss(value, logs)"),
    ("question_describes_the_task", _WithoutQuestion(), "'Digits → digits'; it must be a sentence on one line"),
    ("loops_not_run_are_ignored", _ReadsLoopsNotRun(), "or after an answer's end, changes the choices from"),
]


@pytest.mark.parametrize(("law", "part", "message"), DESCRIBED_CASES, ids=[message for *_, message in DESCRIBED_CASES])
def test_a_failing_case_is_described(law, part, message):
    (function,) = [one for one in list_laws(type(part)) if one.__name__ == law]
    assert message in laws.check_laws(part, "", [function])[0].failing_case


@pytest.mark.parametrize("kind", [_Unary, _ThreeSizes, _QuestionMark])
def test_small_tasks_satisfy_all_laws(kind):
    found = [law for law in list_laws(kind) if law.__name__ != "part_equals_its_json_copy"]  # names start with _
    assert len(found) > 10 and not laws.check_laws(kind(), "", found).broken


def test_randomness_of_a_model_is_reported_first():
    """A model with random outputs also breaks other laws, but its randomness is the first finding."""
    _, first, second, *_ = laws.check_laws(_ModuleSpec("AddsNoise"), "", list_laws(lw.ModelSpec)).broken  # _: its name
    assert first.law == "In evaluation, computing a row twice gives the same logits."
    assert second.failing_case == "the logits of a row of 5 tokens change when longer rows are in the batch"


def test_randomness_of_a_loss_is_the_only_finding():
    """The check of a random loss does not also report that the loss depends on targets outside the mask."""
    _, *findings = check_part(_WrongLoss(fault="random")).broken  # the first is about its name
    assert {finding.failing_case for finding in findings} == {
        "the loss differs between two calls on one batch: draw random numbers from `generator` only"
    }


@pytest.mark.parametrize("shape", typing.get_args(typing.get_type_hints(lw.Schedule)["shape"]))
def test_every_shape_of_a_schedule_satisfies_the_laws(shape):
    assert not check_part(lw.Schedule(shape, warmup=0.1, floor=0.01)).broken


def test_each_law_has_a_part_that_breaks_it():
    kinds = {lw.Schedule, *(type(part) for _, part in PARTS)}
    assert {law.__name__ for kind in kinds for law in list_laws(kind)} == set(LAW_BREAKERS)


def test_recipes_and_studies_are_checked():
    recipe = replace(lw.find("looped-parity"), name="own-parity", watch=lw.Watch(10, (50,)), steps=3, batch=2)
    told = [one.failing_case for one in lw.check(recipe).broken]
    assert told == ["watch.sizes contains 50, more than 1.5 times the training length, 20"]
    ahead = lw.check(recipe.change(model=_ModuleSpec("LooksAhead"), loops=lw.Constant(), watch=lw.Watch())).broken
    assert any("LooksAhead looks ahead" in one.failing_case for one in ahead)
    wrong = laws.check_recipes({"called": lambda: recipe}).broken
    case = "the function or key is called called, but must be called own-parity, the recipe's name"
    assert [one.failing_case for one in wrong] == [case]
    for grid, measured in (((), 20), ((30,), 30)):
        panel = lw.Panel("One", (recipe,), sizes=(20,), grid=grid)
        told = [one.failing_case for one in lw.check(lw.Study("Mine", (panel,))).broken]
        assert told == [f"One: recipes watch or train on sizes up to 50, but the panel measures only up to {measured}"]
    (found,) = laws.check_recipes({"mine": lambda: lw.find("looped-copy", "family_names=(few,)")}).broken
    assert found.law == "The recipe can be created."
    assert found.failing_case.startswith("family_names: copy has no family 'few'")
    for check, kind in ((laws.check_recipes, "Recipe"), (laws.check_studies, "Study")):
        assert [one.failing_case for one in check({"none": lambda: None}).broken] == [
            f"the function must return lw.{kind}, not None"
        ]


class ChunkMean(nn.Module):
    """A module that adds to each position the mean over its chunk of 32 positions, except in the first chunk."""

    def forward(self, x):
        first, *chunks = x.split(32, 1)
        return torch.cat([first, *(chunk + chunk.mean(1, keepdim=True) for chunk in chunks)], 1)


@dataclass(frozen=True)
class ChunkMeanSpec(lw.MixerSpec):
    """A mixer that is causal only in rows of up to 32 positions."""

    def build(self, width, heads, *, causal):
        return ChunkMean()


def test_a_dependence_beyond_the_first_chunk_of_a_row_is_found():
    (alone, (_, law, result)) = check_part(ChunkMeanSpec()).lines()
    assert "the logits of a row of 45 tokens change when longer rows are in the batch" in alone
    assert law.startswith("In a causal layout") and "in a row of 136 positions, tokens after position" in result


def test_a_question_may_end_in_a_question_mark():
    question_describes_the_task(_AsksQuestion())


def test_findings_print_as_a_table():
    found = lw.check(_WrongTask(fault="roomy"))
    assert isinstance(found, Findings)
    assert f"{len(found.broken)} of {len(found)} laws are broken" in str(found)
    assert "slots, but no answer fills more than" in " ".join(str(found).split()) and "<table>" in found._repr_html_()
    with pytest.raises(lw.UsageError, match=r"^check takes parts, .* classes of parts and Python modules, not int$"):
        lw.check(3)
    with pytest.raises(lw.UsageError, match=r"not Linear; a torch module is checked before it is trained or measured$"):
        lw.check(nn.Linear(2, 2))


# From the command line


def run_check(*words, folder=EXAMPLES):
    return command_in_fork("check", *words, folder=folder)


NO_PARTS = {"own_figure", "own_transformers_model", "ten_lines"}  # examples without parts


@pytest.mark.parametrize("name", sorted({path.stem for path in EXAMPLES.glob("*.py")} - NO_PARTS))
def test_examples_satisfy_all_laws(name, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    assert not lw.check(__import__(name)).broken


def test_the_command_checks_modules_and_reports_broken_laws(tmp_path):
    done = run_check("own_task", "own_stopping", "--json", "--quiet")
    result = json.loads(done.stdout)
    assert done.returncode == 0 and result["broken"] == 0 and result["laws"] == len(result["found"]) > 20
    source = (EXAMPLES / "own_task.py").read_text()
    (tmp_path / "mine.py").write_text(
        source.replace("return prompt[::-1]", "return prompt")
        .replace("5,every", "3,every")
        .replace("Backwards", "Unchanged")
        .replace("backwards", "unchanged")
        .replace("@dataclass", "class Forgotten(lw.SequenceTask):\n    pass\n\n\n@dataclass")
    )
    done = run_check("mine", "--quiet", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "lengthwise: skipped: Forgotten: not a dataclass (add @dataclass(frozen=True))\n"
    assert "Every answer is the one that" in done.stdout and "but reference returns" in " ".join(done.stdout.split())
    assert done.stdout.rstrip().endswith("laws are broken")


def test_laws_broken_for_the_same_cause_are_reported_once():
    told = [("Own", "One.", ""), ("Own", "Two.", "no build"), ("Own", "Three.", "none"), ("Own", "Four.", "no build")]
    found = Findings(Finding(part, law, not cause, cause) for part, law, cause in told)
    assert found.lines() == [("Own", "Two. And 1 more.", "no build"), ("Own", "Three.", "none")]
    assert found.summary == "3 of 4 laws are broken"
    assert Findings(found[1:2]).summary == "1 of 1 law is broken"
    assert Findings(found[:2]).summary == "1 of 2 laws is broken"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_figure", "own_figure: defines no part, recipe or study; a part is a dataclass that subclasses "
                       "e.g. lw.Task"),
        *((name, f"check {name}: {EXPECTED_NAMES}") for name in ("own_task.py", "../x.py", "looped-parity", "one,two")),
        ("no_such_module", f"check no_such_module: there is no module no_such_module, {NOT_FOUND}"),
    ],
)  # fmt: skip
def test_a_name_without_a_module_of_parts_is_refused_in_one_line(name, message, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    done = conftest.command("check", name, "--quiet")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.strip() == f"lengthwise: {message}"


def test_a_file_with_a_torch_module_alone_states_when_modules_are_checked(tmp_path):
    (tmp_path / "plain_net.py").write_text("from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n")
    done = run_check("plain_net", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("recipe or study; a torch module is checked before it is trained or measured")


def test_a_file_of_an_unknown_kind_is_refused(tmp_path):
    (tmp_path / "problems.txt").write_text("1+1 2")
    error = run_check("problems.txt", folder=tmp_path).stderr.strip()
    assert error == f"lengthwise: check problems.txt: {EXPECTED_NAMES}"


# Parts that fit no row of random symbols


class Squares(CorrectModule):
    """A module that accepts only rows whose number of symbols is a square, such as the rows of grids."""

    def forward(self, tokens, padding_mask):
        side = padding_mask.sum(1).sqrt()
        if (side != side.round()).any():
            raise lw.UsageError("no square")
        return super().forward(tokens, padding_mask)


class LeakingSquares(Squares):
    def forward(self, tokens, padding_mask):
        return super().forward(tokens, padding_mask) + tokens.sum(1)[:, None, None]


MODULES |= {cls.__name__: cls for cls in (Squares, LeakingSquares)}


class _GridSpec(_ModuleSpec):
    """A specification with ``checked_on``, by which it is checked on grids."""

    checked_on = lw.find("looped-maze").task, lw.Grid()


def test_a_part_is_checked_on_the_problems_it_names():
    """A model that refuses random rows breaks laws unless it names suitable problems in ``checked_on``."""
    assert len(lw.check(_ModuleSpec("Squares")).broken) > 3
    assert [
        one.failing_case for one in lw.check(_GridSpec("Squares")).broken if "starts with _" not in one.failing_case
    ] == []
    assert any("after a row's end" in one.law for one in lw.check(_GridSpec("LeakingSquares")).broken)
