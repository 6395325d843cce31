import marimo

app = marimo.App(app_title="Inside a loop")


@app.cell
def _():
    import marimo as mo
    import torch
    from matplotlib.figure import Figure

    import lengthwise as lw
    from lengthwise.evaluation.depth import measure_depth
    from lengthwise.report.depth_figure import draw_depth_figure

    weights = lw.load("looped-parity").weights
    recipe, model = weights.recipe, weights.model
    return Figure, draw_depth_figure, lw, measure_depth, mo, model, recipe, torch, weights


@app.cell
def _(mo):
    mo.md("""
    # Inside a loop

    `looped-parity` applies one block repeatedly. What does it know after each loop? Its state can be decoded after any
    loop, as if this were the last one. The figure shows one row of bits: columns are positions (the answer is
    predicted at `=`), rows are loops. Colour is the probability of an odd number of ones.
    """)


@app.cell
def _():
    prompt = "110100101101"
    sizes = (20, 40)
    samples = 128  # problems per size
    return prompt, samples, sizes


@app.cell
def _(lw, model, prompt, recipe, torch):
    problems = recipe.task.parse(prompt)
    batch = recipe.layout.write(problems, recipe.task)
    loops = recipe.loops.planned(batch.rounds) + 6  # six more than it needs
    with torch.no_grad():
        states = [(state, model.read(state)) for _, _, state in lw.unroll(model, batch.inputs, loops)]
    one = recipe.task.symbols.index("1")
    odd = torch.stack([logits[0].softmax(-1)[:, one] for _, logits in states])
    return batch, odd, states


@app.cell
def _(Figure, batch, lw, odd, prompt, recipe):
    written = list(recipe.layout.vocabs(recipe.task)[0].decode(batch.inputs.tokens[0]))
    with lw.style("page"):
        read = Figure(figsize=(6.75, 3.2))
        panel = read.add_subplot()
        drawn = panel.imshow(
            odd.numpy(),
            cmap="RdBu_r",
            vmin=0,
            vmax=1,
            aspect="auto",
            extent=(-0.5, odd.shape[1] - 0.5, len(odd) + 0.5, 0.5),
        )
        panel.grid(visible=False)
        panel.set_xticks(range(odd.shape[1]), written)
        panel.axhline(int(batch.rounds[0]) + 0.5, color="black", linewidth=1)
        panel.set(xlabel="input", ylabel="loops", title=f"{prompt}: read after each loop")
        read.colorbar(drawn, label="probability of 1")
    read


@app.cell
def _(mo):
    mo.md("""
    The black line is T(n), the number of loops that the task needs. The next figure shows how far each loop
    moves the state, at the position of the answer and elsewhere.
    """)


@app.cell
def _(Figure, batch, lw, states, torch):
    at = int(batch.answer_slots[0].float().argmax())
    moved = torch.stack([state[0] for state, _ in states]).diff(dim=0).norm(dim=-1)
    with lw.style("page"):
        change = Figure(figsize=(6.75, 2.4))
        lines = change.add_subplot()
        lines.plot(range(2, len(moved) + 2), moved[:, at], label="position of the answer")
        lines.plot(range(2, len(moved) + 2), moved.mean(1), label="mean over positions")
        lines.set(xlabel="loops", ylabel="change of the state", title="How far a loop moves the state")
        lines.legend()
    change


@app.cell
def _(mo):
    mo.md("""
    Over many problems: exact match after each loop, and the model's confidence in its answer. T(n) is marked, and the
    loops at which rules stop that choose the most confident one.
    """)


@app.cell
def _(draw_depth_figure, measure_depth, samples, sizes, weights):
    measured = [measure_depth(weights, size, samples=samples) for size in sizes]
    draw_depth_figure(measured, "looped-parity: after each loop")
    return (measured,)


if __name__ == "__main__":
    app.run()
