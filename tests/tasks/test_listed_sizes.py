"""Tasks that lack some sizes: training never draws a missing size, and requests for it get a one-line error."""

import pytest
import torch

import lengthwise as lw
from lengthwise.cli import entry
from lengthwise.evaluation.families import find_short_sizes
from lengthwise.experiment.data import choose_default_sizes, draw_batch
from lengthwise.testing.laws import check_part


@pytest.fixture
def block_tasks():
    """Import the module late, as other test files list the tasks that exist at collection."""
    import block_tasks

    return block_tasks


def build_recipe(lengths, task, **changes):
    small = "model.width=8 model.heads=1 model.positions=RoPE batch=16 steps=4 watch.every=2 watch.count=4"
    found = lw.find("looped-parity", *small.split())
    return found.change(task=task, layout=lw.Tagged(), lengths=lengths, name="blocks", **changes)


@pytest.mark.parametrize("name", ["Blocks", "FewBlocks"])
def test_tasks_with_listed_sizes_satisfy_the_laws(block_tasks, name):
    task = getattr(block_tasks, name)()
    assert not check_part(task).broken
    assert (task.smallest, task.largest) == (task.listed_sizes[0], task.listed_sizes[-1])


@pytest.mark.parametrize("sizes", [(), (0, 3), (3, 3), (9, 6)])
def test_sizes_that_do_not_ascend_are_refused(block_tasks, sizes):
    with pytest.raises(lw.UsageError, match=r"_Wrong.listed_sizes must ascend from 1 or more"):
        type("_Wrong", (block_tasks.Blocks,), {"listed_sizes": sizes})


LENGTH_RULES = [lw.Uniform(top=20), lw.Uniform(top=20, longest=0.5), lw.OneOf(sizes=(4, 13)), lw.LogUniform(top=20)]
LENGTH_RULES += [
    lw.Curriculum(top=20, every=1),
    lw.Mastery(top=20, every=1, pass_accuracy=0.0),
    lw.Natural(top=20, bottom=3),
]


@pytest.mark.parametrize("lengths", LENGTH_RULES, ids=repr)
@pytest.mark.parametrize("name", ["Blocks", "FewBlocks"])
def test_training_draws_the_listed_sizes_up_to_the_largest(block_tasks, lengths, name):
    task = getattr(block_tasks, name)()
    chosen, seen = build_recipe(lengths, task, families=0.25), set()
    for step in range(0, 30, 3):
        seen |= set(draw_batch(chosen, step)[0].sizes.flatten().tolist())
    assert seen == {size for size in task.listed_sizes if size <= lengths.top}


def test_a_run_is_trained_validated_measured_and_attacked(block_tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path))
    run = lw.train(build_recipe(lw.Mastery(top=13, every=1, pass_accuracy=0.0), block_tasks.Blocks()), quiet=True)
    watched = [row["exact"] for row in run.rows("metrics") if "exact" in row]
    assert watched and all(list(row) == ["18", "24"] for row in watched)  # 20 and 26 were requested
    assert choose_default_sizes(run.recipe) == [12, 18, 24, 39, 63] and find_short_sizes(run.recipe, 100) == [3]
    scores = lw.evaluate(run, samples=5, families=True, quiet=True)
    assert {score.sizes[0] for score in scores} == {12, 18, 24, 39, 63}
    folder = str(run.folder)
    for words, code, text in [
        (["attack", folder, "--seconds", "1"], 0, "tries"),
        (["evaluate", folder, "--lengths", "3-9:3", "--natural", "--samples", "3"], 0, "natural"),
        (["evaluate", folder, "--lengths", "1-20"], 2, "no problems of size 1; it has 3–300 in steps of 3"),
        (["solve", folder, "3012"], 1, "no prompt of 4 symbols; its sizes are 3–300 in steps of 3"),
    ]:
        assert entry._run(entry.parse(words)) == code
        both = capsys.readouterr()
        assert text in both.out + both.err


def test_problems_have_the_requested_sizes(block_tasks):
    every, few = block_tasks.Blocks(), block_tasks.FewBlocks()
    assert {row["size"] for row in lw.problems(every, [3, 9], 20, split="test")} == {3, 9}
    with pytest.raises(lw.UsageError, match="no problems of size 4; it has 3–300 in steps of 3"):
        lw.problems(every, [3, 4], 20)
    pool = few.sample_natural(50, 4, 30, lw.stream(0))
    assert set(pool.sizes.flatten().tolist()) == {12, 24}
    with pytest.raises(lw.UsageError, match="no problems of sizes 4 to 11"):
        few.sample_natural(5, 4, 11, lw.stream(0))
    asked = torch.arange(1, 40)[:, None]
    there = few.replace_missing_sizes(asked, lw.stream(0)).flatten().tolist()
    assert set(there) == {3, 12, 24} and all(there[size - 1] == size for size in (3, 12, 24))
