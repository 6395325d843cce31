"""Recipes and a study of one's own: does a wider model carry parity further?

Or: `lengthwise reproduce width-study --import own_recipe --out widths`.
"""

from dataclasses import replace

import lengthwise as lw


def small_parity() -> lw.Recipe:
    """Parity on up to 8 bits, in some seconds of one CPU thread."""
    return replace(
        lw.find("looped-parity"),
        name="small-parity",
        lengths=lw.Curriculum(top=8, every=60),
        steps=600,
        watch=lw.Watch(),  # it watches nothing while it trains
    )


def width_family() -> dict[str, lw.Recipe]:
    """The same at several widths."""
    wider = [small_parity().change([f"name=parity-width-{width}", f"model.width={width}"]) for width in (8, 16, 32)]
    return {recipe.name: recipe for recipe in wider}


def width_study() -> lw.Study:
    """Parity at several widths, on the same problems for the same number of steps."""
    title = "Parity by width, trained on up to 8 bits"
    panel = lw.Panel(title, tuple(width_family().values()), sizes=(8, 12, 16, 24))
    return lw.Study(title, panels=(panel,), samples=200)


if __name__ == "__main__":
    for recipe in width_study().recipes:
        run = lw.train(recipe)
        print(recipe.name, *(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, [8, 12, 16, 24])))
