"""Tests of faults while many runs train on a Slurm or a Ray cluster, each of two nodes on this machine. ``make
cluster-test`` sets the clusters up and takes them down.

A node is killed, a job is preempted, or the watching command is interrupted. The weights equal those of uninterrupted
runs.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lengthwise as lw

CLUSTER_REQUESTED = bool(os.environ.get("LENGTHWISE_CLUSTER"))
needs_cluster = pytest.mark.skipif(not CLUSTER_REQUESTED, reason="sets up a cluster: make cluster-test")

SLURM_SETTINGS = """
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
TRAIN = ["--lengths", "4", "--samples", "5", "--save-every", "0.3", "--quiet"]
SLURM_LAUNCHER = "Slurm(partition=main,minutes=30)"


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)
    return found


def read_output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start a Slurm controller and two nodes; return their folder."""
    if missing := [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]:
        pytest.skip(f"Slurm is NOT tested: there is no {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "slurm.conf").write_text(SLURM_SETTINGS.format(folder=folder, host=socket.gethostname().split(".")[0]))
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    munge = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    read_output("munged", "--force", *(f"--{name}={folder}/munge.{end}" for name, end in munge.items()))
    wait_until(lambda: (folder / "munge.socket").exists())
    read_output("slurmctld")
    for node in ("n1", "n2"):
        read_output("slurmd", "-N", node)
    wait_until(lambda: read_output("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2")
    yield folder
    subprocess.run(["scancel", "--me"], timeout=60)
    wait_until(lambda: not read_output("squeue", "-h", "-o", "%i"))
    for name in ("slurmd-n1", "slurmd-n2", "slurmctld", "munge"):
        kill(folder / f"{name}.pid", signal.SIGTERM)
    del os.environ["SLURM_CONF"]


def kill(pid_file, signal_number):
    if pid_file.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal_number)


def start_watching(*words, launcher=SLURM_LAUNCHER):
    command = [sys.executable, "-m", "lengthwise", "train", "looped-parity", *RECIPE, *TRAIN, "--on", launcher, *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for_exit(process, seconds):
    """Return the exit status of the process, and print its errors for a failing test."""
    print(process.communicate(timeout=seconds)[1])
    return process.returncode


def assert_same_weights(runs, tmp_path, count):
    """Assert that there are ``count`` runs, with the weights of uninterrupted runs."""
    folders = [path.parent for path in runs.glob("*/config.json")]
    assert sorted(lw.Run.open(folder).recipe.seed for folder in folders) == list(range(count))
    for folder in folders:
        run = lw.train(lw.Run.open(folder).recipe, folder=tmp_path / folder.name, quiet=True)
        assert (folder / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()


def list_jobs(state="RUNNING", node=""):
    chosen = ["--nodelist", node] if node else []
    return read_output("squeue", "-h", "-r", "-t", state, "-o", "%i", *chosen).split()


@needs_cluster
@pytest.mark.timeout(1800)
def test_runs_survive_a_killed_node_a_lost_job_and_a_preemption(cluster, runs, tmp_path):
    """Twelve runs end with the weights of uninterrupted ones."""
    watching = start_watching("--seeds", "12")
    wait_until(lambda: list_jobs(node="n2") and len([*runs.glob("*/state.pt")]) >= 3)
    preempted, lost = list_jobs(node="n1")[:2]
    kill_job(lost)
    preempting = subprocess.Popen(["scancel", "--signal=USR2", preempted], stderr=subprocess.DEVNULL)
    wait_until(lambda: preempted not in list_jobs())  # it is queued again; scancel itself would retry for a minute
    preempting.kill()
    preempting.wait()
    kill_node("n2", cluster)
    assert wait_for_exit(watching, 1500) == 0
    assert not list_jobs() and not list_jobs("PENDING")
    assert_same_weights(runs, tmp_path, 12)
    logs = "".join(path.read_text() for path in (runs / ".slurm").glob("*_log.*"))
    assert "preempted" in logs
    read_output("slurmd", "-N", "n2")
    wait_until(lambda: read_output("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2")


def kill_processes(file, *marks):
    """Kill every process whose ``file`` in /proc contains one of the marks."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(mark.encode() in (process / file).read_bytes() for mark in marks):
                os.kill(int(process.name), signal.SIGKILL)


def kill_node(node, cluster):
    """Kill all processes of a node, Slurm's own first, so that none reports the end of another."""
    own = [f"slurmstepd: [{job}." for job in read_output("squeue", "-h", "-w", node, "-o", "%A").split()]
    kill(cluster / f"slurmd-{node}.pid", signal.SIGKILL)
    kill_processes("cmdline", *own)
    kill_processes("environ", f"SLURMD_NODENAME={node}\0")


def kill_job(job):
    """Kill all processes of a job, so that Slurm counts it as failed."""
    kill_processes("environ", f"SLURM_JOB_ID={read_output('squeue', '-h', '-j', job, '-o', '%A').strip()}\0")


@needs_cluster
@pytest.mark.timeout(600)
def test_an_interrupt_leaves_no_job_and_the_same_command_resumes(cluster, runs, tmp_path):
    watching = start_watching("--seeds", "3")
    wait_until(lambda: [*runs.glob("*/state.pt")])
    watching.send_signal(signal.SIGINT)
    assert wait_for_exit(watching, 120) == 130
    wait_until(lambda: not (list_jobs() or list_jobs("PENDING") or list_jobs("COMPLETING")))
    assert wait_for_exit(start_watching("--seeds", "3"), 300) == 0
    assert_same_weights(runs, tmp_path, 3)


# Ray


@pytest.fixture
def ray_nodes():
    """Start a Ray cluster of two nodes with two cores each."""
    pytest.importorskip("ray", reason="Ray is NOT tested: it is not installed")
    from ray.cluster_utils import Cluster

    few = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=few)
    cluster.second = cluster.add_node(**few)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


def list_trainings(runs, node=None):
    """Return the processes that train these runs, or those on one Ray node."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            mine = b"train" in words and any(str(runs).encode() in word for word in words)
            if mine and (node is None or f"RAY_RAYLET_PID={node}\0".encode() in (process / "environ").read_bytes()):
                found.append(int(process.name))
    return found


def find_raylet(node):
    """Return the id of the process that starts all others on a Ray node."""
    (one,) = node.all_processes["raylet"]
    return one.process.pid


@needs_cluster
@pytest.mark.filterwarnings("ignore")  # Ray leaves files and processes to the collector
@pytest.mark.timeout(1200)
def test_runs_survive_a_lost_node_and_a_killed_training_on_ray(ray_nodes, runs, tmp_path):
    """Twelve runs end with the weights of uninterrupted ones."""
    watching = start_watching("--seeds", "12", launcher=f"Ray(address='{ray_nodes.address}')")
    wait_until(lambda: list_trainings(runs, find_raylet(ray_nodes.second)) and len([*runs.glob("*/state.pt")]) >= 3)
    there = list_trainings(runs, find_raylet(ray_nodes.second))
    os.kill(next(number for number in list_trainings(runs) if number not in there), signal.SIGKILL)
    ray_nodes.remove_node(ray_nodes.second, allow_graceful=False)
    assert wait_for_exit(watching, 900) == 0
    assert not list_trainings(runs)
    assert_same_weights(runs, tmp_path, 12)


@needs_cluster
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
def test_an_interrupt_leaves_no_training_on_ray(ray_nodes, runs, tmp_path):
    launcher = f"Ray(address='{ray_nodes.address}')"
    watching = start_watching("--seeds", "6", launcher=launcher)
    wait_until(lambda: [*runs.glob("*/state.pt")])
    watching.send_signal(signal.SIGINT)
    assert wait_for_exit(watching, 120) == 130
    wait_until(lambda: not list_trainings(runs), 20)
    assert wait_for_exit(start_watching("--seeds", "6", launcher=launcher), 300) == 0
    assert_same_weights(runs, tmp_path, 6)
