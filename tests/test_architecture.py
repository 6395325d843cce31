"""The package's structure: imports between folders, lengths of files and functions, and modules that write files."""

import ast
import functools
import graphlib
import importlib
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import call_in_fork

PACKAGE = Path(__file__).parents[1] / "lengthwise"

# From the bottom up: a file imports from lower levels or from its own folder, where only import cycles are forbidden.
# A file directly in the package counts as a folder.
LEVELS = [
    {"base"},
    {"nn", "tasks", "registry"},
    {"models"},
    {"runners"},
    {"objectives"},
    {"experiment"},
    {"runs", "recipes", "rasp"},
    {"report", "ask"},
    {"studies"},
    {"evaluation"},
    {"training", "viewer"},
    {"jobs", "verify", "testing"},
    {"api"},
    {"cli"},
]


def list_modules() -> dict[str, Path]:
    """Return the package's modules by name, such as ``tasks.parity``; an ``__init__`` has its folder's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in found.items() if name not in ("", "__main__")}  # __main__ only calls cli


MODULES = list_modules()


@functools.cache
def parse_nodes(path: Path) -> list[ast.AST]:
    """Return the nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def list_imports(path: Path) -> set[str]:
    """Return the package's own modules that a file imports, including imports inside functions."""
    found, known = set(), {f"lengthwise.{name}" for name in MODULES}
    for node in parse_nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & known if inside <= known else {node.module, *inside}
    own = {name.removeprefix("lengthwise.") for name in found if name.startswith("lengthwise.")}
    return own & set(MODULES)


def get_folder(module: str) -> str:
    return module.split(".")[0]


def get_level(module: str) -> int:
    for number, names in enumerate(LEVELS):
        if get_folder(module) in names:
            return number
    raise AssertionError(f"folder {get_folder(module)} has no level: add it to LEVELS and to docs/draw_architecture.py")


def test_imports_between_folders_point_down_and_have_no_cycles_inside_a_folder():
    graph = {}
    for module, path in MODULES.items():
        own = {name for name in list_imports(path) if get_folder(name) == get_folder(module)}
        above = {name for name in list_imports(path) - own if get_level(name) >= get_level(module)}
        assert not above, f"{module} imports {above}, which are not on a lower level"
        graph[module] = own - {module}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


# Files that import by name: kinds of parts, the command that is run, a user's modules, public names on first use,
# optional libraries, and an HTTP library's errors.
IMPORTERS_BY_NAME = {"registry", "cli.entry", "", "base.extras"}


def has_imports_by_name(path: Path) -> bool:
    """Return whether a file imports modules that are named by strings."""
    used = {node.attr for node in parse_nodes(path) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in parse_nodes(path) if isinstance(node, ast.Name)}
    return bool({"import_module", "__import__", "find_spec", "run_module"} & used)


def test_only_a_few_files_import_modules_by_name():
    """Only a few files may import modules by a string, which neither readers nor these tests can follow."""
    found = {name for name, path in MODULES.items() if has_imports_by_name(path)}
    assert found | {""} == IMPORTERS_BY_NAME


# Modules that all commands share.
SHARED_NAMES = ("entry", "forecast", "measurements", "options", "console", "shared", "parser")
SHARED = {"cli", *(f"cli.{name}" for name in SHARED_NAMES)}


def test_each_command_is_one_file_and_imports_no_other_command():
    from lengthwise.cli.parser import VERBS

    files = {name for name in MODULES if get_folder(name) == "cli"}
    assert {f"cli.{name}" for name in VERBS} == files - SHARED
    for name in files:
        assert {other for other in list_imports(MODULES[name]) if get_folder(other) == "cli"} <= SHARED - {name}, name
    for name in VERBS:
        assert callable(importlib.import_module(f"lengthwise.cli.{name}").run)


def test_reports_import_only_modules_that_read_files():
    readers = {f"base.{name}" for name in ("csv_files", "errors", "extras", "fields", "files", "results", "score_rows")}
    readers |= {"base.schemas", "base.formatting", "runs.folder"}
    for module in (name for name in MODULES if get_folder(name) == "report"):
        assert {name for name in list_imports(MODULES[module]) if get_folder(name) != "report"} <= readers, module


def test_the_package_has_few_folders_and_few_imports_between_them():
    """There are at most 26 folders and files at the top level, and imports between at most 100 pairs of them. No two
    import each other."""
    assert len({get_folder(module) for module in MODULES}) <= 26
    pairs = {(get_folder(name), get_folder(other)) for name, path in MODULES.items() for other in list_imports(path)}
    arrows = {(low, high) for low, high in pairs if low != high}
    assert len(arrows) <= 100
    assert not {(low, high) for high, low in arrows} & arrows, "two folders import each other"


MAX_CODE_LINES = {"models.transformer": 340, "models.retran": 180}  # by model, dependencies included
ENCODINGS = {"nn.position", "nn.digit_position", "nn.window"}  # positional


def list_dependencies(module):
    """Return a model's module and the modules of ``nn`` that it imports, except positional encodings."""
    found, todo = set(), [module]
    while todo:
        name = todo.pop()
        found.add(name)
        todo += [one for one in list_imports(MODULES[name]) if get_folder(one) == "nn" and one not in ENCODINGS | found]
    return found


@pytest.mark.parametrize(("module", "max_lines"), MAX_CODE_LINES.items())
def test_the_code_of_a_model_is_short(module, max_lines):
    assert sum(count_code_lines(MODULES[name].read_text()) for name in list_dependencies(module)) <= max_lines


def test_functions_and_files_are_short():
    every = [node for path in MODULES.values() for node in parse_nodes(path)]
    functions = [node for node in every if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    lengths = [node.end_lineno - node.lineno + 1 for node in functions]
    assert statistics.median(lengths) <= 8 and max(lengths) <= 65
    assert max(len(path.read_text().splitlines()) for path in MODULES.values()) <= 400


def count_code_lines(text):
    """Return the number of lines of code, without blank lines, imports, comments and docstrings."""
    tree, without = ast.parse(text), set()
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            without |= {*range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for n, line in lines if n not in without)


def test_a_new_task_needs_only_one_new_file(tmp_path):
    """The catalog finds a new task file without a change to any other file."""
    import lengthwise.tasks
    from lengthwise.api import catalog

    def use_task():
        lengthwise.tasks.__path__.append(str(tmp_path))
        recipe = catalog.find_recipe("looped-parity", ["task=Oddness"])
        assert type(recipe.task).__name__ == "Oddness" and type(recipe).read(recipe.json()) == recipe
        return catalog.find_task("oddness").reference("111")

    (tmp_path / "oddness.py").write_text((PACKAGE / "tasks" / "parity.py").read_text().replace("Parity", "Oddness"))
    assert call_in_fork(use_task) == "1"


def test_the_package_imports_no_large_library_and_a_run_opens_without_further_imports(tmp_path):
    from lengthwise.api import catalog

    (tmp_path / "config.json").write_text(catalog.find_recipe("looped-pairs").json())
    code = f"""
import sys, lengthwise, lengthwise.cli.entry
assert not {{"torch", "numpy", "matplotlib"}} & set(sys.modules)
from lengthwise.runs.run import Run
assert Run.open({str(tmp_path)!r}).recipe.name == "looped-pairs"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_all_names_of_the_python_interface_exist():
    """Every public name exists at run time and in ``api``, which type checkers read."""
    import lengthwise as lw
    from lengthwise import api

    for name in dir(lw):
        assert getattr(lw, name) is not None
    with pytest.raises(AttributeError, match="it has: "):
        lw.nothing  # noqa: B018
    assert set(dir(lw)) <= set(vars(api))


# Functions that change files, in addition to ``open`` with a writing mode.
WRITING_FUNCTIONS = {
    "write_text", "write_bytes", "mkdir", "makedirs", "touch", "unlink", "rmdir", "removedirs", "rename", "renames",
    "symlink", "symlink_to", "link", "hardlink_to", "chmod", "rmtree", "copy2", "copyfile", "copytree", "mkstemp",
    "mkdtemp", "NamedTemporaryFile", "tofile", "savez", "save_file", "FileIO",
}  # fmt: skip
WRITING_MODULE_FUNCTIONS = {"remove", "copy", "move"}  # write as functions of modules, not as methods of lists
WRITING_MODULES = {"files", "os", "shutil", "Path", "path", "tempfile"}


def find_file_writes(path):
    """Yield the calls in a file that write files without using ``base.files``."""
    for node in (node for node in parse_nodes(path) if isinstance(node, ast.Call)):
        is_method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if is_method else getattr(node.func, "id", "")
        owner = getattr(node.func.value, "id", "") if is_method else ""
        texts = [one.value for one in [*node.args, *(word.value for word in node.keywords)]
                 if isinstance(one, ast.Constant) and isinstance(one.value, str)]  # fmt: skip
        modes = [text for text in texts if set(text) & set("wax+") and set(text) <= set("wxabrt+")]
        # A path's ``replace`` takes one argument, a text's two.
        replaces = name == "replace" and is_method and len(node.args) == 1 and not node.keywords
        of_module = (name in WRITING_MODULE_FUNCTIONS and owner in WRITING_MODULES) or (
            owner == "os" and name in ("open", "replace", "truncate")
        )
        if replaces or of_module or name in WRITING_FUNCTIONS or (name in ("open", "fdopen") and modes):
            yield f"{path.relative_to(PACKAGE)}:{node.lineno} {name}"


def test_only_one_module_writes_files():
    """Only ``base.files``, which follows no links and leaves no half-written files, writes files."""
    allowed = {"base/process.py": "open"}  # opens the null device
    found = [text for name, path in MODULES.items() if name != "base.files" for text in find_file_writes(path)]
    assert [text for text in found if allowed.get(text.partition(":")[0]) != text.split()[-1]] == []
    assert len([*find_file_writes(MODULES["base.files"])]) >= 6


def test_no_test_file_imports_another():
    """Test files share helpers through ``tests/support``."""
    for path in Path(__file__).parent.rglob("test_*.py"):
        assert not re.search(r"^(from|import) test_", path.read_text(), re.M), path
