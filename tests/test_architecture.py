"""The structure that docs/design.md tells, held to the code: arrows point down, siblings do not know one another."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lengthwise"

# From the bottom up: a module imports from lower floors only.
FLOORS = [
    {"types", "rng"},
    {"vocab", "fields", "rows", "expressions"},
    {"expressions.values"},
    {"expressions.drawing"},
    {"nn.dropout", "nn.position", "nn.lstm", "nn.packed", "nn.packing", "nn.readout", "nn.softmax", "nn.gelu"},
    {"nn.few", "nn.small"},
    {"nn.pattern", "nn.recall", "nn.window"},
    {"nn.attention"},
    {"nn.block"},
    {"nn.whole"},
    {"tasks", "models", "loops", "stopping", "source"},
    {"digits", "lengths"},
    {"tasks.*", "models.*", "objectives", "layout", "optim", "rasp.language"},
    {"objectives.*", "recipe", "rasp.program"},
    {"data", "run", "rasp.programs"},
    {"evaluation"},
    {"progress", "generate", "depth", "anatomy", "ask"},
    {"training", "solver"},
    {"cost", "fleet", "recipes.*", "report"},
    {"recipes.ablations"},
    {"studies", "report.*"},
    {"studies.*", "live", "report.depth_figure", "report.anatomy_figure", "report.card", "report.parameter_figure"},
    {"catalog", "report.publish"},
    {"api", "demo", "verbs.console"},
    {"verbs.train"},
    {"verbs.look", "verbs.solve", "verbs.study", "verbs.ask"},
    {"verbs"},
    {"cli"},
    {"__main__"},
]


def floor(module: str) -> int:
    """The floor of ``tasks.parity``: where it is named itself, else where its folder is."""
    for name in (module, f"{module.split('.')[0]}.*"):
        for i, names in enumerate(FLOORS):
            if name in names:
                return i
    raise AssertionError(f"{module} stands on no floor: give it one in docs/design.md and here")


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and (name not in {"nn", "recipes", "rasp"}):  # these hold a docstring
            found[name] = path
    return found


def imports(path: Path) -> set[str]:
    """The package's own modules that a file imports, late imports included, those for type checking left out."""
    tree = ast.parse(path.read_text())
    names = set(modules())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    own = {name.removeprefix("lengthwise.") for name in found if name.startswith("lengthwise.")}
    return own & names


@pytest.mark.parametrize("module", sorted(modules()))
def test_arrows_point_down(module):
    above = {name for name in imports(modules()[module]) if floor(name) >= floor(module)}
    assert not above, f"{module} imports {above}, which stand no lower"


def test_a_task_is_one_new_file(tmp_path, monkeypatch):
    """The catalog finds a file that is put beside the others, with no line edited anywhere."""
    source = (PACKAGE / "tasks" / "parity.py").read_text().replace("Parity", "Oddness")
    code = f"""
import sys, lengthwise.tasks
lengthwise.tasks.__path__.append({str(tmp_path)!r})
from lengthwise import catalog
assert catalog.task("oddness").reference("111") == "1"
recipe = catalog.recipe("looped-parity", ["task=Oddness"])
assert type(recipe.task).__name__ == "Oddness" and type(recipe).read(recipe.json()) == recipe
"""
    (tmp_path / "oddness.py").write_text(source)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_run_is_read_by_whoever_imports_only_what_reads_it(tmp_path):
    from lengthwise import catalog

    (tmp_path / "config.json").write_text(catalog.recipe("looped-pairs").json())
    code = f"from lengthwise.run import Run; assert Run.open({str(tmp_path)!r}).recipe.name == 'looped-pairs'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_importing_the_package_does_nothing():
    code = "import sys, lengthwise, lengthwise.cli; assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_python_interface_names_exist():
    import lengthwise as lw

    for name in dir(lw):
        assert getattr(lw, name) is not None
    with pytest.raises(AttributeError, match="it has: "):
        lw.nothing  # noqa: B018
