"""Changes of a user's own code between calls are detected, and names and errors of user-defined parts are handled."""

import contextlib
import importlib
import io
import json
import pickle
import re
import runpy
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from conftest import call_in_fork, command_in_fork
from torch import nn

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base import fields
from lengthwise.cli.entry import load_verb as verb
from lengthwise.cli.entry import parse
from lengthwise.experiment.own_code import hash_user_code
from lengthwise.runs.run import Run, get_runs_folder, load
from lengthwise.training.loop import train
from lengthwise.training.stacked import train_stacked

MODULE_SOURCE = '''
"""A module."""
from dataclasses import dataclass

from torch import nn

import lengthwise as lw

SCALE = 1.0


def unused():
    return 0


def scaled(x):
    """Scale it."""
    return SCALE * x


@dataclass(frozen=True)
class Scaled(lw.ModelSpec):
    """A model."""

    def build(self, reads, writes, *, causal):
        return Net(len(reads), len(writes))


class Net(nn.Module):
    def __init__(self, reads, writes):
        super().__init__()
        self.table = nn.Embedding(reads, writes)

    def forward(self, tokens):
        return scaled(self.table(tokens))
'''
SMALL_RUN = ["steps=4", "batch=4", "watch.every=0", "loops=Constant", "objective=Final", "stopping=Oracle"]
SMALL_RUN += ["layout=NextToken", "families=0", "name=own"]
SCRIPT_SOURCE = (
    MODULE_SOURCE
    + f"""
if __name__ == "__main__":
    print(lw.train(lw.find("looped-copy", *{SMALL_RUN!r}).change(model=Scaled()), quiet=True).folder)
"""
)
SAFE_EDITS = [("# a comment\n", ""), ("Scale it.", "Another."), ("return 0", "return 1"), ("SCALE * x", "SCALE  *  x")]
EDITS = [("SCALE = 1.0", "SCALE = 2.0"), ("SCALE * x", "SCALE + x"), ("(reads, writes)", "(reads, writes, 0)")]


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Return a function that writes a user's module and imports it again."""
    monkeypatch.syspath_prepend(tmp_path)

    def write_module(text):
        (tmp_path / "my_scaled.py").write_text(text)
        sys.modules.pop("my_scaled", None)
        importlib.invalidate_caches()
        return importlib.import_module("my_scaled").Scaled()

    yield write_module
    sys.modules.pop("my_scaled", None)


def build_recipe(model):
    return catalog.find_recipe("looped-copy", SMALL_RUN).change(model=model)


def test_the_package_s_own_parts_have_no_user_code():
    assert not any(hash_user_code(one, one.build()) for one in (lw.find("looped-pairs"), lw.find("retran-small")))


@pytest.mark.parametrize(("old", "new"), SAFE_EDITS, ids=repr)
def test_comments_and_unused_functions_do_not_change_the_hash(write_module, old, new):
    one = build_recipe(write_module("# a comment\n" + MODULE_SOURCE))
    before = hash_user_code(one, one.build())
    assert set(before) == {"my_scaled.Scaled", "my_scaled.Net"}
    one = build_recipe(write_module(("# a comment\n" + MODULE_SOURCE).replace(old, new)))
    assert hash_user_code(one, one.build()) == before


@pytest.mark.parametrize(("old", "new", "stacked"), [*((*change, False) for change in EDITS), (*EDITS[0], True)])
def test_a_run_does_not_continue_with_changed_code(write_module, old, new, stacked, capsys):
    one = build_recipe(write_module(MODULE_SOURCE))
    run = train_stacked([one.with_seed(0), one.with_seed(1)])[0] if stacked else train(one)
    before = hash_user_code(one, run.model)
    assert json.loads((run.folder / "code.json").read_text()) == before
    train(one)  # the run is already finished
    changed = build_recipe(write_module(MODULE_SOURCE.replace(old, new)))
    with pytest.raises(lw.UsageError, match=r"my_scaled\.Net.* changed since this run was trained; set name=…"):
        train(changed)
    assert train(changed.change(name="another")).done
    words = parse(["evaluate", str(run.folder), "--lengths", "2", "--samples", "2", "--uniform-only"])
    verb(words)()
    printed = " ".join(capsys.readouterr().err.split())
    assert "my_scaled.Net" in printed and "not kept; undo the change, or train again" in printed
    assert not run.rows("scores")
    assert Run.open(run.folder).list_changed_classes(changed.build())


def test_weights_of_changed_code_that_do_not_fit_are_explained(write_module):
    run = train(build_recipe(write_module(MODULE_SOURCE)))
    write_module(MODULE_SOURCE.replace("self.table", "self.lookup"))
    with pytest.raises(lw.UsageError) as error:
        load(run.folder)
    assert str(error.value) == (
        f"{run.folder}/model.safetensors: these weights do not fit the recipe beside them: "
        "missing: module.lookup.weight, unexpected: module.table.weight; "
        "my_scaled.Net, my_scaled.Scaled changed since they were trained: undo the change, or train again"
    )


def test_a_file_that_is_no_longer_valid_python_is_reported(write_module, tmp_path):
    one = build_recipe(write_module(MODULE_SOURCE))
    (tmp_path / "my_scaled.py").write_text(MODULE_SOURCE + "\ndef broken(:\n")
    with pytest.raises(lw.UsageError, match=r"my_scaled\.py: invalid syntax .*; the code of your classes is read"):
        train(one)


def run_as_script():
    """Return the output of the module run as a script."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path("my_scaled.py", run_name="__main__")
    return out.getvalue()


def test_the_same_file_as_a_script_and_imported_is_the_same_code(write_module, tmp_path):
    """The script may be run before or after the import; a changed file of the same name is different code."""
    one = build_recipe(write_module(SCRIPT_SOURCE))
    output = call_in_fork(run_as_script, tmp_path)
    run = train(one)
    assert str(run.folder) == output.strip()
    kept = json.loads((run.folder / "code.json").read_text())
    assert set(kept) == {"my_scaled.Scaled", "my_scaled.Net"} and not run.list_changed_classes()
    # As an earlier version stored it when the file ran as a script.
    (run.folder / "code.json").write_text(json.dumps(kept).replace("my_scaled", "__main__"))
    assert not run.list_changed_classes()
    changed = build_recipe(write_module(SCRIPT_SOURCE.replace(*EDITS[0])))
    (run.folder / "code.json").write_text(json.dumps(kept))
    assert run.list_changed_classes(changed.build()) == ["my_scaled.Net", "my_scaled.Scaled"]
    (run.folder / "code.json").write_text('{"my_scaled.Net": [1]}')
    with pytest.raises(lw.UsageError, match=r"code\.json\.my_scaled\.Net: "):
        run.list_changed_classes()
    (run.folder / "code.json").write_text(json.dumps(kept))
    write_module(SCRIPT_SOURCE)
    assert call_in_fork(run_as_script, tmp_path) == output


def test_with_changed_code_depth_rows_are_neither_stored_nor_shown(write_module, tmp_path, capsys, blank_figures):
    one = build_recipe(write_module(MODULE_SOURCE)).change(layout=lw.FullOutput(), task=lw.find("looped-parity").task)
    run = train(one)
    words = parse(["report", str(run.folder), "--stopping", "--lengths", "2", "--samples", "2", "--out", str(tmp_path)])
    verb(words)()
    (row,) = run.rows("depth")
    (run.folder / "depth.jsonl").write_text(json.dumps(row | {"exact": [0.125] * len(row["exact"])}) + "\n")
    verb(words)()
    assert "0.125" in capsys.readouterr().out
    write_module(MODULE_SOURCE.replace(*EDITS[0]))
    verb(words)()
    printed = capsys.readouterr()
    assert "my_scaled.Net" in printed.err and "0.125" not in printed.out and len(run.rows("depth")) == 1


def test_an_untrained_run_records_the_current_code(write_module):
    """A run that was killed before its first checkpoint is untrained, so its code may change."""
    one = build_recipe(write_module(MODULE_SOURCE))
    run = Run.of(one)
    run.record_code(one.build())
    changed = build_recipe(write_module(MODULE_SOURCE.replace(*EDITS[0])))
    run.record_code(changed.build())
    assert json.loads((run.folder / "code.json").read_text()) == hash_user_code(changed, changed.build())
    assert train(changed).done


def test_a_class_without_a_file_is_hashed_by_its_functions():
    def build_cell(factor):
        code = f"class Cell(Module):\n    def forward(self, tokens):\n        return {factor} * tokens\n"
        space = {"Module": nn.Module, "__name__": "__notebook__"}
        exec(code, space)
        return space["Cell"]()

    one = lw.find("looped-copy")
    assert (
        hash_user_code(one, build_cell(2)) == hash_user_code(one, build_cell(2)) != hash_user_code(one, build_cell(3))
    )


def test_a_user_s_part_may_not_have_the_name_of_a_package_part():
    @dataclass(frozen=True)
    class RoPE(lw.Position):
        def build(self, width, heads):
            return lw.Encoding()

    try:
        with pytest.raises(lw.UsageError, match=r"test_own_code\.RoPE: the package has a part of this name"):
            lw.find("looped-parity", "model.positions=RoPE")
    finally:
        RoPE.__name__ = "_Gone"  # the class stays a subclass while anything refers to it
    assert fields.find_part_classes(lw.Position)["RoPE"] is lw.RoPE
    assert torch.is_tensor(lw.find("looped-parity", "model.positions=RoPE").build().readout.weight)


CLASS_TEMPLATE = "@dataclass(frozen=True)\nclass Own({base}):\n    def {method}:\n        {line}\n\n\n"
MISTAKES = [
    ("", "return lw.find('looped-parity', steps=3)",
     "recipe my-parity: TypeError in my_slip.py, line 7: find: got an unexpected keyword argument 'steps'"),
    ("", "lw.find('looped-parity')", "its function must return a recipe, not None"),
    (("lw.Stopping", "nothing(self)", "pass"), "stopping=Own", "stopping: Own lacks the method limit"),
    (("lw.MixerSpec", "build(self, width, heads, *, dropout, biases)", "pass"), "model.mixer=Own",
     "Own.build must return a torch module, not None"),
    (("lw.MixerSpec", "build(self, width, heads, rank)", "pass"), "model.mixer=Own",
     "Own.build: missing a required argument: 'rank'; beside width and heads, it may take causal, layer, dropout, bia"),
    (("lw.Objective", "__call__(self, runner, batch, loops, generator)", "1 / 0"), "objective=Own",
     "ZeroDivisionError in my_slip.py, line 9: division by zero; it uses your own classes: Own"),
    (("lw.Parity", "from_rows(self, sizes, rows)", "1 / 0"), "task=Own",
     "ZeroDivisionError in my_slip.py, line 9: division by zero; it uses your own classes: Own"),
    # It refuses sizes that are only measured.
    (("lw.Parity", "answer_slots(self, sizes)", "assert sizes.max() <= 5, str(5); return super().answer_slots(sizes)"),
     "task=Own lengths.top=4 watch.every=0", "AssertionError in my_slip.py, line 9: 5; it uses your own classes: Own"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "body", "message"), MISTAKES, ids=[message for *_, message in MISTAKES])
def test_an_error_in_user_code_is_reported_in_one_line(part, body, message, tmp_path):
    if part:
        part = CLASS_TEMPLATE.format(**dict(zip(("base", "method", "line"), part, strict=True)))
        body = f"return lw.find('looped-parity', *{body.split()})"
    text = f"from dataclasses import dataclass\n\nimport lengthwise as lw\n\n\n{part}"
    text += f"def my_parity() -> lw.Recipe:\n    {body}\n"
    for name, reason in (("my_parity", message), ("looped_parity", "called looped-parity: rename yours")):
        (tmp_path / "my_slip.py").write_text(text.replace("my_parity", name))
        words = ["train", name.replace("_", "-"), "steps=2", "--import", "my_slip"]
        done = command_in_fork(*words, folder=tmp_path)
        *_, last = done.stderr.splitlines()  # an estimate of the time may come first
        assert done.returncode == 2 and reason in last and "Traceback" not in done.stderr
        assert not get_runs_folder().exists()


def test_a_changed_recipe_keeps_the_lengths_it_was_chosen_on_only_if_weights_stay_equal():
    shipped, stated = lw.find("looped-parity"), lw.ChosenOn((7,))
    looked = shipped.chosen_on
    assert looked.sizes and shipped.with_seed(5).chosen_on == pickle.loads(pickle.dumps(shipped)).chosen_on == looked
    for changes in (["name=x", "seed=3"], ["watch.every=0"], ["stopping=Settled"]):
        assert shipped.change(changes).chosen_on == lw.find("looped-parity", *changes).chosen_on == looked
    for change in ("steps=10", "model.width=32", "task=Copy", "lengths.top=8", "loops=Constant", "optimizer.rate=1e-3"):
        assert not shipped.change([change]).chosen_on.sizes and not lw.find("looped-parity", change).chosen_on.sizes
    derived = replace(shipped, name="mine", lengths=lw.Curriculum(top=8, every=60))
    assert not derived.chosen_on.sizes and not pickle.loads(pickle.dumps(derived)).chosen_on.sizes
    assert not replace(shipped, steps=10).with_seed(2).chosen_on.sizes
    # It may state what it was chosen on.
    derived = [replace(shipped, steps=steps, chosen_on=stated) for steps in (10, 20)]
    derived.append(shipped.change(["model.width=32", "chosen_on.sizes=(7,)"]))
    assert [recipe.chosen_on.sizes for recipe in derived] == [(7,)] * 3
    assert lw.Recipe.read(derived[0].json()) == derived[0]


def test_batch_normalization_is_refused():
    class WithBatchNorm(nn.Module):
        def __init__(self, reads, writes):
            super().__init__()
            self.table, self.norm = nn.Embedding(reads, writes), nn.BatchNorm1d(writes)

        def forward(self, tokens):
            return self.norm(self.table(tokens).mT).mT

    task = catalog.find_task("parity")
    reads, writes = lw.NextToken().vocabs(task)
    with pytest.raises(lw.UsageError, match="reads other rows in training: BatchNorm1d normalizes over the batch"):
        lw.train(WithBatchNorm(len(reads), len(writes)), task=task, steps=2, quiet=True)


ERRORS = {"SystemExit": SystemExit(0), "ValueError": ValueError()}


class FailingModule(nn.Embedding):
    """A module that fails in training, after ``calls_before_failure`` calls."""

    calls_before_failure, error = 0, "SystemExit"

    def forward(self, tokens):
        self.calls_before_failure -= self.training
        if self.calls_before_failure < 0:
            raise ERRORS[self.error]
        return super().forward(tokens)


@dataclass(frozen=True)
class FailingSpec(lw.ModelSpec):
    """The spec of a ``FailsInTraining`` module."""

    calls_before_failure: int = 0
    error: str = "SystemExit"

    def build(self, reads, writes, *, causal):
        found = FailingModule(len(reads), len(writes))
        found.calls_before_failure, found.error = self.calls_before_failure, self.error
        return found


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("calls_before_failure", [0, 3])
def test_a_model_that_fails_in_any_way_is_reported_in_one_line(error, calls_before_failure, tmp_path):
    """Any error in training is reported; a ``SystemExit`` would end the process with status 0."""
    recipe = lw.find("looped-parity", "watch.every=0", "keep=last", "steps=6", "batch=2")
    recipe = recipe.change(model=FailingSpec(calls_before_failure, error), layout=lw.NextToken(), loops=lw.Constant(1))
    with pytest.raises(lw.UsageError, match=rf"^looped-parity: {error} in test_own_code.py, line \d+: .*FailingSpec$"):
        lw.train(recipe, folder=tmp_path / "run", quiet=True)
    with pytest.raises(lw.UsageError, match=r"SystemExit in test_own_code\.py"):
        lw.train(FailingModule(4, 4), task="parity", steps=2, batch=2, quiet=True)


PRINTING_MODULE = """# -*- coding: latin-1 -*-
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
import lengthwise as lw

if TYPE_CHECKING:
    from pathlib import Path

print('at import')

@dataclass(frozen=True)
class Chatty(lw.Parity):
    'Größere Parität.'

    gain: float = 1.0  # Verstärkung

    def sample(self, sizes, generator):
        print('at work')
        return super().sample(sizes, generator)

def my_parity(path: Path = None) -> lw.Recipe:
    return lw.find('looped-parity', 'name=my-parity')
"""


def test_a_module_may_print_have_any_encoding_and_import_types_for_annotations_only(tmp_path):
    (tmp_path / "chatty.py").write_bytes(PRINTING_MODULE.encode("latin-1"))
    sampled, shown, listed = (
        command_in_fork(*words.split(), "--import", "chatty", folder=tmp_path)
        for words in ("sample chatty 3 --count 2 --json", "show my-parity --json", "show Chatty")
    )
    assert (sampled.returncode, shown.returncode, listed.returncode) == (0, 0, 0), sampled.stderr + shown.stderr
    assert len(json.loads(sampled.stdout)) == 2 and json.loads(shown.stdout)["recipe"]["name"] == "my-parity"
    assert "at import" in sampled.stderr and "at work" in sampled.stderr  # prints leave standard output to the result
    assert "Größere Parität." in listed.stdout and "Verstärkung" in listed.stdout


@dataclass(frozen=True)
class FaultyRule(lw.Stopping):
    """A rule that raises in ``limit``, or reads what it has not requested: the movement, or the previous loop."""

    faulty_input: str = "nothing"

    def limit(self, planned):
        return planned + ({}["extra"] if self.faulty_input == "nothing" else 2)

    def done(self, trace, planned):
        if self.faulty_input == "movement":
            return trace.movement[-1, :, 0] < 0.1
        return (trace.predictions[-1] == trace.predictions[-2]).all(-1)


@pytest.mark.parametrize("faulty_input", ["nothing", "movement", "earlier"])
def test_an_error_in_a_user_s_rule_is_reported_in_one_line_and_breaks_a_law(faulty_input):
    rule = FaultyRule(faulty_input)
    message = rf"^{re.escape(rule.name)}: \w+Error in test_own_code.py, line \d+: .*"
    with pytest.raises(lw.UsageError, match=message):
        lw.evaluate("looped-parity", 4, samples=4, stopping=rule, quiet=True)
    assert any("Error in test_own_code.py" in one.failing_case for one in lw.check(rule).broken)
