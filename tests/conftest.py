"""Every test runs with shapes and types checked at run time, on one thread, with runs kept in a folder of its own."""

import itertools
import typing

import pytest
import torch
from beartype import BeartypeConf, FrozenDict, beartype
from hypothesis import settings
from jaxtyping import install_import_hook

# beartype knows ``Self`` only in classes that it decorates itself; the hook decorates their methods. A whole number may
# stand where a float is asked for, as everywhere in Python.
checked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({typing.Self: typing.Any}), is_pep484_tower=True))
install_import_hook("lengthwise", "conftest.checked")

settings.register_profile("law", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("law")
torch.set_num_threads(1)


numbers = itertools.count()


@pytest.fixture(autouse=True)
def runs(tmp_path_factory, monkeypatch):
    """Where runs are kept during a test: a folder of its own, which is not there until something is kept."""
    folder = tmp_path_factory.getbasetemp() / f"runs-{next(numbers)}"
    monkeypatch.setenv("LENGTHWISE_RUNS", str(folder))
    return folder
