"""Fixtures and helpers. Every test runs on one thread, checks shapes and types, and has its own folder of runs."""

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

# beartype resolves ``Self`` only in classes that it decorates itself, and the hook decorates methods one by one. An int
# is accepted where a float is annotated, as in PEP 484.
add_checks = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({typing.Self: typing.Any}), is_pep484_tower=True))
CHECKED_CASES = 2  # parametrized cases of a test in which types are checked
CHECKED_CALLS = 1000  # calls in each of these cases in which types are checked
CASE_COUNTS = collections.Counter()  # cases of each test that this process has run
CALLS_LEFT = [CHECKED_CALLS]  # calls of the current case that are still checked


def check_types(function):
    """Return ``function`` with its arguments and result type-checked in the first ``CHECKED_CALLS`` calls of a test
    case."""
    inner = None

    def count_and_call(*values, **keywords):
        nonlocal inner
        inner = inner or add_checks(function)
        CALLS_LEFT[0] -= 1
        if CALLS_LEFT[0] <= 0:
            config.update("jaxtyping_disable", True)
        return inner(*values, **keywords)

    return count_and_call


install_import_hook("lengthwise", "conftest.check_types")

LONG = bool(os.environ.get("LENGTHWISE_LONG"))  # more and larger examples, as `make test-long` sets it
for name, examples in (("quick", 7), ("long", 100)):
    settings.register_profile(name, derandomize=True, deadline=None, max_examples=examples, database=None)
settings.load_profile("long" if LONG else "quick")
torch.set_num_threads(1)


folder_numbers = itertools.count()


def pytest_collection_finish():
    """Exempt imported modules from garbage collection, to save time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _check_stray_files():
    """Check that the tests leave no file in the folder in which they were started."""
    before = set(os.listdir())
    yield
    left = sorted(name for name in set(os.listdir()) - before if not name.startswith("."))
    assert not left, f"tests wrote {', '.join(left)} into {os.getcwd()}: use tmp_path"


@pytest.fixture(autouse=True)
def runs(tmp_path_factory, monkeypatch):
    """Return the folder in which this test's runs are stored; it does not exist before the first run."""
    folder = tmp_path_factory.getbasetemp() / f"runs-{next(folder_numbers)}"
    monkeypatch.setenv("LENGTHWISE_RUNS", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _limit_type_checks(request):
    """Check types only in a test's first cases and calls, since later ones run the same code with other numbers."""
    test = request.node.nodeid.partition("[")[0]
    CASE_COUNTS[test] += 1
    CALLS_LEFT[0] = CHECKED_CALLS
    config.update("jaxtyping_disable", CASE_COUNTS[test] > CHECKED_CASES)


@pytest.fixture
def no_type_checks(_limit_type_checks):
    """Turn type checks off, as for users, in a test that passes wrong types or replaces typed parts."""
    config.update("jaxtyping_disable", True)


def command(*words, stdin="", env=None):
    """Run a ``lengthwise`` command in this process, since a new process takes three seconds to start. Return its exit
    status and output as a ``CompletedProcess``."""
    from lengthwise.base import process
    from lengthwise.cli import entry

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        patch.setattr(sys, "path", [*sys.path])  # commands extend it for --import
        patch.setattr(process, "install_handlers", lambda: None)  # pytest handles signals
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            entry.main([str(word) for word in words])
    return subprocess.CompletedProcess(words, left.value.code, out.getvalue(), err.getvalue())


def call_in_fork(function, folder="."):
    """Call ``function`` in ``folder`` in a fork of this process, without type checks, and return its result. Modules
    that the function imports are not imported in this process."""
    reads, writes = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # about other threads, which the fork does not need
        child = os.fork()
    if not child:
        try:
            config.update("jaxtyping_disable", True)
            os.chdir(folder)
            done = pickle.dumps(function())
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


def command_in_fork(*words, folder="."):
    """Run a ``lengthwise`` command in a fork, as ``call_in_fork`` does."""
    return call_in_fork(lambda: command(*words), folder)


@pytest.fixture
def jobs_in_process(monkeypatch):
    """Run the commands of a ``JobPool`` in this process, one after the other."""
    from lengthwise.jobs import launchers

    def start(words, *, stderr, **_):
        assert words[:4] == [sys.executable, "-P", "-m", "lengthwise"]
        done = command(*words[4:])
        stderr.write(done.stderr.encode())
        return types.SimpleNamespace(returncode=done.returncode, poll=lambda: done.returncode, stdin=io.BytesIO())

    monkeypatch.setattr(launchers, "subprocess", types.SimpleNamespace(Popen=start, PIPE=None, DEVNULL=None))


@pytest.fixture
def blank_figures(monkeypatch):
    """Save every figure as a single pixel: drawing would take most of the time of a study's test."""
    from matplotlib.figure import Figure
    from PIL import Image

    monkeypatch.setattr(Figure, "draw_without_rendering", lambda self: None)
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: Image.new("RGB", (1, 1)).save(file, "png"))


@contextlib.contextmanager
def allow_fast_runners():
    """Allow fast runners, even if LENGTHWISE_PLAIN is set."""
    from lengthwise.runners import cpu

    before = cpu._PLAIN_ONLY.set(False)
    yield
    cpu._PLAIN_ONLY.reset(before)


@pytest.fixture
def fast_runners():
    """Allow fast runners in one test, even if LENGTHWISE_PLAIN is set."""
    with allow_fast_runners():
        yield


@pytest.fixture(scope="module", params=["plain", "fast"])
def build_runner(request):
    """Return a function from a model to its runner: the plain one, or the fast one with all its fast paths forced."""
    from lengthwise.runners import cpu
    from lengthwise.runners.plain import Plain

    with allow_fast_runners(), pytest.MonkeyPatch.context() as patch:
        if request.param == "fast":
            force_fast_paths(patch)
        yield Plain if request.param == "plain" else cpu.choose_runner


class Crash(BaseException):
    """An exception that simulates the death of a process: no ``except Exception`` catches it."""


def run_through_crashes(function, patch, first_crash, moment="before"):
    """Call ``function`` until it finishes; return its result and the number of simulated crashes. Each call crashes at
    its ``first_crash``-th file, or up to two files later; ``moment`` is "before" or "after" the file is moved into
    place."""
    written, put, crashes = [], os.replace, 0

    def crash_or_replace(source, target):
        written.append(target)
        if moment == "after":
            put(source, target)
        if len(written) == first_crash + crashes % 3:
            raise Crash
        if moment == "before":
            put(source, target)

    patch.setattr(os, "replace", crash_or_replace)
    while True:
        try:
            return function(), crashes
        except Crash:
            crashes += 1
            written.clear()


def force_fast_paths(patch):
    """Relax every threshold of the fast runner, so that even a tiny model takes all its fast paths."""
    from lengthwise.runners.cpu import elementwise, fused_loops, pattern, recurrent, small_heads, transformer

    patch.setattr(small_heads, "is_worthwhile", lambda *_: True)
    patch.setattr(pattern, "MAX_SPARSE_HEAD_WIDTH", 1 << 30)
    patch.setattr(elementwise, "MIN_NUMBERS", 1)
    patch.setattr(fused_loops, "MAX_DISTINCT_FRACTION", 1.0)
    patch.setattr(transformer, "MAX_NEEDED_FRACTION", 1.0)
    for module in (recurrent, transformer):
        patch.setattr(module, "GROUP_POSITIONS", 24)
    patch.setattr(pattern, "MIN_ROWS", 1)
    patch.setattr(pattern, "MIN_HEADS", 1)
