"""A small version of every model that a shipped recipe trains, and outputs that all runners must agree on."""

import contextlib
from dataclasses import fields, replace
from functools import cache

import torch
from specs import WRITES, build_rows, cached_model, choose_covering, compute_gradients, list_features, run_each_loop

from lengthwise.api import catalog
from lengthwise.base.types import UsageError
from lengthwise.runners.plain import Plain
from lengthwise.testing.laws_of_models import choose_input_vocab

INIT_FIELDS = {"init_std", "init", "embedding_std", "eps"}  # initialization does not change what is computed


def shrink_spec(spec):
    """Return a small version of a model specification, with the same features but without dropout and noise."""
    has = {field.name: field for field in fields(spec)}
    changes = {name: has[name].default for name in INIT_FIELDS & has.keys()}
    changes |= {name: 0.0 for name in ("dropout", "noise") if name in has}
    changes |= {name: min(getattr(spec, name), 2) for name in ("layers", "mlp") if name in has}
    if "hidden" in has:
        changes["hidden"] = 5
    for heads in (2, 4, 8, getattr(spec, "heads", 1)):
        sized = {"heads": heads, "width": 4 * heads} if "heads" in has else {"width": 8} if "width" in has else {}
        with contextlib.suppress(UsageError):  # more heads with windows than there are heads
            small = replace(spec, **changes, **sized)
            small.build(choose_input_vocab(small), WRITES, causal=True)
            return small
    return spec


def list_shipped_specs():
    """Return the shipped recipes' distinct pairs of a shrunk model specification and ``causal``, each with the name of
    one such recipe."""
    models, found = {}, {}
    for name, make in catalog.list_recipes().items():
        recipe = make()
        models.setdefault((recipe.model, recipe.layout.causal), name)
    for (model, causal), name in models.items():
        found.setdefault((shrink_spec(model), causal), name)
    return found


SHIPPED_SPECS = list_shipped_specs()
FEW_SPECS = choose_covering({pair: list_features(*pair) for pair in SHIPPED_SPECS})
LENGTHS, LOOPS = [4, 11, 1, 11, 7, 11], [2, 3, 1, 1, 2, 2]


def compute_all_logits(runner, inputs, loops):
    """Return logits at some positions, as losses read them: after the last loop, with and without gradients in the
    first loop; after each loop; and after two given numbers of loops."""
    position = torch.arange(inputs.tokens.shape[1])
    late, some_ = (inputs.padding_mask & asked for asked in (position % 3 != 1, position % 4 == 0))
    last = runner.last(inputs, torch.tensor(loops), late)
    no_grad_loops = runner.last(inputs, torch.tensor(loops), some_, no_grad_loops=1)
    depths = runner.at_depths(inputs, torch.tensor(loops), (max(loops), 2), late)
    return torch.cat([last, no_grad_loops, run_each_loop(runner, inputs, loops, some_), *depths])


@cache
def run_plain(spec, causal):
    """Return the plain runner's outputs and gradients."""
    model = cached_model(spec, causal)
    return compute_gradients(compute_all_logits(Plain(model), build_rows(LENGTHS, width=12), LOOPS), model)


RECIPE = catalog.find_recipe("looped-parity", ["batch=6", "model.width=8", "model.heads=2", "lengths.top=5"])
