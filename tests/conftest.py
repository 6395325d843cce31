"""Every test runs with shapes and types checked at run time, on one thread, with runs kept in a folder of its own."""

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


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    """Where runs are kept during a test."""
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"
