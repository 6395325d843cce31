"""The report page: one file with all data of a folder of results."""

import base64
import csv
import gzip
import io
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import LONG, command
from made_up_runs import build_run, recipe

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.ask.inquiry import Inquiry, InquiryRun, draw_items, judge_reply, score_replies
from lengthwise.base.csv_files import read_csv
from lengthwise.report import curves
from lengthwise.report.publish import publish
from lengthwise.report.results_folder import read_published_runs
from lengthwise.runs.run import Run
from lengthwise.viewer import report
from lengthwise.viewer.document import read_vendor_scripts
from lengthwise.viewer.report import LIBRARY_NAMES, MAX_PAGE_BYTES, build_report_page

RESULTS_FOLDER = Path(__file__).parents[2] / "results"
SEED_PAIRS = [(0, 0), (0, 1), (1, 1)]
CHARTS_BY_STUDY = {"pairs": "lengths", "looped/multiplication": "maps"}


@pytest.fixture(scope="module")
def pages():
    command = "lengthwise report results --html page.html"
    runs = {name: read_published_runs(RESULTS_FOLDER / name) for name in CHARTS_BY_STUDY}
    return {name: build_report_page(group, command=command) for name, group in runs.items()}


def extract_data(page):
    """Return the data that a page contains."""
    packed = re.search(r'<script type="text/plain" id="report">([^<]*)</script>', page)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


@pytest.mark.parametrize("name", CHARTS_BY_STUDY)
def test_a_report_page_makes_no_network_request_and_is_small(name, pages):
    page = pages[name]
    own = page
    for library in read_vendor_scripts(*LIBRARY_NAMES):
        assert library in page or library.replace("</script", "<\\/script") in page
        own = own.replace(library.replace("</script", "<\\/script"), "")
    assert "sourceMappingURL" not in page and "default-src 'none'" in page
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?(?!["']|data:|#|\$)|@import|url\(|fetch\(""", own)
    assert set(re.findall(r"https?:[^\"' ]+", own)) <= {"https://vega.github.io/schema/vega-lite/v6.json"}
    assert len(page.encode()) < MAX_PAGE_BYTES / 2
    assert "Copyright" in page  # the licences of the libraries


@pytest.mark.parametrize("name", CHARTS_BY_STUDY)
def test_a_report_page_has_every_table_and_chart(name, pages):
    data = extract_data(pages[name])
    assert {"scores", "curves", "card", "metrics"} <= data["tables"].keys()
    assert all(table["rows"] and table["columns"] for table in data["tables"].values())
    assert data["charts"]["loss"] and data["charts"][CHARTS_BY_STUDY[name]]
    assert "Score card" in pages[name] and data["made"] in pages[name].replace("&#x27;", "'")
    assert all(recipe["kind"] == "Recipe" for recipe in data["recipes"].values())


def test_tables_of_the_page_equal_the_csv_files_of_the_folder(pages):
    data = extract_data(pages["pairs"])
    for name in ("scores", "metrics"):
        table = data["tables"][name]
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
        wanted = read_csv(RESULTS_FOLDER / "pairs" / f"{name}.csv")
        assert len(rows) == len(wanted)
        for row, want in zip(rows, wanted, strict=True):
            for column, value in want.items():
                if not isinstance(value, (dict, list)):
                    assert row[column] == value


def test_curves_of_the_page_equal_the_curves_of_reports(pages):
    drawn = [row for row in extract_data(pages["pairs"])["charts"]["lengths"] if row["along"]]
    runs = read_published_runs(RESULTS_FOLDER / "pairs")
    wanted = [(curve, point) for curve in curves(runs) for point in curve.diagonal]
    assert len(drawn) == len(wanted)
    for row, (curve, point) in zip(drawn, wanted, strict=True):
        assert (row["label"], row["problems"], row["size"]) == (curve.label, curve.problems, point.length)
        assert row["mean"] == pytest.approx(point.mean, abs=1e-6) and row["families"] == list(point.families)


def test_a_page_joins_only_means_over_the_same_seeds():
    runs = [build_run(recipe("mine", seed=seed), (8, 1.0), (16, 0.5)) for seed in range(2)]
    build_run(runs[0].recipe, (12, 0.1))
    joined = {row["size"]: row["joined"] for row in report._build_length_rows(runs, [])}
    assert joined == {8: True, 12: False, 16: True}


@pytest.mark.usefixtures("no_type_checks")
def test_differing_settings_of_recipes_are_listed():
    part = {"kind": "Local", "reach": 1}
    model = {"kind": "T", "width": 8, "positions": [part]}
    one = {"kind": "Recipe", "name": "a", "seed": 0, "steps": 5, "model": model}
    other = one | {"name": "b", "seed": 1, "model": model | {"width": 16, "positions": [part, {"kind": "Mark"}]}}
    assert report.flatten_fields(one)["model.positions.1.reach"] == 1
    groups = {tree["name"]: [SimpleNamespace(config=lambda tree=tree: tree)] for tree in (one, other)}
    assert report.list_recipe_differences(groups) == [
        {"field": "model.width", "a": 8, "b": 16},
        {"field": "model.positions.2", "a": "–", "b": "Mark"},
    ]


def test_the_command_writes_a_page_of_results(tmp_path):
    path = tmp_path / "page.html"
    done = command("report", RESULTS_FOLDER / "parity", "--html", path, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["bytes"] == path.stat().st_size
    for words, message in {
        (RESULTS_FOLDER / "parity", "--html", tmp_path): "that is a folder",
        (RESULTS_FOLDER / "parity", "--html", path, "--out", tmp_path): "omit --out",
        (tmp_path / "nothing", "--html", path): "there is no such run",
    }.items():
        done = command("report", *words)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


# Folders of results, read back


PUBLISHED_FOLDERS = sorted(path.parent for path in RESULTS_FOLDER.rglob("runs.json"))


def read_table_lines(folder, table):
    """Return the rows of a folder's table as lists of text, the header first."""
    texts = [path.read_bytes() for path in folder.glob(f"{table}.csv*")]
    texts = [gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text for text in texts]
    return [line for text in texts for line in csv.reader(io.StringIO(text.decode()))]


def test_every_published_row_belongs_to_a_run():
    for number, folder in enumerate(PUBLISHED_FOLDERS):
        lines = {kind: read_table_lines(folder, kind) for kind in ("scores", "metrics")}
        ids = {line[rows[0].index("id")] for rows in lines.values() for line in rows[1:]}
        known = [entry["id"] for path in folder.glob("[ri]*.json") for entry in json.loads(path.read_text())]
        assert ids <= {*known}, folder
        if LONG or number % 16 == 0:
            runs = read_published_runs(folder)
            assert all(sum(len(run.rows(kind)) for run in runs) == len(rows[1:]) for kind, rows in lines.items())


@pytest.mark.parametrize("run_id", ["0123456789", "12e4567890"])
def test_a_run_whose_id_looks_like_a_number_keeps_its_rows(run_id, tmp_path):
    source = RESULTS_FOLDER / "looped/bitwise-or-shipped"
    (entry,) = json.loads((source / "runs.json").read_text())
    (tmp_path / "runs.json").write_text(json.dumps([entry | {"id": run_id}]))
    (tmp_path / "scores.csv").write_text((source / "scores.csv").read_text().replace(entry["id"], run_id))
    (found,) = read_published_runs(tmp_path)
    assert len(found.rows("scores")) == len(read_csv(source / "scores.csv")) > 0


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("runs.json", "[{}]", "the field recipe_name is missing"),
        ("runs.json", "{}", "the field recipe_name is missing"),
        ("runs.json", "[1]", "1 is not a JSON object"),
        ("runs.json", "1", "must be a JSON list or object"),
        ("scores.csv", "id,sizes\nx,bad\n", "row 1: sizes must be a size, such as 8 or 8x12, not 'bad'"),
        ("scores.csv", "id,sizes\nx,8,9\n", "row 1 has more cells than the header"),
        ("scores.csv", "id,sizes\nx,8\n", "row 1: the field task is missing"),
        ("scores.csv", "exact,exact.8\n1,1\n", "a column exact and a column exact.8"),
        ("stopping-looped-bitwise-or.json", '{"a": 1}', "the field task is missing"),
        ("figures.json", '{"title": 3}', "title"),
        ("distribution.json", '{"8x12": 3}', "a length"),
        ("parameters.csv", "recipe,seed\nx,1\n", "row 1: the field model is missing"),
        ("runs.json", '[{"recipe_name": "x", "id": "y", "parameters": "many"}]', "'many' is not a whole number"),
        ("runs.json", '[{"recipe_name": "x", "id": "y"}]', "has no outline"),
    ],
)
def test_a_damaged_folder_of_results_is_refused_in_one_line(file, content, message, tmp_path):
    for name in ("runs.json", "scores.csv", "metrics.csv", "figures.json"):
        (tmp_path / name).write_text((RESULTS_FOLDER / "looped/bitwise-or-shipped" / name).read_text())
    (tmp_path / file).write_text(content)
    done = command("report", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_recipes_with_the_same_name_keep_their_own_stopping_rules():
    runs = []
    for width in (4, 8):
        recipe = lw.find("looped-parity", "steps=2", "batch=2", f"model.width={width}", "watch.every=0")
        runs.append(Run.of(recipe))
        for rule in ("Oracle", "MaxConfidence"):
            score = lw.Score("parity", "w", rule, "uniform", (20,), 10, 1.0, 1.0, 1.0, 20.0)
            runs[-1].append("scores", score.row() | {"seed": 0})
    shown = {(row["stopping"], row["own"]) for row in report._build_length_rows(runs, [])}
    assert shown == {("Oracle", True), ("MaxConfidence", False)}


def test_lists_in_a_card_are_shown_as_text(pages):
    """A card's lists hold one size per seed, such as 8, 8, –, and must not be shown as one problem's sizes."""
    table = extract_data(pages["pairs"])["tables"]["card"]
    for row in table["rows"]:
        card = dict(zip(table["columns"], row, strict=True))
        assert card["chosen_on"] == "8, 12, 16, 24"
        assert re.fullmatch(r"(\d+|–)(, (\d+|–)){4}", card["longest"]), card["longest"]


def test_loops_measured_twice_are_drawn_once(tmp_path):
    run = Run.of(catalog.find_recipe("looped-parity"))
    where = {"mean": 2.0, "low": 2.0, "high": 2.0, "exact": 1.0}
    chosen = dict.fromkeys(("oracle", "batch", "example"), where)
    for count, exact in ((16, 0.5), (8, 0.25)):
        row = {"task": "parity", "sizes": [4], "count": count, "seed": 0, "planned": 2}
        run.append("depth", row | {"exact": [exact] * 2, "confidence": [-1.0] * 2, "chosen": chosen})
    shown = report.build_chart_rows([run], [])
    assert [row["exact"] for row in shown["loops"]] == [0.5, 0.5]
    assert len(shown["stops"]) == 3


def test_a_page_of_results_includes_language_models(tmp_path):
    inquiry = Inquiry.of("http://localhost/v1", "some-model", catalog.find_task("parity"))
    asked = InquiryRun.of(inquiry, tmp_path / "asked")
    wanted = draw_items(inquiry, [3], 2)
    replies = {item.prompt: judge_reply(inquiry.task, item.right, item.right) for item in wanted}
    asked.save_scores(score_replies(inquiry, wanted, replies))
    publish([], tmp_path / "results", inquiries=[asked])
    assert command("report", str(tmp_path / "results"), "--html", str(tmp_path / "page.html")).returncode == 0
    table = extract_data((tmp_path / "page.html").read_text(encoding="utf-8"))["tables"]["scores"]
    assert "some-model" in table["rows"][0]


@pytest.mark.usefixtures("blank_figures")
def test_runs_that_differ_only_in_a_seed_have_separate_lines(tmp_path):
    recipe = catalog.find_recipe("looped-parity")
    runs = [Run.of(replace(recipe, seed=seed, data_seed=data_seed)) for seed, data_seed in SEED_PAIRS]
    part, ends = {"low": 0, "high": 2, "count": 10}, {"early": 0, "late": 0, "right": 0}
    rule = runs[0].outline.stopping
    row = {"task": "parity", "stopping": rule, "problems": "uniform", "sizes": [8], "seed": 0, "first_wrong": {}}
    for number, run in enumerate(runs):
        run.append("metrics", {"step": 10, "loss": 0.5, "exact": {"8": 0.5}})
        run.append("scores", lw.Score("parity", "w", rule, "uniform", (8,), 9, 0.5, 0.5, 0.5, 8.0).row())
        for count, share in ((10, 0.2), (40, 0.1 * number)):  # the second of these counts
            by = {"ones": [part | {"exact": share}]}
            run.append("anatomy", row | {"count": count, "exact": share, "ends": ends, "by": by})
    found = report.build_chart_rows(runs, [])
    for chart in ("loss", "watched", "traits"):
        assert [row["seed"] for row in found[chart]] == ["0, problems 0", "0, problems 1", 1], chart
    assert [row["exact"] for row in found["traits"]] == [0.0, 0.1, 0.2]
    publish(runs[1:], tmp_path)
    traits = report.build_chart_rows(read_published_runs(tmp_path), [])["traits"]
    assert [(row["seed"], row["exact"]) for row in traits] == [(0, 0.1), (1, 0.2)]
