"""Every form of model that a shipped recipe trains, and what all runners must compute alike."""

import contextlib
from dataclasses import fields, replace
from functools import cache

import torch
from forms import WRITES, built, choices, covering, every_loop, some, with_gradients

from lengthwise.api import catalog
from lengthwise.base.types import UsageError
from lengthwise.runners.plain import Plain
from lengthwise.testing.laws_of_models import choose_input_vocab

NO_MATTER = {"init_std", "init", "embedding_std", "eps"}  # how a model starts is not what it computes


def shrunk(spec):
    """The same form in a small size, without what is random."""
    has = {field.name: field for field in fields(spec)}
    changes = {name: has[name].default for name in NO_MATTER & has.keys()}
    changes |= {name: 0.0 for name in ("dropout", "noise") if name in has}
    changes |= {name: min(getattr(spec, name), 2) for name in ("layers", "mlp") if name in has}
    if "hidden" in has:
        changes["hidden"] = 5
    for heads in (2, 4, 8, getattr(spec, "heads", 1)):
        sized = {"heads": heads, "width": 4 * heads} if "heads" in has else {"width": 8} if "width" in has else {}
        with contextlib.suppress(UsageError):  # windows for more heads than are left
            small = replace(spec, **changes, **sized)
            small.build(choose_input_vocab(small), WRITES, causal=True)
            return small
    return spec


def shipped_forms():
    """Each form of model that a shipped recipe trains, with its layout's direction, and one recipe that does."""
    models, found = {}, {}
    for name, make in catalog.recipes().items():
        recipe = make()
        models.setdefault((recipe.model, recipe.layout.causal), name)
    for (model, causal), name in models.items():
        found.setdefault((shrunk(model), causal), name)
    return found


FORMS = shipped_forms()
FEW = covering({pair: choices(*pair) for pair in FORMS})  # which have all kinds of parts, words and switches


LENGTHS, LOOPS = [4, 11, 1, 11, 7, 11], [2, 3, 1, 1, 2, 2]


def everything(runner, inputs, loops):
    """What is read after the last loops, after each, after the last with the first ones no_grad_loops, and at two
    depths; of some positions, as a loss would ask."""
    position = torch.arange(inputs.tokens.shape[1])
    late, some_ = (inputs.padding_mask & asked for asked in (position % 3 != 1, position % 4 == 0))
    last = runner.last(inputs, torch.tensor(loops), late)
    no_grad_loops = runner.last(inputs, torch.tensor(loops), some_, no_grad_loops=1)
    depths = runner.at_depths(inputs, torch.tensor(loops), (max(loops), 2), late)
    return torch.cat([last, no_grad_loops, every_loop(runner, inputs, loops, some_), *depths])


@cache
def plainly(spec, causal):
    """The same of the plain runner, with gradients."""
    model = built(spec, causal)
    return with_gradients(everything(Plain(model), some(LENGTHS, width=12), LOOPS), model)


RECIPE = catalog.recipe("looped-parity", ["batch=6", "model.width=8", "model.heads=2", "lengths.top=5"])
