"""Unmodified modules of transformers, x-transformers and nanoGPT are trained, measured, loaded again or refused."""

import importlib
import json
import textwrap
import warnings

import pytest
import torch
from conftest import LONG, call_in_fork, command_in_fork
from torch import nn

import lengthwise as lw
from lengthwise.models.single_pass import SinglePass, find_logits

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # both cause deprecation warnings when imported
    import transformers
    import x_transformers

pytestmark = pytest.mark.filterwarnings("ignore")

SYMBOLS, POSITIONS = 4, 64
SMALL_CONFIG = {"vocab_size": SYMBOLS, "hidden_size": 16, "num_hidden_layers": 1, "bos_token_id": 0, "eos_token_id": 0}
ATTENTION_CONFIG = {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": POSITIONS}
NTP, FOP = lw.NextToken(), lw.FullOutput(causal=False)


class NanoGPT(nn.Module):
    """A module like nanoGPT: given targets, it returns all logits and a loss, else the logits of the last position."""

    def __init__(self, width=16):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.wte, self.wpe = nn.Embedding(SYMBOLS, width), nn.Embedding(POSITIONS, width)
        self.lm_head = nn.Linear(width, SYMBOLS)

    def forward(self, idx, targets=None):
        length = idx.shape[1]
        assert length <= POSITIONS, f"Cannot forward sequence of length {length}, block size is only {POSITIONS}"
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.layers(self.wte(idx) + self.wpe(torch.arange(length)), mask=later)
        if targets is None:
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build_gpt2():
    config = {"n_positions": POSITIONS, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=SYMBOLS, **config))


def build_llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL_CONFIG, **ATTENTION_CONFIG))


def build_mamba():
    return transformers.MambaForCausalLM(transformers.MambaConfig(**SMALL_CONFIG, state_size=4, pad_token_id=0))


def build_bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL_CONFIG, **ATTENTION_CONFIG))


def build_t5():
    config = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "num_labels": SYMBOLS}
    return transformers.T5ForTokenClassification(transformers.T5Config(vocab_size=SYMBOLS, **config))


def build_x_decoder():
    layers = x_transformers.Decoder(dim=16, depth=1, heads=2)
    return x_transformers.TransformerWrapper(num_tokens=SYMBOLS, max_seq_len=POSITIONS, attn_layers=layers)


def build_x_encoder():
    layers = x_transformers.Encoder(dim=16, depth=1, heads=2)
    return x_transformers.TransformerWrapper(num_tokens=SYMBOLS, max_seq_len=POSITIONS, attn_layers=layers)


MODULES = [(build_gpt2, NTP), (build_llama, NTP), (build_mamba, NTP), (build_bert, FOP), (build_t5, FOP)]
MODULES += [(NanoGPT, NTP), (build_x_decoder, NTP), (build_x_encoder, FOP)]


def parametrize_modules(modules):
    return pytest.mark.parametrize(("build", "layout"), modules, ids=lambda one: getattr(one, "__name__", ""))


def build_seeded(build):
    torch.manual_seed(0)
    return build()


def train_module(module, layout, *changes, **options):
    options = {"task": "parity", "layout": layout, "lengths": 5, "steps": 3, "batch": 4, "quiet": True} | options
    return lw.train(module, *changes, **options)


@parametrize_modules([pair for pair in MODULES if LONG or pair[0] not in (build_llama, build_x_encoder)])
def test_modules_are_trained_and_measured_without_a_wrapper(build, layout, runs):
    """``train`` and ``evaluate`` also check that no module reads padding or other rows."""
    module = build_seeded(build)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = train_module(module, layout)
    assert any(not torch.equal(value, before[name]) for name, value in module.state_dict().items())
    first, again = (lw.evaluate(one, [5, 9], samples=20, **given) for one, given in
                    ((run, {}), (module, {"task": "parity", "layout": layout})))  # fmt: skip
    assert [score.exact for score in first] == [score.exact for score in again]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_in_16_bits_are_trained_and_measured(dtype, runs):
    run = train_module(build_seeded(build_bert).to(dtype), FOP)
    assert {one.dtype for one in run.model.parameters()} == {dtype}
    assert len(lw.evaluate(run, [5], samples=10)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_looking_ahead_is_found_despite_small_or_16_bit_weights(dtype):
    """Weights of transformers start small, so that a later token changes a logit by at most .0002."""
    module = build_seeded(build_bert).to(dtype)
    with pytest.raises(lw.UsageError, match="looks ahead"):
        lw.evaluate(module, [5], task="parity", layout=NTP, samples=10)


@parametrize_modules([(build_gpt2, NTP), (build_bert, FOP), (NanoGPT, NTP), (build_x_decoder, NTP)])
def test_rows_longer_than_a_modules_positions_are_refused_before_measuring(build, layout, monkeypatch, runs):
    module = build_seeded(build)
    measured = []
    monkeypatch.setattr("lengthwise.evaluation.scores.compute_group_results", lambda *given: measured.append(given))
    with pytest.raises(lw.UsageError, match=r"^\w+ fails on rows of 7\d positions \(\w+: [^\n]*$"):
        lw.evaluate(module, [5, 70], task="parity", layout=layout, samples=10)
    with pytest.raises(lw.UsageError, match=r"^\w+ fails on rows of 7\d positions"):
        train_module(module, layout, lengths=70)
    assert not measured and not list(runs.glob("*"))


def test_a_module_without_logits_is_refused_with_advice():
    config = transformers.T5Config(vocab_size=SYMBOLS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    with pytest.raises(lw.UsageError, match=r"without logits: use the class with a head, such as …ForToken"):
        lw.evaluate(transformers.T5EncoderModel(config), [5], task="parity", layout=FOP)


def test_logits_are_found_in_tensors_objects_dictionaries_and_tuples():
    logits, shape = torch.zeros(2, 5, 3), torch.Size((2, 5))

    class Output:
        pass

    holder = Output()
    holder.logits = logits
    for found in (logits, holder, {"logits": logits}, (logits, None), [torch.tensor(1.0), logits]):
        assert find_logits(found, shape) is logits
    for found in (None, {}, (None, torch.zeros(2, 1, 3)), torch.zeros(2, 5), {"scores": logits}):
        assert find_logits(found, shape) is None


def test_masks_are_passed_under_the_name_of_the_forward_parameter():
    assert [SinglePass(build_seeded(build)).mask_name for build, _ in MODULES] == [
        "attention_mask", "attention_mask", "attention_mask", "attention_mask", "attention_mask", None, None, "mask"
    ]  # fmt: skip


def test_a_run_of_a_transformers_model_is_loaded_again_from_the_command_line(tmp_path):
    """The run stores the module's configuration and dtype, which are not part of the recipe."""
    run = train_module(build_seeded(build_gpt2).to(torch.bfloat16), NTP, steps=10)
    kept = json.loads(json.loads((run.folder / "config.json").read_text())["model"]["config"])
    assert kept["config"]["n_embd"] == 16 and kept["dtype"] == "bfloat16"
    assert "n_embd" not in str(run.recipe)
    there = command_in_fork(
        "evaluate", str(run.folder), "--lengths", "5,9", "--samples", "20", "--json", folder=tmp_path
    )
    assert there.returncode == 0, there.stderr
    here = lw.evaluate(run, [5, 9], samples=20)
    rows = [row for row in json.loads(there.stdout) if row["problems"] == "uniform"]
    assert [(one.exact, one.token_accuracy) for one in here] == [(row["exact"], row["token_accuracy"]) for row in rows]


BUILDER_CODE = """
    import torch

    class Sums(torch.nn.Module):
        def __init__(self, width, scale=1):
            super().__init__()
            self.embed, self.read, self.scale = torch.nn.Embedding(4, width), torch.nn.Linear(width, 4), scale

        def forward(self, tokens):
            return self.read(self.embed(tokens).cumsum(1)) * self.scale

    def narrow() -> Sums:
        return Sums(8)

    def wide() -> Sums:
        return Sums(16)
"""


def test_a_run_of_a_users_module_is_loaded_with_a_function_that_builds_it(tmp_path, runs, monkeypatch):
    """An imported function that builds the same layers is found without being named; other layers are refused."""
    (tmp_path / "own_sums.py").write_text(textwrap.dedent(BUILDER_CODE))

    def train_wide_module():
        monkeypatch.syspath_prepend(tmp_path)
        return str(train_module(importlib.import_module("own_sums").wide(), NTP).folder)

    run = call_in_fork(train_wide_module)
    asked = "evaluate", run, "--lengths", "5", "--samples", "20"
    there = command_in_fork(*asked, "--import", "own_sums", "--json", folder=tmp_path)
    assert there.returncode == 0, there.stderr
    missing = command_in_fork(*asked, folder=tmp_path)
    assert missing.returncode == 2 and "def build() -> Sums" in missing.stderr and missing.stderr.count("\n") == 1
    (tmp_path / "own_sums.py").write_text(textwrap.dedent(BUILDER_CODE).replace("Sums(16)", "Sums(16, 2)"))
    other = command_in_fork(*asked, "--import", "own_sums", folder=tmp_path)
    assert (
        other.returncode == 2
        and "narrow, wide" in other.stderr
        and "differs from the trained one in layers or settings" in other.stderr
    )
