"""Every benchmark runs with ``--quick``, in one process, so that libraries are imported once."""

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = [path.name for path in sorted(BENCH.glob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]


def run_benchmarks():
    """Run the benchmarks in this process; print the standard output of each as a list in JSON."""
    outputs = []
    for script in SCRIPTS:
        sys.argv = [script, "--quick"]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            runpy.run_path(script, run_name="__main__")
        outputs.append(output.getvalue())
    print(json.dumps(outputs))


def test_every_benchmark_runs_and_prints_one_line():
    path = os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")])
    # A process of its own: in a fork of one that has run many tests, the same computations took minutes.
    done = subprocess.run(
        [sys.executable, __file__], cwd=BENCH, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for script, output in zip(SCRIPTS, json.loads(done.stdout), strict=True):
        (line,) = output.splitlines()
        result = json.loads(line)
        assert (result["bench"], result["quick"]) == (script.removesuffix(".py"), True)
        for key, value in list_leaves(result):
            assert value is not None or "busy" in key, f"{script}: {key} failed"  # a CPU has no GPU utilization
            assert key != "difference" or value < 1e-5, f"{script} compares unequal results"
            assert key != "equal" or value, f"{script} compares unequal results"


def list_leaves(tree):
    """Yield the keys and values of nested dictionaries."""
    for key, value in tree.items():
        yield from list_leaves(value) if isinstance(value, dict) else [(key, value)]


if __name__ == "__main__":
    run_benchmarks()
