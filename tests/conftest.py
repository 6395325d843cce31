"""Every test runs with shapes and types checked at run time, on one thread, with runs kept in a folder of its own."""

import collections
import itertools
import typing

import pytest
import torch
from beartype import BeartypeConf, FrozenDict, beartype
from hypothesis import settings
from jaxtyping import config, install_import_hook

# beartype knows ``Self`` only in classes that it decorates itself; the hook decorates their methods. A whole number may
# stand where a float is asked for, as everywhere in Python.
checked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({typing.Self: typing.Any}), is_pep484_tower=True))
install_import_hook("lengthwise", "conftest.checked")

settings.register_profile("law", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("law")
torch.set_num_threads(1)


numbers = itertools.count()
CHECKED = 2  # cases of a test
CASES = collections.Counter()  # how many each has had in this process


@pytest.fixture(autouse=True)
def runs(tmp_path_factory, monkeypatch):
    """Where runs are kept during a test: a folder of its own, which is not there until something is kept."""
    folder = tmp_path_factory.getbasetemp() / f"runs-{next(numbers)}"
    monkeypatch.setenv("LENGTHWISE_RUNS", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _types(request):
    """Types are checked in a test's first cases alone: the others run the same code with other numbers."""
    test = request.node.nodeid.partition("[")[0]
    CASES[test] += 1
    config.update("jaxtyping_disable", CASES[test] > CHECKED)


@pytest.fixture(scope="module")
def quick():
    """Faster runners are chosen, whatever LENGTHWISE_PLAIN says."""
    from lengthwise import fast

    before, fast._OFF = fast._OFF, [False]
    yield
    fast._OFF = before


@pytest.fixture(scope="module", params=["plain", "fast"])
def run(request, quick):
    """Model → runner: the plain one; and the one that is chosen, taking all its ways, however little they pay."""
    from lengthwise import fast
    from lengthwise.depth.plain import Plain

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "fast":
            eager(patch)
        yield Plain if request.param == "plain" else fast.choose


def eager(patch):
    """Groups of few rows, kernels for small heads of any size, and whatever can be left out is."""
    from lengthwise.fast import gelu, one_step, pattern, recurrent, small, transformer

    patch.setattr(small, "pays", lambda *_: True)
    patch.setattr(gelu, "LEAST", 1)
    patch.setattr(one_step, "MOST_DISTINCT", 1.0)
    patch.setattr(transformer, "MOST_NEEDED", 1.0)
    for module in (recurrent, transformer):
        patch.setattr(module, "GROUP_POSITIONS", 24)
    patch.setattr(pattern, "ROWS", 1)
    patch.setattr(pattern, "HEADS", 1)
