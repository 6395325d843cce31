"""Hostile input: Python calls, overrides, command lines and damaged files, many in one process, each from a seed.

Each input gives a result or one clean line of error; no code in it runs, and no file is left half written.
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
from lengthwise.cli.parser import verb_parsers
from lengthwise.evaluation.attack import measure_anatomy
from lengthwise.evaluation.depth import measure_depths
from lengthwise.experiment.recipe import Recipe
from lengthwise.training.loop import Trainer, train, try_training

from .damage import ESCAPES, spoil

INPUTS_PER_CASE = 250
MAX_INPUT_SECONDS = 20.0  # limit of processor time for an input, in seconds
PROGRESS = re.compile(r"\d (s|min|h) (so far|left)\b|done in \d")  # lines of the progress display
TINY = ("steps=2", "batch=4", "watch.every=0", "lengths=Uniform(top=3)")
SMALL = ("model=Transformer(width=8,heads=2)", "stopping=MaxConfidence(extra=1)")
WORDS = (  # values as a user or an attacker may type them
    "-1", "0", "1", "2", "3", "0.5", "-0.5", "1.5", "nan", "inf", "-inf", "1e400", "1e300", "1e-300", "1" + "0" * 18,
    "9" * 5000, "word", "none", "true", "false", "", " ", "()", "(1,2)", "(1,2,3)", "'a'", "a-b", "[/red]", ESCAPES,
    "__import__('os').system('touch ran')", "open('ran', 'w')", "x" * 3000, "(" * 200, "../..", "harder", "é→\udcff",
)  # fmt: skip
OBJECTS = (  # values as a program may pass them
    None, -1, 0, 1, 2, 1.5, -0.5, float("nan"), float("inf"), 10**30, "word", "", ESCAPES, "x" * 3000, b"x",
    True, [], [1, 2], (), (0,), (1, 2), ("a",), {}, {"kind": "Oracle"}, object(), "harder", "Oracle", "cpu", "meta",
)  # fmt: skip


@dataclasses.dataclass
class Workspace:
    """A folder with a finished run, an unfinished one, an inquiry to a language model, and room for damaged copies."""

    folder: Path
    finished: Path
    unfinished: Path
    inquiry: Path

    @staticmethod
    @contextlib.contextmanager
    def create() -> Iterator[Workspace]:
        """Yield a new workspace, with its folder as the working folder."""
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

    def state(self) -> set[str]:
        """Return the paths in the folders of runs and of work, to find what a refused input leaves behind."""
        return {str(path) for name in ("runs", "work") for path in (self.folder / name).rglob("*")}

    def copy_damaged(self, draw: random.Random) -> tuple[Path, str]:
        """Return a copy of a run's folder with a damaged file, and a description of the damage."""
        target = self.folder / "runs" / "spoilt"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(draw.choice([self.finished, self.finished, self.unfinished, self.inquiry]), target)
        return target, spoil(target, draw)


def _create_runs(folder: Path) -> tuple[Path, Path, Path]:
    recipe = lw.find("looped-parity", *TINY, *SMALL, "watch=Watch(every=1,sizes=(2,))")
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
    asked = InquiryRun.of(
        Inquiry("http://localhost/v1", "of/[/red] $\\frac{ 汉", recipe.task, "Well?"), folder / "asked"
    )
    asked.append("replies", {"prompt": "1", "correct": True, "answer": "1", "prompt_tokens": 1, "completion_tokens": 1})
    for score in lw.evaluate(weights, [1, 2], samples=4):
        asked.append("scores", score.row() | {"seed": 0, "asked": 4, "chatter": 0})
    return done.folder, begun.folder, asked.folder


def plan(times: float) -> list[str]:
    """Return the names of the cases."""
    return [str(number) for number in range(max(1, round(8 * times)))]


def play(name: str, draw: random.Random, folder: Path) -> dict[str, Any]:
    """Run one case of ``INPUTS_PER_CASE`` inputs."""
    torch.set_num_threads(1)
    seed = draw.randrange(10**6)
    with Workspace.create() as workspace:
        faults = [
            f"seed {seed}: {fault}"
            for number in range(INPUTS_PER_CASE)
            for fault in play_input(workspace, number, seed)
        ]
    return {"inputs": INPUTS_PER_CASE, "faults": faults}


# Inputs: a name and an action


Input = tuple[str, Callable[[], Any]]


def draw_overrides(workspace: Workspace, draw: random.Random) -> Input:
    """Return changes of a recipe, and a call of ``try_training`` with the changed recipe."""
    parts = catalog.parts()
    fields = list(_field_paths(encode(base_recipe())))
    changes = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        value = draw.choice([draw.choice(WORDS), draw.choice(list(draw.choice(list(parts.values()))))])
        changes.append(f"{draw.choice(fields)}={value}")
    changes = [change if draw.random() < 0.97 else draw.choice(WORDS) for change in changes]
    return f"change {changes}", lambda: try_training(base_recipe().change(changes), torch.device("cpu"))


def base_recipe() -> Recipe:
    return lw.find("looped-parity", *TINY, *SMALL)


def _field_paths(tree: Any, path: str = "") -> Iterator[str]:
    for name, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if name != "kind":
            yield f"{path}{name}"
            if isinstance(part, dict | list):
                yield from _field_paths(part, f"{path}{name}.")


def draw_calls(workspace: Workspace, draw: random.Random) -> Input:
    """Return a call of the Python interface with random arguments, and its name."""

    def any_() -> Any:
        return draw.choice(OBJECTS)

    def some(**values: Any) -> dict[str, Any]:
        return {name: any_() if draw.random() < 0.4 else value for name, value in values.items()}

    kind = draw.choice([kind for kinds in catalog.parts().values() for kind in kinds.values()])
    chosen = {field.name: any_() for field in dataclasses.fields(kind) if draw.random() < 0.6}
    needed = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
    name, given = draw.choice(dataclasses.fields(Recipe)).name, any_()
    measured = some(lengths=[1], samples=2, kind="uniform", families=False, seed=0, device="cpu", stopping=None)
    trained = some(folder=workspace.folder / "runs" / "called", device="cpu", threads=1, save_every=60.0, quiet=True)
    weights, prompt, text = draw.choice([workspace.finished, workspace.finished, any_()]), any_(), any_()
    verb, given_values, act = draw.choice([
        (kind.__name__, [chosen], lambda: kind(**(dict.fromkeys(needed, 1) | chosen))),
        (f"replace {name}", [given], lambda: dataclasses.replace(base_recipe(), **{name: given})),
        ("evaluate", [measured], lambda: lw.evaluate(weights, **measured)),
        ("train", [trained], lambda: lw.train(base_recipe(), **trained)),
        ("train", [text, prompt], lambda: lw.train(text, prompt)),
        ("load", [weights, prompt], lambda: lw.load(weights).solve(prompt)),
        ("find", [text, prompt], lambda: lw.find(text, prompt)),
        ("families", [text], lambda: lw.families(text)),
        ("read", [text], lambda: Recipe.read(text)),
    ])  # fmt: skip
    return " ".join([verb, *(quote_value(value, max_length=300) for value in given_values)]), act


def draw_commands(workspace: Workspace, draw: random.Random) -> Input:
    """Return a random command line of ``lengthwise``, with options that keep training short and in one process."""
    verb = draw.choice(["list", "show", "sample", "train", "evaluate", "attack", "solve", "ask", "rasp", "report", ""])
    known = str(draw.choice([workspace.finished, workspace.unfinished, "looped-parity", "parity"]))
    words = {
        "show": [known, *TINY],
        "sample": ["parity", "3"],
        "train": ["looped-parity", *TINY, *SMALL, "--lengths", "1", "--samples", "2", "--quiet"],
        "evaluate": [known, "--lengths", "1", "--samples", "2"],
        "attack": [known, "--tries", "20"],
        "solve": [known, "101"],
        "ask": ["parity", "--endpoint", "http://127.0.0.1:9/v1", "--model", "none", "--limit", "0", "--lengths", "1"],
        "rasp": ["parity", "101"],
        "report": [str(workspace.finished)],
    }.get(verb, [])
    actions = verbs[verb]._actions if verb in (verbs := verb_parsers(entry.build_parser())) else []
    options = [flag for action in actions for flag in action.option_strings if flag not in HEAVY]
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        value = draw.choice(WORDS)
        match draw.randrange(4):
            case 0 if options:
                words += [draw.choice(options)]
            case 1 | 2 if options:
                words += [draw.choice(options), value]
            case _ if words:
                words[draw.randrange(len(words))] = value
            case _:
                words += [value]
    command = [verb, *words] if verb else words
    return f"lengthwise {command}", lambda: entry.main(command)


HEAVY = {"--jobs", "--seeds", "--seconds", "--help", "-h"}  # they start processes, take long, or print pages


def draw_files(workspace: Workspace, draw: random.Random) -> Input:
    """Return a damaged folder and a call that reads it."""
    target, fault = workspace.copy_damaged(draw)
    few, out = ["--lengths", "1", "--samples", "4"], ["--out", str(workspace.folder / "out")]
    command = draw.choice([
        ["report", str(target), *out],
        ["report", str(workspace.inquiry), str(workspace.finished), str(target), *out],
        ["report", str(target), "--stopping", "--samples", "4", "--lengths", "2"],
        ["evaluate", str(target), *few, "--anatomy"],
        ["solve", str(target), "101"],
        *[["train", str(target), *few, "--quiet"]] * 2,
        ["show", str(target)],
        ["list"],
    ])  # fmt: skip
    return f"{fault}; lengthwise {command}", lambda: entry.main(command)


GENERATORS = (*[draw_overrides] * 4, *[draw_calls] * 4, draw_commands, draw_files)  # cheap inputs are drawn more often


# Checking results


def play_input(workspace: Workspace, number: int, seed: int) -> list[str]:
    """Run one input and return what is wrong with its result."""
    draw = random.Random(f"{seed}/{number}")
    name, act = draw.choice(GENERATORS)(workspace, draw)
    before, start, faults = workspace.state(), time.process_time(), []
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
    faults += _faults(workspace, before, status, out.getvalue(), err.getvalue())
    if (seconds := time.process_time() - start) > MAX_INPUT_SECONDS:
        faults.append(f"it took {seconds:.0f} s")
    _remove_new_files(workspace, before)
    return [f"{number}: {name:.600}: {fault}" for fault in faults]


def _faults(workspace: Workspace, before: set[str], status: object, out: str, err: str) -> Iterator[str]:
    for line in (out + err).split("\n"):
        if not line.isprintable():
            yield f"control characters in {line[:200]!r}"
            break
    lines = [line for line in err.strip().split("\n") if not PROGRESS.search(line)]
    if status in (2, "refused") and (len(lines) != 1 or not lines[0].startswith("lengthwise")):
        yield f"not one line: {err[:300]!r}"
    if status not in (0, 1, 2, "refused"):
        yield f"exit {status}"
    new = workspace.state() - before
    if status in (2, "refused") and (left := [path for path in new if not _may_stay(path)]):
        yield f"it left {left[:3]}"
    if left := [path for path in new if Path(path).name == "ran" or Path(path).name.startswith(".config")]:
        yield f"code has run, or a file is half written: {left}"


def _may_stay(path: str) -> bool:
    """Return whether a refused input may leave this path: locks, caches, or additions to an existing run."""
    return "/spoilt/" in path or "/__pycache__" in path or path.endswith("/.operations.json")


def _remove_new_files(workspace: Workspace, before: set[str]) -> None:
    for path in sorted(workspace.state() - before, reverse=True):
        shutil.rmtree(path, ignore_errors=True)
        Path(path).unlink(missing_ok=True)
