"""All loops fused in one autograd step equal separate loops, in values and gradients."""

from dataclasses import replace

import pytest
import specs
import torch
from hypothesis import given
from hypothesis import strategies as st
from specs import compute_gradients

import lengthwise as lw
from lengthwise.nn.position import FIRE, ALiBi, RoPE, Sinusoidal
from lengthwise.runners.cpu import fused_loops, pattern, transformer
from lengthwise.runners.cpu.transformer import PackedTransformer
from lengthwise.runners.plain import Plain


def build_model(causal=True, **changes):
    spec = lw.Transformer(**{"width": 32, "heads": 8, "mlp": 2, "init_std": 0.2, **changes})
    return specs.build(spec, causal).train()


def build_inputs(lengths, symbol_count=2):
    inputs = specs.build_rows(lengths)
    return replace(inputs, tokens=inputs.tokens % symbol_count * inputs.padding_mask)


def compare_with_plain(model, inputs, loops, positions=None, **options):
    """Compare fused and separate loops with the plain runner; return the arguments of the fused runs."""
    runs, positions, loops = [], inputs.padding_mask if positions is None else positions, torch.tensor(loops)
    found, run = [], fused_loops.run_loops
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_loops, "run_loops", lambda *args, **kwargs: runs.append(args) or run(*args, **kwargs))
        found.append(PackedTransformer(model).last(inputs, loops, positions, **options))
        patch.setattr(transformer, "_run_fused", lambda *args: None)
        found.append(PackedTransformer(model).last(inputs, loops, positions, **options))
    plain = compute_gradients(Plain(model).last(inputs, loops, positions, **options), model)
    for read in found:
        for one, two in zip(compute_gradients(read, model), plain, strict=True):
            torch.testing.assert_close(one, two, atol=1e-9, rtol=1e-8)
    return runs


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), min_size=2, max_size=6),
    st.fixed_dictionaries(
        {
            "layers": st.integers(1, 2),
            "activation": st.sampled_from(["gelu", "relu"]),
            "biases": st.booleans(),
            "final_norm": st.sampled_from(["loop", "readout", "none"]),
            "injection": st.sampled_from(["add", "once"]),
            "positions": st.sampled_from([(), (Sinusoidal(),), (ALiBi(),)]),
        }
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_fused_loops_equal_separate_loops(rows, form, causal, has_padding, reads_some_positions, seed):
    torch.manual_seed(seed)
    lengths, loops = zip((10, 2), *rows, strict=True)
    inputs = build_inputs(lengths if has_padding else [12] * len(lengths))
    loss_mask = inputs.padding_mask & (torch.rand(inputs.padding_mask.shape) < 0.3) if reads_some_positions else None
    if loss_mask is not None:
        loss_mask[:, 0] = True
    assert compare_with_plain(build_model(causal, **form), inputs, loops, loss_mask)


@pytest.mark.parametrize("reads_last_positions", [True, False])
@pytest.mark.parametrize("symbol_count", [1, 2, 3])
def test_rows_are_fused_in_groups(symbol_count, reads_last_positions, monkeypatch):
    """Many rows are split into groups, each with its own width and its own numbering of distinct prefixes."""
    monkeypatch.setattr(pattern, "MIN_ROWS", 3)
    monkeypatch.setattr(pattern, "MIN_HEADS", 8)
    inputs = build_inputs([12, 3, 7, 12, 11, 4, 9, 2, 1, 5], symbol_count)
    last = torch.arange(12) == inputs.padding_mask.sum(1)[:, None] - 1
    positions = last if reads_last_positions else None
    assert compare_with_plain(build_model(), inputs, [3, 2, 1, 3, 2, 2, 4, 1, 1, 2], positions)


def test_equal_prefixes_share_an_index():
    tokens = torch.tensor([[0, 1, 0, 2], [0, 1, 1, 2], [1, 1, 9, 9], [0, 1, 0, 9]])
    found = fused_loops.index_unique_prefixes(tokens, [4, 8, 10, 13], [4])
    assert found.tolist() == [0, 1, 2, 3, 0, 1, 4, 5, 6, 7, 0, 1, 2]
    parts = fused_loops.index_unique_prefixes(tokens, [4, 8, 10, 13], [2, 2])
    assert parts.tolist() == [0, 1, 2, 3, 0, 1, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("symbol_count", [1, 3])
@pytest.mark.parametrize("positions", [(), (Sinusoidal(),), (ALiBi(),)])
def test_only_distinct_prefixes_are_computed(symbol_count, positions):
    inputs = build_inputs([12] * 5 + [3] * 5, symbol_count)
    ((x, which, *_),) = compare_with_plain(build_model(positions=positions), inputs, [3] * 10)
    if symbol_count == 1 and not positions:
        assert len(x) == 75 and int(which.max()) == 11
    ((_, which, *_),) = compare_with_plain(build_model(False), inputs, [3] * 10)
    assert which is None  # without a causal mask every position differs


def test_equal_symbols_at_different_positions_are_computed_separately():
    inputs = build_inputs([12] * 5 + [3] * 5, 1)
    inputs = replace(inputs, position=inputs.position + torch.arange(10)[:, None])
    ((_, which, *_),) = compare_with_plain(build_model(positions=(Sinusoidal(),)), inputs, [3] * 10)
    assert which is None


def test_large_scores_do_not_overflow():
    model = build_model()
    with torch.no_grad():
        model.blocks[0].mixer.project.weight.mul_(300)
    assert compare_with_plain(model, build_inputs([12, 3, 5]), [2, 1, 1])


@pytest.mark.parametrize(
    "changes",
    [{"heads": 2}, {"norm": "post"}, {"gated": True}, {"dropout": 0.1}, {"injection": "gate"}, {"noise": 0.1},
     {"positions": (RoPE(),)}, {"positions": (FIRE(),)}, {"positions": (lw.Local(2),)}],
)  # fmt: skip
def test_unsupported_models_run_loop_by_loop(changes, monkeypatch):
    runs, inputs = [], build_inputs([12, 3, 5])
    monkeypatch.setattr(fused_loops, "run_loops", lambda *args, **kwargs: runs.append(args))
    PackedTransformer(build_model(**changes)).last(inputs, torch.tensor([2, 1, 1]), inputs.padding_mask)
    assert not runs


def test_loops_without_gradients_are_not_fused(monkeypatch):
    inputs = build_inputs([12, 3, 5])
    assert not compare_with_plain(build_model(), inputs, [3, 2, 2], no_grad_loops=1)
    monkeypatch.setattr(fused_loops, "run_loops", None)
    with torch.no_grad():
        PackedTransformer(build_model()).last(inputs, torch.tensor([2, 1, 1]), inputs.padding_mask)


def test_models_with_dropout_are_fused_in_evaluation():
    assert compare_with_plain(build_model(dropout=0.1).eval(), build_inputs([12, 3, 5]), [2, 1, 1])
