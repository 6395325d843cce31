"""Hostile input: Python calls, overrides, command lines and damaged files, many in one process, each from a seed.

Each input must give a result or an error of one printable line. No code in an input may run, and no file may be left
half written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import random
import re
import shutil
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.ask.inquiry import Inquiry, InquiryRun
from lengthwise.base.errors import quote_value
from lengthwise.base.fields import encode
from lengthwise.cli import entry
from lengthwise.cli.parser import list_parsers
from lengthwise.evaluation.attack import measure_anatomy
from lengthwise.evaluation.depth import measure_depths
from lengthwise.experiment.recipe import Recipe
from lengthwise.training.loop import Trainer, train, try_training

from .damage import CONTROL_TEXT, damage_random_file

INPUTS_PER_CASE = 250
MAX_INPUT_SECONDS = 20.0  # limit of processor time for an input, in seconds
PROGRESS_PATTERN = re.compile(r"\d (s|min|h) (so far|left)\b|done in \d")  # lines of the progress display
SHORT_CHANGES = ("steps=2", "batch=4", "watch.every=0", "lengths=Uniform(top=3)")
SMALL_CHANGES = ("model=Transformer(width=8,heads=2)", "stopping=MaxConfidence(extra=1)")
TYPED_VALUES = (  # values as a user or an attacker may type them
    "-1", "0", "1", "2", "3", "0.5", "-0.5", "1.5", "nan", "inf", "-inf", "1e400", "1e300", "1e-300", "1" + "0" * 18,
    "9" * 5000, "word", "none", "true", "false", "", " ", "()", "(1,2)", "(1,2,3)", "'a'", "a-b", "[/red]",
    CONTROL_TEXT, "__import__('os').system('touch ran')", "open('ran', 'w')", "x" * 3000, "(" * 200, "../..", "harder",
    "é→\udcff",
)  # fmt: skip
PASSED_VALUES = (  # values as a program may pass them
    None, -1, 0, 1, 2, 1.5, -0.5, float("nan"), float("inf"), 10**30, "word", "", CONTROL_TEXT, "x" * 3000, b"x",
    True, [], [1, 2], (), (0,), (1, 2), ("a",), {}, {"kind": "Oracle"}, object(), "harder", "Oracle", "cpu", "meta",
)  # fmt: skip


@dataclasses.dataclass
class Workspace:
    """A folder with a finished run, an unfinished one, an inquiry to a language model, and room for damaged copies."""

    folder: Path
    finished_run: Path
    unfinished_run: Path
    inquiry: Path

    @staticmethod
    @contextlib.contextmanager
    def create() -> Iterator[Workspace]:
        """Yield a new workspace; meanwhile its folder ``work`` is the working folder."""
        before, runs = Path.cwd(), os.environ.get("LENGTHWISE_RUNS")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            os.environ["LENGTHWISE_RUNS"] = str(folder / "runs")
            (folder / "work").mkdir()
            os.chdir(folder / "work")
            try:
                yield Workspace(folder, *_create_runs(folder))
            finally:
                os.chdir(before)
                os.environ.pop("LENGTHWISE_RUNS")
                os.environ.update({"LENGTHWISE_RUNS": runs} if runs is not None else {})

    def list_paths(self) -> set[str]:
        """Return all paths in the folders ``runs`` and ``work``, to find files that a refused input leaves behind."""
        return {str(path) for name in ("runs", "work") for path in (self.folder / name).rglob("*")}

    def copy_damaged(self, rng: random.Random) -> tuple[Path, str]:
        """Return a copy of a run's folder with a damaged file, and a description of the damage."""
        target = self.folder / "runs" / "spoilt"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(rng.choice([self.finished_run, self.finished_run, self.unfinished_run, self.inquiry]), target)
        return target, damage_random_file(target, rng)


def _create_runs(folder: Path) -> tuple[Path, Path, Path]:
    recipe = lw.find("looped-parity", *SHORT_CHANGES, *SMALL_CHANGES, "watch=Watch(every=1,sizes=(2,))")
    done = train(recipe, folder / "done")
    weights = done.weights()
    for score in lw.evaluate(weights, [1, 2], samples=4, families=True):
        done.append("scores", score.row() | {"seed": 0})
    done.append("anatomy", measure_anatomy(weights, 2, samples=4))
    measure_depths(done, [2], 4)
    begun = lw.Run.of(recipe, folder / "begun")
    trainee = Trainer(recipe, torch.device("cpu"))
    trainee.advance()
    begun.append("metrics", trainee.report())
    begun.save_state(trainee.state())
    inquiry = Inquiry("http://localhost/v1", "of/[/red] $\\frac{ 汉", recipe.task, "Well?")
    asked = InquiryRun.of(inquiry, folder / "asked")
    asked.append("replies", {"prompt": "1", "correct": True, "answer": "1", "prompt_tokens": 1, "completion_tokens": 1})
    for score in lw.evaluate(weights, [1, 2], samples=4):
        asked.append("scores", score.row() | {"seed": 0, "asked": 4, "chatter": 0})
    return done.folder, begun.folder, asked.folder


def list_cases(times: float) -> list[str]:
    """Return the names of the cases."""
    return [str(number) for number in range(max(1, round(8 * times)))]


def run_case(case: str, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Run one case of ``INPUTS_PER_CASE`` inputs."""
    torch.set_num_threads(1)
    seed = rng.randrange(10**6)
    with Workspace.create() as workspace:
        faults = [
            f"seed {seed}: {fault}" for number in range(INPUTS_PER_CASE) for fault in run_input(workspace, number, seed)
        ]
    return {"inputs": INPUTS_PER_CASE, "faults": faults}


# Inputs: a name and an action


Input = tuple[str, Callable[[], Any]]


def draw_overrides(workspace: Workspace, rng: random.Random) -> Input:
    """Return a name that lists changes of a recipe, and a call of ``try_training`` with the changed recipe."""
    parts = catalog.list_parts()
    fields = list(_list_field_paths(encode(build_base_recipe())))
    changes = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        value = rng.choice([rng.choice(TYPED_VALUES), rng.choice(list(rng.choice(list(parts.values()))))])
        changes.append(f"{rng.choice(fields)}={value}")
    changes = [change if rng.random() < 0.97 else rng.choice(TYPED_VALUES) for change in changes]
    return f"change {changes}", lambda: try_training(build_base_recipe().change(changes), torch.device("cpu"))


def build_base_recipe() -> Recipe:
    return lw.find("looped-parity", *SHORT_CHANGES, *SMALL_CHANGES)


def _list_field_paths(tree: Any, path: str = "") -> Iterator[str]:
    for name, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if name != "kind":
            yield f"{path}{name}"
            if isinstance(part, dict | list):
                yield from _list_field_paths(part, f"{path}{name}.")


def draw_calls(workspace: Workspace, rng: random.Random) -> Input:
    """Return the name of a call of the Python interface with random arguments, and the call."""

    def draw_object() -> Any:
        return rng.choice(PASSED_VALUES)

    def replace_some(**values: Any) -> dict[str, Any]:
        return {name: draw_object() if rng.random() < 0.4 else value for name, value in values.items()}

    kind = rng.choice([kind for kinds in catalog.list_parts().values() for kind in kinds.values()])
    chosen = {field.name: draw_object() for field in dataclasses.fields(kind) if rng.random() < 0.6}
    needed = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
    name, given = rng.choice(dataclasses.fields(Recipe)).name, draw_object()
    measured = replace_some(lengths=[1], samples=2, kind="uniform", families=False, seed=0, device="cpu", stopping=None)
    folder = workspace.folder / "runs" / "called"
    trained = replace_some(folder=folder, device="cpu", threads=1, save_every=60.0, quiet=True)
    weights = rng.choice([workspace.finished_run, workspace.finished_run, draw_object()])
    prompt, text = draw_object(), draw_object()
    verb, given_values, act = rng.choice([
        (kind.__name__, [chosen], lambda: kind(**(dict.fromkeys(needed, 1) | chosen))),
        (f"replace {name}", [given], lambda: dataclasses.replace(build_base_recipe(), **{name: given})),
        ("evaluate", [measured], lambda: lw.evaluate(weights, **measured)),
        ("train", [trained], lambda: lw.train(build_base_recipe(), **trained)),
        ("train", [text, prompt], lambda: lw.train(text, prompt)),
        ("load", [weights, prompt], lambda: lw.load(weights).solve(prompt)),
        ("find", [text, prompt], lambda: lw.find(text, prompt)),
        ("families", [text], lambda: lw.families(text)),
        ("read", [text], lambda: Recipe.read(text)),
    ])  # fmt: skip
    return " ".join([verb, *(quote_value(value, max_length=300) for value in given_values)]), act


def draw_commands(workspace: Workspace, rng: random.Random) -> Input:
    """Return a random command line of ``lengthwise``, with options that keep training short and in one process."""
    verb = rng.choice(["list", "show", "sample", "train", "evaluate", "attack", "solve", "ask", "rasp", "report", ""])
    known = str(rng.choice([workspace.finished_run, workspace.unfinished_run, "looped-parity", "parity"]))
    arguments = {
        "show": [known, *SHORT_CHANGES],
        "sample": ["parity", "3"],
        "train": ["looped-parity", *SHORT_CHANGES, *SMALL_CHANGES, "--lengths", "1", "--samples", "2", "--quiet"],
        "evaluate": [known, "--lengths", "1", "--samples", "2"],
        "attack": [known, "--tries", "20"],
        "solve": [known, "101"],
        "ask": ["parity", "--endpoint", "http://127.0.0.1:9/v1", "--model", "none", "--limit", "0", "--lengths", "1"],
        "rasp": ["parity", "101"],
        "report": [str(workspace.finished_run)],
    }.get(verb, [])
    actions = verbs[verb]._actions if verb in (verbs := list_parsers(entry.build_parser())) else []
    options = [flag for action in actions for flag in action.option_strings if flag not in EXCLUDED_OPTIONS]
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        value = rng.choice(TYPED_VALUES)
        match rng.randrange(4):
            case 0 if options:
                arguments += [rng.choice(options)]
            case 1 | 2 if options:
                arguments += [rng.choice(options), value]
            case _ if arguments:
                arguments[rng.randrange(len(arguments))] = value
            case _:
                arguments += [value]
    command = [verb, *arguments] if verb else arguments
    return f"lengthwise {command}", lambda: entry.main(command)


EXCLUDED_OPTIONS = {"--jobs", "--seeds", "--seconds", "--help", "-h"}  # they start processes, take long, or print pages


def draw_files(workspace: Workspace, rng: random.Random) -> Input:
    """Return the description of an input, and a call of a command that reads a damaged folder."""
    target, fault = workspace.copy_damaged(rng)
    few, out = ["--lengths", "1", "--samples", "4"], ["--out", str(workspace.folder / "out")]
    command = rng.choice([
        ["report", str(target), *out],
        ["report", str(workspace.inquiry), str(workspace.finished_run), str(target), *out],
        ["report", str(target), "--stopping", "--samples", "4", "--lengths", "2"],
        ["evaluate", str(target), *few, "--anatomy"],
        ["solve", str(target), "101"],
        *[["train", str(target), *few, "--quiet"]] * 2,
        ["show", str(target)],
        ["list"],
    ])  # fmt: skip
    return f"{fault}; lengthwise {command}", lambda: entry.main(command)


# Cheap inputs are drawn more often.
INPUT_GENERATORS = (*[draw_overrides] * 4, *[draw_calls] * 4, draw_commands, draw_files)


# Checking results


def run_input(workspace: Workspace, number: int, seed: int) -> list[str]:
    """Run one input and return what is wrong with its result."""
    rng = random.Random(f"{seed}/{number}")
    name, act = rng.choice(INPUT_GENERATORS)(workspace, rng)
    before, start, faults = workspace.list_paths(), time.process_time(), []
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("error")
            act()
    except SystemExit as left:
        status = left.code
    except lw.UsageError as error:
        status = "refused"
        err.write(f"lengthwise: {error}\n")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        faults.append(f"{type(error).__name__}: {str(error)[:200]!r} at {last.filename}:{last.lineno}")
    faults += _find_faults(workspace, before, status, out.getvalue(), err.getvalue())
    if (seconds := time.process_time() - start) > MAX_INPUT_SECONDS:
        faults.append(f"it took {seconds:.0f} s")
    _remove_new_files(workspace, before)
    return [f"{number}: {name:.600}: {fault}" for fault in faults]


def _find_faults(workspace: Workspace, paths_before: set[str], status: object, out: str, err: str) -> Iterator[str]:
    for line in (out + err).split("\n"):
        if not line.isprintable():
            yield f"control characters in {line[:200]!r}"
            break
    lines = [line for line in err.strip().split("\n") if not PROGRESS_PATTERN.search(line)]
    if status in (2, "refused") and (len(lines) != 1 or not lines[0].startswith("lengthwise")):
        yield f"not one line: {err[:300]!r}"
    if status not in (0, 1, 2, "refused"):
        yield f"exit {status}"
    new = workspace.list_paths() - paths_before
    if status in (2, "refused") and (left := [path for path in new if not _may_stay(path)]):
        yield f"it left {left[:3]}"
    if left := [path for path in new if Path(path).name == "ran" or Path(path).name.startswith(".config")]:
        yield f"code has run, or a file is half written: {left}"


def _may_stay(path: str) -> bool:
    """Return whether a refused input may leave this file behind: a cache, or an addition to an existing run."""
    return "/spoilt/" in path or "/__pycache__" in path or path.endswith("/.operations.json")


def _remove_new_files(workspace: Workspace, paths_before: set[str]) -> None:
    for path in sorted(workspace.list_paths() - paths_before, reverse=True):
        shutil.rmtree(path, ignore_errors=True)
        Path(path).unlink(missing_ok=True)
