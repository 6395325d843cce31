"""The recipes of the abacus system: the published decoders, and their study."""

import json

import pytest
import torch

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.cli.entry import main
from lengthwise.experiment.data import draw_batch
from lengthwise.recipes import abacus
from lengthwise.runners.cpu import choose_runner

LAYER_PARAMETERS = 4 * 1024**2 + 3 * 1024**2 + 4 * 1024  # attention, gated MLP, two norms
OUTER_PARAMETERS = 512 * 1024 + 2 * 1024 + 3 * 1024**2 + 2 * 1024 + 1024**2  # digit positions, embedding norm, readout


@pytest.mark.parametrize(
    ("name", "layers"), [("16x1", 16), ("16x1-injection", 16), ("8x2", 8), ("4x4", 4), ("1x16", 1)]
)
def test_published_decoders_have_the_published_parameter_counts(name, layers):
    """A count by hand yields 122.5M parameters for 16 layers and 120 symbols, about the published number of symbols."""
    recipe = abacus.build_decoders()[f"paper-abacus-{name}"]
    symbols = lw.Vocab(tuple(chr(200 + i) for i in range(120)))
    with torch.device("meta"):
        model = recipe.model.build(symbols, symbols, causal=True)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == layers * LAYER_PARAMETERS + OUTER_PARAMETERS + 2 * 120 * 1024
    assert layers < 16 or round(count / 1e6, 1) == 122.5
    assert layers * recipe.loops.count == 16


def test_probes_fit_the_position_tables_of_their_recipes():
    """The longest probe, 789 repeated fifty times, has 150 digits and needs digit positions up to 151."""
    for make in catalog.list_recipes().values():
        recipe = make()
        for position in getattr(recipe.model, "positions", ()):
            if recipe.watch.probes and hasattr(position, "size"):
                assert position.size >= 151


@pytest.mark.parametrize(
    ("family", "depth", "budget"),
    [(abacus.build_encoding_variants, 4, (4000, 64, 5)), (abacus.build_depth_splits, 16, (3000, 64, 6))],
)
def test_compared_recipes_have_the_same_budget_and_depth(family, depth, budget):
    recipes = family().values()
    assert {recipe.model.layers * recipe.loops.count for recipe in recipes} == {depth}
    assert {(recipe.steps, recipe.batch, recipe.lengths.top) for recipe in recipes} == {budget}


def test_digit_positions_beyond_the_training_lengths_are_trained():
    """Random offsets give gradients to positions up to 100, although sums have at most 20 digits."""
    recipe = catalog.find_recipe("abacus-addition", ["model.width=16", "batch=8"])
    model, seen = recipe.build(), torch.zeros(161, dtype=torch.bool)
    for step in range(12):
        batch, loops = draw_batch(recipe, step)
        logits = choose_runner(model).last(batch.inputs, loops.clamp(max=2), batch.loss_mask)
        (gradient,) = torch.autograd.grad(logits.square().sum(), model.encodings[0].table.weight)
        seen |= (gradient != 0).any(1)
    assert seen[0] and seen[1:].sum() > 90 and int(seen.nonzero().max()) > 100


def test_the_study_has_the_expected_panels_map_and_stopping_rules():
    panels = {panel.name: panel for panel in catalog.find_study("abacus").panels}
    assert set(panels) == {"addition", "positions", "splits", "multiplication", "sorting", "bitwise-or"}
    assert panels["addition"].grid == (40, 40)
    rules = {recipe.name: panels["splits"].rules(recipe)[1:] for recipe in panels["splits"].recipes}
    assert rules["abacus-split-16x1"] == ()
    assert rules["abacus-split-1x16"] == tuple(lw.After(count) for count in (1, 2, 8, 16, 32))
    (paper,), (blog,) = (catalog.find_study("abacus", scale=scale).panels for scale in ("paper", "blog"))
    assert (paper.name, paper.grid, max(paper.sizes)) == ("addition", (100, 100), 160)
    assert blog.rules(blog.recipes[0])[1:] == rules["abacus-split-1x16"]
    assert all(recipe.model.positions[0].size >= max(paper.sizes) for recipe in paper.recipes)
    with pytest.raises(lw.UsageError, match="tasks: 'sums' is not one of: addition, positions"):
        catalog.find_study("abacus", tasks="sums")
    with pytest.raises(lw.UsageError, match="scale: 'gpu' is not one of: cpu, blog, paper"):
        catalog.find_study("abacus", scale="gpu")


@pytest.mark.usefixtures("jobs_in_process", "blank_figures")
def test_a_study_measures_and_draws_a_map(monkeypatch, tmp_path, capsys):
    """Each pair of sizes is measured once with each stopping rule, and a figure of the map is written."""
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path / "runs"))
    tiny = catalog.find_recipe(
        "abacus-split-8x2", ["steps=1", "batch=2", "model.width=8", "watch.every=0", "name=tiny"]
    )
    panel = lw.Panel("Tiny", (tiny,), (3,), grid=(2, 2), loops=(1,), name="tiny")
    monkeypatch.setattr(catalog, "find_study", lambda *_, **__: lw.Study("Tiny", (panel,)))
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "abacus", "--out", str(tmp_path / "out"), "--json", "--samples", "4"])
    assert end.value.code == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    sizes = [[1, 1], [1, 2], [2, 1], [2, 2], [3, 3]]
    uniform = [row for row in scores if row["problems"] == "uniform"]
    assert sorted((row["sizes"], row["stopping"]) for row in uniform) == sorted(
        (size, rule) for size in sizes for rule in ("Oracle", "After(loops=1)")
    )
    assert (tmp_path / "out" / "tiny" / "map-tiny.png").exists()
