"""Malformed text, damaged files, extreme values and closed pipes give a result or a one-line error, and leave no
partial file."""

import dataclasses
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, get_args, get_origin

import pytest
import torch
from conftest import LONG
from specs import list_parts
from torture import damage, fuzz

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.ask.inquiry import Inquiry
from lengthwise.base.fields import format_part, get_field_types, validate_arguments
from lengthwise.base.progress import Terminal
from lengthwise.base.ranges import Count, Range, describe_type
from lengthwise.cli.entry import main
from lengthwise.experiment.recipe import ChosenOn
from lengthwise.models.external import ExternalModule
from lengthwise.runs.folder import RunFolder
from lengthwise.runs.run import Run, choose_device
from lengthwise.training.loop import try_training

pytestmark = pytest.mark.usefixtures("no_type_checks")

CPU = torch.device("cpu")
TINY_RECIPE = lw.find("looped-parity", *fuzz.SHORT_CHANGES, *fuzz.SMALL_CHANGES)


@pytest.fixture
def run_cli(capsys, monkeypatch):
    """Return a function that runs a command in this process and returns its exit status and output."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run_cli(*words):
        with pytest.raises(SystemExit) as left:
            main([*map(str, words)])
        return left.value.code, *capsys.readouterr()

    return run_cli


def check_error(result, *parts):
    """Check for exit status 2, no output, and one printable line of error that contains ``parts``."""
    status, out, err = result
    assert (status, out) == (2, "")
    assert err.startswith("lengthwise") and err.endswith("\n") and err[:-1].isprintable()
    for part in parts:
        assert part in err


# Values of fields

# Settings that parts need in the rest of the recipe.
REQUIRED_CHANGES = {
    "Pairs": ["task=Addition(equal_lengths=true)"],
    "NextToken": ["stopping=Oracle"],
    "Expression": ["lengths=Uniform(top=4,bottom=3)"],
    "ReTran": ["layout=NextToken", "stopping=Oracle"],
    "LSTM": ["layout=NextToken", "stopping=Oracle"],
    "Tagged": ["task=PrefixSum"],
    "Restarts": ["model.noise=1"],
    "Grid": ["task=Maze", "lengths=Uniform(top=3,bottom=2)"],
    "Maze": ["layout=Grid", "lengths=Uniform(top=3,bottom=2)"],
    "Sudoku": ["layout=Grid", "lengths=OneOf(sizes=(4,))"],
}
SMALL_PARTS = {"Transformer": "Transformer(width=8,heads=2)", "ReTran": "ReTran(width=8,heads=2,hidden=4,layers=1)",
         "LSTM": "LSTM(width=8,hidden=4)", "Finite": "Finite(rows=8)"}  # fmt: skip
FIELD_PATHS = {"positions": "model.positions.0", "mixers": "model.mixer", "tasks": "task", "layouts": "layout",
         "sources": "source", "models": "model", "objectives": "objective", "optimizers": "optimizer"}  # fmt: skip
EXTREME_VALUES = ("-1", "nan", "1e400", "1" + "0" * 18, "9" * 5000, "word", "(1,2,3)", "'\x1b[31m'")
PARTS = [(name, None) for name in ("watch", "schedule", "chosen_on", "")]
PARTS += [
    (name, part) for name in catalog.list_parts() for part in list_parts(name) if not isinstance(part, ExternalModule)
]


@pytest.mark.parametrize(("name", "default"), PARTS, ids=lambda value: getattr(type(value), "__name__", value))
def test_a_field_accepts_only_values_that_training_survives(name, default):
    """Each field of each part refuses an extreme value in a one-line error, or training survives its first steps with
    the value. Inherited fields are tested in the class that declares them."""
    where, kind = FIELD_PATHS.get(name, name), type(default).__name__
    text = SMALL_PARTS.get(kind) or format_part(default)
    base = TINY_RECIPE.change([*REQUIRED_CHANGES.get(kind, []), f"{where}={text}"] if default else [])
    part, wrong = type(default or (getattr(TINY_RECIPE, name) if name else TINY_RECIPE)), 0
    fields = [field for field in dataclasses.fields(part) if LONG or field.name in part.__annotations__]
    for field in fields:
        for value in EXTREME_VALUES:
            try:
                try_training(base.change([f"{where}.{field.name}={value}".lstrip(".")]), CPU)
            except lw.UsageError as error:
                wrong += 1
                assert str(error).isprintable()
    assert wrong >= 5 * len(fields)
    if default and LONG:
        try_training(base, CPU)  # the part is valid: only values were refused


def lacks_range(hint):
    """Return whether a type hint contains a number without a range."""
    return hint in (int, float) or (get_origin(hint) is not Annotated and any(map(lacks_range, get_args(hint))))


def test_every_numeric_field_declares_its_range():
    parts = [type(part) for name in catalog.list_parts() for part in list_parts(name)]
    parts += [lw.Recipe, lw.Schedule, lw.Watch, ChosenOn, Inquiry]
    fields = [(part, *field) for part in parts for field in get_field_types(part).items()]
    assert [f"{part.__name__}.{name}" for part, name, hint in fields if lacks_range(hint)] == []


def test_a_range_describes_its_requirement_in_words():
    for bounds, fits, wrong in (((1, 10**9), 1, 0), ((0, 1), 1, 1.01), ((0, 1, "open"), 0.5, 0)):
        assert Range(*bounds).find_broken_limit(fits) is None
        assert str(bounds[0]) in Range(*bounds).find_broken_limit(wrong)
        assert "1000000000" not in Range(*bounds).find_broken_limit(wrong)  # it only keeps absurd values away
    assert Range(0, 1, "half-open").find_broken_limit(0) is None and Range(0, 1, "half-open").find_broken_limit(1)
    assert describe_type("Size") == "int (1 or more)" and describe_type("Seed") == "int"
    assert describe_type("tuple[Decay, ...]") == "tuple[float (0 or more and below 1), ...]"
    assert describe_type('Annotated[float, Range(0, 1, "open")]') == "float (above 0 and below 1)"
    assert describe_type("tuple[Position, ...]") == "tuple[Position, ...]"


LATE_FAILURES = {  # what would fail late, or could not be measured: refused before a folder is made
    "optimizer.rate=-1": "optimizer.rate must be 0 or more",
    "optimizer.betas=(0.9,1.5)": "optimizer.betas.1 must be",
    "hard=0.5": "no harder set",
    "task=Addition(equal_lengths=true) layout=Pairs model=LSTM": "causal layout",
    "model.positions=Learned(size=2)": "table of 2",
    "model.positions=Randomized(encoding=Learned)": "Learned(size=1024)",
    "watch=Watch(every=1,sizes=(2,),probes=('12',))": "'2' at position 2",
    "task=Expression": "sizes of expression start at 3, not at 1: write lengths.bottom=3",
    "source=Finite(rows=100000)": "different problems",
    "--lengths 0": "names no sizes",
    "--hard": "no harder set",
    "--lengths 2x3": "axis",
    "--threads 0": "--threads must be 1",
    "--save-every nan": "--save-every: nan is not a number",
    "--seeds 1000000 --dry-run": "--seeds must be",
    "model=Belt": "if it is your own, import its module first: --import MODULE",
    "task=Sideways": "if it is your own, import its module first: --import MODULE",
    "model=Transformr": "(did you mean Transformer?)\n",
}


@pytest.mark.parametrize("change", LATE_FAILURES)
def test_recipes_and_options_that_would_fail_late_are_refused_before_a_folder_is_made(change, run_cli, runs):
    check_error(
        run_cli("train", "looped-parity", *fuzz.SHORT_CHANGES, *fuzz.SMALL_CHANGES, *change.split(), "--quiet"),
        LATE_FAILURES[change],
    )
    assert not runs.exists()


# Arguments in Python


def test_parts_can_be_given_by_name_in_python():
    assert dataclasses.replace(TINY_RECIPE, stopping="Oracle").stopping == lw.Oracle()
    assert lw.Watch(every=1, sizes=[2, 3]).sizes == lw.Watch(1, (2, 3)).sizes == (2, 3)

    @validate_arguments
    def return_arguments(number: Count, *, rule: lw.Stopping | None = None) -> object:
        return number, rule

    assert return_arguments(2, rule="Converged") == (2, lw.Converged())
    with pytest.raises(lw.UsageError, match="number must be 1 or more, not 0"):
        return_arguments(0)
    with pytest.raises(TypeError, match=r"return_arguments: .*'rul' \(did you mean rule\?\)"):
        return_arguments(2, rul="Converged")


# Untrusted text


def test_foreign_text_is_printed_literally_without_control_codes_and_errors_are_one_line():
    screen = io.StringIO()
    terminal = Terminal(file=screen, force_terminal=True, width=200, highlight=False)
    terminal.print(f"[bold]a[/red] :smile: {damage.CONTROL_TEXT}end")
    output = screen.getvalue()
    assert "[bold]a[/red] :smile:" in output and "end" in output
    assert not any(code in output for code in ("\x1b]0", "\x07", "\r", "\u202e"))
    assert str(lw.UsageError(f"no {damage.CONTROL_TEXT} here")).isprintable()
    assert len(str(lw.UsageError("x" * 10**6))) < 3000


@pytest.mark.parametrize("name", ["[bold]*?", "\x1b[31mtwo\nlines", "é→" + "x" * 200])
def test_folders_may_have_any_name(name, run_cli, runs, monkeypatch):
    monkeypatch.setenv("LENGTHWISE_RUNS", str(runs / name))
    run = Run.of(TINY_RECIPE)
    odd = runs / name / name
    odd.mkdir()
    (odd / "config.json").write_text(json.dumps({"kind": damage.CONTROL_TEXT}))
    status, out, err = run_cli("list")
    assert (status, err) == (0, "")
    assert run.folder.name in out
    assert all(line.isprintable() for line in out.split("\n"))


# The environment: terminals, pipes, signals, imports, devices


@pytest.mark.parametrize("words", [["sample", "parity", "3"], ["list"], ["show", "halting-parity", "steps=2"]])
def test_an_ascii_terminal_gets_ascii_output(words, monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0
    assert shown.buffer.getvalue().isascii()


def test_a_full_disk_at_the_output_and_a_closed_output_are_reported(monkeypatch, capsys):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        for output, error in ((full, "the output cannot be written: No space left on device"),
                              (None, "standard output is closed: the result cannot be printed")):  # fmt: skip
            monkeypatch.setattr(sys, "stdout", output)  # None: as Python has it after ``>&-``
            with pytest.raises(SystemExit) as left:
                main(["sample", "parity", "3"])
            assert (left.value.code, capsys.readouterr().err) == (2, f"lengthwise: {error}\n")


@pytest.mark.parametrize("words", [["sample", "parity", "3"], ["list"]])
def test_a_closed_pipe_ends_a_command_silently(words, monkeypatch, capsys):
    ends = os.pipe()
    os.close(ends[0])
    with os.fdopen(ends[1], "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as left:
            main(words)
    assert left.value.code == 141
    assert capsys.readouterr().err == ""


def test_ctrl_c_during_the_import_of_torch_prints_one_line(tmp_path):
    words = [sys.executable, "-P", "-m", "lengthwise", "train", "looped-parity"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path, preexec_fn=_restore_sigint)
    deadline = time.monotonic() + 60
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    _, error_output = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error_output.startswith("lengthwise: interrupted") and len(error_output.splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def _restore_sigint():
    """Restore the default handler of SIGINT, which the parent process may ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


BROKEN_MODULES = {
    "import lengthwise as lw\n\nONE = lw.find('looped-paritx')": "line 3: recipe: 'looped-paritx' is not one of",
    "raise NameError('\\x1b[31m')": "line 1",
    "import sys; sys.exit(3)": "SystemExit",
    "def (": "SyntaxError",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise type('Odd', (BaseException,), {})('why')": "line 1: why",
}


@pytest.mark.parametrize("code", [*BROKEN_MODULES, None])
def test_a_module_that_cannot_be_imported_is_refused(code, run_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"module_{abs(hash(code))}"
    if code:
        Path(f"{name}.py").write_text(code, encoding="utf-8")
    check_error(
        run_cli("sample", "parity", "3", "--import", name), f"--import {name}: ", BROKEN_MODULES.get(code, "no module")
    )


NARROW_TASK = """
from dataclasses import dataclass

from lengthwise.tasks.parity import Parity


@dataclass(frozen=True)
class NarrowParity(Parity):
    def answer_slots(self, sizes):
        if sizes.max() > limit:
            raise ValueError("too wide")
        return super().answer_slots(sizes)


limit = 10**6
"""


@pytest.mark.parametrize("command", ["evaluate RUN --lengths 9", "solve RUN 010101010", "depth RUN --lengths 9"])
def test_an_error_in_a_user_s_task_after_training_is_one_line(command, run_cli, tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("narrow.py").write_text(NARROW_TASK, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "narrow", raising=False)
    narrow = importlib.import_module("narrow")
    run = lw.train(TINY_RECIPE.change(task=narrow.NarrowParity()), quiet=True)
    narrow.limit = 2
    done = run_cli(*command.replace("RUN", str(run.folder)).split(), "--import", "narrow")
    check_error(done, "ValueError in narrow.py, line 11: too wide")


def test_unusable_devices_and_names_too_long_for_a_file_are_refused(run_cli):
    for device in ("meta", "abacus", "cuda:99", "", None, 3.5):
        with pytest.raises(lw.UsageError, match="available are: auto, cpu"):
            choose_device(device)
    for verb in ("train", "evaluate", "solve", "report", "show", "attack"):
        check_error(run_cli(verb, "x" * 5000))


def test_an_unreadable_folder_is_reported(run_cli, monkeypatch, runs):
    Run.of(TINY_RECIPE)

    def deny_access(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    read = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *a, **b: (deny_access if runs in path.parents else read)(path, *a, **b)
    )
    assert "cannot be read (Permission denied)" in " ".join(run_cli("list")[1].split())


# Files


@pytest.fixture
def stored_runs():
    """Build a finished run with rows of every kind, and an unfinished one."""
    with fuzz.Workspace.create() as workspace:
        yield workspace


DAMAGED_ROWS = {
    "scores.jsonl": ({"exact": 1.5}, "exact must be 0 to 1, not 1.5"),
    "metrics.jsonl": ({"exact": {"[/red]": 0.5}}, "must be a size"),
    "depth.jsonl": ({"chosen": {}}, "the field oracle is missing"),
    "anatomy.jsonl": ({"sizes": []}, "sizes must be 1 to 2 values"),
}


def test_damaged_rows_are_reported_by_file_and_line(stored_runs, run_cli):
    for name, (change, message) in DAMAGED_ROWS.items():
        path = stored_runs.finished_run / name
        text = path.read_text()
        first, *rest = text.splitlines()
        for damaged, reason in ((json.dumps(json.loads(first) | change), message), ("[1]", "not a JSON object"),
                                ("{", "not JSON"), ('{"step": NaN}', ""), ("\udcff", "not JSON")):  # fmt: skip
            path.write_bytes("\n".join([damaged, *rest, ""]).encode(errors="surrogateescape"))
            with pytest.raises(lw.UsageError, match=rf"{name}: line 1.*; delete that line$") as error:
                RunFolder(stored_runs.finished_run).rows(path.stem)
            assert reason in str(error.value)
        path.write_text(text)
    about = stored_runs.finished_run / "about.json"
    report = ["report", stored_runs.finished_run, "--out", stored_runs.folder / "out"]
    tree = json.loads(about.read_text())
    about.write_text(json.dumps(tree | {"cpu_s": None}))
    check_error(run_cli(*report), "about.json: ", "cpu_s", "delete about.json")
    outline = tree["outline"] | {"name": "../../up"}  # a name cannot lead out of the folder of results
    about.write_text(json.dumps(tree | {"outline": outline}))
    check_error(run_cli(*report), "outline.name must be letters")
    about.write_text(json.dumps(tree))
    for content in (b"\xff", b"[]"):
        (stored_runs.finished_run / "config.json").write_bytes(content)
        check_error(run_cli(*report), "config.json")
    assert not (stored_runs.folder / "out").exists()


def test_a_short_fuzzing_campaign_finds_no_fault(stored_runs):
    """Fuzzed commands show no fault; ``make torture`` runs the long campaign."""
    assert [fault for number in range(100 if LONG else 20) for fault in fuzz.run_input(stored_runs, number, 0)] == []


def test_recipes_without_shipped_weights_ask_for_training_first(run_cli):
    for verb in ("evaluate", "depth", "attack"):
        check_error(run_cli(verb, "/nothing"), "other recipes are trained first: `lengthwise train RECIPE`")
        for name in ("standard-pairs", "fop-loop-adaptive-parity"):  # the second resembles the shipped looped-parity
            advice = f"train it first: `lengthwise train {name}`"
            check_error(run_cli(verb, name), f"{name}: this recipe has no shipped weights: {advice}")
    run = Run.of(lw.find("standard-pairs", *fuzz.SMALL_CHANGES))
    check_error(run_cli("depth", "standard-pairs"), f"standard-pairs: name one of its runs: {run.folder}\n")
