"""User-defined classes of a recipe: hashes of their code, since a run stores only their names, and errors that they
raise."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from torch import nn

from lengthwise.base import rng
from lengthwise.base.errors import UsageError
from lengthwise.base.fields import Config, iterate_parts
from lengthwise.base.files import format_error

PACKAGE_FOLDER = Path(__file__).parents[1]
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


def is_foreign(cls: type) -> bool:
    """Return whether the class is defined outside this package, torch and Python's builtins."""
    return cls.__module__.partition(".")[0] not in ("lengthwise", "torch", "builtins")


def find_source_file(cls: type) -> Path | None:
    """Return the class's source file; None if it has none, as in a notebook."""
    name = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(name) if name and name.endswith(".py") and Path(name).is_file() else None


def hash_user_code(recipe: Config, model: nn.Module) -> dict[str, str]:
    """Return a hash for each user-defined class of the recipe's parts and the model's modules, by module and name. A
    hash changes with the class's code and with the definitions in its file that it uses, but not with comments,
    docstrings, formatting or other modules."""
    hashes = {}
    for cls in _find_user_classes([*iterate_parts(recipe), *model.modules()]):
        path = find_source_file(cls) if cls.__module__ == "__main__" else None
        module = path.stem if path else cls.__module__  # the module name of a script that is run as __main__
        hashes[f"{module}.{cls.__qualname__}"] = _hash_class(cls)
    return hashes


def list_differing_classes(old_hashes: Mapping[str, str], new_hashes: Mapping[str, str]) -> list[str]:
    """Return the names of classes whose hashes differ between two results of ``hash_user_code``. Module names are
    ignored, because a file may be run as a script or imported."""
    changed = set[str]()
    for hashes, others in ((old_hashes, new_hashes), (new_hashes, old_hashes)):
        known = {(name.rpartition(".")[2], code) for name, code in others.items()}
        changed |= {name for name, code in hashes.items() if (name.rpartition(".")[2], code) not in known}
    return sorted(changed)


def has_foreign_code(recipe: Config, model: nn.Module) -> bool:
    """Return whether a part of the recipe, or a module of the model, is defined outside this package and torch."""
    return any(is_foreign(type(part)) for part in (*iterate_parts(recipe), *model.modules()))


@contextmanager
def wrap_user_errors(part: Config) -> Iterator[None]:
    """Turn an error in a ``with`` block, even ``SystemExit``, into a one-line UsageError, with the error as its cause.
    The message names the user-defined classes of ``part``, which is a recipe, task, rule or source; if there are none,
    an ``Exception`` is raised unchanged."""
    try:
        yield
    except (UsageError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        names = [cls.__name__ for cls in _find_user_classes(iterate_parts(part))]
        if not names and isinstance(error, Exception):
            raise
        parts = f"; it uses your own classes: {', '.join(names)}" if names else ""
        name = getattr(part, "name", type(part).__name__)
        raise UsageError(f"{name}: {describe_user_error(error)}{parts}") from error


@contextmanager
def guard_foreign_code(recipe: Config) -> Iterator[None]:
    """Run user-defined code in a ``with`` block: turn its errors into UsageErrors (see ``wrap_user_errors``), and
    restore the state of global generators afterwards."""
    with rng.preserve_generators(), wrap_user_errors(recipe):
        yield


def describe_user_error(error: BaseException) -> str:
    """Describe an error in one line, with the file and line of user code where it occurred."""
    frames = find_user_frames(error)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {format_error(error)}"


def find_user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error's traceback that are in user code, outermost first."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library_file(Path(frame.filename))]


def _is_library_file(path: Path) -> bool:
    """Return whether a file belongs to this package, to Python or to an installed library."""
    ours = any(path.is_relative_to(folder) for folder in (PACKAGE_FOLDER, STANDARD_LIBRARY))
    return ours or "site-packages" in path.parts or not path.is_file()


def _find_user_classes(parts: Iterable[Any]) -> list[type]:
    """Return the classes of ``parts``, and their base classes, that are defined in the user's code, not in this
    package, Python or an installed library."""
    foreign = {base for part in parts for base in type(part).__mro__ if is_foreign(base)}
    standard = sys.stdlib_module_names - {"__main__"}
    own_classes = (cls for cls in foreign if cls.__module__.partition(".")[0] not in standard)
    return sorted((cls for cls in own_classes if "site-packages" not in str(find_source_file(cls))), key=str)


def _hash_class(cls: type) -> str:
    """Return a hash of a class's code and of all definitions in the same file that it uses, directly or not."""
    path, outermost = find_source_file(cls), cls.__qualname__.partition(".")[0]
    definitions = _list_definitions(path, path.stat().st_mtime_ns) if path else {}
    text = _collect_code(outermost, definitions) if outermost in definitions else repr(_collect_bytecode(cls))
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


@lru_cache(maxsize=64)
def _list_definitions(path: Path, modified_ns: int) -> dict[str, ast.stmt]:
    """Return the top-level definitions of a file, by name. Raises UsageError if the file is not valid Python."""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError) as error:  # the file was edited after its import
        raise UsageError(f"{path}: {format_error(error)}; the code of your classes is read from this file") from None
    definitions: dict[str, ast.stmt] = {}
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            definitions |= dict.fromkeys(names, node)
    return definitions


def _collect_code(name: str, definitions: dict[str, ast.stmt]) -> str:
    """Return the code of a definition and of all definitions in the same file that it uses, directly or not."""
    reached, pending = {name}, [name]
    while pending:
        used = {part.id for part in ast.walk(definitions[pending.pop()]) if isinstance(part, ast.Name)}
        new = (used & definitions.keys()) - reached
        reached |= new
        pending += new
    return "\n".join(ast.dump(_strip_docstrings(definitions[used_name])) for used_name in sorted(reached))


def _strip_docstrings(node: ast.stmt) -> ast.AST:
    """Return a copy of a syntax tree, with docstrings removed."""
    copy = ast.parse(ast.unparse(node))
    for part in ast.walk(copy):
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(part) is not None:
            part.body = part.body[1:]
    return copy


def _collect_bytecode(value: Any) -> Any:
    """Return the bytecode of a class without a source file, such as one from a notebook; for other values, return a
    representation that is equal in all processes."""
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, [_collect_bytecode(part) for part in value.co_consts]
    if isinstance(value, frozenset):  # its order differs between processes
        return sorted(repr(_collect_bytecode(part)) for part in value)
    if isinstance(value, tuple):
        return [_collect_bytecode(part) for part in value]
    if isinstance(value, type):
        functions = {name: getattr(part, "__func__", getattr(part, "fget", part)) for name, part in vars(value).items()}
        codes = {name: part.__code__ for name, part in functions.items() if hasattr(part, "__code__")}
        return [(name, _collect_bytecode(code)) for name, code in sorted(codes.items())]
    return repr(value)
