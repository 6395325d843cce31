import marimo

app = marimo.App(app_title="Train and see")


@app.cell
def _():
    import marimo as mo

    import lengthwise as lw

    return lw, mo


@app.cell
def _(mo):
    mo.md("""
    # Train and see

    Is the number of ones in a row of bits odd? A looped model learns it on rows of up to 20 bits: it applies one small
    block once per bit. Then it meets rows that are three times as long. Training takes about two minutes of one CPU
    thread; with fewer `steps` it takes less, and the model learns less.
    """)


@app.cell
def _():
    steps = 2500
    lengths = [5, 10, 20, 26, 40, 60]
    samples = 200  # problems per length
    return lengths, samples, steps


@app.cell
def _(lw, steps):
    recipe = lw.find("looped-parity", f"steps={steps}")
    recipe
    return (recipe,)


@app.cell
def _(mo):
    mo.md("""
    Any field of a recipe can be changed: `lw.find("looped-parity", "model.width=32")`. A run that was stopped goes on
    where it stood; a finished one is not trained again.
    """)


@app.cell
def _(lw, recipe):
    run = lw.train(recipe)
    return (run,)


@app.cell
def _(mo):
    mo.md("""
    Exact match is the share of problems whose whole answer is right. Beside uniform problems there are families of
    structured ones, such as all ones or a single one; the dashed line is the worst of them. The training range is
    shaded.
    """)


@app.cell
def _(lengths, lw, run, samples):
    scores = lw.evaluate(run, lengths=lengths, samples=samples, families=True)
    scores.plot()
    return (scores,)


@app.cell
def _(scores):
    uniform = [score for score in scores if score.problems == "uniform"]
    {score.sizes[0]: f"{score.exact:.3f} ({score.loops:.0f} loops)" for score in uniform}


@app.cell
def _(mo):
    mo.md("""
    How it learned: the loss, and the exact match at two lengths meanwhile. Rows grow longer step by step, so the loss
    rises whenever a longer length comes in.
    """)


@app.cell
def _(run):
    from lengthwise.report.loss_figure import loss_figure

    loss_figure([run], "looped-parity")


@app.cell
def _(mo):
    mo.md("""One problem of your own; `loops` is how often the block was applied.""")


@app.cell
def _(lw, run):
    lw.load(run).solve("1101" * 8)


if __name__ == "__main__":
    app.run()
