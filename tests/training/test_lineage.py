"""Training continued from another run, stopped early by patience, or with accumulated gradients."""

import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from training_recipes import stop_at

import lengthwise as lw
from lengthwise.cli import entry
from lengthwise.experiment import data
from lengthwise.runs.folder import get_runs_folder
from lengthwise.runs.run import FINAL_FILE, Run
from lengthwise.training import trainer
from lengthwise.training.checkpoint import continue_from
from lengthwise.training.loop import train

MODEL = lw.Transformer(width=8, heads=2, layers=1, dropout=0.1)
BASE = replace(lw.find("looped-parity"), model=MODEL, lengths=lw.Uniform(top=6), batch=6, steps=7,
               schedule=lw.Schedule(), watch=lw.Watch(), keep="last")  # fmt: skip


def have_equal_weights(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    "changes",
    [
        {"ema": 0.9, "source": lw.Finite(rows=40)},
        {
            "optimizer": lw.LAMB(),
            "watch": lw.Watch(every=3, sizes=(4,), count=5),
            "keep": "best",
            "lengths": lw.Curriculum(top=6, every=3),
        },
        {"accumulate": 3, "lengths": lw.Mastery(top=6, every=2, pass_accuracy=0.0, count=4)},
    ],
    ids=",".join,
)
def test_two_halves_of_a_training_equal_an_uninterrupted_training_bit_for_bit(changes, monkeypatch):
    """The first half keeps its full state; the learning rate is constant. The second half is also stopped and
    resumed."""
    recipe = replace(BASE, **changes)
    half = train(recipe, device="cpu", keep_state=True)
    whole = train(replace(recipe, steps=15), device="cpu")
    rest = continue_from(half.folder, replace(recipe, steps=15))
    assert rest.parent.state and rest.start == 7 and rest.id != whole.recipe.id
    on = train(rest, device="cpu", folder=get_runs_folder() / "unbroken", keep_state=True)
    assert have_equal_weights(on.model, whole.model)
    assert [row["loss"] for row in on.rows("metrics") if "rate" in row] == pytest.approx(
        [row["loss"] for row in whole.rows("metrics") if "rate" in row], rel=0.5
    )  # the first row averages the steps since the seventh
    stop_at(monkeypatch, [10], lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(lw.Interrupted):
        train(rest, device="cpu")
    assert have_equal_weights(train(rest, device="cpu").model, whole.model)
    assert on.about()["parent"] | {"run": ""} == {
        "kind": "Parent", "digest": rest.parent.digest, "step": 7, "state": True, "run": ""}  # fmt: skip
    assert (on.folder / FINAL_FILE).exists() and not (whole.folder / FINAL_FILE).exists()


def test_a_run_that_continues_after_an_early_end_reports_its_own_steps():
    """At a learning rate of 0, no loss improves, so training ends at step 6, before its first report."""
    watch = lw.Watch(every=3, validation=8)
    early = replace(BASE, steps=40, optimizer=lw.AdamW(rate=0), keep="lowest-loss", patience=1, watch=watch)
    run = train(early, device="cpu", keep_state=True)
    rest = continue_from(run.folder, replace(early, steps=20, keep="last", patience=0, watch=lw.Watch()))
    first, second = (row["loss"] for row in train(rest, device="cpu").rows("metrics"))
    assert rest.start == 6 and first == pytest.approx(second, rel=0.3)


def test_training_continues_from_weights_on_another_task_at_another_rate():
    parent = train(BASE, device="cpu")
    recipe = continue_from(
        parent.folder, BASE.change(["task=Parity", "steps=12", "optimizer.rate=0.01", "lengths.top=9"])
    )
    assert not recipe.parent.state and recipe.start == 7
    assert lw.Recipe.read(recipe.json()) == recipe
    started = trainer.Trainer(recipe, torch.device("cpu"))
    assert started.step == 7
    started.restore_checkpoint(Run.of(recipe))
    assert have_equal_weights(started.model, parent.model)
    on = train(recipe, device="cpu")
    assert (
        on.rows("metrics")[0]["step"] == 10
        and on.about()["steps"] == 12
        and not have_equal_weights(on.model, parent.model)
    )


def test_the_schedule_restarts_in_a_continued_run():
    recipe = continue_from(train(BASE, device="cpu").folder, BASE.change(["steps=17", "schedule.shape=linear"]))
    trainee = trainer.Trainer(recipe, torch.device("cpu"))
    trainee.restore_checkpoint(Run.of(recipe))
    trainee.advance()
    assert trainee.optimizer.param_groups[0]["lr"] == recipe.optimizer.rate
    while not trainee.is_over:
        trainee.advance()
    assert trainee.optimizer.param_groups[0]["lr"] == pytest.approx(recipe.optimizer.rate * 0.1)


def test_impossible_continuations_are_refused_in_one_line(tmp_path):
    parent = train(BASE, device="cpu", keep_state=True)
    for changes, message in [
        (["steps=7"], "must include the 7 steps .* write e.g. steps=14"),
        (["steps=20", "model.width=16"], "do not fit this recipe's model"),
    ]:
        with pytest.raises(lw.UsageError, match=message):
            continue_from(parent.folder, BASE.change(changes))
    recipe = continue_from(parent.folder, BASE.change(["steps=12"]))
    other = train(BASE.with_seed(3), device="cpu", keep_state=True)
    (parent.folder / FINAL_FILE).write_bytes((other.folder / FINAL_FILE).read_bytes())
    with pytest.raises(lw.UsageError, match="is no longer what this run continues from: its digest is"):
        train(recipe, device="cpu")
    (parent.folder / FINAL_FILE).unlink()
    with pytest.raises(lw.UsageError, match=r"final\.pt is gone"):
        train(recipe, device="cpu")


def test_the_command_line_continues_a_run_and_reports_it(capsys):
    few = ["batch=4", "model.width=16", "watch.every=0", "lengths=Uniform(top=6)"]
    words = ["--lengths", "6", "--samples", "4", "--quiet"]
    assert entry._run(entry.parse(["train", "looped-parity", "name=early", "steps=3", *few, *words])) == 0
    (early,) = get_runs_folder().glob("early-*")
    capsys.readouterr()
    loud = ["--lengths", "6", "--samples", "4"]
    assert (
        entry._run(entry.parse(["train", "--from", early.name, "steps=6", "lengths.top=12", "name=late", *loud])) == 0
    )
    message = capsys.readouterr().err
    assert f"continues from the weights of {early.name} at step 3, with a new optimizer state" in message
    (late,) = get_runs_folder().glob("late-*")
    assert json.loads((late / "config.json").read_text())["parent"]["run"] == early.name
    assert entry._run(entry.parse(["train", str(early), "steps=9", *words])) == 0
    assert f"lengthwise train --from {early} …" in capsys.readouterr().err
    on = lw.train("steps=5", parent=early, quiet=True)
    assert on.recipe.parent.run == early.name and on.recipe.steps == 5
    shipped = lw.train("steps=2001", "batch=2", "watch.every=0", parent="looped-parity", quiet=True)
    assert shipped.recipe.parent.run == "looped-parity" and shipped.about()["steps"] == 2001


@pytest.mark.parametrize(("patience", "every"), [(1, 3), (3, 1), (2, 2)])
def test_patience_ends_training_after_measurements_without_improvement(patience, every):
    recipe = replace(
        BASE, steps=40, patience=patience, watch=lw.Watch(every=every, sizes=(6,), count=4), keep="best", name="patient"
    )
    run = train(recipe, device="cpu")
    exact = [row["exact"]["6"] for row in run.rows("metrics") if "exact" in row]
    best = exact.index(max(exact))
    steps = run.about()["steps"]
    assert steps == min(40, (best + 1 + patience) * every) and len(exact) == steps // every
    assert run.about()["kept_step"] == (best + 1) * every


def test_patience_needs_watched_scores():
    with pytest.raises(lw.UsageError, match="patience needs keep=best"):
        replace(BASE, patience=3)
    with pytest.raises(lw.UsageError, match="a batch has at most 6 parts"):
        replace(BASE, accumulate=7)


def test_accumulated_gradients_equal_those_of_the_whole_batch():
    plain = replace(BASE, model=replace(MODEL, dropout=0.0))
    first, second = (trainer.Trainer(one, torch.device("cpu")) for one in (plain, replace(plain, accumulate=3)))
    batch = data.draw_batch(plain, 0)
    for one in (first, second):
        next(one.compute_losses(*batch))
    assert second.parts == 3 and plain.id != replace(plain, accumulate=3).id
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-7)
