"""Every test runs with shapes and types checked at run time, on one thread, with runs kept in a folder of its own."""

import collections
import contextlib
import gc
import io
import itertools
import os
import pickle
import subprocess
import sys
import traceback
import types
import typing
import warnings

import pytest
import torch
from beartype import BeartypeConf, FrozenDict, beartype
from hypothesis import settings
from jaxtyping import config, install_import_hook

# beartype knows ``Self`` only in classes that it decorates itself; the hook decorates their methods. A whole number may
# stand where a float is asked for, as everywhere in Python.
typed = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({typing.Self: typing.Any}), is_pep484_tower=True))
CHECKED = 2  # cases of a test
CALLS = 1000  # of functions in each of these
CASES = collections.Counter()  # how many each has had in this process
LEFT = [CALLS]  # calls that are still checked


def checked(function):
    """The function with its types checked, from its first call on; many calls turn the checking off."""
    inner = None

    def counted(*values, **named):
        nonlocal inner
        inner = inner or typed(function)
        LEFT[0] -= 1
        if LEFT[0] <= 0:
            config.update("jaxtyping_disable", True)
        return inner(*values, **named)

    return counted


install_import_hook("lengthwise", "conftest.checked")

LONG = bool(os.environ.get("LENGTHWISE_LONG"))  # the same laws on more examples, as `make test-long` sets it
for name, examples in (("quick", 7), ("long", 100)):
    settings.register_profile(name, derandomize=True, deadline=None, max_examples=examples, database=None)
settings.load_profile("long" if LONG else "quick")
torch.set_num_threads(1)


numbers = itertools.count()


def pytest_collection_finish():
    """Exempt imported modules, which stay until the end, from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _tree():
    """Tests leave no file where they were started, in which a commit would take it along."""
    before = set(os.listdir())
    yield
    left = sorted(name for name in set(os.listdir()) - before if not name.startswith("."))
    assert not left, f"tests wrote {', '.join(left)} into {os.getcwd()}: use tmp_path"


@pytest.fixture(autouse=True)
def runs(tmp_path_factory, monkeypatch):
    """Where runs are kept during a test: a folder of its own, which is not there until something is kept."""
    folder = tmp_path_factory.getbasetemp() / f"runs-{next(numbers)}"
    monkeypatch.setenv("LENGTHWISE_RUNS", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _types(request):
    """Types are checked in a test's first calls of its first cases: the others run the same code with other numbers."""
    test = request.node.nodeid.partition("[")[0]
    CASES[test] += 1
    LEFT[0] = CALLS
    config.update("jaxtyping_disable", CASES[test] > CHECKED)


@pytest.fixture
def untyped(_types):
    """Types are not checked: the test gives wrong ones on purpose, as a user would."""
    config.update("jaxtyping_disable", True)


def command(*words, stdin="", env=None):
    """A command of the command line, run in this process: one of its own takes three seconds to start."""
    from lengthwise.base import process
    from lengthwise.cli import entry

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        patch.setattr(sys, "path", [*sys.path])  # commands look for modules where they are given
        patch.setattr(process, "install_handlers", lambda: None)  # signals are pytest's
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            entry.main([str(word) for word in words])
    return subprocess.CompletedProcess(words, left.value.code, out.getvalue(), err.getvalue())


def in_fork(act, folder="."):
    """What comes of an act in a fork of this process that works in ``folder``: what it imports and defines ends with
    it. Types are not checked, as for a user."""
    reads, writes = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # of other threads, which the fork does not need
        child = os.fork()
    if not child:
        try:
            config.update("jaxtyping_disable", True)
            os.chdir(folder)
            done = pickle.dumps(act())
            with open(writes, "wb") as file:
                file.write(done)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as file:
        done = file.read()
    os.waitpid(child, 0)
    return pickle.loads(done)


def forked(*words, folder="."):
    """A command in such a fork."""
    return in_fork(lambda: command(*words), folder)


@pytest.fixture
def fleet_here(monkeypatch):
    """A fleet's trainings run in this process, one after the other, given the words that each process would be."""
    from lengthwise.jobs import launchers

    def start(words, *, stderr, **_):
        assert words[:4] == [sys.executable, "-P", "-m", "lengthwise"]
        done = command(*words[4:])
        stderr.write(done.stderr.encode())
        return types.SimpleNamespace(returncode=done.returncode, poll=lambda: done.returncode, stdin=io.BytesIO())

    monkeypatch.setattr(launchers, "subprocess", types.SimpleNamespace(Popen=start, PIPE=None, DEVNULL=None))


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made and saved, but each is one white dot: drawing takes most of the time of a study."""
    from matplotlib.figure import Figure
    from PIL import Image

    monkeypatch.setattr(Figure, "draw_without_rendering", lambda self: None)
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: Image.new("RGB", (1, 1)).save(file, "png"))


@contextlib.contextmanager
def chosen_quickly():
    """Faster runners are chosen, whatever LENGTHWISE_PLAIN says."""
    from lengthwise.runners import cpu

    before = cpu._PLAIN_ONLY.set(False)
    yield
    cpu._PLAIN_ONLY.reset(before)


@pytest.fixture
def quick():
    """The same, for one test."""
    with chosen_quickly():
        yield


@pytest.fixture(scope="module", params=["plain", "fast"])
def run(request):
    """Model → runner: the plain one; and the one that is chosen, taking all its ways, however little they pay."""
    from lengthwise.runners import cpu
    from lengthwise.runners.plain import Plain

    with chosen_quickly(), pytest.MonkeyPatch.context() as patch:
        if request.param == "fast":
            eager(patch)
        yield Plain if request.param == "plain" else cpu.choose_runner


class Crash(BaseException):
    """Simulates the death of a process: no ``except Exception`` catches it."""


def survived(act, patch, least, moment="before"):
    """What comes of an act that is begun again whenever it dies, and how often it did: each time at its file number
    ``least``, or one or two later, right before or right after that is put in its place."""
    written, put, crashes = [], os.replace, 0

    def dying(source, target):
        written.append(target)
        if moment == "after":
            put(source, target)
        if len(written) == least + crashes % 3:
            raise Crash
        if moment == "before":
            put(source, target)

    patch.setattr(os, "replace", dying)
    while True:
        try:
            return act(), crashes
        except Crash:
            crashes += 1
            written.clear()


def eager(patch):
    """Groups of few rows, kernels for small heads of any size, and whatever can be left out is."""
    from lengthwise.runners.cpu import elementwise, fused_loops, pattern, recurrent, small, transformer

    patch.setattr(small, "is_worthwhile", lambda *_: True)
    patch.setattr(pattern, "MAX_WIDTH", 1 << 30)
    patch.setattr(elementwise, "MIN_NUMBERS", 1)
    patch.setattr(fused_loops, "MOST_DISTINCT", 1.0)
    patch.setattr(transformer, "MOST_NEEDED", 1.0)
    for module in (recurrent, transformer):
        patch.setattr(module, "GROUP_POSITIONS", 24)
    patch.setattr(pattern, "MIN_ROWS", 1)
    patch.setattr(pattern, "MIN_HEADS", 1)
