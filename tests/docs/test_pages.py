"""README and docs agree with the contents of the repository."""

import functools
import importlib
import io
import re
import shlex
from pathlib import Path

import draw_architecture
import fill
import pytest
from fillers.results import read_scores

from lengthwise import api
from lengthwise.api import catalog
from lengthwise.base import csv_files
from lengthwise.cli import entry
from lengthwise.cli.entry import is_problem_file
from lengthwise.report import results_folder
from lengthwise.training import loop

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _read_rows_faster():
    """Read published rows faster, by skipping metrics, which no page quotes, and parsing each distinct cell once."""
    read = results_folder._read_rows_by_run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "_parse_cell", functools.cache(csv_files._parse_cell))
        patch.setattr(
            results_folder, "_read_rows_by_run", lambda path, kind: {} if path.stem == "metrics" else read(path, kind)
        )
        yield


@pytest.mark.parametrize("page", fill.PAGES, ids=lambda page: page.name)
def test_quoted_code_and_figures_are_up_to_date(page):
    assert page.read_text() == fill.fill_page(page.read_text()), "run `make docs`"


@pytest.mark.parametrize("page", fill.PAGES, ids=lambda page: page.name)
def test_tables_explain_their_spread(page):
    """A table with ± has a note that explains it; one with medians states whether seeds share their problems."""
    for spot in fill.FILL_MARK.finditer(page.read_text()):
        assert " ± " not in spot[0] or "\n±: the standard error of the mean over seeds; " in spot[0]
        shared = any(text in spot[0] for text in (" on the same ", " of its own "))
        assert "\nMedian " not in spot[0] or spot[2] == "arms" or shared


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_figures_are_followed_by_their_command(page):
    figure = re.compile(r"^!\[[^\]]*\]\(\.\./results/.*\)$")
    lines = [*page.read_text().splitlines(), "", ""]
    for line, below, after in zip(lines, lines[1:], lines[2:], strict=False):
        found = after.startswith("<!-- fill: command ") or figure.match(below)  # figures in a row share a command
        assert found or not figure.match(line), f"put a `fill: command` under {line}"


@pytest.mark.parametrize("page", [*fill.PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_link_targets_exist(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def find_blocks(page, *kinds):
    """Return a page's code blocks of these kinds, except those that ``docs/fill.py`` writes."""
    text = fill.FILL_MARK.sub("", page.read_text())
    return re.findall(rf"```(?:{'|'.join(kinds)})\n(.*?)```", text, re.DOTALL)


def split_arguments(line):
    """Return the arguments of a quoted command, without anything before a pipe, or after > or #."""
    words = shlex.split(line.split("|")[-1].split(" > ")[0], comments=True)
    return words[1:]


def find_commands(page):
    lines = [line for block in find_blocks(page, "sh", "bash") for line in block.splitlines()]
    return [split_arguments(line) for line in lines if re.match(r"(echo [^|]*\| *)?lengthwise ", line)]


QUOTED_COMMANDS = {" ".join(words): words for page in fill.PAGES for words in find_commands(page)}
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """Return a working folder with a file of problems, from which examples can be imported; runs are stored in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problems.jsonl").write_text('{"prompt": "10", "answer": "1"}\n', encoding="utf-8")
    monkeypatch.delenv("LENGTHWISE_RUNS")
    monkeypatch.syspath_prepend(ROOT / "examples")
    for known in ("_OWN_RECIPES", "_OWN_STUDIES"):
        monkeypatch.setattr(catalog, known, {})
    return tmp_path


@pytest.mark.parametrize("line", QUOTED_COMMANDS)
def test_quoted_commands_are_valid(line, working_folder):
    """Every `lengthwise …` line parses, and its recipes, changes and studies exist."""
    args = entry.parse([word for word in QUOTED_COMMANDS[line] if word not in ("...", "…")])
    for name in args.import_:
        if not is_problem_file(name):
            catalog.add_module(importlib.import_module(name))
    from_run = getattr(args, "from_", None)  # then these are changes of that run's recipe
    if args.verb in ("train", "show") and not getattr(args, "html", None) and not from_run:
        recipe = catalog.find_recipe(args.recipe, args.changes)
        if getattr(recipe.model, "width", 0) <= 256:
            recipe.build()
    if args.verb == "reproduce":
        options = {name: getattr(args, name) for name in ("tasks", "methods", "sizes", "scale")}
        catalog.find_study(args.study, **{name: value for name, value in options.items() if value is not None})


def test_a_quoted_run_has_the_id_of_its_recipe():
    page = (ROOT / "docs/how-to/continue.md").read_text()
    recipe, *changes = re.search(r"^lengthwise train (.* name=first) ", page, re.MULTILINE)[1].split()
    assert f" --from first-{catalog.find_recipe(recipe, changes).id} " in page


def find_outputs(block):
    """Return the commands after a dollar sign, each with its quoted output."""
    parts = re.split(r"^\$ (lengthwise .*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


QUOTED_MISTAKES = [
    pytest.param(command, answer, id=f"{page.stem}: {command}")
    for page in fill.PAGES
    for block in find_blocks(page, "console")
    for command, answer in find_outputs(block)
]


@pytest.mark.parametrize(("command", "message"), QUOTED_MISTAKES)
def test_quoted_mistakes_give_the_quoted_error(command, message, working_folder, monkeypatch, capsys):
    """Each quoted command exits with status 2 and the quoted error before any training; … stands for any text."""
    monkeypatch.setattr(loop.Trainer, "advance", lambda _: pytest.fail("training began"))
    assert entry._run(entry.parse(split_arguments(command))) == 2
    expected = re.escape(message).replace("…", ".*")
    assert re.fullmatch(expected, capsys.readouterr().err)


SMALL_RUN = ["steps=2", "batch=4", "watch.every=0", "keep=last"]


@pytest.fixture
def use_small_budgets(monkeypatch):
    """Make ``lw.train`` take two steps, and ``lw.evaluate`` a few problems of two sizes."""
    train, evaluate = api.train, api.evaluate
    monkeypatch.setattr(api, "train", lambda recipe, *changes, **given: train(recipe, *changes, *SMALL_RUN, **given))
    few = {"samples": 2}
    monkeypatch.setattr(api, "evaluate", lambda run, lengths, **given: evaluate(run, list(lengths)[:2], **given | few))


@pytest.mark.parametrize("page", [ROOT / "README.md", *HOW_TO], ids=lambda page: page.name)
def test_quoted_python_runs(page, working_folder, use_small_budgets, capsys):
    if page.stem == "figure":
        words = ["train", "looped-parity", *SMALL_RUN, "--lengths", "1,2", "--samples", "2", "--quiet"]
        assert entry._run(entry.parse(words)) == 0
    for block in find_blocks(page, "python"):
        exec(compile(block, page.name, "exec"), {})


BUDGET_OPTIONS = {
    "train": [*SMALL_RUN, "--lengths", "2", "--samples", "2", "--jobs", "1", "--quiet"],
    "evaluate": ["--lengths", "2", "--samples", "2"],
    "solve": [], "list": [], "sample": [], "rasp": [], "show": [],
}  # fmt: skip


@pytest.mark.usefixtures("blank_figures")
def test_the_commands_of_the_readme_run_in_order(working_folder, monkeypatch, capsys):
    """All commands except those for studies, pages and endpoints run in order, with the smallest budgets."""
    monkeypatch.setattr("sys.stdin", io.StringIO("99999999999999999999+1\n"))
    for words in find_commands(ROOT / "README.md"):
        words = [
            name
            for word in words
            for name in (sorted(map(str, working_folder.glob(word))) if re.search(r"/.*\*", word) else [word])
        ]
        few = ["--samples", "2", "--lengths", "2"] if "--stopping" in words else []
        more = few if words[0] == "report" else BUDGET_OPTIONS.get(words[0])
        if more is not None and "--html" not in words:
            assert entry._run(entry.parse([*words, *more])) == 0, words


def test_the_figure_of_the_architecture_is_up_to_date():
    """The figure shows the levels that the architecture test checks."""
    assert draw_architecture.PAGE.read_text() == draw_architecture.draw_page(), "run `make docs`"
    drawn = {folder for folders in draw_architecture.read_levels() for folder in folders}
    assert drawn == set(draw_architecture.CAPTIONS)


def test_no_local_path_is_mentioned():
    """Pages and sources contain no path of the machine on which they were written."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*"), *ROOT.glob("[el]*/**/*.py")]:
        if path.is_file() and path.suffix in {".md", ".py"}:
            assert not re.search(r"/work/|/root/|/tmp/\w", path.read_text()), path


def test_pages_prefer_scores_on_sealed_problems():
    """Scores on sealed problems replace other scores of the same run and size, and are not averaged with them."""
    rows = list(read_scores("results/notebook/binary"))
    names = ("id", "stopping", "problems", "sizes")
    assert len({tuple(row[name] for name in names) for row in rows}) == len(rows)
    assert all(row["sealed"] for row in rows if row["problems"] == "uniform")
