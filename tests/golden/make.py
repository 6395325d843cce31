"""Record what the package computes and prints, or compare it with an earlier record.

    python tests/golden/make.py                 write tests/golden/golden.json
    python tests/golden/make.py --out FILE      write it elsewhere
    python tests/golden/make.py --check [FILE]  compare; print each difference and exit with 1 if there is one
    python tests/golden/make.py --only ids,batches,training,answers,commands

The record is made before code is moved or renamed, and must be equal afterwards. It holds, for every recipe, the id and
digests of two training batches and of the weights after a few steps (by the plain and by the chosen runner); for all
shipped weights, digests of their answers; and for every command, its output. Names and ids that were
changed on purpose are listed in ``aliases.json``: ``{"names": {"old": "new"}, "ids": {"old": "new"}}``.

Floating-point results depend on the processor and on torch: compare records of one machine only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.cli.entry import main as command
from lengthwise.evaluation.answers import respond
from lengthwise.experiment.data import draw_batch
from lengthwise.runs.folder import list_shipped_weights

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PROMPTS = 1000  # for each shipped model
TRAINED_STEPS, TRAINED_BATCH = 20, 4
MAX_TRAINED_SIZES = {"layers": 4, "width": 64}  # limits of the models that are trained
MAX_TEXT_LENGTH = 8000  # characters of output that are kept as text; longer output as a digest

# Digests


def digest(*parts: Any) -> str:
    """Return a hash of tensors, texts and numbers as 12 hexadecimal digits."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().contiguous()
            found.update(f"{tuple(part.shape)}".encode())
            part = part if part.dtype.is_floating_point else part.long()
            found.update(part.numpy().tobytes())
        else:
            found.update(str(part).encode())
        found.update(b"\0")
    return found.hexdigest()[:12]


def list_recipe_ids() -> dict[str, str]:
    """Return the id of every recipe by its name."""
    return {name: lw.find(name).id for name in catalog.list_recipes()}


def digest_batches() -> dict[str, str]:
    """Return a digest of the first and the last training batch of every recipe."""
    found = {}
    for name in catalog.list_recipes():
        recipe = lw.find(name)
        rows = min(recipe.batch, 64)
        recipe = recipe.change(batch=rows) if recipe.batch > rows else recipe
        parts = []
        for step in (0, recipe.steps - 1):
            one = draw_batch(recipe, step)[0]
            inputs = one.inputs
            parts += [inputs.tokens, inputs.position, inputs.digit_position, inputs.padding_mask]
            parts += [one.targets, one.loss_mask, one.answer_slots, one.rounds, one.sizes]
        found[name] = digest(*parts)
    return found


def digest_training() -> dict[str, list[Any]]:
    """Return the digest and norm of every recipe's weights after ``TRAINED_STEPS`` steps, by the plain and by the
    chosen runner."""
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(catalog.list_recipes(), 1):
            with lw.plain():
                plain = _train_few_steps(name, Path(folder) / f"{name}-plain")
            found[name] = [*plain, *_train_few_steps(name, Path(folder) / name)]
            if number % 50 == 0:
                print(f"training: {number} recipes", file=sys.stderr, flush=True)
    return found


def _train_few_steps(name: str, folder: Path) -> tuple[str, float]:
    """Train for ``TRAINED_STEPS`` steps; return a digest of the weights, without their names, and their norm.

    Large models are made smaller, because training them takes hours.
    """
    model = lw.find(name).model
    smaller = [f"model.{field}={most}" for field, most in MAX_TRAINED_SIZES.items() if getattr(model, field, 0) > most]
    changes = [f"steps={TRAINED_STEPS}", f"batch={TRAINED_BATCH}", *smaller]
    run = lw.train(name, *changes, folder=folder, device="cpu", quiet=True)
    weights = [weight for weight in run.model.state_dict().values() if weight.is_floating_point()]
    norm = torch.stack([weight.double().norm() for weight in weights]).norm()
    return digest(*sorted(digest(weight) for weight in weights)), round(float(norm), 4)


def digest_answers() -> dict[str, dict[str, Any]]:
    """Return digests of the answers of all shipped weights to ``PROMPTS`` problems, a digest per hundred answers."""
    found = {}
    for name in sorted(list_shipped_weights()):
        weights = lw.load(name).weights
        recipe = weights.recipe
        task, top = recipe.task, recipe.lengths.top
        beyond = max(top + 1, top * 5 // 4)
        parts, hundreds, loops = [], [], 0.0
        for number in range(PROMPTS // 100):
            draw = lw.stream(0, "golden", name, number)
            size = task.smallest + number * (beyond - task.smallest) // (PROMPTS // 100 - 1)
            sizes = torch.tensor([[task.round_to_valid_size(one) for one in recipe.sizes(size)]] * 100)
            problems = task.sample(sizes, draw)
            answer = respond(weights.model, recipe, problems, recipe.stopping)
            hundreds.append(digest(problems.prompt, answer.symbols, answer.loops))
            parts.append(round(float(answer.confidence.mean()), 3))
            loops += float(answer.loops.double().mean())
        found[name] = {"answers": hundreds, "confidence": parts, "loops": round(loops * 100 / PROMPTS, 3)}
    return found


# Verbs

TINY_RECIPE = ["looped-pairs", "steps=20", "batch=4", "lengths.top=3", "watch.every=10", "watch.count=20"]
VERBS = ["demo", "list", "show", "sample", "train", "evaluate", "attack", "verify", "check", "solve", "push", "track"]
VERBS += ["ask", "rasp", "reproduce", "sweep", "report"]
COMMANDS = [
    "--help",
    *(f"{verb} --help" for verb in VERBS),
    "list", "list --json", "list parity window", "list RoPE --json", "list nothing-like-this",
    "show looped-pairs", "show looped-pairs --json", "show looped-pairs --all", "show looped-copy model.width=32",
    "show Transformer", "show Transformer --json", "show model.positions", "show lengths.top", "show parity",
    "sample addition 5", "sample addition 5x3 base=2 --json", "sample addition 8 --hard --count 3",
    "sample parity 8 --hard",
    "sample multiplication 3x4 --seed 7 --json", "sample unique-set 6 --family few-in-runs",
    "sample unique-set 6 --family nothing", "sample expression 9",
    "solve looped-pairs 128+9 99999+1", "solve looped-pairs 128+9 --json", "solve looped-parity 10110 --json",
    "solve retran-small (3+4)*2 --json", "solve looped-pairs nonsense",
    "evaluate looped-pairs --lengths 8,12 --samples 50 --families --quiet",
    "evaluate looped-pairs --lengths 8,12 --samples 50 --stopping Oracle --json --quiet",
    "evaluate looped-parity --lengths 20,24 --samples 50 --anatomy --json --quiet",
    "evaluate looped-parity --lengths 20 --samples 20 --loops 5,20 --json --quiet",
    "evaluate abacus-addition --grid 2x2 --samples 10 --json --quiet",
    "attack looped-parity --tries 2000 --seconds 600 --lengths 20",
    "attack looped-pairs --tries 2000 --seconds 600 --lengths 8 --json",
    "rasp", "rasp parity 10110", "rasp parity 10110 --json", "rasp addition 10011+11 --json", "rasp addition 19+3",
    f"train {' '.join(TINY_RECIPE)} --lengths 3,4 --samples 20 --quiet",
    f"train {' '.join(TINY_RECIPE)} --seed 1 --lengths 3,4 --samples 20 --quiet --json",
    f"train {' '.join(TINY_RECIPE)} --dry-run", "train looped-pairs no.such=1", "train looped-pairs steps=zero",
    "sweep looped-pairs steps=10 batch=4 lengths.top=3 model.width=16,32 --lengths 3 --samples 10 --quiet",
    "sweep looped-pairs steps=10 batch=4 lengths.top=3 model.width=16,32 --lengths 3 --samples 10 --quiet --json",
    "report runs/looped-pairs-*", "report runs/looped-pairs-* --json", "report runs/looped-pairs-* --out out --quiet",
    "report runs/looped-pairs-* --html report.html --quiet", "report out --out again",
    "report looped-parity --stopping --lengths 8 --samples 20 --quiet --out out --json",
    "evaluate RUN --lengths 3 --samples 20 --quiet --json", "show looped-pairs --html page.html",
    "verify looped-pairs --lengths 8,12 --samples 50 --seed 1 --seconds 1 --minutes 30 --out pairs.json --quiet",
    "check own_part", "check own_part --json", "push looped-pairs me/pairs --dry-run",
    "ask addition --endpoint http://localhost:1/v1 --model none --lengths 2 --samples 2 --dry-run",
    "reproduce pairs --dry-run", "no-such-verb", "evaluate no-such-weights", "attack looped-pairs --tries nothing",
]  # fmt: skip
OWN_PART_SOURCE = '''
import dataclasses

import lengthwise as lw


@dataclasses.dataclass(frozen=True)
class LongParity(lw.Parity):
    """Parity, under a name of its own."""
'''
MASKS = [
    (r"lengthwise/[\w/]+\.py(:\d+)?", "FILE"),
    (r"(?<=-)[0-9a-f]{10}\b", "HASH"),
    (r"no failure in [\d,]+ problems", "no failure in COUNT problems"),  # as many as one second allows
    (r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b", "HASH"),
    (r"\d{4}-\d\d-\d\d[T ][\d:.+Z-]*", "DATE"),
    (r"(?:~|about |≈ ?)?\d[\d.,]*(?:e-?\d+)? ?(?:ms|µs|s|min|h|minutes?|seconds?|hours?)\b", "TIME"),
    (r"\b\d+\.\d+\.\d+(?:\+\w+)?\b", "VERSION"),
    (r"(?:MB|MiB|GB|GiB|kB) ?(?:of|free)[^\n]*", "MEMORY"),
]
MASKED_KEYS = re.compile(
    r"wall|cpu|second|time|minute|commit|python|torch|version|date|machine|memory|free|path|folder"
)


def run_commands() -> dict[str, Any]:
    """Return what every command prints, with its exit status; times, paths and versions are masked."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "own_part.py").write_text(OWN_PART_SOURCE)
        for line in COMMANDS:
            found[line] = _run_and_capture(line, folder)
        written = (str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
        found["files written"] = dict(sorted(Counter(_mask_text(path, folder) for path in written).items()))
    return found


def _run_and_capture(command_line: str, folder: str) -> Any:
    """Run a command in a copy of this process, in which torch is imported already."""
    words = [word for typed in command_line.split() for word in _expand_word(typed, folder)]
    outputs = [Path(folder) / f".{name}" for name in ("stdout", "stderr")]
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        _run_command(words, folder, outputs)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shown = [_mask_text(path.read_text(), folder) for path in outputs]
    for path in outputs:
        path.unlink()
    if status == 0:
        shown[1] = ""  # progress is shown only where a command takes long
    if len(shown[0]) + len(shown[1]) > MAX_TEXT_LENGTH:
        lines = shown[0].splitlines()
        shown = [f"{len(lines)} lines, {digest(shown[0])}; {lines[0][:100]}" if lines else "", shown[1][:500]]
    return [status, *shown]


def _run_command(words: list[str], folder: str, outputs: list[Path]) -> NoReturn:
    """Run a command and exit this process."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    status: Any = 0
    try:
        command(words)
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException as error:  # a defect of the package is part of the record
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


def _expand_word(word: str, folder: str) -> Iterable[str]:
    """Expand RUN to the first run, and a pattern to run folders in the order of width and seed (names hold ids)."""
    if word != "RUN" and not word.endswith("*"):
        return [word]
    runs = sorted(Path(folder).glob("runs/looped-pairs-*" if word == "RUN" else word), key=_read_width_and_seed)
    return [str(path.relative_to(folder)) for path in (runs[:1] if word == "RUN" else runs)]


def _read_width_and_seed(run: Path) -> tuple[int, int]:
    config = json.loads((run / "config.json").read_text())
    return config["model"]["width"], config["seed"]


def _mask_text(text: str, folder: str) -> str:
    try:
        text = json.dumps(_mask_tree(json.loads(text)), ensure_ascii=False)
    except ValueError:
        text = "\n".join(_mask_line(line) for line in text.splitlines())
    text = text.replace(os.path.realpath(folder), "FOLDER").replace(folder, "FOLDER").replace(str(ROOT), "ROOT")
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text)
    return text


def _mask_line(line: str) -> str:
    """Mask a line of JSON; in any other line, shorten runs of spaces and of rules."""
    try:
        if line.startswith("{"):
            return json.dumps(_mask_tree(json.loads(line)), ensure_ascii=False)
    except ValueError:
        pass
    return re.sub(r"─+", "─", re.sub(r" {2,}", "  ", line.rstrip()))  # a column is as wide as a time in it


def _mask_tree(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: "MASKED" if MASKED_KEYS.search(key) else _mask_tree(value) for key, value in tree.items()}
    if isinstance(tree, float):
        return round(tree, 6)
    return [_mask_tree(one) for one in tree] if isinstance(tree, list) else tree


# Comparing

SECTIONS = {
    "ids": list_recipe_ids,
    "batches": digest_batches,
    "training": digest_training,
    "answers": digest_answers,
    "commands": run_commands,
}


def make_record(only: Iterable[str] = SECTIONS) -> dict[str, Any]:
    """Return the record, or only its sections in ``only``."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = {}
    for name in only:
        start = sum(os.times()[:4])
        found[name] = SECTIONS[name]()
        print(f"{name}: {sum(os.times()[:4]) - start:.0f} s of processor time", file=sys.stderr, flush=True)
    return found


def apply_aliases(tree: Any, aliases: dict[str, dict[str, str]]) -> Any:
    """Return a record with the present names and ids in place of those of the alias table."""
    table = aliases.get("names", {}) | aliases.get("ids", {})
    if isinstance(tree, dict):
        return {table.get(key, key): apply_aliases(value, aliases) for key, value in tree.items()}
    if isinstance(tree, list):
        return [apply_aliases(one, aliases) for one in tree]
    return table.get(tree, tree) if isinstance(tree, str) else tree


def describe_differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each value that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from describe_differences(before.get(key, "(missing)"), after.get(key, "(missing)"), f"{path}/{key}")
    elif before != after:
        yield f"{path}\n  before: {before!r}\n  after:  {after!r}"


def main() -> int:
    """Write the record, or compare it with an earlier one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER / "golden.json")
    parser.add_argument("--check", type=Path, nargs="?", const=FOLDER / "golden.json")
    parser.add_argument("--only", default=",".join(SECTIONS))
    args = parser.parse_args()
    only = args.only.split(",")
    new = make_record(only)
    if args.check is None:
        args.out.write_text(json.dumps(new, indent=0, ensure_ascii=False) + "\n")
        return 0
    old = json.loads(args.check.read_text())
    aliases = json.loads((FOLDER / "aliases.json").read_text())
    found = [
        *describe_differences(apply_aliases({name: old[name] for name in only}, aliases), json.loads(json.dumps(new)))
    ]
    print("\n".join(found) or "equal")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
