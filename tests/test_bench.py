"""Every benchmark runs with ``--quick``, in one fork, so that libraries are imported once."""

import contextlib
import io
import json
import runpy
import sys
import warnings
from pathlib import Path

from conftest import call_in_fork

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = [path.name for path in sorted(BENCH.glob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]


def run_all():
    """Run the benchmarks in this process, and return the standard output of each."""
    warnings.simplefilter("default")
    outputs = []
    for script in SCRIPTS:
        sys.argv = [script, "--quick"]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            runpy.run_path(script, run_name="__main__")
        outputs.append(output.getvalue())
    return outputs


def test_every_benchmark_runs_and_prints_one_line():
    for script, output in zip(SCRIPTS, call_in_fork(run_all, BENCH), strict=True):
        (line,) = output.splitlines()
        result = json.loads(line)
        assert (result["bench"], result["quick"]) == (script.removesuffix(".py"), True)
        for key, value in leaves(result):
            assert value is not None or "busy" in key, f"{script}: {key} failed"  # a CPU has no GPU utilization
            assert key != "difference" or value < 1e-5, f"{script} compares unequal results"
            assert key != "equal" or value, f"{script} compares unequal results"


def leaves(tree):
    """Yield the keys and values of nested dictionaries."""
    for key, value in tree.items():
        yield from leaves(value) if isinstance(value, dict) else [(key, value)]
