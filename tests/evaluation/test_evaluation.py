"""Scores equal a plain count over rows that are answered one at a time."""

from dataclasses import dataclass, replace

import pytest
import torch
from half_trained import MODEL, NTP_COPY, PAIRS, PARITY, SUMS, train_briefly
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.results import count_effective_trials
from lengthwise.base.types import Inputs, UsageError, wilson_interval
from lengthwise.cli.options import parse_grid, parse_sizes
from lengthwise.evaluation import scores as evaluation
from lengthwise.evaluation.answers import decode, predict
from lengthwise.evaluation.scores import evaluate, measure_exact_match, trace_answers
from lengthwise.experiment import data
from lengthwise.experiment.data import choose_default_sizes
from lengthwise.experiment.recipe import build_outline
from lengthwise.experiment.source import Finite, describe_repeats
from lengthwise.experiment.stopping import After, Converged, Halted, MaxConfidence, Oracle, OutputRule
from lengthwise.models.single_pass import SinglePass
from lengthwise.objectives import Halting
from lengthwise.report.tables import build_detail_table
from lengthwise.runs.run import Weights, load

RECIPES = [PARITY, SUMS, PAIRS, NTP_COPY]
ANSWER_RULES = [MaxConfidence(extra=3), Converged(1, extra=3)]
RECIPES_AND_RULES = [(r, s) for r in RECIPES for s in (Oracle(), After(3))] + [(PAIRS, Oracle(-1))]
RECIPES_AND_RULES += [(r, s) for r in RECIPES[:3] for s in ANSWER_RULES]
format_test_id = lambda part: part.name if hasattr(part, "limit") else f"{part.task.name}-{part.layout!r}"  # noqa: E731
all_recipes_and_rules = pytest.mark.parametrize(("recipe", "stopping"), RECIPES_AND_RULES, ids=format_test_id)


def draw_mixed_problems(recipe, count=16, largest_size=4):
    """Return problems of mixed sizes."""
    draw = lw.stream(0, "several")
    return recipe.task.sample(torch.randint(1, largest_size + 1, (count, len(recipe.task.axes)), generator=draw), draw)


def split_rows(problems):
    return [problems.take(slice(i, i + 1)) for i in range(len(problems))]


def run_loops(model, recipe, problem, limit):
    """Return each loop's predictions for one row, and their mean log probability up to the first end symbol."""
    batch = recipe.layout.write(problem, recipe.task)
    end = recipe.layout.end_id(recipe.task)
    context = model.embed(batch.inputs)
    state, predicted, sure = model.start(context), [], []
    for _ in range(limit):
        state = model.advance(state, context)
        chances = model.read(state)[batch.answer_slots].softmax(-1)
        symbols = chances.argmax(-1).tolist()
        upto = symbols.index(end) + 1 if end in symbols else len(symbols)
        predicted.append(symbols)
        sure.append(sum(float(chances[i, symbols[i]].log()) for i in range(upto)) / upto)
    return predicted, sure


@torch.no_grad()
def run_alone(model, recipe, problem, stopping):
    """Return symbols, confidence and loops of one row that is run alone."""
    model.eval()
    limit = int(stopping.limit(recipe.loops.planned(problem.rounds)))
    predicted, sure = run_loops(model, recipe, problem, limit)
    k = limit
    if isinstance(stopping, MaxConfidence):
        k = min(i for i in range(limit) if sure[i] > max(sure) - 1e-6) + 1
    if isinstance(stopping, Converged):
        k = min([i for i in range(1, limit) if predicted[i] == predicted[i - 1]], default=limit)
    return predicted[k - 1], sure[k - 1], k


def use_problems(monkeypatch, problems):
    """Make evaluation use these problems, and skip the causality check, which would refuse the scripted modules."""
    monkeypatch.setattr(evaluation, "draw_recipe_problems", lambda *_, **__: problems)
    monkeypatch.setattr(evaluation, "check_model", lambda *_: None)


# Answers


@all_recipes_and_rules
def test_answers_and_scores_equal_those_of_rows_run_alone(recipe, stopping, monkeypatch):
    """Rows of mixed sizes, which leave the batch after different loops, get the same answers as alone. Scores count
    these answers, also in batches of 50 tokens, where the last batch is partial."""
    weights, problems = train_briefly(recipe), draw_mixed_problems(recipe, count=13)
    use_problems(monkeypatch, problems)
    end = recipe.layout.end_id(recipe.task)
    predicted = predict(weights.model, recipe, recipe.layout.write(problems, recipe.task), stopping)
    seen, rights, lengths = set(), [], []
    for i, problem in enumerate(split_rows(problems)):
        symbols, sure, loops = run_alone(weights.model, recipe, problem, stopping)
        assert predicted.symbols[i, : len(symbols)].tolist() == symbols
        assert not predicted.symbols[i, len(symbols) :].any()
        assert float(predicted.confidence[i]) == pytest.approx(sure, abs=1e-5)
        assert int(predicted.loops[i]) == loops
        seen.add(tuple(symbols))
        wanted = problem.answer[0, : int(problem.answer_length)].tolist()
        # Pairs here write the least significant digit first.
        wanted += [0] * (len(symbols) - len(wanted)) if end is None else [end]
        rights.append(sum(a == b for a, b in zip(symbols, wanted, strict=False)))
        lengths.append(len(wanted))
    assert len(seen) > 1  # answers differ between prompts
    exact = sum(right == length for right, length in zip(rights, lengths, strict=True)) / 13
    wanted = exact, sum(rights) / sum(lengths), float(predicted.loops.double().mean())
    for tokens in (evaluation.MAX_POSITIONS, 50):
        monkeypatch.setattr(evaluation, "MAX_POSITIONS", tokens)
        (score,) = evaluate(weights, [2], samples=13, stopping=stopping)
        assert (score.exact, score.token_accuracy, score.loops) == pytest.approx(wanted)
        size = (2,) * len(recipe.task.axes)
        assert measure_exact_match(weights.model, replace(recipe, stopping=stopping), size, 13) == pytest.approx(exact)


@pytest.mark.parametrize("stopping", [Oracle(), *ANSWER_RULES], ids=repr)
@pytest.mark.parametrize("recipe", RECIPES[:3], ids=format_test_id)
def test_predictions_never_depend_on_the_true_answer(recipe, stopping):
    problems, weights = draw_mixed_problems(recipe), train_briefly(recipe)
    other = replace(problems, answer=1 - problems.answer, answer_length=torch.ones_like(problems.rounds))
    batches = (recipe.layout.write(rows, recipe.task) for rows in (problems, other))
    one, two = (predict(weights.model, recipe, batch, stopping) for batch in batches)
    assert torch.equal(one.symbols, two.symbols)
    assert torch.equal(one.confidence, two.confidence)
    assert torch.equal(one.loops, two.loops)


def test_dropout_is_off_and_gradients_are_not_kept():
    recipe = replace(PARITY, model=replace(MODEL, dropout=0.5))
    model, batch = recipe.build().train(), PARITY.layout.write(draw_mixed_problems(PARITY), PARITY.task)
    one, two = (predict(model, recipe, batch, Oracle()) for _ in range(2))
    assert torch.equal(one.confidence, two.confidence)
    assert not one.confidence.requires_grad


# Scores


def test_half_trained_models_are_sometimes_right():
    """Half-trained models have some answers right and some wrong, so the tests above would notice wrong counts."""
    for recipe in RECIPES:
        (score,) = evaluate(train_briefly(recipe), [2], samples=200)
        assert 0 < score.exact < score.token_accuracy < 1


class FixedAnswer(nn.Module):
    """A module that predicts the same symbols after every equals sign, with a given probability."""

    def __init__(self, recipe, script, chance=0.9):
        super().__init__()
        reads, writes = recipe.layout.vocabs(recipe.task)
        self.script, self.equals, self.chance, self.count = writes.encode(script), reads.id("="), chance, len(writes)
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, tokens):
        other = torch.tensor((1 - self.chance) / (self.count - 1)).log()
        logits = other.repeat(*tokens.shape, self.count)
        for row, start in enumerate((tokens == self.equals).long().argmax(1).tolist()):
            for position, symbol in enumerate(self.script.tolist()):
                if start + position < tokens.shape[1]:
                    logits[row, start + position, symbol] = torch.tensor(self.chance).log()
        return logits


RESULTS_BY_ANSWER = {"46$$": (1, 1), "46$5": (1, 0), "4$6$": (0, 0), "4$$$": (0, 0), "$46$": (0, 0), "046$": (0, 0)}
RESULTS_BY_ANSWER |= {"460$": (0, 0), "4600": (0, 0), "64$$": (0, 0), "46=$": (0, 0)}  # exact match and whole row


@pytest.mark.parametrize("predicted", RESULTS_BY_ANSWER)
@pytest.mark.parametrize("layout", [lw.FullOutput(), lw.FullOutput(whole_tail=True), lw.NextToken()], ids=repr)
def test_an_answer_that_ends_early_or_late_is_wrong(predicted, layout, monkeypatch):
    """Wrong symbols after the answer's end lower only the accuracy of the whole row."""
    recipe = replace(PARITY, task=lw.Addition(), layout=layout, loops=lw.Constant())
    problems = recipe.task.parse("12+34")
    use_problems(monkeypatch, problems)
    weights = Weights("says", recipe, SinglePass(FixedAnswer(recipe, predicted)))
    (score,) = evaluate(weights, [2], samples=1)
    assert (score.exact, score.whole_row) == RESULTS_BY_ANSWER[predicted]
    assert score.token_accuracy == pytest.approx(sum(a == b for a, b in zip(predicted, "46$", strict=False)) / 3)
    batch = layout.write(problems, recipe.task)
    assert bool(trace_answers(weights.model, recipe, batch, torch.tensor([1]))[1]) == score.exact
    assert lw.Solver(weights).solve("12+34").correct == score.exact


# Several rules at once


COPY = replace(PARITY, task=lw.Copy(), layout=lw.FullOutput(), steps=120)
RULES = [Oracle(), MaxConfidence(extra=3), After(3), Converged(1, extra=2), After(1), Oracle(1), Converged(2, extra=5)]


@dataclass(frozen=True)
class RowCountRule(OutputRule):
    """A rule that chooses as many loops as its batches have rows: three."""

    extra: int = 20
    together = 3

    def choose(self, trace, planned):
        return trace.loops.clamp(max=len(planned))


@pytest.mark.parametrize("precision", [None, 0.2])
def test_batch_wise_rules_get_equal_batches_alone_and_with_other_rules(precision):
    weights, rules = train_briefly(PARITY), [MaxConfidence(per="batch"), Oracle(), RowCountRule()]
    asked = {"samples": 20, "precision": precision}
    beside = list(evaluate(weights, [5, 9], stopping=rules, **asked))
    alone = [evaluate(weights, [5, 9], stopping=rule, samples=beside[0].count) for rule in rules]
    found = [(score.exact, score.loops, score.stopping) for score in beside]
    assert found == [(one.exact, one.loops, one.stopping) for size in zip(*alone, strict=True) for one in size]
    assert all(score.loops < 3.01 for score in beside if score.stopping.startswith("RowCountRule"))


@pytest.mark.parametrize("recipe", [PARITY, COPY, PAIRS], ids=format_test_id)
def test_rules_measured_together_score_as_each_does_alone(recipe, monkeypatch):
    """A rule chooses the same loops with other rules as alone, although the model runs more loops for these."""
    weights = train_briefly(recipe)
    for tokens in (evaluation.MAX_POSITIONS, 50):
        monkeypatch.setattr(evaluation, "MAX_POSITIONS", tokens)
        together = list(evaluate(weights, [2, 3], samples=12, stopping=RULES))
        alone = [evaluate(weights, [2, 3], samples=12, stopping=rule) for rule in RULES]
        assert together == [score for size in zip(*alone, strict=True) for score in size]
        assert len({score.exact for score in together}) > 2


@pytest.mark.parametrize("recipe", [PARITY, SUMS, NTP_COPY], ids=format_test_id)
def test_exact_match_traced_after_each_loop_equals_the_score_of_stopping_there(recipe, monkeypatch):
    weights = train_briefly(recipe)
    problems = data.draw_fresh_problems(recipe.task, (2,) * len(recipe.task.axes), 25, seed=0)
    batch = recipe.layout.write(problems, recipe.task)
    use_problems(monkeypatch, problems)
    scores = [next(evaluate(weights, [2], samples=25, stopping=After(k))).exact for k in range(1, 5)]
    assert len(set(scores)) > 1
    for tokens in (evaluation.MAX_POSITIONS, 50):
        monkeypatch.setattr(evaluation, "MAX_POSITIONS", tokens)
        traced, right = trace_answers(weights.model, recipe, batch, torch.full((25,), 4))
        assert right.double().mean(1).tolist() == pytest.approx(scores)
        assert traced.predictions.shape[:2] == right.shape == (4, 25)
        assert traced.loops.tolist() == [4] * 25


@pytest.mark.parametrize("recipe", [PARITY, SUMS, COPY], ids=format_test_id)
@pytest.mark.parametrize("level", [False, True])
def test_supervising_the_whole_tail_changes_no_score(recipe, level):
    weights = train_briefly(recipe)
    layout = replace(recipe.layout, whole_tail=True, level=level)
    tail = replace(weights, recipe=replace(recipe, layout=layout))
    one, two = (list(evaluate(each, [2, 3], samples=20, stopping=RULES)) for each in (weights, tail))
    assert one == two


# Which problems


def test_the_same_seed_gives_the_same_score_and_another_seed_other_problems(monkeypatch):
    weights = train_briefly(PARITY)
    first, again = (list(evaluate(weights, [1, 4], samples=50, seed=3)) for _ in range(2))
    assert first == again
    seen = []
    original = data.draw_recipe_problems
    monkeypatch.setattr(evaluation, "draw_recipe_problems", lambda *a, **k: seen.append(original(*a, **k)) or seen[-1])
    sums = train_briefly(SUMS)
    list(evaluate(sums, [9, 10, (9, 10)], samples=5, seed=0))
    list(evaluate(sums, [9], samples=5, seed=1))
    list(evaluate(sums, [9], samples=5, kind="hard"))
    for step in range(3):
        measure_exact_match(sums.model, SUMS, (9, 9), 5, step=step)
    assert len({str(problems.prompt[:, :9].tolist()) for problems in seen}) == len(seen) == 8
    assert [problems.sizes[0].tolist() for problems in seen] == [[9, 9], [10, 10], [9, 10], *[[9, 9]] * 5]


def test_test_problems_are_not_those_of_training():
    recipe = replace(PAIRS, lengths=lw.Uniform(20, 20), batch=5)
    trained = {str(data.draw_batch(recipe, step)[0].inputs.tokens.tolist()) for step in range(5)}
    tested = recipe.layout.write(data.draw_fresh_problems(recipe.task, (20, 20), 5, seed=recipe.data_seed), recipe.task)
    assert str(tested.inputs.tokens.tolist()) not in trained


def test_a_score_names_weights_rule_problems_sizes_and_count():
    weights = train_briefly(SUMS)
    (one,) = evaluate(weights, [3], samples=7, stopping=After(2))
    (two,) = evaluate(weights, [(1, 4)], samples=7, kind="hard")
    assert (one.task, one.weights, one.stopping) == ("addition", "half", "After(loops=2)")
    assert (one.problems, one.sizes, one.count, one.loops) == ("uniform", (3, 3), 7, 2)
    assert (two.stopping, two.problems, two.sizes, two.loops) == ("Oracle", "hard", (1, 4), 4)
    other = Weights("half", replace(PARITY, stopping=After(4)), train_briefly(PARITY).model)
    assert [score.loops for score in evaluate(other, [2], samples=3)] == [4]


@pytest.mark.parametrize("recipe", [PARITY, SUMS, NTP_COPY], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("tokens", [1, 200, 100_000])
def test_sizes_measured_together_score_as_alone(recipe, tokens, monkeypatch):
    """Sizes measured one by one, some at a time or all at once give equal scores, in the order requested."""
    monkeypatch.setattr("lengthwise.evaluation.scores.MAX_POSITIONS", tokens)
    weights, sizes = train_briefly(recipe), [3, 1, 4, 2, 5]
    together = list(evaluate(weights, sizes, samples=8, stopping=[Oracle(), After(2)]))
    alone = [row for size in sizes for row in evaluate(weights, [size], samples=8, stopping=[Oracle(), After(2)])]
    assert together == alone
    assert [max(score.sizes) for score in together] == [size for size in sizes for _ in range(2)]


def test_one_loop_for_many_rows_is_chosen_among_rows_of_one_length(monkeypatch):
    """Batch-wise rules get rows of one length, even if rows of other lengths share the forward pass."""
    monkeypatch.setattr("lengthwise.experiment.stopping.PUBLISHED_BATCH", 4)
    weights, rule = train_briefly(SUMS), MaxConfidence(extra=3, per="batch")
    for tokens in (1, 100_000):
        monkeypatch.setattr(evaluation, "MAX_POSITIONS", tokens)
        found = list(evaluate(weights, [3, 5], samples=8, stopping=[rule, Oracle()]))
        for score in found[::2]:
            problems = data.draw_recipe_problems(SUMS, score.sizes, 8, seed=0)
            batches = [SUMS.layout.write(problems.take(slice(at, at + 4)), SUMS.task) for at in (0, 4)]
            loops = [predict(weights.model, SUMS, batch, rule).loops for batch in batches]
            assert score.loops == torch.cat(loops).float().mean()


def test_sizes_share_a_forward_pass_where_they_fit(monkeypatch):
    weights, passes = train_briefly(PARITY), []
    plain = evaluation.predict_by_rules

    def count_and_predict(model, recipe, batch, rules):
        passes.append(len(batch))
        return plain(model, recipe, batch, rules)

    monkeypatch.setattr(evaluation, "predict_by_rules", count_and_predict)
    monkeypatch.setattr(evaluation, "MAX_POSITIONS", 100)
    list(evaluate(weights, [1, 2, 3, 30], samples=8))
    assert passes == [24, 3, 3, 2]  # rows of 2 to 4 positions; then those of 31, three at a time
    passes.clear()
    monkeypatch.setattr(evaluation, "CACHE_POSITIONS", 50)
    list(evaluate(weights, [1, 2, 3], samples=8))
    assert passes == [12, 12]
    passes.clear()
    list(evaluate(weights, [1, 2, 3], samples=8, stopping=MaxConfidence(extra=1)))
    assert passes == [24]  # rules that read the answers need no cache, so all rows fit one pass


# Next-token layouts


def decode_greedily(model, recipe, problem):
    """Decode greedily without a cache: append the likeliest symbol and read the row again, up to the end."""
    task, layout = recipe.task, recipe.layout
    vocab = layout.vocabs(task)[0]
    end = vocab.id("$")
    prompt = problem.prompt[0, : int(problem.prompt_length)].tolist()
    row = [*prompt, vocab.id("="), *[vocab.id("#") for _ in range(layout.pauses)]]
    predicted = []
    while len(predicted) <= int(task.answer_slots(problem.sizes)) and end not in predicted:
        tokens = torch.tensor([row + predicted])
        position = torch.arange(tokens.shape[1])[None]
        context = model.embed(Inputs(tokens, position, position, torch.ones_like(tokens, dtype=torch.bool)))
        state = model.start(context)
        for _ in range(int(recipe.loops.planned(problem.rounds))):
            state = model.advance(state, context)
        predicted.append(int(model.read(state)[0, -1].argmax()))
    return predicted


@pytest.mark.parametrize("recipe", [NTP_COPY, replace(SUMS, layout=lw.NextToken(2))], ids=format_test_id)
@torch.no_grad()
def test_exact_match_of_next_token_layouts_is_that_of_greedy_decoding(recipe, monkeypatch):
    with torch.enable_grad():
        weights, total = train_briefly(recipe), 0
    problems = draw_mixed_problems(recipe, 24)
    for problem in split_rows(problems):
        use_problems(monkeypatch, problem)
        (score,) = evaluate(weights, [2], samples=1)
        wanted = [*problem.answer[0, : int(problem.answer_length)].tolist(), recipe.layout.end_id(recipe.task)]
        symbols = decode_greedily(weights.model, recipe, problem)
        assert score.exact == (symbols == wanted)
        decoded = decode(weights.model, recipe, recipe.layout.write(problem, recipe.task), Oracle())
        assert decoded.symbols[0, : len(symbols)].tolist() == symbols
        total += score.exact
    assert 0 < total < len(problems)


@pytest.mark.parametrize("stopping", ANSWER_RULES, ids=repr)
def test_rules_that_read_answers_are_refused_with_next_token_layouts(stopping):
    message = f"{type(stopping).__name__} looks at the model's own answer.*use Oracle or After"
    with pytest.raises(UsageError, match=message):
        list(evaluate(train_briefly(NTP_COPY), [2], stopping=[Oracle(), stopping]))
    with pytest.raises(UsageError, match="use Oracle or After"):
        replace(NTP_COPY, stopping=stopping)


@pytest.mark.parametrize("changes", [{"objective": Halting()}, {"stopping": Halted()}], ids=repr)
def test_parts_that_need_an_end_symbol_are_refused_where_the_layout_writes_none(changes):
    (part,) = changes.values()
    rows = replace(SUMS, steps=2, **changes)
    assert list(evaluate(train_briefly(rows), [2], samples=3))
    message = f"{type(part).__name__} needs an end symbol, which Pairs does not write: use FullOutput"
    with pytest.raises(UsageError, match=message):
        replace(rows, layout=lw.Pairs())


# Sizes


SIZES_BY_TEXT = {
    "8,12,16": [8, 12, 16],
    " 8 , 12": [8, 12],
    "3-3": [3],
    "10-35:10": [10, 20, 30],
    "5,1-2,1x2": [5, 1, 2, (1, 2)],
    "1-2x1-3": [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)],
    "2x10-30:10": [(2, 10), (2, 20), (2, 30)],
}
MALFORMED_SIZES = ["", "x", "8,", "-3", "1.5", "8;9", "1-2-3", "2x", "2x2x2", "0",
                   "0-3", "0x2", "5-3", "5-0", "1-9:0", "2,0x2"]  # fmt: skip


@pytest.mark.parametrize("text", SIZES_BY_TEXT)
def test_sizes_are_parsed_from_text(text):
    assert parse_sizes(text) == SIZES_BY_TEXT[text]
    assert parse_grid("8,2x3") == [8, *SIZES_BY_TEXT["1-2x1-3"]]


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9))
def test_a_span_of_sizes_is_inclusive(low, count, step):
    assert parse_sizes(f"{low}-{low + count}") == list(range(low, low + count + 1))
    assert parse_sizes(f"{low}-{low + count * step}:{step}") == [low + i * step for i in range(count + 1)]


@pytest.mark.parametrize("text", MALFORMED_SIZES)
def test_malformed_sizes_are_refused(text):
    with pytest.raises(UsageError):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("sizes", "samples", "message"),
    [
        ([(3,)], 5, "addition has sizes on 2 axes"),
        ([(3, 3, 3)], 5, "addition has sizes on 2 axes"),
        ([0], 5, "sizes start at 1"),
        ([(3, 0)], 5, "sizes start at 1"),
        ([3], 0, "samples must be 1 or more"),
    ],
)
def test_impossible_sizes_and_samples_are_refused(sizes, samples, message):
    with pytest.raises(UsageError, match=message):
        list(evaluate(train_briefly(SUMS), sizes, samples=samples))


def test_default_sizes_start_at_the_training_length_and_end_where_the_task_does():
    assert choose_default_sizes(replace(PARITY, lengths=lw.Uniform(8))) == [8, 12, 16, 24, 40]
    recipe = catalog.find_recipe("retran-small")
    assert choose_default_sizes(recipe) == [30, 45, 60, 90, recipe.task.largest]
    assert choose_default_sizes(replace(PARITY, lengths=lw.Uniform(1))) == [1, 2, 3, 5]


# Sampling until the interval is narrow


def count_successes(probability, seed, count=12_000):
    """Return, for n = 1, 2, …, how many of n problems are right, if each is right with ``probability``."""
    return (torch.rand(count, generator=torch.Generator().manual_seed(seed)) < probability).cumsum(0).tolist()


def sample_until_narrow(successes, precision, max_samples=10_000):
    """Return the sample size at which sampling ends, and how many problems were right by then."""
    count = evaluation.find_smallest_sample_size(precision)
    while (more := min(max_samples, evaluation.find_sample_size(successes[count - 1], count, precision))) > count:
        count = more
    return count, successes[count - 1]


@pytest.mark.parametrize("precision", [0.02, 0.1])
@pytest.mark.parametrize("probability", [0.0, 0.01, 0.3, 0.97, 1.0])
def test_intervals_of_samples_that_end_early_cover_the_true_probability(probability, precision):
    """The interval is as narrow as requested, and covers the true probability in at least 90 % of the draws."""
    ends = [sample_until_narrow(count_successes(probability, seed), precision) for seed in range(200)]
    intervals = [wilson_interval(right / count, count) for count, right in ends]
    assert all(high - low <= 2 * precision for low, high in intervals)
    assert sum(low - 1e-9 <= probability <= high + 1e-9 for low, high in intervals) >= 0.9 * len(ends)
    fixed = 0.97 / precision**2  # about what a share of 0.5 takes
    assert probability == 0.3 or sum(count for count, _ in ends) / len(ends) < fixed / 4


def test_precision_decides_how_many_problems_are_measured():
    weights = load("looped-parity")
    (easy,) = evaluate(weights, [3], samples=1000, precision=0.1)
    assert (easy.exact, easy.count, easy.precision) == (1.0, evaluation.find_smallest_sample_size(0.1), 0.1)
    (few,) = evaluate(weights, [3], samples=10, precision=0.1)
    assert (few.count, few.precision) == (10, None)  # all samples were used
    (same,) = evaluate(weights, [3], samples=easy.count)
    assert same.row() == {name: value for name, value in easy.row().items() if name != "precision"}
    hard, other = evaluate(weights, [3], samples=600, precision=0.1, stopping=[After(1), Oracle()])
    assert hard.count == other.count > easy.count  # all rules see the same problems
    assert evaluation.find_sample_size(256, 512, 0.1, batch_rows=512) == 1024  # one choice for a batch is one trial
    for wrong in (0, 0.5, -1, 1e-200):
        with pytest.raises(UsageError, match=r"half the width of an interval, must be between 1e-6 and 0\.5"):
            list(evaluate(weights, [3], precision=wrong))


@pytest.mark.parametrize("precision", [None, 0.02])
def test_scores_count_distinct_problems(precision):
    """Repeats among the few test problems of a fixed set do not narrow the interval; repeats among freshly drawn
    problems do."""
    fixed, calls = replace(NTP_COPY, batch=8, source=Finite(8)), []
    for recipe, size in ((fixed, 8), (PARITY, 3)):
        weights = replace(train_briefly(PARITY if recipe is PARITY else NTP_COPY), recipe=recipe)
        calls.clear()
        (score,) = evaluate(weights, [size], samples=600, precision=precision, watch=lambda *call: calls.append(call))
        assert len(calls) < 10  # a small set is not measured a few problems at a time
        problems = data.draw_recipe_problems(recipe, size, score.count, seed=0)
        assert score.distinct == len({tuple(row) for row in problems.prompt.tolist()}) < score.count
        counted = score.distinct if recipe is fixed else score.count
        assert score.interval == wilson_interval(score.exact, counted)
        assert count_effective_trials(score.row()) == counted
        assert ("fixed_set" in score.row()) == (recipe is fixed)
    assert describe_repeats(NTP_COPY.has_fixed_problems, data.draw_recipe_problems(NTP_COPY, 30, 500, seed=0)) == {}
    (score,) = evaluate(train_briefly(NTP_COPY), [18], samples=4)
    assert score.distinct is None and "distinct" not in score.row()


def test_a_table_shows_the_number_of_distinct_problems():
    weights = train_briefly(PARITY)
    scores = list(evaluate(weights, [2], samples=50))
    table = build_detail_table([score.row() for score in scores])
    assert [*table.columns[-1].cells][-1].plain == "50 (4)"
    assert "the number of different problems" in table.caption.plain
    assert "50 (4 different)" in str(lw.Scores(scores, build_outline(PARITY)))
