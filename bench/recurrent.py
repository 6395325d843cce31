"""A training step of the three small models of ReTran (ACL 2025), forward and backward, on 2,048 expressions as
published. Claim: ReTran is at least 3 times, GPT 6 times and the LSTM stack 2.5 times as fast as the same mathematics
computed token by token, on rows of 38 positions as in the originals. Loss and gradients are equal.

``libraries`` is the ratio of the time of a torch.nn model of the same size to the package's time.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import library_models
import torch
from common import QUICK, measure_seconds, print_result, summarize_ratios
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.api import catalog
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Inputs
from lengthwise.experiment import data
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.source import Fresh
from lengthwise.models import Model
from lengthwise.runners.cached import CachedTransformer
from lengthwise.runners.cpu import choose_runner

PADDED_WIDTH = 38
REPEATS = {"retran": 7, "gpt": 7, "lstm": 25}  # short steps vary more
if QUICK:
    REPEATS = dict.fromkeys(REPEATS, 2)
CLAIMS = {"retran": 3.0, "gpt": 6.0, "lstm": 2.5}
LIBRARIES = {"lstm": library_models.build_lstm, "gpt": library_models.build_gpt}  # torch.nn has nothing like ReTran
Loss = Callable[[Model, Batch], Tensor]


def compute_one_loop_logits(model: Model, inputs: Inputs) -> Tensor:
    """Return the logits after one loop by the model's own methods, in which ReTran and the LSTM compute token by
    token."""
    context = model.embed(inputs)
    return model.read(model.advance(model.start(context), context))


def compute_cached_logits(model: Model, inputs: Inputs) -> Tensor:
    """Return the logits of a transformer with a key–value cache, token by token."""
    decoder = CachedTransformer(model, inputs)
    columns = range(inputs.tokens.shape[1])
    return torch.cat([decoder.compute_next_logits(inputs.columns(column, column + 1), 1) for column in columns], 1)


def compute_library_logits(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the logits of a model built from torch.nn."""
    return model.readout(library_models.apply_layers(model, inputs.tokens))


PLAIN_LOGITS = {"retran": compute_one_loop_logits, "gpt": compute_cached_logits, "lstm": compute_one_loop_logits}


def compute_plain_loss(advance: Callable[[Model, Inputs], Tensor], model: Model, batch: Batch) -> Tensor:
    """Return the loss with every row padded to the largest possible width, and logits computed at all positions."""
    tokens, targets, loss_mask = (
        F.pad(part, (0, PADDED_WIDTH - part.shape[1])) for part in (batch.inputs.tokens, batch.targets, batch.loss_mask)
    )
    index = torch.arange(PADDED_WIDTH).expand(len(tokens), -1)
    logits = advance(model, Inputs(tokens, index, index, torch.ones_like(tokens, dtype=torch.bool)))
    return F.cross_entropy(logits[loss_mask], targets[loss_mask])


def compute_package_loss(recipe: Recipe, model: Model, batch: Batch) -> Tensor:
    loops = recipe.loops.planned(batch.rounds)
    return recipe.objective(choose_runner(model), batch, loops, stream(0, "objective")).value


def compute_gradients(loss: Loss, model: Model, batch: Batch) -> list[Tensor]:
    model.zero_grad()
    value = loss(model, batch)
    value.backward()
    return [value.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def measure(name: str) -> dict[str, object]:
    recipe = replace(catalog.find_recipe(f"paper-{name}-small"), source=Fresh(), **({"batch": 4} if QUICK else {}))
    losses: list[Loss] = [partial(compute_plain_loss, PLAIN_LOGITS[name]), partial(compute_package_loss, recipe)]
    batch, _ = data.draw_batch(recipe, 0)
    both = [compute_gradients(loss, recipe.build().eval().double(), batch) for loss in losses]
    difference = max(float((a - b).abs().max()) for a, b in zip(*both, strict=True))
    model = recipe.build().train()
    library = LIBRARIES.get(name)
    theirs = library(recipe) if library else None
    ratios, further = [], []
    for step in range(REPEATS[name] + 1):
        batch, _ = data.draw_batch(recipe, step)
        slow, quick = (measure_seconds(compute_gradients, loss, model, batch) for loss in losses)
        ratios.append(slow / quick)
        if theirs:
            library_loss = partial(compute_plain_loss, compute_library_logits)
            further.append(measure_seconds(compute_gradients, library_loss, theirs, batch) / quick)
    found = summarize_ratios(ratios[1:])  # without the first step, which includes one-time allocations
    return {
        **found,
        "difference": difference,
        "met": found["ratio"] >= CLAIMS[name] and difference < 1e-5,
        **({"libraries": round(statistics.median(further[1:]), 2)} if further else {}),
    }


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    print_result("recurrent", **{name: measure(name) for name in CLAIMS})


if __name__ == "__main__":
    main()
