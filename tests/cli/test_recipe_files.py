"""Recipes in JSON and YAML files."""

import json

import pytest

from lengthwise.api import catalog
from lengthwise.base.types import UsageError
from lengthwise.cli import entry
from lengthwise.cli.options import find_recipe

yaml = pytest.importorskip("yaml")


@pytest.mark.parametrize("name", ["looped-parity", "abacus-addition", "lstm-small"])
@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
def test_the_json_of_show_and_its_recipe_alone_are_read_as_the_recipe(name, suffix, tmp_path, capsys):
    assert entry._run(entry.parse(["show", name, "--json"])) == 0
    shown = json.loads(capsys.readouterr().out)
    for tree in (shown, shown["recipe"]):
        path = tmp_path / f"recipe.{suffix}"
        path.write_text(json.dumps(tree) if suffix == "json" else yaml.safe_dump(tree), encoding="utf-8")
        assert find_recipe(str(path), ["steps=7"]) == catalog.recipe(name, ["steps=7"])


def test_a_file_may_name_a_recipe_and_changes_to_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "recipe: looped-parity\nname: mine\nmodel.width: 32\noptimizer.rate: 1e-3\nclip: null\n"
        "lengths: Uniform(top=12)\nwatch.sizes: [8, 12]\n",
        encoding="utf-8",
    )
    changes = ["name=mine", "model.width=32", "optimizer.rate=0.001", "clip=none", "lengths=Uniform(top=12)"]
    wanted = catalog.recipe("looped-parity", [*changes, "watch.sizes=(8,12)"])
    assert find_recipe(str(path), []) == wanted
    (tmp_path / "mine.json").write_text(json.dumps({"recipe": "looped-parity", "name": "mine"}), encoding="utf-8")
    assert find_recipe(str(tmp_path / "mine.json"), []) == catalog.recipe("looped-parity", ["name=mine"])


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("a.yaml", "a: [", "not YAML"),
        ("a.yaml", "- 1", "is not one of: Recipe"),
        ("a.yaml", "recipe: nope", "recipe: 'nope' is not one of"),
        ("a.json", '{"recipe": "looped-parity", "model.widht": 3}', "there is no such field"),
        ("a.json", "nonsense", "not JSON"),
    ],
)
def test_faults_of_a_recipe_file_are_reported_in_one_line(file, text, message, tmp_path):
    (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message) as error:
        find_recipe(str(tmp_path / file), [])
    assert "\n" not in str(error.value) and file in str(error.value)
