"""Stop signals that arrive early or late: in a training process, the parent of several training processes, one of its
children, a study, or a process that asks a language model.

The process must end with the documented status and at most one line of errors, and leave no process running. The same
command must then continue.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .children import STOP_SIGNALS, Child, fork, kill_leftovers, list_children, start_interpreter
from .kills import run_uninterrupted
from .runs import build_study_command, build_training_command, find_differences, find_exit_faults, read_content

TARGETS = ("train", "parent", "child", "reproduce", "ask")


def list_cases(times: float) -> list[str]:
    """Return the names of the cases: target, signal and moment."""
    every = itertools.product(TARGETS, [number.name for number in STOP_SIGNALS], ("early", "later"))
    possible = ["-".join(case) for case in every if case[::2] != ("child", "early")]
    return [f"{name}-{n}" for n in range(max(1, round(times))) for name in possible]


def run_case(case: str, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Run one case; return the number of signals sent and the faults found."""
    target, which, when, _ = case.split("-")
    folder.mkdir(parents=True)
    server = Endpoint() if target == "ask" else None
    try:
        arguments = _build_command(target, folder, server)
        child = (start_interpreter if when == "early" else fork)(arguments, folder)
        if when == "early":
            time.sleep(rng.uniform(0, 2))
        else:
            _wait_for_work(target, child, folder, rng)
        number = signal.Signals[which]
        victim = rng.choice(list_children(child.pid) or [child.pid]) if target == "child" else child.pid
        with suppress(ProcessLookupError):
            os.kill(victim, number)
        expected = {"early": [130, -number, 0], "later": [2 if victim != child.pid else 130, 0]}[when]
        faults = find_exit_faults(child, expected)
        faults += [f"process {left} was still running" for left in kill_leftovers(folder)]
        faults += [*find_exit_faults(fork(arguments, folder), [0]), *_find_faults(target, folder)]
    finally:
        if server:
            server.child.kill()
    return {"signals": 1, "faults": faults}


def _build_command(target: str, folder: Path, server: Endpoint | None) -> list[str]:
    if target == "reproduce":
        return build_study_command(folder)
    if server:
        asked = ["ask", "parity", "--endpoint", server.address, "--model", "none", "--lengths", "4,5"]
        return [*asked, "--samples", "12", "--concurrency", "2", "--quiet"]
    return build_training_command("looped", *(["--seeds", "2", "--jobs", "2"] if target != "train" else []))


def _wait_for_work(target: str, child: Child, folder: Path, rng: random.Random) -> None:
    """Wait until there is a checkpoint or a reply, and then for a random time."""
    wanted = {"ask": "runs/*/replies.jsonl", "reproduce": "runs/*/metrics.jsonl"}.get(target, "runs/*/state.pt")
    while child.poll() is None and not any(folder.glob(wanted)):
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 0.3))


def _find_faults(target: str, folder: Path) -> list[str]:
    """Return the faults in the results of a command that has ended."""
    if target == "ask":
        (file,) = folder.glob("runs/*/replies.jsonl")
        prompts = [json.loads(line)["prompt"] for line in file.read_text().splitlines()]
        return [] if len(prompts) == len({*prompts}) else ["a prompt was asked twice"]
    if target in ("parent", "child"):
        whole = [*folder.glob("runs/*/model.safetensors")]
        return [] if len(whole) == 2 else [f"{len(whole)} of 2 runs are trained"]
    right, _ = run_uninterrupted("study" if target == "reproduce" else "looped", folder.parent.parent)
    return find_differences(read_content(folder), right)


class Endpoint:
    """A server that acts as a language model and answers every request with 0 after a tenth of a second."""

    def __init__(self) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _ZeroHandler)
        self.address = f"http://127.0.0.1:{server.server_port}/v1"
        number = os.fork()
        if not number:
            try:
                server.serve_forever()
            finally:
                os._exit(0)
        server.socket.close()
        self.child = Child(number, Path(os.devnull))


class _ZeroHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.1)
        body = json.dumps({"choices": [{"message": {"content": "0"}, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        with suppress(BrokenPipeError):  # the client has been stopped
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
