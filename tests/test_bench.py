"""Every benchmark runs with ``--quick``; one process runs them all, so that torch is imported once."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = [path.name for path in sorted(BENCH.glob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]
RUN = """
import contextlib, io, json, runpy, sys, time, traceback
names, sys.argv[1:] = sys.argv[1:], ["--quick"]
for name in names:
    out, error, start = io.StringIO(), "", time.process_time()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(name, run_name="__main__")
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([name, out.getvalue(), error, time.process_time() - start]), flush=True)
"""


def test_every_benchmark_runs_and_prints_one_line():
    code = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(BENCH)!r})\n{RUN}", *SCRIPTS]
    done = subprocess.run(code, cwd=BENCH, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in found] == SCRIPTS
    for name, out, error, _ in found:
        assert not error, f"{name}: {error}"
        (line,) = out.splitlines()
        result = json.loads(line)
        assert (result["bench"], result["quick"]) == (name.removesuffix(".py"), True)
        for key, value in leaves(result):
            assert value is not None or "busy" in key, f"{name}: {key} failed"  # a CPU has no GPU utilization
            assert key != "difference" or value < 1e-5, f"{name} compares unequal results"
            assert key != "equal" or value, f"{name} compares unequal results"


def leaves(tree):
    """Yield the keys and values of nested dictionaries."""
    for key, value in tree.items():
        yield from leaves(value) if isinstance(value, dict) else [(key, value)]
