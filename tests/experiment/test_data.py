"""Training data: fixed sets with disjoint parts, the same on every machine; cut rows; the validation loss."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base import rng
from lengthwise.evaluation import scores as evaluation
from lengthwise.experiment import data
from lengthwise.experiment.source import RESIDUES, Finite, Fresh, hash_prompts
from lengthwise.runners.plain import Plain
from lengthwise.tasks import strings, sudoku
from lengthwise.tasks.expression import Expression
from lengthwise.testing.laws_of_tasks import decode_problems
from lengthwise.training.loop import train

MODEL = lw.LSTM(8, 8, 1)
RECIPE = lw.Recipe(
    "set", lw.Addition(), lw.NextToken(), lw.Uniform(4, 2), lw.Constant(1), MODEL, lw.Final(), 30, source=Finite(500)
)


@dataclass(frozen=True)
class ReverseLetters(strings.Reverse):
    """Write the symbols backwards."""

    symbols = ("a", "b")


def list_prompts(problems):
    return [prompt for prompt, _ in decode_problems(lw.Addition(), problems)]


@pytest.fixture(autouse=True)
def use_small_chunks(monkeypatch):
    monkeypatch.setattr(data, "PROBLEMS_PER_CHUNK", 100)
    data.draw_fixed_set.cache_clear()
    yield
    data.draw_fixed_set.cache_clear()


def draw_small_set(rows=500, seed=0, **changes):
    data.draw_fixed_set.cache_clear()
    recipe = replace(RECIPE, **changes)
    return data.draw_fixed_set(recipe.task, recipe.lengths, Finite(rows, seed))


def test_family_problems_use_base_puzzles_of_their_own_split(monkeypatch):
    parts, read = [], sudoku.read_base_puzzles
    monkeypatch.setattr(sudoku, "read_base_puzzles", lambda side, part: parts.append(part) or read(side, part))
    recipe = lw.find("looped-sudoku").change(families=0.5)
    data.draw_batch(recipe, 0)
    trained, parts[:] = {*parts}, []
    data.draw_validation_problems(recipe, 20)
    assert (trained, {*parts}) == ({"train"}, {"validation"})


def test_a_larger_set_begins_with_the_smaller_and_another_seed_gives_other_problems():
    found = draw_small_set(2000)
    whole = list_prompts(found)
    assert len(whole) == 2000 == len(set(whole)) and list_prompts(draw_small_set(700)) == whole[:700]
    assert len(set(list_prompts(draw_small_set(700, seed=1))) & set(whole)) < 100
    assert all(answer == lw.Addition().reference(prompt) for prompt, answer in decode_problems(lw.Addition(), found))


def test_a_set_is_drawn_in_chunks_without_duplicates():
    """A set is drawn chunk by chunk, and each problem is kept the first time that it is drawn."""
    wanted, number = [], 0
    while len(wanted) < 700:
        draw = rng.stream(0, "set", "addition", number)
        drawn = lw.Uniform(2).problems(lw.Addition(), 0, 100, draw)
        kept = list_prompts(drawn.take(Finite(1).mask_part("train", drawn)))
        wanted = list(dict.fromkeys([*wanted, *kept]))
        number += 1
    assert list_prompts(draw_small_set(700, lengths=lw.Uniform(2))) == wanted[:700]


@pytest.mark.parametrize("count", [127, 128, 200, 40_000])
def test_tasks_may_have_any_number_of_symbols(count, monkeypatch):
    """Ids up to the last occur in fresh problems and in a fixed set, and answers belong to their prompts."""
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + count)] if count < 20_000 else map(str, range(count))
    monkeypatch.setattr(ReverseLetters, "symbols", tuple(letters))
    for source in (Fresh(), Finite(300)):
        recipe = replace(RECIPE, task=ReverseLetters(), source=source, batch=300, lengths=lw.Uniform(3))
        inputs = data.draw_batch(recipe, 0)[0].inputs
        ids, vocab = inputs.tokens[inputs.padding_mask], recipe.layout.vocabs(recipe.task)[0]
        assert int(ids.min()) >= 0 and int(ids.max()) < len(vocab)
        assert len(data.draw_recipe_problems(recipe, 3, 5, seed=0)) == 5
    problems = data.draw_fixed_set(recipe.task, recipe.lengths, source)
    first, last = problems.prompt[:, 0], problems.answer[torch.arange(300), problems.prompt_length - 1]
    assert torch.equal(first, last) and count - count // 20 < int(first.max()) < count


@given(st.integers(0, 1000), st.integers(0, 6))
def test_a_prompt_s_hash_depends_on_neither_padding_nor_dtype(seed, padding):
    problems = lw.Copy(36).sample(torch.randint(1, 9, (50, 1)), rng.stream(seed, "hash"))
    padded = replace(problems, prompt=torch.nn.functional.pad(problems.prompt, (0, padding), value=3))
    hashes = hash_prompts(problems)
    assert torch.equal(hashes, hash_prompts(padded)) and (hashes >= 0).all()
    assert torch.equal(hashes, hash_prompts(problems.to_smallest_type(36)))
    assert len(hashes.unique()) == len({prompt for prompt, _ in decode_problems(lw.Copy(36), problems)})


def test_hashes_equal_those_computed_by_hand():
    """Hashes are FNV-1a followed by MurmurHash3's finaliser, computed here with Python's integers."""
    problems = lw.Parity().parse("10110")
    code, most = 0xCBF29CE484222325, 2**64 - 1
    for symbol in (1, 0, 1, 1, 0):
        code = (code ^ symbol) * 0x100000001B3 & most
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        code = (code ^ (code >> 33)) * factor & most
    code = (code ^ (code >> 33)) & (2**63 - 1)
    assert hash_prompts(problems).tolist() == [code]


def test_parts_are_disjoint_and_complete():
    sizes = torch.randint(1, 9, (20_000, 2), generator=rng.stream(0, "sizes"))
    problems = lw.Addition().sample(sizes, rng.stream(0, "parts"))
    masks = torch.stack([Finite(1).mask_part(part, problems) for part in RESIDUES])
    assert (masks.sum(0) == 1).all()
    shares = masks.double().mean(1)
    assert torch.allclose(shares, torch.tensor([10, 2, 1]).double() / 13, atol=0.01)
    assert Fresh().mask_part("test", problems).all()


def test_test_and_validation_problems_are_in_no_training_set():
    known = set(list_prompts(draw_small_set(1500, lengths=lw.Uniform(2))))
    recipe = replace(RECIPE, lengths=lw.Uniform(2), source=Finite(1500))
    tested = list_prompts(data.draw_recipe_problems(recipe, 2, 300, seed=0))
    watched = list_prompts(data.draw_recipe_problems(recipe, 2, 300, seed=0, step=7))
    watched += list_prompts(data.draw_validation_problems(recipe, 300))
    assert not known & set(tested) and not known & set(watched) and not set(tested) & set(watched)
    assert len(tested) == 300 and set(map(len, tested)) == {5}


@dataclass(frozen=True)
class _OddStartSource(lw.Fresh):
    """A source that trains on prompts that start with an odd symbol, and tests on the others."""

    def mask_part(self, purpose, problems):
        return (problems.prompt[:, 0] % 2 == 1) == (purpose == "train")


@pytest.mark.parametrize("families", [0.0, 0.5])
def test_a_user_s_source_keeps_its_test_problems_out_of_training(families):
    recipe = replace(RECIPE, source=_OddStartSource(), families=families)
    for step in range(3):
        batch, _ = data.draw_batch(recipe, step)
        assert len(batch) == recipe.batch
        assert (data._draw_step_problems(recipe, step, step).prompt[:, 0] % 2 == 1).all()
    assert (data.draw_recipe_problems(recipe, 3, 50, seed=0).prompt[:, 0] % 2 == 0).all()


MASKS_BY_MESSAGE = {
    "not NoneType": lambda problems: None,
    r"not torch.int64 of \(64,\)": lambda problems: torch.ones(len(problems), dtype=torch.long),
    r"must return torch.bool of \(64,\), not torch.bool of \(65,\)": lambda problems: torch.ones(65, dtype=torch.bool),
    r"^_MaskSource.* leaves almost no problem of this size for the train": lambda problems: problems.prompt[:, 0] < 0,
    r"AttributeError in test_data.py, line \d+.*your own classes: _MaskSource": lambda problems: problems.nothing,
}


@dataclass(frozen=True)
class _MaskSource(lw.Source):
    """A source whose masks come from ``MASKS_BY_MESSAGE``."""

    message: str

    def mask_part(self, purpose, problems):
        return MASKS_BY_MESSAGE[self.message](problems)


@pytest.mark.parametrize("message", MASKS_BY_MESSAGE)
def test_a_source_s_mistakes_are_reported(message):
    with pytest.raises(lw.UsageError, match=message):
        data.draw_batch(replace(RECIPE, source=_MaskSource(message)), 0)


@dataclass(frozen=True)
class _SixTenthsSource(lw.Source):
    def mask_part(self, purpose, problems):
        return problems.sizes[:, 0] % 5 < 3


def test_a_source_that_leaves_problems_out_keeps_the_fraction_of_families():
    settings = {"lengths": lw.Uniform(19, 10), "batch": 1000, "families": 0.5, "family_names": ("one-symbol",)}
    batch, _ = data.draw_batch(replace(lw.find("looped-parity"), source=_SixTenthsSource(), **settings), 0)
    ones = (batch.inputs.tokens == 1).sum(1)
    assert 0.45 < ((ones == 0) | (ones == batch.rounds)).float().mean() < 0.55


class _LengthTask(ReverseLetters):
    """Write the word's length as one symbol."""

    symbols = ("a", "b", "2", "3")

    def from_rows(self, sizes, rows):
        length = sizes[:, 0]
        return lw.Problems(sizes, rows % 2, length, sizes.clone(), torch.ones_like(length), rounds=length)


def test_an_id_beyond_the_symbols_is_reported_before_training():
    recipe = replace(RECIPE, task=_LengthTask(), source=Fresh())
    message = r"^_length-task: an answer has symbol id 5; ids must be 0 to 3$"
    assert len(data.draw_recipe_problems(recipe, 3, 4, seed=0)) == 4
    with pytest.raises(lw.UsageError, match=message):
        data.check_test_problems(recipe, [3, 5])


def test_an_epoch_goes_through_the_whole_set_in_its_own_order():
    recipe = replace(RECIPE, source=Finite(640), data_seed=3)
    rows = []
    for step in range(20):
        inputs = data.draw_batch(recipe, step)[0].inputs
        rows += [tuple(row[there].tolist()) for row, there in zip(inputs.tokens, inputs.padding_mask, strict=True)]
    first, second = rows[:640], rows[640:]
    assert sorted(first) == sorted(second) and first != second and len(set(first)) == 640
    again, _ = data.draw_batch(recipe, 13)
    data._LATEST_ORDERS.clear()
    assert torch.equal(again.inputs.tokens, data.draw_batch(recipe, 13)[0].inputs.tokens)
    other, _ = data.draw_batch(replace(recipe, data_seed=4), 0)
    assert not torch.equal(other.targets, data.draw_batch(recipe, 0)[0].targets)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": lw.Curriculum(4, 10)}, "lengths must not grow"),
        ({"hard": 0.5}, "hard and families must be 0"),
        ({"source": Fresh(), "hard": 0.5, "lengths": lw.Natural(4)}, "hard must be 0 with Natural"),
        ({"source": Finite(63)}, "is smaller than a batch"),
        ({"task": Expression(), "lengths": lw.Uniform(4)}, "sizes of expression start at 3, not at 1"),
        ({"keep": "lowest-loss"}, "needs watch.every and watch.validation"),
        ({"keep": "best", "watch": lw.Watch(every=5, validation=10)}, "needs watch.every and watch.sizes"),
    ],
    ids=str,
)
def test_an_invalid_recipe_is_refused(changes, message):
    with pytest.raises(lw.UsageError, match=message):
        replace(RECIPE, **changes)


# Natural sizes


def test_natural_problems_are_drawn_and_measured_within_and_beyond_the_training_lengths():
    recipe = replace(RECIPE, lengths=lw.Natural(4, 2), source=Fresh())
    assert set(data.draw_batch(recipe, 0)[0].sizes.flatten().tolist()) == {2, 3, 4}
    for size, drawn in ((4, {2, 3, 4}), (6, {5, 6})):
        problems = data.draw_recipe_problems(recipe, size, 500, seed=0, kind="natural")
        assert set(problems.sizes.flatten().tolist()) == drawn
    (score,) = evaluation.evaluate(lw.Weights("new", recipe, recipe.build()), [4], samples=20, kind="natural")
    assert (score.problems, score.sizes) == ("natural", (4, 4))


# Cutting positions that are not supervised

CUT_CASES = [
    (lw.Addition(10), lw.NextToken(), lw.Transformer(width=16, heads=2, layers=2)),
    (lw.Addition(10), lw.NextToken(2, framed=True), lw.LSTM(8, 8, 2, dropout=0.0)),
    (lw.Copy(5), lw.FullOutput(), lw.Transformer(width=16, heads=2)),
    (lw.Addition(2), lw.FullOutput(whole_tail=True), lw.Transformer(width=16, heads=2)),
]


@pytest.mark.parametrize(("task", "layout", "model"), CUT_CASES, ids=repr)
def test_cutting_unsupervised_positions_changes_neither_loss_nor_gradient(task, layout, model):
    recipe = replace(RECIPE, task=task, layout=layout, model=model, source=Fresh(), loops=lw.PerRound())
    built = recipe.build().double()
    sizes = torch.randint(1, 5, (30, len(task.axes)), generator=rng.stream(0, "cut"))
    whole = layout.write(task.sample(sizes, rng.stream(0, "cut")), task)
    cut = whole.cut_unsupervised()
    gradients = []
    for batch in (whole, cut):
        built.zero_grad()
        loss = lw.Final()(Plain(built), batch, recipe.loops.planned(batch.rounds), rng.stream(0, "loss")).value
        loss.backward()
        gradients.append([loss.detach(), *(parameter.grad for parameter in built.parameters())])
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)
    last = (cut.loss_mask * torch.arange(cut.loss_mask.shape[1])).amax(1)
    assert torch.equal(cut.inputs.padding_mask.sum(1), last + 1)
    assert int(cut.loss_mask.sum()) == int(whole.loss_mask.sum())
    assert cut.targets.shape == cut.inputs.tokens.shape == cut.answer_slots.shape


# The validation loss


def test_the_weights_with_the_lowest_validation_loss_are_kept():
    recipe = replace(RECIPE, watch=lw.Watch(every=5, validation=100), keep="lowest-loss")
    run = train(recipe)
    losses = {row["step"]: row["validation_loss"] for row in run.rows("metrics") if "validation_loss" in row}
    assert len(losses) == 6
    assert run.about()["kept_step"] == min(losses, key=losses.get)
    again = evaluation.validation_loss(run.weights().model, recipe, data.draw_validation_problems(recipe, 100))
    assert again == pytest.approx(min(losses.values()), abs=1e-6)


def test_the_validation_loss_is_a_mean_over_symbols(monkeypatch):
    recipe = replace(RECIPE, source=Fresh())
    model, problems = recipe.build(), data.draw_validation_problems(recipe, 50)
    whole = evaluation.validation_loss(model, recipe, problems)
    batch = recipe.layout.write(problems, recipe.task)
    loss = lw.Final()(Plain(model.eval()), batch, recipe.loops.planned(batch.rounds), rng.stream(0, "x")).value
    assert whole == pytest.approx(float(loss.detach()), abs=1e-6)
    monkeypatch.setattr(evaluation, "MAX_POSITIONS", 100)  # in parts
    assert evaluation.validation_loss(model, recipe, problems) == pytest.approx(whole, abs=1e-6)


def test_validation_problems_have_the_distribution_of_training_problems():
    for name in ("looped-parity", "half-fop-loop-adaptive-copy", "gpt-small"):
        recipe = catalog.find_recipe(name)
        assert int(data.draw_validation_problems(recipe, 300).sizes.max()) == recipe.lengths.top
    recipe = catalog.find_recipe("looped-addition").change(["families=0.5", "family_names=all-highest"])
    problems = data.draw_validation_problems(recipe, 100)
    within = torch.arange(problems.prompt.shape[1]) < problems.prompt_length[:, None]
    assert int(((problems.prompt > 0) == within).all(1).sum()) >= 50  # a prompt of ones, and zeros behind it
    recipe = catalog.find_recipe("looped-multiplication")
    with pytest.raises(lw.UsageError, match="one size for all axes: 3, not 2x3"):
        data.draw_recipe_problems(recipe, (2, 3), 10, seed=0, kind="natural")
    assert int(data.draw_recipe_problems(recipe, (3, 3), 50, seed=0, kind="natural").sizes.max()) == 3
    with pytest.raises(lw.UsageError, match="count must be 1 or more"):
        data.draw_recipe_problems(catalog.find_recipe("looped-parity"), 4, 0, seed=0)
