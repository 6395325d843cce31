"""The queue of runs for a GPU, tested on a CPU: runs resume from checkpoints, which store moments in bfloat16."""

import json
import os
import signal
import sys

import gpu_queue
import pytest
import torch
from training_recipes import stop_at


def test_a_stopped_training_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    entry = next(gpu_queue.list_entries(quick=True))
    stop_at(monkeypatch, [7], lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert gpu_queue.continue_training(entry, tmp_path, "cpu", 100)["step"] == 7
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert {kept["exp_avg"].dtype for kept in state["optimizer"]["state"].values()} == {torch.bfloat16}
    assert {one.dtype for one in state["model"].values()} == {torch.float32}
    assert gpu_queue.continue_training(entry, tmp_path, "cpu", 100)["step"] == 20
    assert not (tmp_path / "state.pt").exists() and (tmp_path / "model.safetensors").exists()


@pytest.mark.usefixtures("no_type_checks")
def test_a_dry_run_lists_the_remaining_trainings(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_queue.py", "--dry-run"])
    gpu_queue.main()
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan[0] == "paper-fop-loop-adaptive-parity seed 0, 100,000 steps, bf16" and len(plan) == 14
