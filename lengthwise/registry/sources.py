"""The package's parts, recipes and studies, read from its sources, so that ``lengthwise list`` does not wait for torch.
A field's help is the comment beside it."""

from __future__ import annotations

import ast
import json
import re
import tokenize
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# The names of the recipes in families (functions that return several recipes), which cannot be read from the source.
# `make docs` writes the file, and a test compares it with the recipes.
MEMBERS_FILE = PACKAGE / "recipes" / "members.json"

# The base class of each kind of part of a recipe.
BASE_NAMES = {
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
PART_FOLDERS = ("experiment", "tasks", "models", "nn", "objectives")


@dataclass(frozen=True)
class Field:
    """A dataclass field, as written in the source."""

    name: str
    type: str
    default: str | None  # None: required
    about: str  # the comment beside it or above it


@dataclass(frozen=True, eq=False)
class ClassDeclaration:
    """A class, as written in the source."""

    name: str
    file: Path
    node: ast.ClassDef
    bases: tuple[str, ...]
    docstring: str
    is_dataclass: bool

    @property
    def summary(self) -> str:
        """The docstring's first sentence."""
        return extract_first_sentence(self.docstring)

    @property
    def location(self) -> str:
        """The file, relative to the package's parent folder or to the working directory, and the line."""
        base = PACKAGE.parent if self.file.is_relative_to(PACKAGE) else Path.cwd()
        path = self.file.relative_to(base) if self.file.is_relative_to(base) else self.file
        return f"{path}:{self.node.lineno}"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, inherited ones first."""
        fields_by_name: dict[str, Field] = {}
        for declaration in reversed([self, *list_ancestors(self)]):
            own_fields = read_declared_fields(declaration.node, declaration.file) if declaration.is_dataclass else []
            fields_by_name |= {field.name: field for field in own_fields if not field.type.startswith("ClassVar")}
        return tuple(fields_by_name.values())


def extract_first_sentence(text: str) -> str:
    """Return the first sentence of a docstring on one line, without code marks."""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s(?=[A-Z`])", first)[0].replace("``", "")


def filter_entries(entries: Mapping[str, str], words: Iterable[str], title: str = "") -> dict[str, str]:
    """Return the entries for which every word occurs in the name (key), the sentence (value) or ``title``."""
    wanted = [word.lower() for word in words]
    searched = {name: f"{title} {name} {text}".lower() for name, text in entries.items()}
    return {name: text for name, text in entries.items() if all(word in searched[name] for word in wanted)}


# Classes


@cache
def read_classes() -> dict[str, list[ClassDeclaration]]:
    """Return all classes of parts of recipes and their bases, by name."""
    declarations: dict[str, list[ClassDeclaration]] = {}
    for folder in PART_FOLDERS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            for declaration in _parse_classes(path):
                declarations.setdefault(declaration.name, []).append(declaration)
    return declarations


def register_module(path: Path) -> None:
    """Register the classes of a user's module."""
    for declaration in _parse_classes(path):
        read_classes().setdefault(declaration.name, []).append(declaration)
    read_parts.cache_clear()
    list_field_paths.cache_clear()


def _parse_classes(path: Path) -> Iterator[ClassDeclaration]:
    """Yield the classes of a source file. A renamed class has its ``recorded_name``, the name in stored recipes."""
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ClassDef):
            fields = {ast.unparse(part.target): part.value for part in node.body if isinstance(part, ast.AnnAssign)}
            name = ast.literal_eval(fields.get("recorded_name") or ast.Constant(node.name))
            bases = tuple(ast.unparse(base).partition("[")[0].split(".")[-1] for base in node.bases)
            is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
            yield ClassDeclaration(name, path, node, bases, ast.get_docstring(node) or "", is_dataclass)


@cache
def read_parts() -> dict[str, dict[str, ClassDeclaration]]:
    """Return the parts of recipes, by kind and by name."""
    parts: dict[str, dict[str, ClassDeclaration]] = {kind: {} for kind in BASE_NAMES}
    for one in sorted((one for known in read_classes().values() for one in known), key=lambda one: one.name):
        base_names = {ancestor.name for ancestor in list_ancestors(one)}
        for kind, base in BASE_NAMES.items():
            if one.is_dataclass and base in base_names and not one.name.startswith("_"):
                parts[kind][one.name] = one
    return parts


def find_class(name: str) -> ClassDeclaration | None:
    """Return the class called ``name`` if it is a dataclass or the base class of a kind of parts, else None."""
    return next((one for one in read_classes().get(name, []) if one.is_dataclass or name in BASE_NAMES.values()), None)


def list_ancestors(declaration: ClassDeclaration, *excluded: ClassDeclaration) -> list[ClassDeclaration]:
    """Return a class's ancestors, nearest first. A base in the same file takes precedence over classes of its name in
    other files."""
    found = []
    for base in declaration.bases:
        # A class may have the name of its base, as in ``class GRU(nn.GRU)``, so exclude the class itself.
        known = [other for other in read_classes().get(base, []) if other not in (declaration, *excluded)]
        if nearest := next((other for other in known if other.file == declaration.file), known[0] if known else None):
            found += [nearest, *list_ancestors(nearest, declaration, *excluded)]
    return found


def read_declared_fields(node: ast.ClassDef, path: Path) -> list[Field]:
    """Return the fields that a class declares itself, without inherited ones."""
    comments, found = _read_comments(path, node.lineno, node.end_lineno or node.lineno), []
    for part in (part for part in node.body if isinstance(part, ast.AnnAssign)):
        default = part.value
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
            named = {word.arg: word.value for word in default.keywords}
            default = named.get("default", named.get("default_factory"))
        above: list[str] = []  # comment lines directly above the field
        while (comment := comments.get(part.lineno - 1 - len(above))) and comment[1]:
            above.insert(0, comment[0])
        about = comments.get(part.end_lineno or part.lineno, ("", False))[0] or " ".join(above)
        given = ast.unparse(default) if default else None
        found.append(Field(ast.unparse(part.target), ast.unparse(part.annotation), given, about))
    return found


@cache
def _read_comments(path: Path, first_line: int, last_line: int) -> dict[int, tuple[str, bool]]:
    """Return each comment from the first to the last line, by line number, and whether it stands alone on its line."""
    found = {}
    with tokenize.open(path) as source:
        lines = iter(source.readlines()[first_line - 1 : last_line])
    for token in tokenize.generate_tokens(lambda: next(lines, "")):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            found[first_line - 1 + token.start[0]] = token.string.lstrip("# ").strip(), alone
    return found


# Fields by their names in other libraries

PARENT_FIELDS = ("model", "optimizer", "schedule", "lengths", "loops", "layout", "task", "watch", "stopping")
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


def find_field_path(name: str, existing: Container[str] | None = None) -> str | None:
    """Return the path of the recipe's field that a common name means: ``lr`` → ``optimizer.rate``. With ``existing``,
    consider only these paths. Return None if there is no such field."""
    name = name.replace("-", "_").lower()
    synonyms = [path for path, others in SYNONYMS.items() if name in others.split()]
    below = [path for path in list_field_paths() if path.endswith(f".{name}")]
    paths = [name] * (name in list_field_paths()) + synonyms + below
    return next((path for path in paths if existing is None or path in existing), None)


@cache
def list_field_paths() -> tuple[str, ...]:
    """Return the paths of the fields of a recipe and of its parts."""
    recipe = find_class("Recipe")
    assert recipe
    types = {field.name: field.type for field in recipe.fields}
    owners = [(parent, one) for parent in PARENT_FIELDS for one in find_accepted_parts(types[parent])]
    inside = [f"{parent}.{field.name}" for parent, one in owners for field in one.fields]
    return tuple(dict.fromkeys([*types, *inside]))


def find_accepted_parts(annotation: str) -> list[ClassDeclaration]:
    """Return the parts that a field of this type accepts; for other types, the dataclasses that the type names."""
    words = re.findall(r"[A-Z]\w+", annotation)
    kinds = [kind for kind, base in BASE_NAMES.items() if base in words]
    found = [one for kind in kinds for one in read_parts()[kind].values()]
    return found or [one for word in words if (one := find_class(word))]


# Recipes and studies


@dataclass(frozen=True)
class RecipeFile:
    """The recipes of one file, with a sentence that describes the file and one for each recipe."""

    name: str
    description: str
    recipes: Mapping[str, str]


def list_recipe_names() -> list[str]:
    """Return the names of the shipped recipes."""
    return [name for system in list_recipe_files() for name in system.recipes]


def list_recipe_files() -> list[RecipeFile]:
    """Return the shipped recipes by file. The names of the recipes in families are read from ``MEMBERS_FILE``."""
    members, found = json.loads(MEMBERS_FILE.read_text(encoding="utf-8")), []
    for path in _list_files("recipes"):
        recipes = {name.replace("_", "-"): about for name, about in _list_functions(path, "Recipe")}
        for name, about in _list_functions(path, "dict[str, Recipe]"):
            recipes |= dict.fromkeys(members.get(path.stem, {}).get(name, []), about)
        docstring = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        found.append(RecipeFile(path.stem, extract_first_sentence(docstring), recipes))
    return found


def list_studies() -> dict[str, str]:
    """Return the names of the shipped studies, each with its description."""
    pairs = [found for path in _list_files("studies") for found in _list_functions(path, "Study")]
    return {name.replace("_", "-"): about for name, about in pairs}


def _list_files(folder: str) -> list[Path]:
    return sorted(path for path in (PACKAGE / folder).glob("*.py") if path.stem != "__init__")


def _list_functions(path: Path, return_annotation: str) -> Iterator[tuple[str, str]]:
    """Yield name and summary of each public function with this return annotation and no required arguments."""
    for node in ast.parse(path.read_bytes()).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or node.returns is None:
            continue
        needed = len(node.args.posonlyargs + node.args.args) - len(node.args.defaults)
        if ast.unparse(node.returns) == return_annotation and needed == 0 and None not in node.args.kw_defaults:
            yield node.name, " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
