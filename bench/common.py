"""What all benchmarks share: ``--quick`` tries a script in about a second, on sizes so small that its figures mean
nothing; and the result is one line of JSON."""

import json
import sys
from typing import Any

QUICK = "--quick" in sys.argv[1:]


def print_result(bench: str, **result: Any) -> None:
    """Print what was measured, on one line of standard output."""
    print(json.dumps({"bench": bench, **({"quick": True} if QUICK else {}), **result}))
