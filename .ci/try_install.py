"""Install what `make dist` built, as a stranger would, and have a problem answered from another folder.

    python .ci/try_install.py dist [PYTHON …]

Each PYTHON gets a new environment with the wheel, all that it needs, and torch as constraints.txt pins it; then the
sdist takes the place of the wheel. Without any, the oldest and the newest supported Python that can be found are taken.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST, NEWEST = 11, 14  # minor versions of Python 3 that are looked for
PROBLEM = "4821973650128839+9178026349871162"


def main() -> None:
    """Try every combination; leave with an error at the first that does not answer."""
    folder, *pythons = sys.argv[1:]
    (wheel,), (sdist,) = (sorted(Path(folder).resolve().glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    for python in pythons or _found():
        with tempfile.TemporaryDirectory() as place:
            _try(python, wheel, sdist, Path(place))


def _found() -> list[str]:
    """The oldest and the newest: on the PATH, or as pyenv keeps them."""
    places = [Path(name) for name in os.environ.get("PATH", "").split(os.pathsep)]
    places += Path.home().glob(".pyenv/versions/*/bin")
    by_minor: dict[int, str] = {}
    for place in places:
        for minor in range(OLDEST, NEWEST + 1):
            if (found := shutil.which(f"python3.{minor}", path=str(place))) and _works(found, minor):
                by_minor.setdefault(minor, found)
    if not by_minor:
        raise SystemExit(f"no Python 3.{OLDEST} to 3.{NEWEST} was found: name one")
    return [by_minor[minor] for minor in sorted({min(by_minor), max(by_minor)})]


def _works(python: str, minor: int) -> bool:
    """Is it what its name says, and can it make environments? A pyenv shim may be none."""
    code = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, {minor}))"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def _try(python: str, wheel: Path, sdist: Path, place: Path) -> None:
    subprocess.run([python, "-m", "venv", str(place / "venv")], check=True)
    inside = place / "venv" / "bin"
    pins = place / "torch.txt"
    pins.write_text(re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0] + "\n")
    pip = [str(inside / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(pins)]
    subprocess.run([*pip, str(wheel)], check=True)
    _answers(inside, place, wheel)
    # Torch is there already; so the second takes seconds.
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(sdist)], check=True)
    _answers(inside, place, sdist)


def _answers(inside: Path, place: Path, built: Path) -> None:
    """The sum, from a folder that knows nothing of the sources."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LENGTHWISE"))}
    run = {"cwd": place, "env": environment, "check": True, "capture_output": True, "text": True}
    version = subprocess.run([str(inside / "python"), "--version"], **run).stdout.split()[1]
    own = subprocess.run([str(inside / "lengthwise"), "--version"], **run).stdout.strip()
    if f"-{own}" not in built.name:
        raise SystemExit(f"{built.name} says that it is {own}")
    said = subprocess.run([str(inside / "lengthwise"), "solve", "looped-pairs", PROBLEM], **run).stdout.strip()
    if said != str(eval(PROBLEM)):
        raise SystemExit(f"{built.name} on Python {version}: {PROBLEM} is {said!r}")
    print(f"{built.name} on Python {version}: {PROBLEM} = {said}", flush=True)


if __name__ == "__main__":
    main()
