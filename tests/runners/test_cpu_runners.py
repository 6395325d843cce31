"""Every fast runner equals the plain one in values and gradients of each model it supports, and declines all others."""

import contextlib
import importlib
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from conftest import LONG, call_in_fork, force_fast_paths
from hypothesis import given
from hypothesis import strategies as st
from runner_changes import CHANGES, wrap_method
from shipped_specs import FEW_SPECS, LENGTHS, LOOPS, RECIPE, SHIPPED_SPECS, compute_all_logits, run_plain
from specs import (
    BASE,
    MODELS,
    READS,
    SPECS,
    WRITES,
    add_noise,
    assert_all_close,
    build,
    build_rows,
    cached_model,
    choose_covering,
    compute_gradients,
    list_features,
    list_ids,
)  # fmt: skip
from torch import nn

import lengthwise
import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.experiment import data
from lengthwise.models.transformer import InputInjection, Transformer
from lengthwise.nn.block import MLP
from lengthwise.nn.digit_position import Abacus, Coupling
from lengthwise.nn.lstm import Cell
from lengthwise.nn.position import FIRE, ALiBi, Learned, Randomized, RoPE
from lengthwise.nn.window import CoupledHeads, EarlierHeads, Local, LocalHeads
from lengthwise.runners import cpu
from lengthwise.runners.cpu import transformer
from lengthwise.runners.plain import Plain

pytestmark = pytest.mark.usefixtures("fast_runners")


def list_supporting_runners(model):
    return [kind(model) for kind in cpu.RUNNERS if kind.find_obstacle(model) is None]


@pytest.fixture(scope="module", params=[False, True], ids=["default", "forced"])
def fast_paths(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            force_fast_paths(patch)
        yield


TESTED_SPECS = SHIPPED_SPECS if LONG else FEW_SPECS
CASES = [(*pair, fast_paths) for pair in TESTED_SPECS for fast_paths in (True, False)]
COVERED_FEATURES = set().union(*(list_features(*pair) for pair in TESTED_SPECS))
OTHER_SPECS = [*MODELS] if LONG else choose_covering({pair: list_features(*pair) - COVERED_FEATURES for pair in MODELS})
OTHER_SPECS += [(spec, number % 2 == 0) for number, spec in enumerate(SPECS)]
CASES += [(*pair, True) for pair in dict.fromkeys(OTHER_SPECS)]


@pytest.mark.parametrize(
    ("spec", "causal", "fast_paths"),
    CASES,
    ids=[SHIPPED_SPECS.get(case[:2]) or list_ids([case[:2]])[0] for case in CASES],
    indirect=["fast_paths"],
)
def test_every_runner_that_supports_a_model_equals_the_plain_one(spec, causal, fast_paths):
    model, inputs = cached_model(spec, causal), build_rows(LENGTHS, width=12)
    for runner in list_supporting_runners(model):
        found = compute_all_logits(runner, inputs, LOOPS)
        assert_all_close(compute_gradients(found, model), run_plain(spec, causal))


# Only the plain runner supports convolutions, scans, the mixers for formal languages and torch's own LSTM.
PLAIN_ONLY = r"formal-|exact-parity-|.*-prefix-sum|looped-maze"
FAST_SPECS = {spec: name for spec, name in SHIPPED_SPECS.items() if not re.match(PLAIN_ONLY, name)}


@pytest.mark.parametrize("form", FAST_SPECS, ids=FAST_SPECS.values())
def test_shipped_models_have_one_fast_runner(form):
    """Each shipped model has exactly one fast runner. If a model had none, only its speed would change."""
    model = cached_model(*form)
    assert len(list_supporting_runners(model)) == 1
    assert cpu.describe_choice(model) == type(cpu.choose_runner(model)).__name__ != "Plain"


SMALL_SPECS = [
    BASE,
    replace(BASE, injection="once", layers=2),
    replace(BASE, positions=(Local(1),), layers=2),
    replace(BASE, positions=(Local(3),)),
    replace(BASE, positions=(RoPE(), FIRE())),
    replace(BASE, positions=(LocalHeads(1), CoupledHeads(1))),
    replace(BASE, positions=(EarlierHeads(1), ALiBi())),
    lw.ReTran(4, 5, 2, 2, dropout=0.0),
    lw.LSTM(4, 5, 2, dropout=0.0),
]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4)), min_size=1, max_size=6),
    st.sampled_from(SMALL_SPECS),
    st.booleans(),
    st.integers(0, 99),
)
def test_logits_of_any_rows_equal_the_plain_runner(fast_paths, rows, spec, causal, seed):
    """Lengths, loops and the positions with logits are random; a row may have no position with logits."""
    lengths, loops = zip(*rows, strict=True)
    model, inputs = cached_model(spec, causal or not isinstance(spec, Transformer)), build_rows(lengths, seed=seed)
    asked = inputs.padding_mask & (torch.rand(inputs.tokens.shape, generator=lw.stream(seed, "asked")) < 0.4)
    found = [runner.last(inputs, torch.tensor(loops), asked) for runner in (cpu.choose_runner(model), Plain(model))]
    assert_all_close(*(compute_gradients(read, model) for read in found))


def test_gradients_of_frozen_and_shared_weights_equal_the_plain_runner(fast_paths):
    inputs, loops = build_rows(LENGTHS), torch.tensor(LOOPS)
    for change in ("embedding.weight", "blocks.0.mlp.widen.weight", "norm.weight", "shared"):
        model = add_noise(BASE.build(READS, READS, causal=True))
        if change == "shared":
            model.readout.weight = model.embedding.weight
        else:
            model.get_parameter(change).requires_grad = False
        found = []
        for runner in (cpu.choose_runner(model), Plain(model)):
            model.zero_grad()
            runner.last(inputs, loops, inputs.padding_mask).square().sum().backward()
            found.append({name: part.grad for name, part in model.named_parameters()})
        assert found[0].keys() == found[1].keys() and (change == "shared" or found[0][change] is None)
        torch.testing.assert_close(*found, atol=1e-9, rtol=1e-6)


# Turning fast runners off


def test_the_variable_lengthwise_plain_turns_fast_runners_off(monkeypatch):
    monkeypatch.setenv("LENGTHWISE_PLAIN", "1")

    def describe_choice():
        again, model = importlib.reload(cpu), RECIPE.build()
        return type(again.choose_runner(model)).__name__, again.describe_choice(model)

    assert call_in_fork(describe_choice) == ("Plain", "Plain: faster runners are turned off")


def test_the_plain_context_turns_fast_runners_off():
    model = cached_model(BASE, True)
    with lengthwise.plain():
        assert type(cpu.choose_runner(model)) is Plain
        with lengthwise.plain():
            assert cpu.describe_choice(model) == "Plain: faster runners are turned off"
        assert type(cpu.choose_runner(model)) is Plain
    assert type(cpu.choose_runner(model)) is not Plain
    with contextlib.suppress(RuntimeError), lengthwise.plain():
        raise RuntimeError
    assert type(cpu.choose_runner(model)) is not Plain


# Models that fast runners decline


def compute_training_loss(runner):
    batch = RECIPE.layout.write(RECIPE.task.sample(torch.tensor([[5], [2], [4]]), lw.stream(0, "rows")), RECIPE.task)
    runner.model.train()
    return lw.Final()(runner, batch, RECIPE.loops.planned(batch.rounds), lw.stream(0, "x")).value


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_gets_the_plain_runner(change):
    """The plain runner is chosen, with a reason, and the training loss is the plain runner's."""
    model = RECIPE.build()
    assert cpu.describe_choice(model) == "PackedTransformer"
    with contextlib.ExitStack() as stack:
        change(model, stack)
        assert type(cpu.choose_runner(model)) is Plain
        assert re.match("Plain: .{11}", cpu.describe_choice(model))
        assert torch.equal(compute_training_loss(cpu.choose_runner(model)), compute_training_loss(Plain(model)))


@pytest.mark.parametrize(
    ("spec", "kind", "method"),
    [(lw.ReTran(4, 5, 1, 2), Cell, "forward"), (lw.LSTM(4, 5, 1), Cell, "start"), (BASE, nn.Embedding, "forward")],
    ids=["retran", "lstm", "transformer"],
)
def test_a_patched_class_is_noticed_until_it_is_restored(spec, kind, method):
    model = cached_model(spec, True)
    with contextlib.ExitStack() as stack:
        wrap_method(kind, method)(model, stack)
        assert cpu.describe_choice(model).startswith("Plain: ")
    assert not cpu.describe_choice(model).startswith("Plain")


def list_replacements(part):
    """Return replacements for a part: common modules of its width, others of its own type, and a function."""
    width = part.narrow.out_features if isinstance(part, MLP) else getattr(part, "in_features", 4)
    wide = getattr(part, "out_features", width)
    kinds = [nn.Identity(), nn.Dropout(0.0), nn.LayerNorm(wide, 0.5), nn.GELU("tanh"), nn.ReLU()]
    kinds += [nn.ModuleList([nn.ReLU()]), nn.Sequential(nn.ReLU()), nn.Linear(width, wide)]
    kinds += [nn.Linear(width, wide, bias=False), nn.Sequential(nn.Linear(width, 2), nn.Linear(2, wide)), torch.tanh]
    injections = ("add", "gate", "concat", "once") if isinstance(part, InputInjection) else ()
    return kinds + [InputInjection(injection, 8) for injection in injections]


def list_changed_settings(part):
    """Return pairs of a setting that affects the part's results, and another value for it."""
    others = {"eps": 0.5, "heads": 1, "post": True, "gated": True, "causal": True, "injection": "once"}
    return [(name, others[name]) for name, value in vars(part).items() if name in others and value != others[name]]


def apply_changes(model):
    """Change one part or setting of the model at a time; yield after each change, then undo it."""
    for path, part in [*model.named_modules()]:
        whole, _, name = path.rpartition(".")
        parent = model.get_submodule(whole)
        for new in list_replacements(part) if path else []:
            if isinstance(new, nn.Module):
                parent._modules[name] = new.double()
            elif not isinstance(parent, (nn.ModuleList, nn.Sequential)):
                delattr(parent, name)
                setattr(parent, name, new)
            yield
            vars(parent).pop(name, None)
            parent._modules[name] = part
        for field, value in list_changed_settings(part):
            before = getattr(part, field)
            setattr(part, field, value)
            yield
            setattr(part, field, before)


MODIFIED_SPECS = [
    (replace(BASE, layers=2), False),
    (replace(BASE, injection="gate", final_norm="readout"), True),
    (replace(BASE, positions=(RoPE(),), activation="relu", biases=False), True),
    (lw.LSTM(4, 5, 2, 0.0), True),
    (lw.ReTran(4, 5, 1, 2), True),
]
MISFIT_ERRORS = RuntimeError, TypeError, ValueError, AttributeError, IndexError, NotImplementedError


@pytest.mark.parametrize(("spec", "causal"), MODIFIED_SPECS, ids=list_ids(MODIFIED_SPECS))
def test_a_model_with_a_replaced_part_is_computed_with_that_part(spec, causal, monkeypatch):
    """Every part and setting is changed in turn. If the plain runner raises an error, so does the chosen runner."""
    force_fast_paths(monkeypatch)
    model, inputs, chosen_types = build(spec, causal), build_rows([4, 7, 1], width=8), Counter()
    for _ in apply_changes(model):
        runner = cpu.choose_runner(model)
        chosen_types[type(runner)] += 1
        if type(runner) is not Plain:
            try:
                plain = compute_logits_and_gradients(Plain(model), inputs)
            except MISFIT_ERRORS:
                with pytest.raises(MISFIT_ERRORS):
                    compute_logits_and_gradients(runner, inputs)
            else:
                assert_all_close(compute_logits_and_gradients(runner, inputs), plain)
    assert chosen_types[Plain] > 50 and len(chosen_types) > 1


def compute_logits_and_gradients(runner, inputs):
    read = runner.last(inputs, torch.tensor([2, 1, 3]), inputs.padding_mask)
    return compute_gradients(read, runner.model)


class NegatedAbacus(type(Abacus().build(4, 1))):
    def vectors(self, inputs):
        return -super().vectors(inputs)


def test_a_users_own_encoding_gets_the_plain_runner():
    model = replace(BASE, positions=(Abacus(),)).build(READS, WRITES, causal=True)
    assert not cpu.describe_choice(model).startswith("Plain")
    model.encodings[0].__class__ = NegatedAbacus
    assert cpu.describe_choice(model) == "Plain: encodings.0 is of an unknown type, NegatedAbacus"


@given(st.data())
def test_a_state_is_needed_while_it_can_still_affect_a_selected_position(data):
    width, radius = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3))
    at = data.draw(st.lists(st.booleans(), min_size=width, max_size=width))
    loops = data.draw(st.integers(1, 8))
    found = transformer._find_last_needed_loop(torch.tensor([at]), torch.tensor([loops]), radius)[0].tolist()
    for i, until in enumerate(found):
        gaps = [abs(i - j) for j, selected in enumerate(at) if selected]
        assert until == loops - -(-min(gaps) // radius) if gaps else until <= 0


def test_needed_loops_of_very_long_rows_fit_in_memory():
    """Memory grows with the row's length, not with its square."""
    at = torch.zeros(1, 300_000, dtype=torch.bool)
    at[0, [10, -1]] = True
    found = transformer._find_last_needed_loop(at, torch.tensor([150_000]), 1)
    assert found[0, [0, 10, 20, -1, -11]].tolist() == [149_990, 150_000, 149_990, 150_000, 149_990]


ENCODINGS = [
    Randomized(RoPE(), 64),
    Randomized(Learned(64), 64),
    Randomized(FIRE(), 64),
    Abacus(size=21, offset=1),
    Coupling(size=21, offset=1),
]


@pytest.mark.parametrize("position", ENCODINGS, ids=repr)
def test_rows_with_little_padding_equal_the_plain_runner(position):
    task, layout = lw.Addition(order="least"), lw.NextToken()
    problems = task.sample(torch.tensor([(20, 20), (19, 20), (20, 19), (20, 20)]), lw.stream(0, "rows"))
    inputs = layout.write(problems, task).inputs
    assert 0.9 < float(inputs.padding_mask.double().mean()) < 1
    torch.manual_seed(0)
    model = Transformer(width=8, heads=2, positions=(position,)).build(*layout.vocabs(task), causal=True)
    model = add_noise(model).eval()
    loops, at = torch.full((4,), 2), inputs.padding_mask
    (runner,) = list_supporting_runners(model)
    torch.testing.assert_close(runner.last(inputs, loops, at), Plain(model).last(inputs, loops, at))


@pytest.mark.parametrize(
    ("positions", "expected_ends"),
    [
        # The last loop needs the asked positions and their neighbours, the one before also the neighbours of these…
        ((Local(1),), [[7, 11], [6, 10], [5, 9], [4, 8], [3, 6], [2, 4]]),
        # Global attention needs the whole row up to the last loop, after which only the asked ones are computed.
        ((), [[9, 13]] * 5 + [[1, 2]]),
    ],
    ids=["window", "all"],
)
def test_positions_are_dropped_once_they_are_no_longer_needed(positions, expected_ends, monkeypatch):
    monkeypatch.setattr(transformer, "MAX_NEEDED_FRACTION", 1.0)  # however few they are
    inputs, model = build_rows([9, 4]), build(replace(BASE, positions=positions), False)
    asked = torch.arange(9) == inputs.padding_mask.sum(1)[:, None] - 1
    prepared = transformer._PreparedBatch.build(model, inputs, torch.tensor([6, 6]))
    states = transformer._run_loops(model, prepared, 0, asked)
    assert [state.ragged.ends for _, _, state in states] == expected_ends


@pytest.mark.parametrize(
    "name", ["fop-loop-adaptive-parity", "looped-addition", "looped-binary-sum", "paper-fop-loop-adaptive-parity"]
)
def test_a_training_step_equals_that_of_the_plain_runner(name):
    recipe = replace(catalog.find_recipe(name), lengths=lw.Uniform(6), batch=12)
    model = recipe.build().double()
    batch, loops = data.draw_batch(recipe, 3)
    assert type(cpu.choose_runner(model)).__name__ == "PackedTransformer"
    found = []
    for runner in (cpu.choose_runner(model), Plain(model)):
        loss = recipe.objective(runner, batch, loops, lw.stream(0, "objective")).value
        found.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-11, rtol=0)
