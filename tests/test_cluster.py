"""Trainings on a Slurm cluster of two nodes, both on this machine: ``make cluster-test`` sets it up and takes it down.

A node is killed amid training, a job is preempted, the watcher is interrupted: weights are those of undisturbed runs.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

import lengthwise as lw
from lengthwise.base.errors import UsageError
from lengthwise.training import executors, slurm
from lengthwise.training.fleet import Fleet
from lengthwise.verbs import options

ASKED = bool(os.environ.get("LENGTHWISE_CLUSTER"))
on_a_cluster = pytest.mark.skipif(not ASKED, reason="sets up a cluster: make cluster-test")

SETTINGS = """
ClusterName=lengthwise
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=26817
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_min_interval=100000
ReturnToService=2
SlurmdTimeout=10
KillWait=2
JobRequeue=1
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=26821 CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=26822 CPUs=2
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 State=UP
"""
RECIPE = ["steps=400", "lengths=Uniform(top=4)", "model.width=8", "batch=8", "watch.every=0", "keep=last"]
TRAIN = [
    "--lengths",
    "4",
    "--samples",
    "5",
    "--save-every",
    "0.3",
    "--quiet",
    "--on",
    "Slurm(partition=main,minutes=30)",
]


def until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)
    return found


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A controller and two nodes; where it is."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "slurm.conf").write_text(SETTINGS.format(folder=folder, host=socket.gethostname().split(".")[0]))
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    munge = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    output("munged", "--force", *(f"--{name}={folder}/munge.{end}" for name, end in munge.items()))
    until(lambda: (folder / "munge.socket").exists())
    output("slurmctld")
    for node in ("n1", "n2"):
        output("slurmd", "-N", node)
    until(lambda: output("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2")
    yield folder
    subprocess.run(["scancel", "--me"], timeout=60)
    until(lambda: not output("squeue", "-h", "-o", "%i"))
    for name in ("slurmd-n1", "slurmd-n2", "slurmctld", "munge"):
        kill(folder / f"{name}.pid", signal.SIGTERM)
    del os.environ["SLURM_CONF"]


def kill(file, number):
    if file.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.read_text()), number)


def watcher(*words):
    command = [sys.executable, "-m", "lengthwise", "train", "looped-parity", *RECIPE, *TRAIN, *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def expected(tmp_path, seed):
    """The weights of a run that nobody disturbs."""
    recipe = lw.find("looped-parity", *RECIPE)
    run = lw.train(replace(recipe, seed=seed, data_seed=seed), folder=tmp_path / f"undisturbed-{seed}", quiet=True)
    return (run.folder / "model.safetensors").read_bytes()


def trained(runs):
    return {lw.Run.open(path.parent).recipe.seed: path.parent for path in runs.glob("*/config.json")}


def jobs(state="RUNNING", node=""):
    chosen = ["--nodelist", node] if node else []
    return output("squeue", "-h", "-r", "-t", state, "-o", "%i", *chosen).split()


@on_a_cluster
@pytest.mark.timeout(1800)
def test_a_node_is_killed_a_job_is_lost_and_one_preempted(cluster, runs, tmp_path):
    """Twelve runs end with the weights that they have without all that."""
    watching = watcher("--seeds", "12")
    until(lambda: jobs(node="n2") and len([*runs.glob("*/state.pt")]) >= 3)
    preempted, lost = jobs(node="n1")[:2]
    lose(lost)
    preempting = subprocess.Popen(["scancel", "--signal=USR2", preempted], stderr=subprocess.DEVNULL)
    until(lambda: preempted not in jobs())  # it is in the queue again; scancel itself would try for a minute
    preempting.kill()
    preempting.wait()
    crash("n2", cluster)
    assert watching.wait(timeout=1500) == 0, watching.stderr.read()
    assert not jobs() and not jobs("PENDING")
    folders = trained(runs)
    assert sorted(folders) == list(range(12))
    for seed, folder in folders.items():
        assert (folder / "model.safetensors").read_bytes() == expected(tmp_path, seed)
    logs = "".join(path.read_text() for path in (runs / ".slurm").glob("*_log.*"))
    assert "preempted" in logs
    output("slurmd", "-N", "n2")
    until(lambda: output("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2")


def crash(node, cluster):
    """All that runs on a node ends at once; Slurm's own processes first, so that nobody reports it."""
    own = [f"slurmstepd: [{job}.".encode() for job in output("squeue", "-h", "-w", node, "-o", "%A").split()]
    kill(cluster / f"slurmd-{node}.pid", signal.SIGKILL)
    for marks, name in ((own, "cmdline"), ([f"SLURMD_NODENAME={node}\0".encode()], "environ")):
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if any(mark in (process / name).read_bytes() for mark in marks):
                    os.kill(int(process.name), signal.SIGKILL)


def lose(job):
    """A job ends at once, and Slurm counts it as failed."""
    mark = f"SLURM_JOB_ID={output('squeue', '-h', '-j', job, '-o', '%A').strip()}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


@on_a_cluster
@pytest.mark.timeout(600)
def test_nothing_is_left_after_an_interrupt_and_the_same_command_goes_on(cluster, runs, tmp_path):
    watching = watcher("--seeds", "3")
    until(lambda: [*runs.glob("*/state.pt")])
    watching.send_signal(signal.SIGINT)
    assert watching.wait(timeout=120) == 130
    until(lambda: not (jobs() or jobs("PENDING") or jobs("COMPLETING")))
    again = watcher("--seeds", "3")
    assert again.wait(timeout=300) == 0, again.stderr.read()
    for seed, folder in trained(runs).items():
        assert (folder / "model.safetensors").read_bytes() == expected(tmp_path, seed)


def test_without_slurm_one_line_says_so(monkeypatch, tmp_path):
    pytest.importorskip("submitit")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(UsageError, match="there is no sbatch"):
        slurm.Slurm().executor(1)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError, match=r"pip install 'lengthwise\[slurm\]'"):
        slurm.Slurm().executor(1)


# The seam


class Made(executors.Job):
    """A job that ends after some looks at it, well or not."""

    def __init__(self, looks, reason=""):
        self.looks, self.reason = looks, reason

    def done(self):
        self.looks -= 1
        return self.looks < 0

    def failure(self):
        return self.reason


class MadeExecutor(executors.Executor):
    def __init__(self, jobs, made):
        self.jobs, self.made, self.submitted, self.stopped, self.most = jobs, iter(made), [], None, 0

    def room(self, running):
        self.most = max(self.most, running)
        return self.jobs - running

    def submit(self, commands):
        self.submitted += commands
        return [next(self.made) for _ in commands]

    def shutdown(self, running):
        self.stopped = list(running)


class MadeEngine:
    def __init__(self, *made):
        self.made = made

    def executor(self, jobs):
        self.last = MadeExecutor(jobs, self.made)
        return self.last


@pytest.mark.usefixtures("untyped")
def test_a_fleet_runs_on_whatever_has_room():
    """Each once; one that fails stops no other, and says why; what still runs in the end is stopped."""
    recipe = lw.find("looped-parity", *RECIPE)
    found = [lw.Run.of(replace(recipe, seed=seed)) for seed in range(5)]
    engine = MadeEngine(Made(1), Made(0, "it is hot"), Made(3), Made(0), Made(99))
    with Fleet(found, lambda run: ["--seed", str(run.recipe.seed)], jobs=2, on=engine) as fleet:
        while len(engine.last.submitted) < 5 or len(fleet.running) > 1:
            assert fleet.poll()
        assert engine.last.stopped is None
    assert [words[1] for words in engine.last.submitted] == [str(run.folder) for run in found]
    assert all(words[0] == "train" and "--seed" in words for words in engine.last.submitted)
    assert engine.last.most == 2 and len(engine.last.stopped) == 1
    assert fleet.failed == {found[1].folder: "it is hot"}
    assert json.loads((found[1].folder / "failed.json").read_text())["reason"] == "it is hot"
    with pytest.raises(UsageError, match="it is hot"):
        fleet.check()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("local", executors.Local()),
        ("slurm", slurm.Slurm()),
        ("Slurm(gpus=1, leave=true)", slurm.Slurm(gpus=1, leave=True)),
    ],
)
def test_engines_are_named_as_they_are_typed(text, found):
    assert options.engine(Namespace(on=text)) == found


@pytest.mark.parametrize("text", ["cloud", "Slurm(minutes=0)", "Slurm(nodes=3)", "Oracle"])
def test_a_wrong_engine_is_refused(text):
    with pytest.raises(UsageError, match=r"--on|minutes"):
        options.engine(Namespace(on=text))
