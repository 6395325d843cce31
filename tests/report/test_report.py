import csv
import gzip
import io
import itertools
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from conftest import command
from made_up_runs import TOP, build_run, log_losses, recipe
from rich.console import Console

from lengthwise.ask.inquiry import Inquiry, InquiryRun
from lengthwise.base.csv_files import read_csv, write_csv
from lengthwise.base.results import Claim
from lengthwise.base.schemas import ParameterRow
from lengthwise.base.score_rows import format_share
from lengthwise.base.types import Score, UsageError
from lengthwise.experiment.lengths import Curriculum, Uniform
from lengthwise.report import WORST_FAMILY, build_language_model_curves, curves, name_curves
from lengthwise.report.card import build_card_table, build_score_card, format_card_cells
from lengthwise.report.length_figure import draw_length_figure
from lengthwise.report.loss_figure import (
    build_parameter_rows,
    draw_length_counts,
    draw_loss_figure,
    draw_parameter_figure,
)
from lengthwise.report.map_figure import draw_heat_map, label_scores
from lengthwise.report.publish import publish, publish_parameters, redraw_figures
from lengthwise.report.results_folder import read_published_runs, read_table
from lengthwise.report.style import save
from lengthwise.report.tables import (
    build_detail_table,
    build_map_table,
    build_row_table,
    build_score_table,
    build_summary_rows,
    build_summary_table,
    build_worst_table,
)
from lengthwise.report.terminal import MARKERS, plot
from lengthwise.runs.folder import DIVERGED, RunFolder
from lengthwise.runs.run import Run
from lengthwise.tasks.arithmetic import Addition, Multiplication
from lengthwise.tasks.parity import Parity


def print_to_text(renderable, width=80):
    console = Console(width=width, no_color=True, force_terminal=False, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


# Curves


def test_runs_that_differ_only_in_seed_form_one_curve():
    runs = [build_run(recipe(seed=seed), (8, 1.0)) for seed in range(3)] + [build_run(recipe("other"), (8, 0.5))]
    found = [(curve.label, len(curve.rows_by_seed), curve.top) for curve in curves(runs)]
    assert found == [("looped-parity", 3, TOP), ("other", 1, TOP)]


def test_each_problem_set_and_stopping_rule_has_its_own_named_curve():
    run = build_run(recipe(), (8, 1.0), (8, 0.9, {"problems": "hard"}))
    assert name_curves(curves([run])) == ["looped-parity", "looped-parity, hard"]
    run = build_run(recipe("other"), (8, 1.0), (8, 0.9, {"stopping": "After(loops=2)"}))
    assert name_curves(curves([run])) == ["other, Oracle", "other, after 2 loops"]
    assert name_curves(curves([run])[:1]) == ["other"]


def test_only_the_last_measurement_of_a_size_is_used():
    run = build_run(recipe(), (8, 0.1), (12, 0.3), (8, 0.7))
    assert [(point.sizes, point.mean) for point in curves([run])[0].points] == [((8,), 0.7), ((12,), 0.3)]
    rows = build_two_axis_run({(4, 4): 0.0}).rows("scores") + build_two_axis_run({(4, 4): 0.5}).rows("scores")[-1:]
    rows += build_two_axis_run({(4, 4): 1.0}, name="other").rows("scores")
    values = draw_heat_map(rows, (TOP, TOP)).axes[0].collections[0].get_array()
    assert values.tolist() == [[0.75]]  # the mean over weights


def test_a_band_spans_the_measured_seeds_or_a_single_seed_s_interval():
    runs = [build_run(recipe(seed=seed), (16, share)) for seed, share in enumerate((0.5, 0.9, 0.7))]
    build_run(runs[0].recipe, (24, 0.9))
    point, single = curves(runs)[0].points
    assert (point.low, point.high, point.seed_count, point.problem_count) == (0.5, 0.9, 3, 100)
    assert (point.mean, point.standard_error) == pytest.approx((0.7, 0.2 / math.sqrt(3)))
    assert (single.low, single.high) == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert (single.seed_count, single.standard_error) == (1, None)


def test_runs_without_scores_are_refused(runs):
    with pytest.raises(UsageError, match="list at least one run"):
        curves([])
    empty = Run.of(recipe())
    with pytest.raises(UsageError, match=f"{empty.folder.name}: no scores yet"):
        curves([empty])
    assert len(curves([empty, build_run(recipe("other"), (8, 1.0))])) == 1


# Tables


def test_score_table_fits_a_terminal_and_marks_trained_sizes():
    runs = [build_run(recipe(seed=seed), *((n, 1 - n / 200) for n in range(1, 61))) for seed in range(2)]
    runs.append(build_run(recipe("standard-parity-with-a-long-name"), (8, 1.0), (60, 0.0)))
    text = print_to_text(build_score_table(curves(runs)))
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text and "1 to 2 seeds" in text
    sizes = [int(word) for word in text.splitlines()[0].split() if word.isdecimal()]
    assert (sizes[0], sizes[-1]) == (1, 60) and TOP in sizes
    row = next(line for line in text.splitlines() if line.startswith("looped-parity"))
    assert row.count("▪") == sum(size <= TOP for size in sizes)


def test_score_table_shows_the_band_rounded_outwards():
    text = print_to_text(build_score_table(curves([build_run(recipe(), (8, 0.9))])))
    assert "▪0.90 .82–.95" in text  # Wilson: 0.8256 to 0.9448
    assert "100 problems per size, 1 seed; beside exact match: 95 % interval" in " ".join(text.split())


def test_score_table_shows_the_training_range_per_row_if_ranges_differ():
    runs = [build_run(recipe(name, lengths=Uniform(top)), (8, 1.0), (16, 0.5)) for name, top in (("a", 8), ("b", 16))]
    short = recipe("products", task=Multiplication(), lengths=Curriculum(11, 1, max_per_axis=(2, 11)))
    lines = print_to_text(build_score_table(curves([*runs, build_run(short, ((2, 11), 1.0))])), 120).splitlines()
    for line, top, trained in zip(lines[2:5], ("8", "16", "2x11"), (1, 2, 1), strict=True):
        assert f" {top} " in line and line.count("▪") == trained


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "0.00"), (0.001, "<.01"), (0.005, "0.01"), (0.994, "0.99"), (0.9951, ">.99"), (0.9999, ">.99"), (1, "1.00")],
)
def test_a_fraction_between_0_and_1_is_never_rounded_to_0_or_1(fraction, text):
    assert format_share(fraction) == text


def test_detail_table_shows_every_field_of_a_score():
    run = build_run(recipe(), (8, 0.9), (16, 0.001, {"count": 1000, "problems": "hard"}))
    lines = print_to_text(build_detail_table(run.rows("scores"), (TOP,)), 120).splitlines()
    trained, beyond = (next(line for line in lines if word in line) for word in ("uniform", "hard"))
    assert "▪8" in trained
    assert "▪" not in beyond
    assert any("stopping: Oracle" in line for line in lines)  # the same in all rows, so shown once
    for part in ("█████████·", "0.900", "0.826–0.945", "8.0", "100"):
        assert part in trained
    assert "▏·········" in beyond  # a share above 0 is visible


def test_a_large_map_is_summarized_in_blocks():
    side, share = range(1, 21), {True: 1.0, False: 0.9}
    known = {(20, 20): 0.5, (8, 8): 0.68}
    cells = [((i, j), known.get((i, j), share[max(i, j) <= 8])) for i in side for j in side]
    run = build_run(recipe("sums", task=Addition()), *cells)
    text = print_to_text(build_map_table(run.rows("scores"), (8, 8)), 80)
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["1–3", "4–6", "7–9", "10–12", "13–15", "16–18", "19–20"]
    assert lines[2] == ["1–3", "1.00", "1.00", "0.97", *["0.90"] * 4]
    assert lines[8] == ["19–20", *["0.90"] * 6, "0.80"]  # the corner has one cell of four that is worse
    mean = (63.68 + 0.9 * 335 + 0.5) / 400
    assert f"mean {mean:.4f} of 400 pairs" in text and "0.9950 over the 64 pairs in training, up to 8x8" in text
    assert "worst 0.500 at 20x20" in text


# The score card

MANY_PROBLEMS = {"count": 1000}


@pytest.mark.parametrize(
    ("scores", "longest_size"),
    [
        ([(8, 1.0, MANY_PROBLEMS), (16, 1.0, MANY_PROBLEMS), (24, 0.5, MANY_PROBLEMS)], "16"),
        ([(8, 1.0, MANY_PROBLEMS), (16, 0.99, MANY_PROBLEMS)], "8"),  # the interval's lower end is below 0.99
        ([(8, 1.0, MANY_PROBLEMS), (16, 1.0)], "8"),  # 100 problems, all right, are too few to decide
        ([(16, 1.0), (24, 1.0, MANY_PROBLEMS)], "24"),
        ([(12, 0.9, MANY_PROBLEMS), (16, 1.0, MANY_PROBLEMS)], None),  # a shorter size is not solved
        ([(4, 0.9, MANY_PROBLEMS), (16, 1.0, MANY_PROBLEMS)], "16"),  # sizes within the training range do not count
        ([(8, 0.2)], None),
        ([(16, 0.5), (16, 1.0, MANY_PROBLEMS)], "16"),  # the measurement with more problems counts
    ],
)
def test_a_card_states_the_longest_size_that_is_solved_with_confidence(scores, longest_size):
    (row,) = build_score_card([build_run(recipe(), *scores)])
    assert row["longest"] == [longest_size]
    assert row["generalise"] == (longest_size in ("16", "24"))


def test_a_card_counts_diverged_seeds_and_seeds_with_uniform_scores_by_their_own_rule():
    right, wrong = (8, 1.0, MANY_PROBLEMS), (8, 0.0, MANY_PROBLEMS)
    lost = [build_run(recipe(seed=seed), *scores) for seed, scores in ((3, [wrong]), (4, []))]
    for run in lost:
        run.record_failure("at step 1", DIVERGED)
    others = [
        build_run(recipe(seed=1), (16, 1.0, MANY_PROBLEMS | {"problems": "hard"})),
        build_run(recipe(seed=2), (16, 1.0, MANY_PROBLEMS | {"stopping": "Converged"})),
    ]
    (row,) = build_score_card([build_run(recipe(), right, (16, 1.0, MANY_PROBLEMS)), *others, *lost])
    assert (row["seeds"], row["generalise"]) == (3, 1)
    assert row["longest"] == ["16", DIVERGED, DIVERGED]
    assert row["fit"] == 1.0
    (none,) = build_score_card(others)
    assert [*format_card_cells(none).values()][3:7] == ["–", "–", "not measured", "–"]


def test_a_card_has_a_row_per_recipe_that_summarizes_its_seeds():
    runs = [build_run(recipe(seed=seed), (16, share, MANY_PROBLEMS)) for seed, share in enumerate((1.0, 0.4, 1.0))]
    for run, seconds in zip(runs, (30.0, 90.0, 60.0), strict=True):
        run.write_about({"parameters": 1234, "cpu_s": seconds, "wall_s": seconds})
    runs.append(Run.of(recipe(seed=4)))  # without scores, it is not counted
    bare = build_run(recipe("looped-parity", task=Addition(), steps=10), ((8, 8), 1.0, MANY_PROBLEMS))
    per_step = {runs[0].outline.seedless_id: 2e9, bare.outline.seedless_id: 1e9}
    first, second = build_score_card([*runs, bare], per_step)
    longest = ["16", None, "16"]
    wanted = {"task": "parity", "trained_to": "8", "seeds": 3, "generalise": 2, "chosen_on": [], "worst": None}
    wanted |= {"longest": longest, "longest_uniform": longest, "fit": None, "operations": 2e11}
    assert first == {"recipe": runs[0].folder.name, **wanted, "parameters": 1234, "cpu_s": 60.0}
    wanted = {"trained_to": "8x8", "longest": ["8x8"], "generalise": 0, "operations": 1e10, "parameters": None}
    assert second | wanted | {"recipe": bare.folder.name, "cpu_s": None} == second
    shown = print_to_text(build_card_table([first, second]), width=150)
    for part in ("16, –, 16", "2 of 3", "1,234", "2.0e+11", "1.0", "8x8"):
        assert part in shown
    json.dumps([first, second])


CLAIMS = (Claim("Somebody's model", 16, "near-perfect", "text of a paper"),)


def build_summary():
    """Return a summary of two recipes at size 16: one with two seeds, one with a single seed and two rules."""
    late = {"stopping": "MaxConfidence", "count": 50}
    runs = [build_run(recipe(seed=seed), (8, 1.0), (16, share)) for seed, share in enumerate((0.99, 0.39))]
    runs.append(build_run(recipe("other"), (16, 0.123456), (16, 0.25, late), (24, 0.1)))
    return build_summary_rows("A panel", curves(runs), [16], CLAIMS)


def test_a_summary_has_a_row_per_curve_and_reported_size_and_one_per_claim():
    keys = ("who", "stopping", "size", "exact", "error", "solved", "seeds", "count")
    *ours, claim = build_summary()
    assert [tuple(row[key] for key in keys) for row in ours] == [
        ("looped-parity", "Oracle", "16", 0.69, 0.3, 1, 2, 100),
        ("other", "Oracle", "16", 0.12346, None, 0, 1, 100),
        ("other", "MaxConfidence", "16", 0.25, None, 0, 1, 50),
    ]
    published = {"published": "near-perfect", "standing": "text of a paper"}
    assert claim == {"panel": "A panel", "who": "Somebody's model", "size": 16} | published
    assert {row["panel"] for row in ours} == {"A panel"}
    json.dumps(build_summary())


def test_a_summary_selects_pairs_of_sizes_by_the_larger_size():
    rows = build_summary_rows("Sums", curves([build_two_axis_run({(2, 16): 0.5, (16, 4): 0.25, (8, 8): 1.0})]), [16])
    assert [(row["size"], row["exact"]) for row in rows] == [("2x16", 0.5), ("16x4", 0.25)]


def test_summary_table_shows_every_field_and_names_each_panel_once():
    rows = build_summary()
    lines = print_to_text(build_summary_table([*rows, {**rows[0], "panel": "Another"}]), 100).splitlines()
    panels = [number for number, line in enumerate(lines) if line.strip() in ("A panel", "Another")]
    cells = [" ".join(line.split()) for line in lines[panels[0] + 1 : panels[1]]]
    assert cells == [
        "looped-parity 16 0.690 ± 0.300 1 of 2 Oracle",
        "other 16 0.123 0 of 1 Oracle",
        "other 16 0.250 0 of 1 MaxConfidence",
        "Somebody's model 16 near-perfect published: text of a paper",
    ]


def test_row_table_shows_all_columns_and_rows_in_order():
    rows = [{"size": "8", "exact": 0.12345, "T": 8}, {"size": "12", "exact": 1.0, "two_words": "x"}]
    head, _, first, second = print_to_text(build_row_table(rows)).splitlines()
    assert head.split() == ["size", "exact", "T", "two", "words"]
    assert (first.split(), second.split()) == (["8", "0.123", "8"], ["12", "1.000", "x"])


def test_a_rule_measured_at_one_size_is_in_the_csv_but_not_in_the_figure(tmp_path):
    run = build_run(recipe(), (8, 1.0), (16, 0.5), (16, 0.25, {"stopping": "Converged"}))
    alone = build_run(recipe("other"), (16, 0.25, {"stopping": "Converged"}))  # without lines, points are drawn
    names = {"runs.json", "scores.csv", "card.json", "figures.json", "lengths.png", "lengths.svg"}
    for number, one in enumerate((run, alone)):
        paths = publish([one], tmp_path / str(number), title="Parity & more", formats=("png", "svg"))
        assert {path.name for path in paths} == {path.name for path in (tmp_path / str(number)).iterdir()} == names
    drawn = (tmp_path / "0" / "lengths.svg").read_text()
    assert "Parity &amp; more" in drawn and "Converged" not in drawn
    rows = read_csv(tmp_path / "0" / "scores.csv")
    assert [row["stopping"] for row in rows] == ["Oracle", "Oracle", "Converged"]


def test_rows_written_to_csv_are_read_back(tmp_path):
    rows = [
        {"sizes": [20, 40], "exact": 0.1, "note": 'a, "b"\nc', "none": None},
        {"sizes": [8], "later": 3, "exact": 1 / 3, "watched": {"8": 0.5, "12": 0.25}},
    ]
    path = write_csv(tmp_path / "new" / "rows.csv", rows)
    assert read_csv(path)[1] == rows[1]
    with path.open(newline="") as file:
        first = next(csv.DictReader(file))
    assert list(first) == ["sizes", "exact", "note", "none", "later", "watched.8", "watched.12"]
    assert [first[name] for name in ("sizes", "note", "none", "later")] == ["20x40", 'a, "b"\nc', "", ""]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rows.csv"]


def test_a_large_table_is_compressed_and_read_back(tmp_path):
    rows = [{"id": "x", "step": number, "loss": number / 7} for number in range(200)]
    path = tmp_path / "metrics.csv"
    assert write_csv(path, rows, max_plain_bytes=10**6) == path
    packed = write_csv(path, rows, max_plain_bytes=1000)
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv.gz"]
    assert read_csv(path) == rows
    content = packed.read_bytes()
    assert write_csv(path, rows, max_plain_bytes=1000).read_bytes() == content
    for damaged in (content[:-20], b"no gzip", gzip.compress(b"\xff\xfe")):
        packed.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"metrics\.csv\.gz: not a gzip file of UTF-8 text, or cut short"):
            read_csv(path)
    packed.write_bytes(gzip.compress(b"x" * 10**6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthwise.base.csv_files.MAX_TEXT_BYTES", 10_000)
        with pytest.raises(UsageError, match=r"metrics\.csv\.gz: too large: the limit is 10 kB of text"):
            read_csv(path)
    packed.write_bytes(content)
    assert write_csv(path, rows) == path
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_table_with_a_cell_that_csv_cannot_hold_is_refused(tmp_path):
    (tmp_path / "wide.csv").write_text("id\n" + "x" * 200_000)
    with pytest.raises(UsageError, match=r"wide\.csv: not CSV"):
        read_csv(tmp_path / "wide.csv")


def test_figure_formats_can_be_chosen_and_unknown_formats_are_refused(tmp_path):
    run = build_run(recipe(), (8, 1.0), (16, 0.5))
    assert command("report", run.folder, "--formats", "svg,pdf", "--out", tmp_path / "new").returncode == 0
    assert {path.suffix for path in (tmp_path / "new").glob("lengths.*")} == {".svg", ".pdf"}
    done = command("report", run.folder, "--formats", "gif", "--out", tmp_path / "other")
    assert done.returncode == 2 and "--formats: 'gif' is not one of png, svg, pdf" in done.stderr
    assert not (tmp_path / "other").exists()


def test_tables_without_rows_are_refused(tmp_path):
    for make in (
        lambda: build_score_table([]),
        lambda: build_detail_table([]),
        lambda: write_csv(tmp_path / "a.csv", []),
    ):
        with pytest.raises(UsageError, match=r"no scores to tabulate|no rows to write"):
            make()


# The terminal


NAN = math.nan


def test_a_plot_in_the_terminal_has_marks_where_the_values_are():
    dense = [(x / 100, 1.0) for x in range(1001)]
    shown = print_to_text(plot({"a": [(0, 0.0), (5, 0.5), (10, 1.0)], "b": [(10, 0.0)], "c": dense}, "length", top=5))
    legend, *lines = shown.splitlines()
    rows = [line[5:].ljust(71) for line in lines[:9]]  # after 4 columns of numbers and the axis
    assert legend.split() == ["exact", "match", MARKERS[0], "a", MARKERS[1], "b", MARKERS[2], "c"]
    assert rows[8][0] == rows[4][35] == MARKERS[0] and rows[8][70] == MARKERS[1]
    assert rows[0][0] == rows[0][70] == MARKERS[2]
    places = [column for column, character in enumerate(rows[0]) if character == MARKERS[2]]
    assert min(np.diff(places[:-1])) >= 6  # dense points are marked sparsely
    assert rows[7][35] == "┊" and [line[:4].strip() for line in lines[:9] if line[:4].strip()] == ["1", "0.5", "0"]
    assert lines[9].endswith(" length") and lines[10].split() == ["0", "trained", "to", "5", "10"]
    down = print_to_text(plot({"down": [(0, 1), (0, 0.5), (0, 0)]}, "x")).splitlines()
    assert [line[5] for line in down[2:5]] == ["⡇"] * 3  # the left column of dots


# Figures


def save_and_read(figure, folder):
    return [path.read_bytes() for path in save(figure, folder / "figure", ("png", "svg"))]


def build_two_axis_run(fractions, name="sums", **changes):
    part = recipe(name, task=Addition())
    return build_run(part, *((sizes, fraction, changes) for sizes, fraction in fractions.items()))


def test_figures_of_the_same_rows_are_equal_byte_for_byte(tmp_path):
    runs = [build_run(recipe(seed=seed), (8, 1.0), (16, 0.5 + seed / 10)) for seed in range(2)]
    first = draw_length_figure(curves(runs), "Parity")
    bytes_first = save_and_read(first, tmp_path)
    assert save_and_read(first, tmp_path) == bytes_first
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.fonttype": "path", "font.size": 20, "savefig.dpi": 30}):
        assert save_and_read(draw_length_figure(curves(runs), "Parity"), tmp_path) == bytes_first
    squares = build_two_axis_run({(4, 4): 1.0, (4, 12): 0.5}).rows("scores")
    first, second = (save_and_read(draw_heat_map(squares, (TOP, TOP)), tmp_path) for _ in range(2))
    assert first == second


def test_figures_are_saved_as_png_and_on_request_as_svg_with_text(tmp_path):
    before = dict(matplotlib.rcParams.copy())
    figure = draw_length_figure(curves([build_run(recipe(), (8, 1.0))]), "Parity & more")
    assert [path.name for path in save(figure, tmp_path / "alone" / "v1.5")] == ["v1.5.png"]
    png, svg = save(figure, tmp_path / "new" / "v1.5", ("png", "svg"))
    assert sorted(png.parent.iterdir()) == [png, svg] and (png.name, svg.name) == ("v1.5.png", "v1.5.svg")
    content, text = png.read_bytes(), svg.read_text()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == round(200 * figure.get_figwidth())
    for part in ("Parity &amp; more", ">exact match<", ">trained to 8<", ">looped-parity<"):
        assert part in text
    assert "dc:date" not in text and dict(matplotlib.rcParams.copy()) == before


def test_length_figure_draws_means_bands_and_the_training_range():
    runs = [build_run(recipe(seed=seed), (8, 1.0), (16, share)) for seed, share in enumerate((0.2, 0.6))]
    (axes,) = draw_length_figure(curves(runs)).axes
    edge, line = (line for line in axes.lines if len(line.get_xdata()) == 2)  # the legend's have 3
    assert edge.get_xdata()[0] == TOP
    assert line.get_xydata().tolist() == [[8, 1.0], [16, pytest.approx(0.4)]]
    shade = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (shade.x0, shade.x1) == pytest.approx((0, TOP))
    (band,) = axes.collections
    assert {y for x, y in band.get_paths()[0].vertices if x == 16} == {0.2, 0.6}
    assert axes.get_ylim() == (-0.02, 1.02)
    assert axes.get_xlabel() == "length\nlines: mean over seeds\nbands: worst to best seed"


def test_only_lines_of_several_seeds_have_bands():
    kinds = itertools.product(range(8), (0, 1))
    runs = [build_run(recipe(f"r{n}", seed=seed), (8, 1.0), (16, 0.1 * n + 0.1 * seed)) for n, seed in kinds]
    (axes,) = draw_length_figure(curves([*runs, build_run(recipe("one"), (8, 1.0), (16, 0.5))])).axes
    assert len(axes.collections) == 8
    assert axes.get_xlabel() == "length\nlines: mean over seeds\nbands: worst to best seed"


def test_labels_do_not_overlap_and_stay_inside_the_figure():
    runs = [build_run(recipe(f"a-recipe-with-quite-a-long-name-{i:02}"), (8, 1.0), (100, 0.0)) for i in range(14)]
    figure = draw_length_figure(curves(runs))
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text().isdecimal()]
    assert len(boxes) == 14
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert min(box.y0 for box in boxes) >= 0
    tops = sorted(box.y0 for box in boxes)
    assert min(np.diff(tops)) > 0.8 * boxes[0].height


def test_heat_map_has_each_value_in_its_cell():
    run = build_two_axis_run({(4, 4): 1.0, (4, 12): 0.5, (8, 4): 0.75, (8, 12): 0.25, (20, 4): 0.0, (99, 99): 0.0})
    figure = draw_heat_map(run.rows("scores"), (TOP, TOP), "sums")
    axes = figure.axes[0]
    values = axes.collections[0].get_array().filled(NAN)
    np.testing.assert_array_equal(values, [[1.0, 0.75, 0.0], [0.5, 0.25, NAN]])  # rows: the second size
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8", "20"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["4", "12"]
    outline = axes.patches[-1]
    assert (outline.get_xy(), outline.get_width(), outline.get_height()) == ((0, 0), 2, 1)
    assert axes.get_xlabel() == "first operand's digits"
    told = "mean 0.500\nworst 0.00 at 20x4"
    assert {text.get_text() for text in axes.texts} == {"1.00", "0.50", "0.75", "0.25", "0.00", told}


def test_heat_maps_average_over_runs_in_folders_of_the_same_name(tmp_path):
    cells = {(4, 4): 1.0, (4, 12): 1.0, (8, 4): 1.0}
    for seed, share in enumerate((1.0, 0.0)):
        part = recipe("sums", task=Addition(), seed=seed)
        build_run(part, *((sizes, share) for sizes in cells), folder=tmp_path / f"seed{seed}" / "run")
    runs = [Run.open(tmp_path / f"seed{seed}" / "run") for seed in range(2)]
    values = draw_heat_map(label_scores(runs), (TOP, TOP)).axes[0].collections[0].get_array().compressed()
    assert set(values.tolist()) == {0.5}


def test_the_training_range_ends_at_the_limit_of_each_axis():
    part = recipe("products", task=Multiplication(), lengths=Curriculum(TOP, 1, max_per_axis=(2, TOP)))
    run = build_run(part, ((2, 8), 1.0), ((8, 2), 1.0), ((8, 8), 1.0))
    lines = print_to_text(build_detail_table(run.rows("scores"), part.lengths.tops(2)), 120).splitlines()
    assert [word for line in lines for word in line.split() if word.startswith("▪")][:-1] == ["▪2x8"]
    assert "up to 2x8" in "".join(lines)
    (curve,) = curves([run])
    assert [curve.is_trained_size(point.sizes) for point in curve.points] == [True, False, False]
    cards = {}
    for name, scores in {
        "many": [((2, 8), 1.0, MANY_PROBLEMS), ((8, 2), 0.0)],
        "turned": [((8, 2), 1.0, MANY_PROBLEMS)],
        "failing": [((8, 2), 0.0), ((2, 12), 1.0, MANY_PROBLEMS)],  # a shorter size beyond the range is not solved
    }.items():
        (cards[name],) = build_score_card([build_run(replace(part, name=name), *scores)])
    assert [card["longest"] for card in cards.values()] == [["2x8"], ["8x2"], [None]]
    assert [card["generalise"] for card in cards.values()] == [0, 1, 0]


@pytest.mark.parametrize(("sizes", "panels"), [((4, 12), ["Oracle", "after 1 loop"]), ((16, 16), ["Oracle"])])
def test_heat_map_has_a_panel_per_rule_that_was_measured_beyond_the_diagonal(sizes, panels):
    build_two_axis_run({(4, 4): 1.0, (4, 12): 0.5, (12, 4): 0.5})
    run = build_two_axis_run({sizes: 0.5}, stopping="After(loops=1)")
    assert [axes.get_title(loc="left") for axes in draw_heat_map(run.rows("scores"), (TOP, TOP)).axes[:-1]] == panels


def test_runs_of_one_and_two_axes_share_a_table_and_figures_show_only_equal_sizes():
    pairs = build_two_axis_run({(4, 4): 0.5, (4, 12): 0.25, (12, 12): 0.25})
    text = print_to_text(build_score_table(curves([build_run(recipe(), (8, 1.0)), pairs])), 120)
    assert "4x12" in text and "1.00 .96–1" in text
    (axes,) = draw_length_figure(curves([pairs])).axes
    assert axes.lines[1].get_xydata().tolist() == [[4, 0.5], [12, 0.25]]
    assert axes.get_xlabel().startswith("digits per operand\n")


def test_if_one_axis_is_limited_scores_are_drawn_along_the_other():
    part = recipe(task=Multiplication(), lengths=Curriculum(TOP, 1, max_per_axis=(2, TOP)))
    run = build_run(part, ((1, 1), 1.0), ((2, 2), 0.9), ((2, 8), 0.8), ((2, 16), 0.7), ((1, 16), 0.6))
    (curve,) = curves([run])
    assert [(point.length, point.mean) for point in curve.diagonal] == [(1, 1.0), (2, 0.9), (8, 0.8), (16, 0.7)]
    axes = draw_length_figure([curve]).axes[0]
    assert axes.get_xlabel().startswith("second, first up to 2\n")
    (line,) = [line for line in axes.lines if len(line.get_xdata()) == 4]
    assert list(line.get_xdata()) == [1, 2, 8, 16]
    head = print_to_text(build_score_table([curve])).splitlines()[0]
    assert "2x16" in head and "1x16" in head  # there is room for all
    build_run(part, *(((1, size), 0.6) for size in (3, 4, 5, 6)))
    head = print_to_text(build_score_table(curves([Run.of(part)]))).splitlines()[0]
    assert "2x16" in head and "1x16" not in head


def test_loss_figure_shows_losses_their_running_mean_and_watched_sizes():
    run = log_losses(recipe(), [0.5] * 30, [(100, {"8": 0.5}), (200, {"8": 1.0})])
    loss, exact = draw_loss_figure([run, log_losses(recipe("b"), [NAN, 0.0, 0.1])]).axes
    assert "bold: running geometric mean; thin: as logged" in [text.get_text() for text in loss.texts]
    assert loss.get_yscale() == "log"
    raw, smooth, short = loss.lines[0], loss.lines[1], loss.lines[2]
    assert raw.get_linewidth() < smooth.get_linewidth()
    assert smooth.get_ydata() == pytest.approx([0.5] * 30)
    assert short.get_xydata().tolist() == [[30, 0.1]]
    assert exact.lines[0].get_xydata().tolist() == [[100, 0.5], [200, 1.0]]
    assert exact.get_xlabel() == "steps"


def test_figures_without_data_are_refused():
    run, broken = build_run(recipe(), (8, 1.0)), log_losses(recipe("broken"), [NAN, math.inf, 0.0])
    for make, what in (
        (lambda: draw_length_figure([]), "no scores to plot"),
        (lambda: draw_length_figure(curves([build_two_axis_run({(4, 12): 1.0})])), "heat map"),
        (lambda: draw_heat_map(run.rows("scores"), (TOP, TOP)), "no scores at pairs of sizes"),
        (lambda: draw_loss_figure([]), "list at least one run"),
        (lambda: draw_loss_figure([run, broken]), "no loss to draw"),
        (lambda: draw_parameter_figure([]), "no run logged a validation loss"),
        (lambda: draw_length_counts({}), "no problems were counted"),
    ):
        with pytest.raises(UsageError, match=what):
            make()


def test_tables_need_no_matplotlib_and_figures_no_pyplot(tmp_path):
    run = build_run(recipe(), (8, 1.0))
    program = """
import json, sys
import lengthwise.report.tables, lengthwise.report.terminal
early = [name for name in sys.modules if name.startswith("matplotlib")]
from lengthwise.report.card import build_card_table, build_score_card
from lengthwise.report.map_figure import draw_heat_map
from lengthwise.report.style import save
save(draw_heat_map([json.loads(sys.argv[1])], (8, 8)), sys.argv[2])
print(json.dumps([early, "matplotlib.pyplot" in sys.modules]))
"""
    row = json.dumps(run.rows("scores")[0] | {"sizes": [8, 8]})
    command = [sys.executable, "-W", "error", "-c", program, row, str(tmp_path / "map")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == [[], False]


# Language models


def build_inquiry(*scores, problems="uniform", **changes):
    """Return the results of a language model, with a row per pair of a size and its exact match."""
    run = InquiryRun.of(Inquiry("http://x/v1", "org/model", Parity(), "Well?", problems=problems, **changes))
    for size, exact in scores:
        score = Score("parity", "org/model", "", problems, (size,), 100, exact, exact, exact, 0.0)
        run.append("scores", score.row() | {"seed": 0, "asked": 100, "chatter": 0})
    return run


def test_reports_show_language_models_beside_trained_models(tmp_path):
    run, asked = build_run(recipe(), (8, 1.0), (12, 0.9)), build_inquiry((8, 0.7), (12, 0.2))
    lines = curves([run]) + build_language_model_curves([asked])
    assert name_curves(lines) == ["looped-parity", "org/model"]
    text = print_to_text(build_score_table(lines))
    assert text.splitlines()[0].split()[-4:] == ["trained", "to", "8", "12"]
    assert re.search(r"org/model +– +0.70 .60–.79", text) and re.search(r"training range, up to 8 *\n", text)
    (axes,) = draw_length_figure(lines).axes
    assert "trained to 8" in [note.get_text() for note in axes.texts]
    publish([run], tmp_path, inquiries=[asked])
    rows = [(row["recipe_name"], row["sizes"], row["exact"]) for row in read_csv(tmp_path / "scores.csv")]
    assert rows[2:] == [("org/model", [8], 0.7), ("org/model", [12], 0.2)]
    assert [row["recipe"] for row in json.loads((tmp_path / "card.json").read_text())] == ["looped-parity"]
    (record,) = json.loads((tmp_path / "inquiries.json").read_text())
    assert (record["model"], record["endpoint"], record["id"]) == ("org/model", "http://x/v1", asked.inquiry.id)
    assert [one.rows("scores") for one in read_published_runs(tmp_path)] == [run.rows("scores")]
    redraw_figures(tmp_path, tmp_path / "again")
    assert (tmp_path / "again" / "lengths.png").read_bytes() == (tmp_path / "lengths.png").read_bytes()
    del record["outline"]
    (tmp_path / "inquiries.json").write_text(json.dumps([record]))
    with pytest.raises(UsageError, match=r"inquiries\.json: .* has no outline"):
        redraw_figures(tmp_path, tmp_path / "again")


def test_a_report_of_only_language_models_does_not_mention_training(tmp_path):
    lines = build_language_model_curves([build_inquiry((8, 0.7), (12, 0.2))])
    assert "train" not in print_to_text(build_score_table(lines))
    assert not any("train" in note.get_text() for note in draw_length_figure(lines).axes[0].texts)
    files = publish([], tmp_path, inquiries=[build_inquiry((8, 0.7), (12, 0.2)), build_inquiry(seed=1)])
    names = {"figures.json", "inquiries.json", "lengths.png", "runs.json", "scores.csv"}
    assert {path.name for path in files} == names


def test_a_model_asked_in_several_ways_has_distinct_labels():
    first, hard = build_inquiry((8, 0.7)), build_inquiry((8, 0.1), problems="hard")
    assert name_curves(build_language_model_curves([first, hard])) == ["org/model", "org/model, hard"]
    other = build_inquiry((8, 0.6), seed=1)
    found = name_curves(build_language_model_curves([first, hard, other]))
    assert found == [first.folder.name, "org/model, hard", other.folder.name]
    assert build_language_model_curves([build_inquiry(seed=2)]) == []


def test_the_report_command_accepts_runs_and_language_models_together(tmp_path):
    run, asked = build_run(recipe(), (8, 1.0), (12, 0.9)), build_inquiry((8, 0.7), (12, 0.2))
    done = command("report", run.folder, asked.folder.name, "--out", tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["exact"] for row in json.loads(done.stdout)["scores"]] == [1.0, 0.9, 0.7, 0.2]
    assert {path.name for path in tmp_path.iterdir()} >= {"inquiries.json", "runs.json"}
    begun = Run.of(recipe("begun"))
    advice = f"its training has not ended; `lengthwise train {begun.folder}` continues it"
    done = command("report", begun.folder, "--out", tmp_path)
    assert done.returncode == 0 and " ".join(done.stdout.split()).startswith(f"no scores yet: {advice} ")
    with pytest.raises(UsageError, match=re.escape(advice)):
        curves([begun])
    (begun.folder / "model.safetensors").touch()
    done = command("report", begun.folder, "--out", tmp_path)
    assert done.stdout.startswith("no scores yet: `lengthwise evaluate RUN` measures a run\n")
    done = command("report", asked.folder, "--stopping")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.endswith("has no loops: omit this folder\n")


# Against parameters


def build_loss_run(name, seed, parameters, losses, exact_within=None, exact_beyond=None, **changes):
    part = recipe(name, seed=seed, **changes)
    sizes = [(TOP // 2, exact_within and 0.0), (TOP, exact_within), (2 * TOP, exact_beyond)]  # the last counts
    natural = [(size, share, {"problems": "natural"}) for size, share in sizes if share is not None]
    run = build_run(part, (TOP, 0.1), *natural)
    run.append("metrics", *({"step": 10 * i, "validation_loss": loss} for i, loss in enumerate(losses, 1)))
    run.write_about({"parameters": parameters, "cpu_s": 60.0, "wall_s": 70.0})
    return run


def test_only_runs_with_a_validation_loss_have_a_parameter_row():
    runs = [build_loss_run("a", 0, 100, [0.5, 0.2, 0.3], 0.9, 0.4), build_loss_run("b", 1, 900, [0.1])]
    first, second = build_parameter_rows([*runs, build_run(recipe("c"), (8, 1.0))])
    assert (first["validation_loss"], first["within"], first["beyond"]) == (0.2, 0.9, 0.4)
    assert (second["seed"], second["parameters"], second["within"], second["beyond"]) == (1, 900, None, None)
    assert first["model"] == "Transformer"


def test_the_parameter_figure_draws_lines_through_the_means_over_seeds():
    runs = [build_loss_run("a", seed, 100, [0.2], share, 0.1) for seed, share in enumerate((0.4, 0.8))]
    rows = build_parameter_rows([*runs, build_loss_run("b", 0, 900, [0.1], 0.9, 0.3)])
    claims = (Claim("Somebody", 8, "0.55", "text", 0.55), Claim("Another", 8, "near-perfect", "text"))
    left, right = draw_parameter_figure(rows, claims).axes
    lines = [line.get_xydata().tolist() for line in left.lines]
    assert [[100, pytest.approx(0.6)], [900, 0.9]] in lines
    assert [[100, 0.1], [900, 0.3]] in lines
    assert [line.get_ydata()[0] for line in left.lines if line.get_label() == "Somebody"] == [0.55]
    assert [[100, pytest.approx(0.2)], [900, 0.1]] in [line.get_xydata().tolist() for line in right.lines]
    assert [tick.get_text() for tick in left.get_xticklabels() if "×" in tick.get_text()] == []


def test_a_folder_that_is_named_twice_is_published_once(tmp_path):
    run, asked = build_run(recipe(), (8, 1.0)), build_inquiry((8, 0.7), (12, 0.2))
    publish([run, RunFolder(run.folder)], tmp_path, inquiries=[asked, InquiryRun.open(asked.folder)])
    assert [len(read_published_runs(tmp_path)), len(read_csv(tmp_path / "scores.csv"))] == [1, 3]


@pytest.mark.usefixtures("blank_figures")
def test_each_point_of_the_parameter_figure_is_the_mean_of_one_recipe_by_its_own_rule(tmp_path):
    run, alike = build_loss_run("a", 0, 100, [0.2], 0.4, 0.1), build_loss_run("b", 0, 100, [0.3], 0.8)
    build_run(alike.recipe, (2 * TOP, 0.9, {"problems": "natural", "stopping": "After(loops=1)"}))

    def publish_and_draw(*runs):
        publish_parameters(runs, (), tmp_path)
        rows = read_table(tmp_path / "parameters.csv", ParameterRow)
        return [line.get_xydata().tolist() for line in draw_parameter_figure(rows).axes[0].lines]

    first = publish_and_draw(run, alike)
    assert [[100, 0.4], [100, 0.8]] in first and [[100, 0.1]] in first
    changed = build_loss_run("a", 1, 100, [0.2], 0.6, 0.1, steps=200)
    assert [[100, 0.6], [100, 0.8]] in publish_and_draw(changed)
    path = tmp_path / "parameters.csv"
    rows = read_table(path, ParameterRow)
    write_csv(path, [{name: row[name] for name in row if name != "id"} for row in rows])  # of an earlier version
    assert [[100, 0.6], [100, 0.8], [900, 0.9]] in publish_and_draw(build_loss_run("a", 2, 900, [0.1], 0.9, steps=200))


def test_the_distribution_has_a_bar_per_length():
    (axes,) = draw_length_counts({8: 5, 9: 7, 11: 2}).axes
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axes.patches}
    assert bars == {8: 5, 9: 7, 11: 2}


# What a report must not claim


def test_the_worst_family_is_an_unsolved_one_even_if_only_one_seed_measured_it():
    right, wrong = (8, 1.0, {"problems": "all-highest"}), (8, 0.5, {"problems": "hard"})
    runs = [build_run(recipe(seed=seed), (8, 1.0), right) for seed in range(2)]
    runs.append(build_run(recipe(seed=2), (8, 1.0), right, wrong))
    for number, family in ((3, "hard"), (2, "all-highest")):
        (worst,) = [curve for curve in curves(runs[:number]) if curve.problems == WORST_FAMILY]
        assert worst.points[0].families == (family,)
    assert "worst family hard at 8" in print_to_text(build_score_table(curves(runs)))


@pytest.mark.usefixtures("blank_figures")
def test_publishing_removes_files_of_earlier_runs(tmp_path):
    before, now = build_run(recipe(), (8, 1.0), (12, 0.9)), build_run(recipe(steps=200), (8, 1.0))
    anatomy = {"task": "parity", "weights": "w", "seed": 0, "sizes": [8], "problems": "uniform", "stopping": "Oracle"}
    anatomy |= {"count": 10, "exact": 0.9, "ends": {"early": 0, "late": 0, "right": 1}, "first_wrong": {"1": 1}}
    before.append("anatomy", anatomy | {"by": {}})
    publish([before], tmp_path / "both", inquiries=[build_inquiry((8, 0.7), (12, 0.1))])
    assert (tmp_path / "both" / "anatomy-looped-parity.json").exists()
    own = ["lengths.tex", "map-notes.md", "notes.json", "scores"]
    for name in own[:-1]:
        (tmp_path / "both" / name).write_text("{}")
    (tmp_path / "both" / own[-1]).mkdir()
    for name in ("both", "one"):
        publish([now], tmp_path / name)
    names = [{path.name for path in (tmp_path / name).iterdir()} for name in ("both", "one")]
    assert names[0] - names[1] == {*own} and names[1] <= names[0]


@pytest.mark.parametrize("sizes", [range(1, 22, 2), range(101, 126, 2)], ids=str)
def test_a_map_of_any_sizes_has_ticks(sizes):
    run = build_two_axis_run({(i, j): 0.5 for i in sizes for j in sizes})
    axes = draw_heat_map(label_scores([run]), (TOP, TOP)).axes[0]
    assert 4 <= len(axes.get_xticklabels()) <= 10 and 4 <= len(axes.get_yticklabels()) <= 10


def test_no_table_or_map_rounds_a_fraction_to_one():
    run = build_run(recipe(), (8, 1.0), (8, 0.9975, {"problems": "runs"}))
    assert format_card_cells(build_score_card([run])[0])["worst family"] == "runs >.99 at 8"
    rows = [row | {"exact": 0.9997, "high": 0.9999, "token_accuracy": 0.9999} for row in run.rows("scores")]
    text = print_to_text(build_detail_table(rows, (8,)))
    assert ">.999" in text and "1.000" not in text
    assert format_share(0.9996, 3) == ">.999" and format_share(0.0004, 3) == "<.001" and format_share(1.0, 3) == "1.000"
    shares = {(i, j): 0.996 for i in range(1, 4) for j in range(1, 4)}
    (axes, _) = draw_heat_map(label_scores([build_two_axis_run(shares)]), (TOP, TOP)).axes
    texts = [text.get_text() for text in axes.texts]
    assert any("worst >.99" in text for text in texts) and not any("1.00" in text for text in texts)
    assert "0.9995 " not in print_to_text(build_worst_table(run.rows("scores"), (8,)))


@pytest.mark.parametrize("folder", ["lengthwise", "docs"])
def test_fractions_are_formatted_by_one_function(folder):
    """No other code may format exact match or its interval, since it could round .9997 to 1.000."""
    rounds = re.compile(r"((exact|accuracy|low|high|lenient|confidence)[\w\"')\]]*|mean\([^}]*\)):\.\d[f%]\}")
    root = Path(__file__).parents[2] / folder
    files = [path for kind in ("py", "js") for path in root.rglob(f"*.{kind}") if "vendor" not in path.parts]
    lines = [(path.name, line.strip()) for path in files for line in path.read_text().splitlines()]
    assert [pair for pair in lines if rounds.search(pair[1])] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "8"], "--lengths can only be used with --stopping"),
        (["--samples", "3"], "--samples can only be used with --stopping"),
        (["--device", "cpu"], "--device can only be used with --stopping"),
        (["--stopping", "--device", "gpu"], "device: 'gpu' is not available; available are: auto, cpu"),
        (["--html", "page.html", "--stopping"], "--html, --matrix and --stopping exclude each other"),
        (["--html", "page.html", "--width", "page", "--out", "x"], "omit --out, --width,"),
        (["--html", "."], "that is a folder"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
@pytest.mark.parametrize("is_published", [False, True], ids=["run", "results"])
@pytest.mark.usefixtures("blank_figures")
def test_options_that_would_do_nothing_are_refused(words, message, is_published, tmp_path, monkeypatch):
    run = build_run(recipe(), (8, 1.0), (12, 0.9))
    if is_published:
        publish([run], tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    done = command("report", tmp_path / "results" if is_published else run.folder, *words)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"results", "runs"}


def test_scores_over_all_problems_decide_the_fit_and_do_not_count_as_a_family():
    every, two_odd = {"problems": "every"}, {"problems": "two-odd"}
    run = build_run(recipe(), (8, 0.7), (16, 0.5), (7, 0.9, every), (8, 0.719, every), (16, 0.25, two_odd))
    text = " ".join(print_to_text(build_score_table(curves([run]))).split())
    assert name_curves(curves([run]))[0] == "looped-parity, not fitted: 0.719 at 8 (all problems)"
    assert "worst family two-odd at 16; all problems measured, some wrong, at 7, 8" in text
    (card,) = build_score_card([run])
    assert card["worst"]["family"] == "every" and "all problems 0.72 at 8" in format_card_cells(card).values()
