"""What the package declares (parts, recipes, studies), read from its sources.

Nothing is imported, so ``lengthwise list`` need not wait for torch, and the help of a field is the comment beside it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
# Names of recipes that only running a family's function tells: `make docs` writes them.
MEMBERS = PACKAGE / "recipes" / "members.json"

# What recipes are made of: the base class of each kind of part.
BASES = {
    "tasks": "Task",
    "layouts": "Layout",
    "lengths": "Lengths",
    "loops": "Loops",
    "sources": "Source",
    "models": "ModelSpec",
    "positions": "Position",
    "mixers": "MixerSpec",
    "objectives": "Objective",
    "stopping": "Stopping",
    "optimizers": "Optimizer",
}
FOLDERS = ("experiment", "tasks", "models", "nn", "objectives")


@dataclass(frozen=True)
class Field:
    """A field of a dataclass, as its source has it."""

    name: str
    type: str
    default: str | None  # None: it has to be given
    about: str  # the comment beside it or above it


@dataclass(frozen=True, eq=False)
class Declared:
    """A class, as its source has it."""

    name: str
    file: Path
    node: ast.ClassDef
    bases: tuple[str, ...]
    about: str  # the docstring
    is_dataclass: bool

    @property
    def summary(self) -> str:
        """The docstring's first sentence."""
        return sentence(self.about)

    @property
    def where(self) -> str:
        """Its file and line, from the package's folder, or from where one works."""
        base = PACKAGE.parent if self.file.is_relative_to(PACKAGE) else Path.cwd()
        path = self.file.relative_to(base) if self.file.is_relative_to(base) else self.file
        return f"{path}:{self.node.lineno}"

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its fields, inherited ones first."""
        found: dict[str, Field] = {}
        for one in reversed([self, *ancestors(self)]):
            nodes = [part for part in one.node.body if isinstance(part, ast.AnnAssign) and one.is_dataclass]
            own = [_field(node, _comments(one.file)) for node in nodes]
            found |= {field.name: field for field in own if not field.type.startswith("ClassVar")}
        return tuple(found.values())


def sentence(text: str) -> str:
    """The first sentence of a docstring, on one line, without marks of code."""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s(?=[A-Z`])", first)[0].replace("``", "")


def matching(entries: Mapping[str, str], words: Iterable[str], title: str = "") -> dict[str, str]:
    """Entries, a sentence by name, that have every word: in the name, the sentence, or the title above them."""
    wanted = [word.lower() for word in words]
    return {
        name: text for name, text in entries.items() if all(word in f"{title} {name} {text}".lower() for word in wanted)
    }


# Classes


@cache
def declared() -> dict[str, list[Declared]]:
    """All classes that parts of recipes may be, and their bases, by name."""
    found: dict[str, list[Declared]] = {}
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            _note(path, found)
    return found


def add(path: Path) -> None:
    """Make the classes of a user's own module known."""
    _note(path, declared())
    parts.cache_clear()
    field_paths.cache_clear()


def _note(path: Path, found: dict[str, list[Declared]]) -> None:
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ClassDef):
            found.setdefault(node.name, []).append(_class(node, path))


@cache
def parts() -> dict[str, dict[str, Declared]]:
    """The kinds that recipes are made of, by the name of their kind and their own."""
    found: dict[str, dict[str, Declared]] = {kind: {} for kind in BASES}
    for one in sorted((one for known in declared().values() for one in known), key=lambda one: one.name):
        above = {ancestor.name for ancestor in ancestors(one)}
        for kind, base in BASES.items():
            if one.is_dataclass and base in above and not one.name.startswith("_"):
                found[kind][one.name] = one
    return found


def find(name: str) -> Declared | None:
    """A part, a recipe's other dataclass, or the base of a kind of parts, by its name; None if there is none."""
    return next((one for one in declared().get(name, []) if one.is_dataclass or name in BASES.values()), None)


def fits(tree: Any) -> bool:
    """Is all that this JSON names declared: every kind, every field, and none missing that has to be given?"""
    if isinstance(tree, list):
        return all(map(fits, tree))
    if not isinstance(tree, dict):
        return True
    if not (one := find(str(tree.get("kind")))):
        return False
    known, needed = _names(one)
    return needed.keys() <= tree.keys() <= {*known, "kind"} and all(map(fits, tree.values()))


@cache
def _names(one: Declared) -> tuple[dict[str, None], dict[str, None]]:
    """The names of a class's fields; and of those without a default."""
    needed = [field.name for field in one.fields if field.default is None]
    return dict.fromkeys(field.name for field in one.fields), dict.fromkeys(needed)


def ancestors(one: Declared, *below: Declared) -> list[Declared]:
    """The classes that it is derived from, nearest first. A base is looked for in the same file first."""
    found = []
    for base in one.bases:
        # A class may be called like its base, as ``class GRU(nn.GRU)``: none is its own ancestor.
        known = [other for other in declared().get(base, []) if other not in (one, *below)]
        if nearest := next((other for other in known if other.file == one.file), known[0] if known else None):
            found += [nearest, *ancestors(nearest, one, *below)]
    return found


def _class(node: ast.ClassDef, path: Path) -> Declared:
    bases = tuple(ast.unparse(base).partition("[")[0].split(".")[-1] for base in node.bases)
    is_dataclass = any("dataclass" in ast.unparse(mark) for mark in node.decorator_list)
    return Declared(node.name, path, node, bases, ast.get_docstring(node) or "", is_dataclass)


def _field(node: ast.AnnAssign, comments: Mapping[int, tuple[str, bool]]) -> Field:
    default = node.value
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
        default = next((word.value for word in default.keywords if word.arg in ("default", "default_factory")), None)
    about = comments.get(node.end_lineno or node.lineno, ("", False))[0] or _above(node.lineno, comments)
    given = ast.unparse(default) if default else None
    return Field(ast.unparse(node.target), ast.unparse(node.annotation), given, about)


def _above(line: int, comments: Mapping[int, tuple[str, bool]]) -> str:
    """The comment that ends on the line before."""
    lines: list[str] = []
    while (found := comments.get(line - 1 - len(lines))) and found[1]:
        lines.insert(0, found[0])
    return " ".join(lines)


@cache
def _comments(path: Path) -> dict[int, tuple[str, bool]]:
    """Comments by line, and whether each stands alone on it."""
    found = {}
    with tokenize.open(path) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type == tokenize.COMMENT:
                alone = not token.line[: token.start[1]].strip()
                found[token.start[0]] = token.string.lstrip("# ").strip(), alone
    return found


# Fields by the names that people try

PARENTS = ("model", "optimizer", "schedule", "lengths", "loops", "layout", "task", "watch", "stopping")
SYNONYMS = {
    "optimizer.rate": "lr learning_rate",
    "optimizer.weight_decay": "wd decay",
    "batch": "batch_size bs",
    "steps": "epochs max_steps num_steps iterations iters",
    "model.width": "d_model dim hidden_size embedding_size",
    "model.layers": "n_layers num_layers depth",
    "model.heads": "n_heads num_heads",
    "model.mlp": "ffn",
    "model.positions": "pos position positional_encoding",
    "lengths.top": "length max_length train_length",
    "schedule.warmup": "warmup_steps",
    "clip": "grad_clip max_grad_norm",
    "optimizer": "optim",
}


def field_path(name: str) -> str | None:
    """The field that somebody means who calls it so: ``lr`` → ``optimizer.rate``; None if nobody knows."""
    name = name.replace("-", "_").lower()
    if name in field_paths():
        return name
    known = {other: path for path, others in SYNONYMS.items() for other in others.split()}
    below = (path for path in field_paths() if path.endswith(f".{name}"))
    return known.get(name) or next(below, None)


@cache
def field_paths() -> tuple[str, ...]:
    """The fields of a recipe and of the parts that its fields may hold."""
    recipe = find("Recipe")
    assert recipe
    types = {field.name: field.type for field in recipe.fields}
    inside = [f"{parent}.{name}" for parent in PARENTS for one in may_hold(types[parent]) for name in _names(one)[0]]
    return tuple(dict.fromkeys([*types, *inside]))


def may_hold(annotation: str) -> list[Declared]:
    """The parts that a field of this type may hold, or the dataclass that it names."""
    words = re.findall(r"[A-Z]\w+", annotation)
    kinds = [kind for kind, base in BASES.items() if base in words]
    found = [one for kind in kinds for one in parts()[kind].values()]
    return found or [one for word in words if (one := find(word))]


# Recipes and studies


@dataclass(frozen=True)
class System:
    """The recipes of one file: what they are about, and what each is."""

    name: str
    about: str
    recipes: Mapping[str, str]


def systems(members: Mapping[str, Mapping[str, list[str]]] | None = None) -> list[System] | None:
    """Shipped recipes, file by file. ``members`` are the names of each file's families, function by function; those
    that are kept beside the recipes, unless given; None where these are older than the recipes."""
    kept = _read_members() if members is None else members
    found = []
    for path in _files("recipes"):
        if kept is None or path.stem not in kept:
            return None
        recipes = {name.replace("_", "-"): about for name, about in _returning(path, "Recipe")}
        for name, about in _returning(path, "dict[str, Recipe]"):
            recipes |= dict.fromkeys(kept[path.stem].get(name, []), about)
        found.append(System(path.stem, sentence(ast.get_docstring(ast.parse(path.read_bytes())) or ""), recipes))
    return found


def studies() -> dict[str, str]:
    """Shipped studies, and what each is."""
    pairs = [found for path in _files("studies") for found in _returning(path, "Study")]
    return {name.replace("_", "-"): about for name, about in pairs}


def fingerprints() -> dict[str, str]:
    """A hash of the code of each file of recipes: of its lines but for docstrings, and comments that fill a line."""
    return {path.stem: hashlib.blake2b(_code(path).encode(), digest_size=8).hexdigest() for path in _files("recipes")}


def _code(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    said: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in said]
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def _read_members() -> dict[str, dict[str, list[str]]] | None:
    try:
        tree = json.loads(MEMBERS.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return tree["families"] if tree.get("files") == fingerprints() else None


def _files(folder: str) -> list[Path]:
    return sorted(path for path in (PACKAGE / folder).glob("*.py") if path.stem != "__init__")


def _returning(path: Path, returns: str) -> Iterator[tuple[str, str]]:
    """A file's public functions that return this and can be called without arguments: name, first paragraph."""
    for node in ast.parse(path.read_bytes()).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or node.returns is None:
            continue
        needed = len(node.args.posonlyargs + node.args.args) - len(node.args.defaults)
        if ast.unparse(node.returns) == returns and needed == 0 and None not in node.args.kw_defaults:
            yield node.name, " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
