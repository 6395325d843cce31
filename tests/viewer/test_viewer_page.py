"""A page is one file, whose scripts compute the same answers as PyTorch."""

import base64
import dataclasses
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import LONG, command
from viewer_reference import compute_reference, draw_prompts, list_symbols_of_run, to_symbols

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.fields import encode
from lengthwise.base.types import Trace, UsageError
from lengthwise.evaluation.families import compute_weights_digest
from lengthwise.experiment.stopping import After, Converged, Halted, MaxConfidence, Oracle, Settled
from lengthwise.rasp.program import execute, export_program
from lengthwise.rasp.programs import PUBLISHED_TASKS, find_program
from lengthwise.runs.folder import list_shipped_weights
from lengthwise.runs.run import Weights, load
from lengthwise.tasks.arithmetic import Addition, Multiplication
from lengthwise.tasks.sorting import Sorting
from lengthwise.tasks.strings import UniqueSet
from lengthwise.viewer import document, viewer
from lengthwise.viewer.viewer import (
    EXAMPLES_BY_TASK,
    MAX_PARAMETERS,
    NETWORK_SCRIPTS,
    _describe_task,
    export_model,
    find_export_obstacle,
)

# Recurrent models are only exported; no page computes a scan, a convolution or a grid.
EXPORTABLE_WEIGHTS = [name for name in list_shipped_weights() if not re.search("small|maze|prefix-sum|sudoku", name)]
NODE_PATH = shutil.which("node")
needs_node = pytest.mark.skipif(NODE_PATH is None, reason="there is no node to run a page's scripts")
MIXED_POSITIONS = "(Abacus(size=30, offset=1), CoupledHeads(count=1, reach=1, ahead=1), NoPE())"

# Forms that no shipped weights have, with random weights: the computation is the same.
CHANGES_BY_FORM = {
    "learned": "standard-pairs model.width=16 model.layers=2 model.positions=Learned(size=40)",
    "earlier": "looped-unique-set model.width=16 task.alphabet=5 model.positions=EarlierHeads(count=1)",
    "once": "looped-parity model.width=8 model.heads=2 model.injection=once",
    "ahead": "looped-bitwise-or model.width=8",
    "signs": "looped-copy model.width=8",
    "timed": "looped-flipped-copy model.answers.width=8 model.clock.width=16",
    "merged": "looped-multiplication model.answers.width=8 model.clock.width=16 model.merge_symbols=true",
    "framed": "abacus-addition model.width=16 model.heads=2 layout.framed=true layout.pauses=2",
    "mirrored": "looped-multiplication model.answers.width=8 task.base=3 task.leading_zeros=false",
    "sorting": "local-sorting model.width=16 task.order=most",
    "most": "looped-pairs model.width=8 task.base=4 task.order=most task.leading_zeros=false",
}
FURTHER_CHANGES = {"framed": [f"model.positions={MIXED_POSITIONS}"]}


def build_random_weights(form):
    name, *changes = CHANGES_BY_FORM[form].split()
    recipe = catalog.find_recipe(name, changes + FURTHER_CHANGES.get(form, []))
    torch.manual_seed(0)
    model = recipe.build().eval()
    for part in model.parameters():  # so that biases and encodings that start at zero matter
        torch.nn.init.normal_(part, std=0.3)
    return Weights(form, recipe, model)


def run_in_node(scripts, request):
    """Run a page's scripts in Node and return their answers, which they print one per line."""
    tail = (Path(__file__).parents[1] / "thinking.js").read_text()
    code = document.join_scripts(*scripts).replace("})();", f"{tail}}})();")
    ran = subprocess.run(
        [NODE_PATH, "-e", code], input=json.dumps(request), capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@needs_node
def test_a_page_computes_the_same_as_pytorch(no_type_checks):
    """Answers, log probabilities, stopping rules and program states equal those of PyTorch for models of every form."""
    count = 30 if LONG else 1
    names = EXPORTABLE_WEIGHTS if LONG else ["looped-pairs", "abacus-addition", "looped-addition", "settled-parity"]
    models = [load(name) for name in names] + [build_random_weights(form) for form in CHANGES_BY_FORM]
    prompts = [draw_prompts(model.recipe, count, 9) for model in models]
    wanted = [[compute_reference(model, one) for one in typed] for model, typed in zip(models, prompts, strict=True)]
    cases = [{"model": export_model(model), "problems": rows} for model, rows in zip(models, wanted, strict=True)]
    found = run_in_node(NETWORK_SCRIPTS, {"cases": cases})
    for row, want in zip(found, itertools.chain(*wanted), strict=True):
        for name in ("prompt", "text", "right", "loops", "states"):
            assert row[name] == want[name], (name, want["prompt"])
        np.testing.assert_allclose(row["logs"], want["logs"], atol=1e-3)
        np.testing.assert_allclose(row["sums"], 1, atol=1e-9)  # of the weights of attention
        assert not want["stops"] or row["stops"].keys() == want["stops"].keys()
        assert all(row["stops"][rule] in loops for rule, loops in want["stops"].items())


@needs_node
def test_programs_give_the_same_states_in_a_page_as_in_python(no_type_checks):
    wanted, asked = [], []
    small = [UniqueSet(alphabet=5) if isinstance(task, UniqueSet) else task for task in PUBLISHED_TASKS]
    for task in (*small, Addition(10, "least", True, True)):
        for prompt in draw_prompts(find_recipe(task), 2, 6):
            execution = execute(find_program(task), task.parse(prompt))
            row, rounds = to_symbols(execution.row), len(execution.states) - 1
            wanted.append(list_symbols_of_run(execution))
            asked.append({"program": export_program(find_program(task)), "row": row, "rounds": rounds})
    assert run_in_node(["tensors", "tasks", "layouts", "rasp"], {"programs": asked}) == wanted


def find_recipe(task):
    """Return a recipe for this task, with the training lengths of a recipe in the catalog."""
    name = "looped-multiplication" if "*" in task.signs else "looped-parity"
    return dataclasses.replace(catalog.find_recipe(name), task=task)


@needs_node
def test_stopping_rules_choose_the_same_loops_in_a_page_as_in_pytorch():
    """Random answers have few symbols and few levels of confidence, so that ties are frequent."""
    rules = Oracle(), Oracle(offset=-2), After(3), MaxConfidence(extra=2), Halted(3), Halted(4, delay=2)
    rules += Converged(1), Converged(3, extra=4), Settled(0.2, max_loops=7), Settled(0.1, period=2, max_loops=20)
    made, wanted, traces = torch.Generator().manual_seed(0), [], []
    for planned in (1, 2, 5, 9) * 8:
        loops = planned + 4
        predictions = (torch.rand(loops, 2, generator=made) < 0.1).long()
        ends = 2 - (torch.rand(loops, generator=made) < 0.2).long()
        sure = torch.randint(-4, 0, (loops,), generator=made) / 4
        moved = torch.rand(loops, 2, generator=made)
        rows = zip(predictions.tolist(), ends.tolist(), sure.tolist(), moved.tolist(), strict=True)
        names = "said", "ends", "confidence", "moved"
        traces.append({"planned": planned, "loops": [dict(zip(names, row, strict=True)) for row in rows]})
        wanted.append([_choose_loop(rule, predictions, ends, sure, moved, torch.tensor([planned])) for rule in rules])
    found = run_in_node(NETWORK_SCRIPTS, {"traces": traces, "rules": [encode(rule) for rule in rules]})
    assert found == wanted


def _choose_loop(rule, predictions, ends, confidence, movement, planned):
    """Return the loop that a rule chooses within its limit."""
    limit = rule.limit(planned).clamp(max=len(predictions))
    top = int(limit)
    trace = Trace(*(part[:top, None] for part in (predictions, ends, confidence)), limit, movement[:top, None])
    return int(rule.choose(trace, planned).clamp(max=top))


@needs_node
def test_a_page_accepts_and_refuses_the_same_text_as_python():
    sums = Addition(10, "least", True, True), Addition(3, "most")
    tasks = *(kind() for kind in EXAMPLES_BY_TASK), *sums, Multiplication(10, "least", "least", False), Sorting("most")
    texts = ["", " 1 0 1 ", "2", "0", "1+", "1+1", "00+1", "1*1", "11*01", "1|", "01|1", "0|00", "1+1+1", "ab", "é"]
    texts += ["A:321,B:54", "Y:12, Z:7,a:12,b:0", "z:007,A:70", "a:1,B:2"]
    texts += ["1" * 60, "A:1,A:2", "A:1,B:", "A1,B2", "A:1,", "AB:1"]
    told = run_in_node(["tensors", "tasks"], {"tasks": [_describe_task(task) for task in tasks], "texts": texts})
    for (task, text), parsed in zip(itertools.product(tasks, texts), told, strict=True):
        try:
            problems = task.parse(text)
        except UsageError:
            assert parsed["refused"] and "\n" not in parsed["refused"], (task, text)
            continue
        prompt, answer = problems.prompt[0], problems.answer[0, : int(problems.answer_length)]
        wanted = {"prompt": task.vocab.decode(prompt), "answer": task.vocab.decode(answer), "text": task.format(answer)}
        wanted |= {"rounds": int(problems.rounds), "slots": int(task.answer_slots(problems.sizes))}
        assert parsed == wanted, (task, text)


@needs_node
def test_every_script_is_valid_javascript():
    texts = [json.dumps(path.read_text()) for path in (document.VIEWER_FOLDER / "js").glob("*.js")]
    subprocess.run([NODE_PATH, "-e", "; ".join(f"new Function({text})" for text in texts)], check=True, timeout=60)


# Supported models


@pytest.mark.parametrize("name", EXPORTABLE_WEIGHTS)
def test_every_shipped_model_that_a_page_can_compute_is_exported(name):
    assert not find_export_obstacle(catalog.find_recipe(name), 1)
    if LONG or name in EXPORTABLE_WEIGHTS[:2]:
        weights = load(name)
        held = export_model(weights)
        numbers = np.frombuffer(base64.b64decode(held["weights"]), "<f4")
        for part, start, size in held["tensors"]:
            np.testing.assert_array_equal(numbers[start : start + size], weights.model.state_dict()[part].ravel())
        assert len(numbers) == held["parameters"]


UNSUPPORTED_MODELS = {
    "retran-small": (),
    "looped-copy": ("task=Expression", "lengths=Uniform(top=20,bottom=3)", "families=0", "family_names=()"),
    "looped-parity": ("model.positions=RoPE",),
    "abacus-addition": ("model.positions=Abacus(added_to=attention)",),
    "looped-pairs": ("model.norm=post",),
    "looped-addition": ("model.gated=true",),
    "looped-binary-sum": ("model.final_norm=readout",),
    "looped-unique-set": ("model.injection=gate",),
}


@pytest.mark.parametrize(("name", "changes"), UNSUPPORTED_MODELS.items())
def test_unsupported_models_are_refused_in_one_line(name, changes):
    obstacle = find_export_obstacle(catalog.find_recipe(name, changes), 1)
    assert obstacle.startswith("it ") and "\n" not in obstacle


def test_models_with_too_many_parameters_are_refused():
    obstacle = find_export_obstacle(catalog.find_recipe("looped-pairs"), MAX_PARAMETERS + 1)
    assert obstacle == "1,000,001 parameters are more than 1,000,000"


def test_every_field_of_a_transformer_is_handled():
    """A new field must be computed by a page, refused, or listed as irrelevant in evaluation."""
    in_evaluation = {"width", "layers", "heads", "mlp", "activation", "eps", "positions"}
    in_evaluation |= {*viewer.REQUIRED_VALUES, *viewer.ALLOWED_VALUES}
    in_training = {"noise", "dropout", "init_std", "init", "embedding_std"}
    assert {field.name for field in dataclasses.fields(lw.Transformer)} == in_evaluation | in_training


# The page's file


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return a page as the command writes it."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    done = command("show", "looped-pairs", "--html", path, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["bytes"] == path.stat().st_size < 1e6
    return path.read_text()


def test_a_page_makes_no_network_request(page):
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?(?!["']|data:|#)|@import|url\(|https?:|//\w+\.\w+/""", page)
    assert "default-src 'none'" in page
    assert page.count("<script") == page.count("</script>") == 2


def test_text_in_a_page_cannot_run_as_code():
    name = '</script><script>alert(1)</script>&"'
    body = f"<p>{document.escape(name)}</p>"
    page = document.build_document(name, body, "let end = '</script>';", {"held": {"name": name}})
    assert page.count("<script") == page.count("</script>") == 2 and "alert(1)</script>&" not in page
    held = re.search(r'id="held">(.*?)</script>', page)[1]
    assert json.loads(held) == {"name": name}


def test_examples_state_correctly_whether_the_model_solves_them(page):
    (model,) = json.loads(re.search(r'id="models">(.*?)</script>', page)[1])["models"]
    assert len(model["examples"]) >= 5 and "found no wrong answer" in model["searched"]
    for one in model["examples"][: None if LONG else 2]:
        assert lw.load("looped-pairs").solve(one["prompt"]).correct == one["right"]


def test_stored_failures_belong_to_the_shipped_weights():
    for name, known in json.loads(viewer.FAILURES_FILE.read_text()).items():
        assert known["weights"] == compute_weights_digest(load(name).model.state_dict()), "search again"
        for prompt in known["prompts"] if LONG else []:
            assert not lw.load(name).solve(prompt).correct, (name, prompt)


def test_the_command_reports_errors_in_one_line(tmp_path):
    for words, message in {
        ("gpt-small",): "it supports no Expression",
        ("looped-pairs", "model.width=3"): "remove model.width=3",
        ("looped-pairs", "looped-pairs"): "looped-pairs is given more than once",
        ("looped-pairs", "--all"): "--all and --measure apply only to recipes",
    }.items():
        done = command("show", *words, "--html", tmp_path / "other.html")
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    done = command("show", "looped-pairs", "--html", tmp_path)
    assert done.returncode == 2 and "that is a folder" in done.stderr
    assert not list(tmp_path.iterdir())


ATTACK_OBSTACLES = {"stopping=MaxConfidence(per=batch)": "batch"}
ATTACK_OBSTACLES |= {"model.positions=(Learned(size=26),Mark())": "does not fit"}


@pytest.mark.parametrize(("change", "reason"), ATTACK_OBSTACLES.items())
def test_a_page_is_built_even_if_the_search_for_failures_is_impossible(change, reason):
    recipe = catalog.find_recipe("looped-parity", [change])
    found = viewer.build_model_data(Weights("mine", recipe, recipe.build()))
    assert found["searched"].startswith("No attack: ") and reason in found["searched"] and found["examples"]
