"""A recipe, and what it costs."""

from __future__ import annotations

import argparse

from rich.markup import escape
from rich.table import Table

from lengthwise import fast
from lengthwise.base import fields
from lengthwise.recipe.recipe import Recipe
from lengthwise.training.cost import Cost, cost
from lengthwise.verbs.console import say
from lengthwise.verbs.options import recipe_of


def run(args: argparse.Namespace) -> int:
    """A recipe, and what it costs."""
    recipe = recipe_of(args.recipe, args.changes)
    price = cost(recipe)
    runner = fast.described(recipe.build()) if price.measured else "not looked at: a step takes too long"
    result = {
        "recipe": fields.encode(recipe),
        "id": recipe.id,
        "parameters": price.parameters,
        "operations_per_step": price.operations,
        "seconds_per_step": price.seconds,
        "minutes": price.minutes,
        "runner": runner,
    }
    return say(args, result, _table(recipe, price, runner))


def _table(recipe: Recipe, price: Cost, runner: str) -> Table:
    table = Table(title=f"{recipe.name}  {recipe.id}", title_justify="left", show_header=False, box=None)
    for name in fields.encode(recipe):
        if name not in ("kind", "name"):
            table.add_row(f"[bold]{name}[/]", fields.text(getattr(recipe, name)))
    table.add_section()
    table.add_row("[bold]parameters[/]", f"{price.parameters:,}")
    table.add_row("[bold]operations[/]", f"{price.operations / 1e9:.2f} GFLOP per step, forward and backward")
    how = "measured here just now" if price.measured else "estimated"
    table.add_row("[bold]time[/]", f"about {price.minutes:,.1f} min of processor time on one thread, {how}")
    table.add_row("[bold]runner[/]", escape(runner))
    return table
