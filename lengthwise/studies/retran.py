"""Length generalization of ReTran, GPT and LSTM on arithmetic expressions (ReTran, ACL 2025)."""

from __future__ import annotations

from typing import Literal

from lengthwise.base.fields import validate_arguments
from lengthwise.base.results import Claim
from lengthwise.experiment.study import Panel, Study, parse_names
from lengthwise.recipes.retran import SIZES, build_models, build_paper_models, build_small_models

CLAIMS = (
    Claim("GPT-4o, asked for the answer alone", 30, "0.5568 of 10,000", "constant in the authors' notebook", 0.5568),
)


@validate_arguments
def retran(scale: Literal["cpu", "paper"] = "cpu", sizes: str = "small") -> Study:
    """ReTran, GPT and LSTM, of about equal size, on expressions of up to 30 characters, measured up to 40."""
    recipes, prefix = (build_small_models(), "") if scale == "cpu" else (build_paper_models(), "paper-")
    panels = []
    for size in parse_names(sizes, SIZES, "sizes"):
        chosen = tuple(recipes[f"{prefix}{name}-{size}"] for name in build_models(size))
        options = {"curve": tuple(range(8, 41)), "claims": CLAIMS, "highlight": f"{prefix}retran-{size}", "name": size}
        panels.append(Panel(f"Expressions, {size} models", chosen, (30, 40), natural=True, **options))
    note = "`natural` problems are new ones from the training distribution: up to 30 characters, or 31 to 40."
    return Study("ReTran, GPT and LSTM", tuple(panels), note, samples=6400)
