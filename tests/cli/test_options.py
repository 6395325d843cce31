"""Options are declared once, in their command's file, and passed on to the processes that the command starts."""

import dataclasses
import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.cli import entry
from lengthwise.cli.options import format_option_words
from lengthwise.cli.parser import VERBS, build_parser, list_parsers, read_options
from lengthwise.cli.train import Options


@pytest.mark.parametrize("verb", VERBS)
def test_options_read_from_the_source_equal_the_declared_ones(verb):
    _, read = read_options(verb)
    options = importlib.import_module(f"lengthwise.cli.{verb}").Options
    declared = {field.name: field for field in dataclasses.fields(options)}
    actions = {action.dest: action for action in list_parsers(build_parser())[verb]._actions}
    assert read.keys() == declared.keys() == actions.keys() - {"help"}
    for name, field in declared.items():
        given = None if field.default is dataclasses.MISSING else field.default
        assert read[name].type == field.type and read[name].about
        assert (actions[name].default or None) == (given or None)


def test_an_option_for_a_list_of_names_may_be_repeated():
    words = ["reproduce", "formal", "--mixer", "A", "--methods", "B,C", "--mixer", "D"]
    assert entry.parse(words).methods == "A,B,C,D"
    assert entry.parse([*words[:3], ""]).methods == ""


OPTION_STRATEGIES = {
    "samples": st.integers(1, 10**6),
    "save_every": st.floats(0, 1e6),
    "curve": st.none() | st.just("1-3"),
    "stopping": st.lists(st.sampled_from(["Oracle", "After(loops=2)"])),
    "keep_state": st.booleans(),
    "matmul": st.sampled_from(["fp32", "bf16"]),
}


@given(st.fixed_dictionaries(OPTION_STRATEGIES))
def test_option_words_are_parsed_to_the_same_options(values):
    options = Options(recipe="looped-parity", **values)
    args = entry.parse(["train", options.recipe, *format_option_words(options, {"recipe", "changes"})])
    parsed = {field.name: getattr(args, field.name) for field in dataclasses.fields(Options)}
    lists = {name: [*value] for name, value in vars(options).items() if isinstance(value, tuple)}
    assert parsed == vars(options) | lists
