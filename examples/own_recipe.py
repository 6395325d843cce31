"""Custom recipes and a study: does parity need a wide model, and does the learning rate matter?"""

from dataclasses import replace

import lengthwise as lw

LEARNING_RATES = {"slow": 0.001, "fast": 0.01}


def small_parity() -> lw.Recipe:
    """Parity on up to 8 bits, trained in seconds on one CPU thread."""
    return replace(
        lw.find("looped-parity"),
        name="small-parity",
        lengths=lw.Curriculum(top=8, every=60),
        steps=600,
        watch=lw.Watch(),  # no measurements during training
    )


def width_family() -> dict[str, lw.Recipe]:
    """Parity on up to 8 bits at several widths."""
    recipes = [small_parity().change([f"name=parity-width-{width}", f"model.width={width}"]) for width in (8, 16, 32)]
    return {recipe.name: recipe for recipe in recipes}


def rate_family() -> dict[str, lw.Recipe]:
    """Parity on up to 8 bits at several learning rates."""
    base = small_parity()
    recipes = [base.change([f"name=parity-{name}", f"optimizer.rate={rate}"]) for name, rate in LEARNING_RATES.items()]
    return {recipe.name: recipe for recipe in recipes}


def width_study() -> lw.Study:
    """Parity at several widths, and at several learning rates: one figure each, in separate folders."""
    sizes = (8, 12, 16, 24)
    widths = lw.Panel("Parity by width", tuple(width_family().values()), sizes, name="width")
    rates = lw.Panel("Parity by learning rate", tuple(rate_family().values()), sizes, name="rate")
    return lw.Study("Parity, trained on up to 8 bits", panels=(widths, rates), samples=200)


if __name__ == "__main__":
    for recipe in width_study().panels[0].recipes:
        run = lw.train(recipe)
        print(recipe.name, *(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, [8, 12, 16, 24])))
