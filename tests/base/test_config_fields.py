"""Dataclasses are converted to JSON and back, and changed by text; types are checked, and no code is run."""

import dataclasses
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.base.fields import (
    Config,
    build,
    decode,
    encode,
    find_part_classes,
    format_changed_fields,
    format_part,
    identity_fields,
    override,
    validate,
)
from lengthwise.base.literals import parse_literal

RECIPE = lw.Recipe(
    name="tiny-sum",
    task=lw.Addition(order="least", equal_lengths=True),
    layout=lw.Pairs(),
    lengths=lw.Uniform(top=4),
    loops=lw.ExtraLoops(offset=1),
    model=lw.Transformer(width=16, heads=2, positions=(lw.Local(1),)),
    objective=lw.Final(),
    steps=10,
)

PART_FIELDS = ("task", "layout", "lengths", "loops", "model", "objective", "optimizer", "schedule", "stopping", "watch")

# To JSON and back


def test_recipes_are_restored_from_json_and_from_text():
    """Text printed by ``show`` or a part's repr is accepted as a change. Ids differ exactly if recipes do, and do not
    depend on fields at their defaults, so that a field added later leaves them unchanged."""
    recipes = [lw.find(name) for name in [*lw.list_recipes()][:: 1 if LONG else 8]]
    for recipe in recipes:
        back = lw.Recipe.read(recipe.json())
        assert back == recipe and back.id == recipe.id
        changes = format_changed_fields(recipe) + [(name, repr(getattr(recipe, name))) for name in PART_FIELDS]
        changes += [(name, format_part(getattr(recipe, name))) for name in PART_FIELDS]
        assert all(override(recipe, [f"{name}={text}"]) == recipe for name, text in changes)
        for part in (getattr(recipe, name) for name in PART_FIELDS):
            assert decode(type(part), identity_fields(part)) == part
    assert len({recipe.id for recipe in recipes}) == len(recipes)
    assert identity_fields(lw.AdamW()) == {"kind": "AdamW"}
    assert identity_fields(lw.AdamW(rate=0.5)) == {"kind": "AdamW", "rate": 0.5}
    assert recipe.change(["model=Transformer", "model.final_norm=none"]).model.final_norm == "none"  # no None


def test_integers_become_floats_and_missing_fields_get_their_defaults():
    """``clip=2`` and ``clip=2.0`` are equal in Python, so they are one recipe and one run folder."""
    for change in ({"clip": 2}, {"ema": 0}, {"optimizer": lw.AdamW(rate=1)}, {"lengths": lw.Uniform(4, 1, 1)}):
        recipe = replace(RECIPE, **change)
        back = lw.Recipe.read(recipe.json())
        assert back == recipe and back.id == recipe.id
    for field in [field.name for field in dataclasses.fields(lw.Recipe) if field.default is not dataclasses.MISSING]:
        assert decode(lw.Recipe, {name: tree for name, tree in encode(RECIPE).items() if name != field}) == RECIPE


@pytest.mark.usefixtures("no_type_checks")
def test_numpy_numbers_paths_and_classes_are_converted():
    given = replace(RECIPE, name=Path("tiny-sum"), steps=np.int64(10), clip=np.float32(0.5), objective=lw.Final)
    assert given == replace(RECIPE, clip=0.5) and given.id == lw.Recipe.read(given.json()).id
    for wrong in (np.float64(10), np.True_, True, 10.0):
        with pytest.raises(lw.UsageError, match="is not a whole number"):
            replace(RECIPE, steps=wrong)
    with pytest.raises(lw.UsageError, match=r"'Adam' is not one of: .*did you mean \w*Adam"):
        replace(RECIPE, optimizer=torch.optim.Adam)
    for kind in (list, torch.Tensor):
        with pytest.raises(lw.UsageError, match=r"^Own\.rates: a field is a number, a word, a tuple or a part, not "):
            validate(kind, kind([1]), "Own.rates")


# Changes as text

CHANGES = [
    (["steps=7"], {"steps": 7}),
    (["clip=none"], {"clip": None}),
    (["optimizer.rate=2e-3"], {"optimizer": lw.AdamW(rate=2e-3)}),
    (["optimizer.betas=(0.5, 0.75)"], {"optimizer": lw.AdamW(betas=(0.5, 0.75))}),
    (["loops.offset=-1"], {"loops": lw.ExtraLoops(offset=-1)}),
    (["layout.carry=false"], {"layout": lw.Pairs(carry=False)}),
    (["task.order=most"], {"task": lw.Addition(equal_lengths=True)}),
    (["model=Transformer(width=32, positions=(NoPE, Local(reach=2)))"],
     {"model": lw.Transformer(width=32, positions=(lw.NoPE(), lw.Local(2)))}),
    (["model.positions=RoPE"], {"model": replace(RECIPE.model, positions=(lw.RoPE(),))}),
    (["model.positions.0.reach=3"], {"model": replace(RECIPE.model, positions=(lw.Local(3),))}),
    (["lengths=Curriculum(top=20,every=60)"], {"lengths": lw.Curriculum(top=20, every=60)}),
    (["lengths=Curriculum", "lengths.top=20", "lengths.every=60"], {"lengths": lw.Curriculum(top=20, every=60)}),
    (["stopping=After", "stopping.loops=3"], {"stopping": lw.After(3)}),
    (["watch=Watch(every=5, sizes=(8, 12))", "keep=best"], {"watch": lw.Watch(5, (8, 12)), "keep": "best"}),
    (["steps=7", "steps=8"], {"steps": 8}),
    (["task=Parity", "layout=NextToken(pauses=2)"], {"task": lw.Parity(), "layout": lw.NextToken(2)}),
    ([], {}),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "values"), CHANGES, ids=lambda value: " ".join(value))
def test_changes_as_text_set_the_fields(changes, values):
    assert override(RECIPE, changes) == replace(RECIPE, **values)
    assert RECIPE.change(changes) == replace(RECIPE, **values)
    assert len(changes) != 1 or RECIPE.change(changes[0]) == replace(RECIPE, **values)


def test_a_field_called_kind_is_refused_where_its_class_is_defined():
    with pytest.raises(lw.UsageError, match=r"^SmoothObjective\.kind: a field cannot be called kind: rename it$"):

        class SmoothObjective(lw.Objective):
            kind: str = "smooth"


def test_a_misspelt_field_gets_a_suggestion():
    for name in [field.name for field in dataclasses.fields(lw.Recipe)]:
        with pytest.raises(lw.UsageError, match=rf"no such field; Recipe has: .*\(did you mean {name}\?\)"):
            override(RECIPE, [f"{name}x=1"])
        with pytest.raises(lw.UsageError, match=rf"no such field \(did you mean {name}\?\)"):
            RECIPE.change(**{f"{name}x": 1})
    with pytest.raises(lw.UsageError, match=r"^step: .*; write .*\.step=3 \(did you mean steps\?\)"):
        RECIPE.change(["step=3"])


def test_a_renamed_field_keeps_ids_and_may_be_given_by_its_former_name():
    @dataclass(frozen=True)
    class RadiusBefore(Config):
        far: int = 1

    @dataclass(frozen=True)
    class RadiusAfter(Config, former_names={"far": "distance"}):
        recorded_name = "RadiusBefore"

        distance: int = 1

    assert identity_fields(RadiusAfter(3)) == identity_fields(RadiusBefore(3)) == {"kind": "RadiusBefore", "far": 3}
    assert encode(RadiusAfter(3)) == {"kind": "RadiusBefore", "distance": 3}
    for key in ("far", "distance"):
        assert decode(RadiusAfter, {"kind": "RadiusBefore", key: 3}) == RadiusAfter(3)
        assert override(RadiusAfter(), [f"{key}=3"]) == RadiusAfter(3)
    assert override(RadiusAfter(), ["far=3", "distance=4"]) == RadiusAfter(4)
    assert override(RadiusAfter(), ["distance=4", "far=3"]) == RadiusAfter(3)


def test_former_names_of_fields_are_no_names_of_other_fields():
    own = [cls for cls in find_part_classes(Config).values() if cls.__module__.startswith("lengthwise.")]
    assert any(cls.former_names for cls in own)
    for cls in own:
        names = {field.name for field in dataclasses.fields(cls)}
        assert not names & cls.former_names.keys()
        assert names >= set(cls.former_names.values())


WRONG_CHANGES = [
    ("lengths=8", r"lengths: 8 is not one of: Curriculum, .*; lengths\.FIELD=VALUE changes one of its fields"),
    ("model.widht=3", r"model\.widht: there is no such field; Transformer has: width, .*did you mean width\?"),
    ("model=Transfomer", r"model: 'Transfomer' is not one of: .*Transformer.*did you mean Transformer\?"),
    ("task=Uniform(top=3)", "task: 'Uniform' is not one of: .*Addition.*Copy.*Parity"),
    ("lengths=Lengths", "lengths: 'Lengths' is not one of: .*Curriculum, LogUniform, Mastery, .*OneOf, .*Uniform"),
    ("lengths=8", "lengths: 8 is not one of: .*Curriculum"),
    ("lengths=own.Uniform(top=8)", "lengths: 'own.Uniform.top=8.' is neither a number"),
    ("name=my run", "name: 'my run' is neither a number, .*; several words need quotes"),
    ("lengths=Curriculum(top=20)", "lengths: Curriculum needs every"),
    ("task.order=middle", "task.order: 'middle' is not one of: least, most"),
    ("steps=true", "steps: True is not a whole number"),
    ("steps='7'", "steps: '7' is not a whole number"),
    ("layout.carry=1", "layout.carry: 1 is not true or false"),
    ("ema=nan", "ema: 'nan' is not a number"),
    ("optimizer.rate=1e999", "optimizer.rate: inf is not a number"),
    ("optimizer.betas=(0.9,)", "optimizer.betas: needs 2 values, not 1"),
    ("optimizer.betas=(0.9, fast)", r"optimizer.betas.1: 'fast' is not a number"),
    ("model.positions=(NoPE, 3)", r"model.positions.1: 3 is not one of: .*Local"),
    ("model.positions.1.reach=3", r"model.positions.1.reach: there is no such field"),
    ("name=3", "name: 3 is not a word"),
    ("watch=none", "watch: None is not one of: Watch"),
    ("steps.more=3", "steps.more: there is no such field"),
    ("layout=FullOutput(2)", "give fields of FullOutput by name"),
    ("lengths=Curriculum(top=5,top=6)", "Curriculum: top is given twice"),
    ("steps", "write a change as name=value"),
    ("=3", "write a change as name=value"),
    ("steps=", "steps: '' is neither"),
    ("steps=1j", "steps: '1j' is not a whole number"),
    ("steps=3 4", "steps: '3 4' is neither"),
    ("steps=1e3", r"steps: 1000.0 is not a whole number: write 1000$"),
    ("steps=1e300", r"steps: 1e\+300 is not a whole number$"),
    ("steps=3.5", r"steps: 3.5 is not a whole number$"),
    *(
        (f"steps={nested}", "steps: ")
        for nested in ("(" * 5000, "-" * 50_000 + "1", "A(b=" * 500, "[" * 150 + "]" * 150)
    ),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("few-in-runs", "few-in-runs"),
        ("(few-in-runs, odd-end)", ["few-in-runs", "odd-end"]),
        ("['a-b', \"c d-e\"]", ["a-b", "c d-e"]),
        ("in", "in"),
        ("None", None),
        ("1e-3", 1e-3),
        ("1.5E3", 1500.0),
        ("0x1f", 31),
        ("12_000", 12_000),
        ("(1_0, 2e+3, 1_000.5)", [10, 2000.0, 1000.5]),
        ("1e+16", 1e16),
        ("8GB", "8GB"),
        ("(3d-model, 8in)", ["3d-model", "8in"]),
        ("Halted(delay=-2)", {"kind": "Halted", "delay": -2}),
    ],
)
def test_literals_and_words_with_dashes_are_parsed(text, expected):
    assert parse_literal(text) == expected


@pytest.mark.parametrize(("change", "message"), WRONG_CHANGES, ids=[change[:40] for change, _ in WRONG_CHANGES])
def test_wrong_changes_are_refused_in_one_line(change, message):
    with pytest.raises(lw.UsageError, match=message) as error:
        override(RECIPE, [change])
    assert "\n" not in str(error.value)


NOT_RECIPES = [None, 3, [], "Addition", {}, {"kind": 3}, {"kind": "Watch"}, {"kind": None, "steps": 1}]
NOT_NUMBERS = [math.nan, math.inf, True, "1", None, [1.0], 10**400]
NOT_JSON = ["", "{", "\x00", "NaN", "{'kind': 'Recipe'}", "[" * 100_000]


def test_invalid_json_and_invalid_numbers_are_refused():
    wrong = [encode(RECIPE) | {"ema": value} for value in NOT_NUMBERS]
    for text in (*map(json.dumps, [*NOT_RECIPES, *wrong]), *NOT_JSON):
        with pytest.raises(lw.UsageError) as error:
            lw.Recipe.read(text)
        assert '"ema": ' not in text or "ema: " in str(error.value)


# Any input gives a value or a UsageError

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["RoPE", "Copy"]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)  # fmt: skip
FIELD_PATHS = [(f.name,) for f in dataclasses.fields(lw.Recipe)] + [
    (part, f.name) for part in PART_FIELDS for f in dataclasses.fields(getattr(RECIPE, part))
]


@settings(max_examples=200 if LONG else 50)
@given(st.sampled_from(FIELD_PATHS), JSON_VALUES)
def test_any_json_in_any_field_gives_a_recipe_or_a_usage_error(field_path, value):
    tree = encode(RECIPE)
    *parents, last = field_path
    inner = tree[parents[0]] if parents else tree
    inner[last] = value
    try:
        recipe = lw.Recipe.read(json.dumps(tree))
    except lw.UsageError as error:
        assert str(error)
    else:
        assert lw.Recipe.read(recipe.json()) == recipe


@settings(max_examples=200 if LONG else 50)
@given(st.one_of(st.text(max_size=20), st.text("(),=._-+'\"*{}[]aA01 \\\n", max_size=30)))
def test_any_text_gives_plain_values_or_a_usage_error(text):
    try:
        value = parse_literal(text)
    except lw.UsageError:
        return
    assert json.loads(json.dumps(value)) == value or not math.isfinite(value)


CODE_EXPRESSIONS = [
    "__import__('pathlib').Path('SEEN').touch()",
    "exec(\"open('SEEN', 'w')\")",
    "open('SEEN', 'w')",
    "open(file='SEEN', mode='w')",
    "(lambda: open('SEEN', 'w'))()",
    "[open('SEEN', 'w') for i in (1,)]",
    "f\"{open('SEEN', 'w')}\"",
    "Pairs(carry=open('SEEN', 'w'))",
    "Pairs(**dict(carry=open('SEEN', 'w')))",
    "print(file=open('SEEN', 'w'))",
    "Path(args='SEEN')",
]


def test_code_in_texts_and_files_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for change in (f"{name}={code}" for name in ("steps", "layout", "model.width") for code in CODE_EXPRESSIONS):
        with pytest.raises(lw.UsageError):
            override(RECIPE, [change])
    kinds = ["open", "os.system", "builtins.open", "pathlib.Path", "__import__", "Popen", *CODE_EXPRESSIONS[:3]]
    for fields in ({}, {"file": "SEEN", "mode": "w"}, {"args": ["touch", "SEEN"]}):
        for part in ({"kind": kind} | fields for kind in kinds):
            for tree in (encode(RECIPE) | {"layout": part}, part):
                with pytest.raises(lw.UsageError, match="is not one of"):
                    lw.Recipe.read(json.dumps(tree))
    assert not (tmp_path / "SEEN").exists()


def test_kinds_of_a_field_are_the_imported_dataclasses_of_its_type():
    assert {"Learned", "Local", "NoPE", "RoPE"} <= set(find_part_classes(lw.Position))
    assert not {"Position", "LearnedEncoding", "Transformer"} & set(find_part_classes(lw.Position))
    assert find_part_classes(lw.Lengths)["Curriculum"] is lw.Curriculum
    assert list(find_part_classes(lw.Position)) == sorted(find_part_classes(lw.Position))


def test_parts_that_are_nested_too_deeply_are_refused():
    tree = json.loads(RECIPE.json())
    for _ in range(400):
        tree["model"] = {"kind": "Timed", "answers": tree["model"]}
    with pytest.raises(lw.UsageError, match="nested too deeply"):
        decode(lw.Recipe, tree)


def test_a_class_that_lacks_methods_is_refused_with_their_names():
    @dataclass(frozen=True)
    class Unfinished(lw.Task):
        pass

    with pytest.raises(lw.UsageError, match=r"^Unfinished lacks the methods answer_slots and .* and reference"):
        build(Unfinished, [])
    with pytest.raises(lw.UsageError, match=r"^task: Unfinished lacks the methods answer_slots and .* and reference"):
        RECIPE.change(["task=Unfinished"])
