"""The demo and a study, from end to end, with a few steps of training."""

import json
import subprocess
import sys


def test_demo_shows_its_pictures_and_can_be_given_again(tmp_path, monkeypatch):
    monkeypatch.setenv("LENGTHWISE_RUNS", str(tmp_path))
    words = [sys.executable, "-m", "lengthwise", "demo", "--steps", "4", "--samples", "4"]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert shown.returncode == 0, shown.stderr
    for part in ("exact match", "trained to 8", "looped-pairs", "standard-pairs", "digits wrong", "What to type next"):
        assert part in shown.stdout
    assert (tmp_path / "demo" / "lengths.png").stat().st_size > 10_000
    again = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=280)
    scores = json.loads(again.stdout)["scores"]
    alone = [row for row in scores["looped-pairs"] if row["problems"] in ("uniform", "hard")]
    assert {row["sizes"][0] for row in alone} == {8, 12, 16, 20, 24, 50, 100}
    assert len(alone) == 14  # nothing was measured twice
    names = [row["problems"] for row in scores["looped-pairs"] if row["sizes"] == [16]]
    assert {"all-highest", "twice"} < set(names) and len(names) == len(set(names))
    assert "worst family" in shown.stdout


def test_a_study_says_its_plan():
    words = [sys.executable, "-m", "lengthwise", "reproduce", "pairs", "--seeds", "2", "--dry-run", "--json"]
    plan = json.loads(subprocess.run(words, capture_output=True, text=True, timeout=280, check=True).stdout)
    assert [(row["recipe"], row["missing"]) for row in plan] == [("looped-pairs", 2), ("standard-pairs", 2)]
