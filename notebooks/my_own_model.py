import marimo

app = marimo.App(app_title="My own model against the shipped ones")


@app.cell
def _():
    import marimo as mo
    import torch
    from torch import nn

    import lengthwise as lw

    return lw, mo, nn, torch


@app.cell
def _(mo):
    mo.md("""
    # My own model against the shipped ones

    Any torch module that maps tokens `(batch, time)` to logits `(batch, time, symbols)` can be trained and measured.
    Here it is a GRU that reads a row of bits and predicts whether the number of ones is odd.
    """)


@app.cell
def _(lw, nn):
    class MyGRU(nn.Module):
        def __init__(self, symbols: int, width: int = 32) -> None:
            super().__init__()
            self.embedding = nn.Embedding(symbols, width)
            self.recurrent = nn.GRU(width, width, batch_first=True)
            self.readout = nn.Linear(width, symbols)

        def forward(self, tokens):
            return self.readout(self.recurrent(self.embedding(tokens))[0])

    task = lw.Parity()
    symbols = len(lw.NextToken().vocabs(task)[0])
    return MyGRU, symbols, task


@app.cell
def _():
    steps = 1500
    lengths = [10, 20, 40, 60]
    samples = 200  # problems per length
    return lengths, samples, steps


@app.cell
def _(MyGRU, lw, steps, symbols, task, torch):
    torch.manual_seed(0)
    model = MyGRU(symbols)
    run = lw.train(model, task=task, lengths=20, steps=steps)
    return model, run


@app.cell
def _(mo):
    mo.md("""
    Both shipped models and ours get the same problems. `looped-parity` is given its number of loops;
    `halting-parity` decides by itself when to stop.
    """)


@app.cell
def _(lengths, lw, model, samples, task):
    mine = lw.evaluate(model, lengths, task=task, trained_to=20, samples=samples)
    shipped = [lw.evaluate(name, lengths, samples=samples) for name in ("looped-parity", "halting-parity")]
    return mine, shipped


@app.cell
def _(lw, mine, shipped):
    beside = lw.compare(mine, *shipped)
    beside
    return (beside,)


@app.cell
def _(beside):
    beside.plot("Parity, trained on up to 20 bits")


@app.cell
def _(mo):
    mo.md("""
    A figure of your own in the same style: `lw.style()` works with any matplotlib code. Its colours suit all colour
    vision, and 35 lines differ in colour or dash.
    """)


@app.cell
def _(lw, run):
    from matplotlib.figure import Figure

    with lw.style("column"):
        figure = Figure()
        axes = figure.add_subplot()
        rows = [row for row in run.rows("metrics") if "loss" in row]
        axes.plot([row["step"] for row in rows], [row["loss"] for row in rows])
        axes.set(xlabel="steps", ylabel="loss (nats)", yscale="log", title="My GRU")
    figure


if __name__ == "__main__":
    app.run()
