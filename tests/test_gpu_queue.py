"""The queue of trainings for a GPU, tried on a CPU: each goes on from its checkpoint, whose means are in 16 bits."""

import json
import subprocess
import sys
from pathlib import Path

import torch

BENCH = Path(__file__).parents[1] / "bench"
CODE = """
import sys, runpy
sys.path.insert(0, {bench!r})
import gpu_queue
from pathlib import Path
entry = next(gpu_queue.queue(quick=True))
import lengthwise.training.trainer as trainer
advance = trainer.Trainer.advance
def stop(self):
    advance(self)
    if self.step == 7 and self.recipe.batch == 4:
        import os, signal
        os.kill(os.getpid(), signal.SIGTERM)
folder = Path({folder!r})
trainer.Trainer.advance = stop
first = gpu_queue.go_on(entry, folder, "cpu", 100)
trainer.Trainer.advance = advance
print(first["step"], gpu_queue.go_on(entry, folder, "cpu", 100)["step"] if {both} else 0)
"""


def run(folder, *, both):
    code = CODE.format(bench=str(BENCH), folder=str(folder), both=both)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_a_training_goes_on_where_it_was_stopped(tmp_path):
    assert run(tmp_path / "first", both=False) == ["7", "0"]
    state = torch.load(tmp_path / "first" / "state.pt", weights_only=True)
    assert {kept["exp_avg"].dtype for kept in state["optimizer"]["state"].values()} == {torch.bfloat16}
    assert {one.dtype for one in state["model"].values()} == {torch.float32}
    assert run(tmp_path / "both", both=True) == ["7", "20"]
    assert not (tmp_path / "both" / "state.pt").exists() and (tmp_path / "both" / "model.safetensors").exists()


def test_the_plan_names_what_is_left():
    done = subprocess.run([sys.executable, "gpu_queue.py", "--dry-run"], cwd=BENCH, capture_output=True, check=True)
    plan = json.loads(done.stdout)["plan"]
    assert plan[0] == "paper-fop-loop-adaptive-parity seed 0, 100,000 steps, bf16" and len(plan) == 14
