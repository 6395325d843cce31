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

    Is the number of ones in a row of bits odd? A looped model, which applies one small block once per bit, learns this
    on rows of up to 20 bits. Then it is tested on rows three times as long. Training takes about two minutes of one
    CPU thread; fewer `steps` take less time, and the model learns less.
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
    Any field of a recipe can be changed: `lw.find("looped-parity", "model.width=32")`. A stopped run continues
    where it stopped; a finished run is not trained again.
    """)


@app.cell
def _(lw, recipe):
    run = lw.train(recipe)
    return (run,)


@app.cell
def _(mo):
    mo.md("""
    Exact match is the share of problems whose whole answer is right. Besides uniform problems there are families of
    structured ones, such as rows of equal bits; the dashed line is the worst family. The training range is
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
    The course of training: the loss, and exact match at two lengths. Rows get longer during training, so the loss
    rises whenever a longer length is added.
    """)


@app.cell
def _(run):
    from lengthwise.report.loss_figure import draw_loss_figure

    draw_loss_figure([run], "looped-parity")


@app.cell
def _(mo):
    mo.md("""A problem of your own; `loops` is the number of times that the block was applied.""")


@app.cell
def _(lw, run):
    lw.load(run).solve("1101" * 8)


if __name__ == "__main__":
    app.run()
