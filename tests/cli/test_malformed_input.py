"""Foreign text, damaged files, extreme values, odd surroundings: a result or one clean line, and nothing half done."""

import dataclasses
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
from forms import shipped
from torture import damage, fuzz

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.ask.inquiry import Inquiry
from lengthwise.base.fields import field_types, validate_arguments
from lengthwise.base.progress import Terminal
from lengthwise.base.ranges import Count, Range
from lengthwise.cli.entry import main
from lengthwise.experiment.recipe import ChosenOn
from lengthwise.runs.folder import RunFolder
from lengthwise.runs.run import Run, choose_device
from lengthwise.training.loop import try_training

# As for a user, whose types nobody checks.
pytestmark = pytest.mark.usefixtures("no_type_checks")

CPU = torch.device("cpu")
TINY = lw.find("looped-parity", *fuzz.TINY, *fuzz.SMALL)


@pytest.fixture
def typed(capsys, monkeypatch):
    """Return a command's output and exit status, run in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def typed(*words):
        with pytest.raises(SystemExit) as left:
            main([*map(str, words)])
        return left.value.code, *capsys.readouterr()

    return typed


def refused(done, *parts):
    """One clean line."""
    status, out, err = done
    assert (status, out) == (2, "")
    assert err.startswith("lengthwise") and err.endswith("\n") and err[:-1].isprintable()
    for part in parts:
        assert part in err


# Values of fields

# What makes a part valid, where its defaults are not enough; and what it takes beside it.
VALID = {
    "Uniform": "Uniform(top=3)", "Curriculum": "Curriculum(top=3,every=2)", "Mastery": "Mastery(top=3,every=1)",
    "LogUniform": "LogUniform(top=3)", "Natural": "Natural(top=3)",
    "OneOf": "OneOf(sizes=3)",
    "Finite": "Finite(rows=8)", "After": "After(loops=2)",
    "LocalHeads": "LocalHeads(count=1)", "CoupledHeads": "CoupledHeads(count=1)",
    "EarlierHeads": "EarlierHeads(count=1)", "Randomized": "Randomized(of=NoPE)",
    "Transformer": "Transformer(width=8,heads=2)", "ReTran": "ReTran(width=8,heads=2,hidden=4,layers=1)",
    "LSTM": "LSTM(width=8,hidden=4)",
}  # fmt: skip
BESIDE = {
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
ELSEWHERE = {"ExternalModule"}  # it stands for a module from Python: no recipe can name one
WHERE = {"positions": "model.positions.0", "mixers": "model.mixer", "tasks": "task", "layouts": "layout",
         "sources": "source", "models": "model", "objectives": "objective", "optimizers": "optimizer"}  # fmt: skip
EXTREME = ("-1", "nan", "1e400", "1" + "0" * 18, "9" * 5000, "word", "(1,2,3)", "'\x1b[31m'")
FIELDS = [("name", name, kind) for name in ("watch", "schedule", "chosen_on", "") for kind in [None]] + [
    ("kind", name, type(part).__name__)
    for name in catalog.parts()
    for part in shipped(name)
    if type(part).__name__ not in ELSEWHERE
]


@pytest.mark.parametrize(("sort", "name", "kind"), FIELDS, ids=lambda value: str(value))
def test_a_field_takes_what_training_takes_and_refuses_the_rest_in_one_line(sort, name, kind):
    """Each field of each part is given extreme values; what passes must survive the first steps of training."""
    where = WHERE.get(name, name) if sort == "kind" else name
    first = [*BESIDE.get(kind, []), f"{where}={VALID.get(kind, kind)}"] if kind else []
    part = catalog.parts()[name][kind] if kind else type(getattr(TINY, name) if name else TINY)
    base, wrong = TINY.change(first), 0
    for field in dataclasses.fields(part):
        for value in EXTREME:
            try:
                try_training(base.change([f"{where}.{field.name}={value}".lstrip(".")]), CPU)
            except lw.UsageError as error:
                wrong += 1
                assert str(error).isprintable()
    assert wrong >= 5 * len(dataclasses.fields(part))
    if kind:
        try_training(base, CPU)  # it is the value that was refused


def bare(hint):
    """Is there a number in it without a range?"""
    return hint in (int, float) or (get_origin(hint) is not Annotated and any(map(bare, get_args(hint))))


def test_every_number_states_its_range():
    parts = [type(part) for name in catalog.parts() for part in shipped(name)]
    parts += [lw.Recipe, lw.Schedule, lw.Watch, ChosenOn, Inquiry]
    assert [f"{part.__name__}.{name}" for part in parts for name, hint in field_types(part).items() if bare(hint)] == []


@pytest.mark.parametrize(
    ("low", "high", "ends", "fits", "not_"),
    [(1, 10**9, "closed", 1, 0), (0, 1, "closed", 1, 1.01), (0, 1, "open", 0.5, 0), (0, 1, "half-open", 0, 1)],
)
def test_a_range_says_what_would_be_right(low, high, ends, fits, not_):
    bounds = Range(low, high, ends)
    assert bounds.broken_requirement(fits) is None
    assert str(low) in bounds.broken_requirement(not_)
    assert "1000000000" not in bounds.broken_requirement(not_)  # a bound that only keeps absurd values away


LATE = {
    "optimizer.rate=-1": "optimizer.rate must be 0 or more",
    "optimizer.betas=(0.9,1.5)": "optimizer.betas.1 must be",
    "hard=0.5": "no harder set",
    "task=Addition(equal_lengths=true) layout=Pairs model=LSTM": "causal layout",
    "model.positions=Learned(size=2)": "table of 2",
    "model.positions=Randomized(of=Learned)": "Learned(size=1024)",
    "watch=Watch(every=1,sizes=(2,),probes=('12',))": "'2' at position 2",
    "task=Expression": "lengths start at 3",
    "source=Finite(rows=100000)": "different problems",
}


@pytest.mark.parametrize("change", LATE)
def test_what_would_fail_late_fails_before_a_folder_is_made(change, typed, runs):
    words = ["train", "looped-parity", *fuzz.TINY, *fuzz.SMALL, *change.split(), "--quiet"]
    refused(typed(*words), LATE[change])
    assert not runs.exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--lengths", "0"],
        ["--hard"],
        ["--lengths", "2x3"],
        ["--threads", "0"],
        ["--save-every", "nan"],
        ["--seeds", "1000000", "--dry-run"],
    ],
)
def test_what_could_not_be_measured_is_said_before_training(options, typed, runs):
    refused(typed("train", "looped-parity", *fuzz.TINY, *fuzz.SMALL, "--quiet", *options))
    assert not runs.exists()


# Closed sets, in Python too


@pytest.mark.parametrize(
    "act",
    [
        lambda weights: lw.evaluate(weights, [2], kind="harder"),
        lambda weights: lw.evaluate(weights, [2], stopping="Never"),
        lambda weights: lw.evaluate(weights, [2], stopping=True),
        lambda weights: lw.evaluate(weights, [2], samples=1.5),
        lambda weights: lw.evaluate(weights, "ab"),
        lambda weights: lw.evaluate(weights, [10**30]),
        lambda weights: lw.evaluate(3),
        lambda weights: lw.Solver(weights).solve(12),
        lambda weights: lw.load(weights.name, "meta"),
        lambda weights: lw.find(3),
        lambda weights: lw.find("looped-parity", 3),
        lambda weights: lw.train(3),
        lambda weights: lw.train([]),
        lambda weights: lw.train((), 1, seed=1),
        lambda weights: dataclasses.replace(weights.recipe, objective=10**5000),
        lambda weights: lw.train(TINY, threads=True),
        lambda weights: lw.train(TINY, folder="a\0b"),
        lambda weights: lw.train(TINY, folder={}),
        lambda weights: lw.train(TINY, folder="x" * 3000),
        lambda weights: lw.evaluate(weights, [2], samples=10**9),
        lambda weights: lw.evaluate(weights, [2], samples=10**30),
        lambda weights: lw.evaluate(weights, [2], seed=10**5000),
        lambda weights: lw.families(b"parity"),
        lambda weights: lw.Schedule(shape="cosinus"),
        lambda weights: lw.MaxConfidence(per="table"),
        lambda weights: lw.AdamW(rate="fast"),
        lambda weights: lw.Uniform(top=10**5000),
        lambda weights: dataclasses.replace(TINY, layout="Pear"),
        lambda weights: dataclasses.replace(TINY, objective=object()),
        lambda weights: lw.Recipe.read(None),
    ],
)  # fmt: skip
def test_python_is_answered_as_the_command_line_is(act):
    with pytest.raises(lw.UsageError) as error:
        act(lw.load("looped-parity").weights)
    assert str(error.value).isprintable()


def test_python_may_name_parts_as_the_command_line_does():
    assert dataclasses.replace(TINY, stopping="Oracle").stopping == lw.Oracle()
    assert lw.Watch(every=1, sizes=[2, 3]).sizes == lw.Watch(1, (2, 3)).sizes == (2, 3)

    @validate_arguments
    def twice(number: Count, *, rule: lw.Stopping | None = None) -> object:
        return number, rule

    assert twice(2, rule="Converged") == (2, lw.Converged())
    with pytest.raises(lw.UsageError, match="number must be 1 or more, not 0"):
        twice(0)
    with pytest.raises(TypeError, match=r"twice: .*'rul' \(did you mean rule\?\)"):
        twice(2, rul="Converged")


# Foreign text


def test_a_terminal_shows_foreign_text_and_never_obeys_it():
    screen = io.StringIO()
    Terminal(file=screen, force_terminal=True, width=200, highlight=False).print(
        f"[bold]a[/red] :smile: {damage.ESCAPES}end"
    )
    said = screen.getvalue()
    assert "[bold]a[/red] :smile:" in said and "end" in said
    assert "\x1b]0" not in said and "\x07" not in said and "\r" not in said and "\u202e" not in said


def test_an_error_is_one_line_whatever_it_quotes():
    assert str(lw.UsageError(f"no {damage.ESCAPES} here")).isprintable()
    assert len(str(lw.UsageError("x" * 10**6))) < 3000


@pytest.mark.parametrize("name", ["[bold]", "a[b]*?", "\x1b[31mred", "two\nlines", "é→", "x" * 200])
def test_folders_may_have_any_name(name, typed, runs, monkeypatch):
    monkeypatch.setenv("LENGTHWISE_RUNS", str(runs / name))
    run = Run.of(TINY)
    odd = runs / name / name
    odd.mkdir()
    (odd / "config.json").write_text(json.dumps({"kind": damage.ESCAPES}))
    status, out, err = typed("list")
    assert (status, err) == (0, "")
    assert run.folder.name in out
    assert all(line.isprintable() for line in out.split("\n"))


# Surroundings


@pytest.mark.parametrize("words", [["sample", "parity", "3"], ["list"], ["show", "halting-parity", "steps=2"]])
def test_a_terminal_may_know_ascii_alone(words, monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0
    assert shown.buffer.getvalue().isascii()


def test_a_full_disk_behind_the_output(monkeypatch, capsys):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as left:
            main(["sample", "parity", "3"])
    assert left.value.code == 2
    assert capsys.readouterr().err == "lengthwise: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", [["sample", "parity", "3"], ["list"]])
def test_a_reader_that_goes(words, monkeypatch, capsys):
    ends = os.pipe()
    os.close(ends[0])
    with os.fdopen(ends[1], "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as left:
            main(words)
    assert left.value.code == 141
    assert capsys.readouterr().err == ""


def test_ctrl_c_while_torch_is_imported(tmp_path):
    words = [sys.executable, "-P", "-m", "lengthwise", "train", "looped-parity"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path, preexec_fn=_heeding)
    deadline = time.monotonic() + 60
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.startswith("lengthwise: interrupted") and len(said.splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def _heeding():
    """Whoever runs the tests may have had it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


IMPORTS = {
    "raise NameError('\\x1b[31m')": "line 1",
    "import sys; sys.exit(3)": "SystemExit",
    "def (": "SyntaxError",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise type('Odd', (BaseException,), {})('why')": "line 1: why",
    "raise type('Odd', (Exception,), {'__str__': None})": "line 1: its message cannot be printed",
}


@pytest.mark.parametrize("code", [*IMPORTS, None])
def test_a_module_that_cannot_be_imported(code, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"module_{abs(hash(code))}"
    if code:
        Path(f"{name}.py").write_text(code, encoding="utf-8")
    refused(typed("sample", "parity", "3", "--import", name), f"--import {name}: ", IMPORTS.get(code, "no module"))


@pytest.mark.parametrize("device", ["meta", "abacus", "cuda:99", "", None, 3.5])
def test_a_device_that_computes_nothing(device):
    with pytest.raises(lw.UsageError, match="available are: auto, cpu"):
        choose_device(device)


@pytest.mark.parametrize("verb", ["train", "evaluate", "solve", "report", "show", "attack"])
def test_names_longer_than_any_file_s(verb, typed):
    refused(typed(verb, "x" * 5000))


@pytest.mark.parametrize("content", [b"\xff", b"[]"])
def test_a_report_of_a_damaged_recipe_is_refused_in_one_line(content, typed, tmp_path, runs):
    run = lw.train(TINY, quiet=True)
    (run.folder / "config.json").write_bytes(content)
    refused(typed("report", run.folder, "--out", tmp_path / "out"), "config.json")


def test_a_folder_that_nobody_may_read(typed, monkeypatch, runs):
    Run.of(TINY)

    def closed(method):
        def call(path, *arguments, **options):
            if runs in (path, *path.parents):
                raise PermissionError(13, "Permission denied", str(path))
            return method(path, *arguments, **options)

        return call

    monkeypatch.setattr(Path, "is_dir", closed(Path.is_dir))
    refused(typed("evaluate", runs / "any"), "neither a folder nor one of the shipped")
    monkeypatch.undo()
    monkeypatch.setenv("LENGTHWISE_RUNS", str(runs))
    monkeypatch.setattr(Path, "open", closed(Path.open))
    assert "cannot be read (Permission denied)" in " ".join(typed("list")[1].split())


# Files


@pytest.fixture
def spoilt(tmp_path):
    """A finished run with rows of every kind, and one that is begun."""
    with fuzz.Place.made() as place:
        yield place


ROWS = {
    "scores.jsonl": ({"exact": 1.5}, "exact must be 0 to 1, not 1.5"),
    "metrics.jsonl": ({"exact": {"[/red]": 0.5}}, "must be a size"),
    "depth.jsonl": ({"chosen": {}}, "the field oracle is missing"),
    "anatomy.jsonl": ({"sizes": []}, "sizes must be 1 to 2 values"),
}


def test_each_file_has_one_schema(spoilt, typed):
    """A damaged row is named by file and line, with what to do."""
    for name, (change, said) in ROWS.items():
        path = spoilt.done / name
        text = path.read_text()
        first, *rest = text.splitlines()
        for damaged, reason in ((json.dumps(json.loads(first) | change), said), ("[1]", "not a JSON object"),
                                ("{", "not JSON"), ('{"step": NaN}', ""), ("\udcff", "not JSON")):  # fmt: skip
            path.write_bytes("\n".join([damaged, *rest, ""]).encode(errors="surrogateescape"))
            with pytest.raises(lw.UsageError, match=rf"{name}: line 1.*; delete that line$") as error:
                RunFolder(spoilt.done).rows(path.stem)
            assert reason in str(error.value)
        path.write_text(text)
    about = spoilt.done / "about.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"cpu_s": None}))
    refused(typed("report", spoilt.done, "--out", spoilt.folder / "out"), "about.json: ", "cpu_s", "delete about.json")
    assert not (spoilt.folder / "out").exists()


def test_no_name_in_a_file_leads_out_of_the_folder_of_results(spoilt, typed):
    about = spoilt.done / "about.json"
    tree = json.loads(about.read_text())
    tree["outline"]["name"] = "../../up"
    about.write_text(json.dumps(tree))
    refused(typed("report", spoilt.done, "--out", spoilt.folder / "a" / "b" / "out"), "outline.name must be letters")


def test_a_short_campaign(spoilt):
    """The long one is ``python -m tests.torture.fuzz``."""
    assert [fault for number in range(100 if LONG else 20) for fault in fuzz.play(spoilt, number, 0)] == []


@pytest.mark.parametrize("change", ["model=Belt", "task=Backward"])
def test_an_unknown_part_may_be_one_s_own(change, typed):
    refused(typed("train", "looped-parity", change), "if it is your own, import its module first: --import MODULE")
    refused(typed("train", "looped-parity", "model=Transformr"), "(did you mean Transformer?)")


def test_weights_that_have_to_be_trained_first_are_told_so(typed):
    for verb in ("evaluate", "depth", "attack"):
        refused(typed(verb, "/nothing"), "other recipes are trained first: `lengthwise train RECIPE`")
        for name in ("standard-pairs", "fop-loop-adaptive-parity"):  # the second is like the shipped looped-parity
            refused(
                typed(verb, name),
                f"{name}: this recipe has no shipped weights: train it first: `lengthwise train {name}`",
            )
    run = Run.of(lw.find("standard-pairs", *fuzz.SMALL))
    refused(typed("depth", "standard-pairs"), f"standard-pairs: name one of its runs: {run.folder}\n")


def test_two_names_of_one_option_do_not_replace_each_other(typed):
    words = "reproduce", "formal", "--methods", "deltanet", "--mixer", "attention", "--dry-run"
    refused(typed(*words), "--methods and --mixer are one option")
