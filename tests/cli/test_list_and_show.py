"""Tests of ``list`` and ``show``: names, summaries and fields, read from the source without importing torch."""

import dataclasses
import json
import re
import subprocess
import sys

import argcomplete
import pytest
from conftest import command_in_fork

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.fields import recorded_name
from lengthwise.cli import console, entry
from lengthwise.cli.options import find_recipe
from lengthwise.cli.parser import add_completers
from lengthwise.registry import sources

TERMINAL_WIDTHS = (60, 80, 200)


@pytest.fixture
def run_at_width(capsys, monkeypatch):
    """Return a function that runs a command at a terminal width and returns its output."""

    def run_at_width(width, *words):
        monkeypatch.setattr(console.out, "width", width)
        assert entry._run(entry.parse(list(words))) == 0
        return capsys.readouterr().out

    return run_at_width


# Parsed sources agree with imported code


def test_sources_and_imported_code_agree():
    parts = {  # without what other tests have imported
        kind: [name for name, one in found.items() if one.file.is_relative_to(sources.PACKAGE)]
        for kind, found in sources.read_parts().items()
    }
    ours = {
        kind: [recorded_name(cls) for cls in found.values() if cls.__module__.startswith("lengthwise")]
        for kind, found in catalog.list_parts().items()
    }
    assert parts == ours
    assert {name: about for one in sources.list_recipe_files() for name, about in one.recipes.items()} == {
        name: catalog.read_summary(function) for name, function in catalog._find_shipped_recipes().items()
    }, "run `make docs`"
    assert sources.list_studies() == {
        name: catalog.read_summary(function) for name, function in catalog.list_studies().items()
    }


def test_every_field_has_its_type_its_default_and_a_comment():
    classes = [cls for kinds in catalog.list_parts().values() for cls in kinds.values()]
    for cls in [lw.Recipe, *(cls for cls in classes if cls.__module__.startswith("lengthwise"))]:
        declared = {field.name: field for field in sources.find_class(recorded_name(cls)).fields}
        assert list(declared) == [field.name for field in dataclasses.fields(cls)]
        for field in dataclasses.fields(cls):
            found = declared[field.name]
            assert found.about, f"{cls.__name__}.{field.name} has no description: write a comment beside it"
            assert found.type == field.type.replace('"', "'")
            if field.default is dataclasses.MISSING:
                assert found.default is None
            else:
                assert found.default.partition("(")[0] == repr(field.default).partition("(")[0]


def test_list_and_show_import_no_large_package_and_a_list_fits_a_screen(tmp_path):
    """``list`` and ``show`` of a part or a field import neither torch, numpy nor matplotlib. The commands run in a new
    process, since other tests register parts."""
    (tmp_path / "a-run").mkdir()
    (tmp_path / "a-run" / "config.json").write_text(catalog.find_recipe("looped-parity").json())
    code = """
import sys
from lengthwise.cli import console, entry
for width in (60, 80, 200):
    console.out.width = width
    assert entry._run(entry.parse(["list"])) == 0
    print("END")
for words in (["list", "rope"], ["show", "Transformer"], ["show", "model.positions"]):
    assert entry._run(entry.parse(words)) == 0
assert not {"torch", "numpy", "matplotlib"} & set(sys.modules)
"""
    env = {"LENGTHWISE_RUNS": str(tmp_path), "PYTHONPATH": str(sources.PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True, env=env)
    *texts, _ = done.stdout.split("END\n")
    for text, width, height in zip(texts, TERMINAL_WIDTHS, (85, 60, 42), strict=True):
        assert max(map(len, text.splitlines())) <= width and len(text.splitlines()) <= height
        for name in ("looped-pairs*", "ntp-parity … (48)", "looped-unique-set*", "Transformer", "a-run: begun"):
            assert name in text  # not cut at any width


# What is printed


@pytest.mark.parametrize("words", ["addition", "rope", "parity"])
def test_matches_fit_a_screen(run_at_width, words):
    """Matches fit 80 × 24 characters: families of recipes are folded, and few matches are described fully."""
    text = run_at_width(80, "list", words)
    assert len(text.splitlines()) <= 24 and max(map(len, text.splitlines())) <= 80
    if words == "addition":
        assert "looped-addition  " in text and "control-addition-both … (4)" in text and "abacus-addition  " in text
        text = run_at_width(80, "list", "control-addition")
        assert all(f"control-addition-{one}" in text for one in ("both", "loops", "window"))
        assert "this model does not learn all 8-digit" in " ".join(run_at_width(80, "list", "standard-pairs").split())


def test_words_filter_the_list(run_at_width):
    text = run_at_width(60, "list", "rope")
    assert "abacus-positions-rope" in text.split() and "RoPE" in text
    assert "looped-pairs" not in text and "studies" not in text
    found = json.loads(run_at_width(60, "list", "rope", "addition", "--json"))
    assert list(found["recipes"]) == ["ablation-addition-rope"] and found["parts"] == {}


def test_show_explains_parts_and_fields(run_at_width):
    text = run_at_width(80, "show", "Transformer")
    assert "lengthwise/models/transformer.py:" in text
    for field in sources.find_class("Transformer").fields:
        assert field.name in text and f"= {field.default}" in text
    fields = json.loads(run_at_width(80, "show", "NextToken", "--json"))["fields"]
    assert [field["name"] for field in fields] == ["pauses", "framed"]  # inherited
    text = run_at_width(80, "show", "model.positions")
    assert "tuple[Position, ...] = (NoPE(),)" in text
    for name in sources.read_parts()["positions"]:
        assert f"  {name} " in text
    assert run_at_width(80, "show", "positions").count("RoPE ") == 1
    rows = run_at_width(200, "show", "looped-parity", "--all").splitlines()
    names = [row.split()[0] for row in rows if row.startswith("  ") and not row.startswith("   ")]
    assert {"task", "optimizer.weight_decay", "model.mixer", "watch.count", "keep"} <= set(names)


# Names that others use


def test_fields_are_found_by_synonyms_and_paths():
    for path, names in sources.SYNONYMS.items():
        assert path in sources.list_field_paths()
        for name in names.split():
            assert sources.find_field_path(name) == sources.find_field_path(name.replace("_", "-")) == path
    recipe = catalog.find_recipe("looped-parity", ["lengths=Curriculum(top=20, every=60)"])
    for path in ("batch", "model.width", "optimizer.rate", "lengths.every", "watch.every"):
        assert path in sources.list_field_paths() and recipe.change([f"{path}=8"]) != recipe


def test_a_run_with_an_unknown_part_gets_the_advice_to_import_it(tmp_path, capsys):
    text = catalog.find_recipe("looped-parity").json().replace('"Parity"', '"MyTask"')
    (tmp_path / "config.json").write_text(text)
    assert entry._run(entry.parse(["train", str(tmp_path)])) == 2
    assert capsys.readouterr().err.endswith("if it is your own, import its module first: --import MODULE\n")
    for act in (lambda: lw.Recipe.read(text), lambda: find_recipe(str(tmp_path / "config.json"), [])):
        with pytest.raises(lw.UsageError, match=r"if it is your own, import its module first$"):  # no option in Python
            act()


# Classes with the name of another class

SAME_NAME_AS_BASE = """from dataclasses import dataclass

from torch import nn

import lengthwise as lw


class GRU(nn.GRU):
    pass


@dataclass(frozen=True)
class Gated(lw.ModelSpec):
    \"\"\"Gates.\"\"\"

    def build(self, reads, writes, *, causal):
        return GRU(len(reads), len(writes))
"""
SAME_NAME_AS_SHIPPED = """from dataclasses import dataclass

import lengthwise as lw


@dataclass(frozen=True)
class Parity(lw.Parity):
    \"\"\"Mine.\"\"\"
"""
LIST_COMMANDS = ["list", "list parts", "list recipes", "show model"]


def run_with_modules(folder, words, **modules):
    """Write modules to ``folder`` and run a command that imports them in a fork, hidden from other tests."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    named = [word for name in modules for word in ("--import", name)]
    return command_in_fork(*words.split(), *named, folder=folder)


@pytest.mark.parametrize("words", [*LIST_COMMANDS, "sample parity 3"])
def test_a_class_may_have_the_name_of_its_base_but_not_of_a_shipped_part(words, tmp_path):
    done = run_with_modules(tmp_path, words, gates=SAME_NAME_AS_BASE, doors=SAME_NAME_AS_BASE.replace("Gated", "Doors"))
    assert done.returncode == 0 and not done.stderr
    assert words.split()[-1] in ("recipes", "3") or {"Gated", "Doors"} <= {*re.findall(r"\w+", done.stdout)}
    done = run_with_modules(tmp_path, words, mine=SAME_NAME_AS_SHIPPED)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lengthwise: mine.Parity: the package has a part of this name; rename your class\n"


def test_two_modules_that_define_a_part_with_the_same_name_are_refused(tmp_path):
    done = run_with_modules(tmp_path, "sample parity 3", gates=SAME_NAME_AS_BASE, doors=SAME_NAME_AS_BASE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lengthwise: Gated: gates and doors each define it: rename one\n"
    again = run_with_modules(tmp_path, "sample parity 3", gates=SAME_NAME_AS_BASE, doors="from gates import Gated")
    assert again.returncode == 0 and not again.stderr


@pytest.mark.parametrize("name", ["copy", "random", "numpy", "sys", "lengthwise"])
def test_a_file_or_folder_that_another_module_hides_is_refused(name, tmp_path):
    done = run_with_modules(tmp_path, "list", **{name: SAME_NAME_AS_BASE})
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"lengthwise: --import {name}: Python has another module of this name (")
    assert done.stderr.endswith(f"), which hides your {name}.py: rename yours\n")
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    assert f"which hides your {name}/__init__.py: rename yours" in run_with_modules(tmp_path, f"check {name}").stderr


# Completion


COMPLETIONS = [
    ("sh", "show"),
    ("train looped-pai", "looped-pairs"),
    ("train looped-parity model.wid", "model.width="),
    ("solve retran", "retran-small"),
    ("sample multi", "multiplication"),
    ("evaluate looped-pairs --stopping Max", "MaxConfidence"),
    ("evaluate looped-pairs --fam", "--families"),
    ("reproduce abl", "ablations"),
]


@pytest.mark.parametrize(("text", "expected"), COMPLETIONS)
def test_shell_completion_finds_names_and_options(text, expected):
    *before, last = ["lengthwise", *text.split()]
    finder = argcomplete.CompletionFinder(add_completers(entry.build_parser()), always_complete_options=True)
    assert expected in [found.strip() for found in finder._get_completions(before, last, "", None)]
