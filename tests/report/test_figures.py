"""Properties of all figures: style, width, and redrawing from published rows."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from conftest import command
from jaxtyping import config
from made_up_runs import TOP, build_run, log_losses, recipe

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.report import WORST_FAMILY, Curve, curves
from lengthwise.report.depth_figure import draw_depth_figure
from lengthwise.report.length_figure import draw_length_figure, draw_overview_figure, draw_score_figure, split_panels
from lengthwise.report.lines import line_style, shorten_labels
from lengthwise.report.loss_figure import compute_running_geometric_mean, draw_loss_figure, draw_parameter_figure
from lengthwise.report.publish import _draw_figures, publish, publish_overview
from lengthwise.report.results_folder import read_published_runs
from lengthwise.report.style import WIDTHS, new_figure, save
from lengthwise.runs.folder import SHIPPED_FOLDER


def build_study_curves(panel):
    """Return the curves of a study's panel: every recipe with each of its stopping rules, on uniform problems and on
    the worst family."""
    kinds = product(panel.recipes, ("uniform", WORST_FAMILY))
    score = lw.Score("parity", "w", "", "", (4,), 100, 0.5, 0.5, 0.5, 1.0)
    return [
        Curve(one.name, 4, ("length",), kind, rule, {(0, 0): [replace(score, problems=kind, stopping=rule).row()]})
        for one, kind in kinds
        for rule in (rule.name for rule in panel.rules(one))
    ]


FAMILY_FIELDS = {"problems": "a-family"}


def find_repeated_styles(figure):
    """Return a tuple per colour and dash that several lines of an axes share: the axes' title and the lines' names."""
    found = []
    for axes in figure.axes:
        seen = {}
        for line in axes.lines:
            if not line.get_label().startswith("_"):
                seen.setdefault((line.get_color(), str(line._unscaled_dash_pattern)), set()).add(line.get_label())
        found += [(axes.get_title(loc="left"), *names) for names in seen.values() if len(names) > 1]
    return found


def find_named_lines(axes):
    """Return the named lines of the axes, by name."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


@pytest.mark.parametrize("name", sorted(catalog.list_studies()))
def test_curves_of_a_study_differ_in_colour_or_dash(name):
    study = catalog.find_study(name, **({"tasks": "all"} if name in ("looped", "controls") else {}))
    for panel in study.panels:
        assert panel.highlight in ("", *(one.name for one in panel.recipes))
        for part in split_panels(build_study_curves(panel), panel.highlight)[0]:
            pairs = [(one.colour, str(one.dash)) for one in part.styles]
            assert len(set(pairs)) == len(pairs), f"{panel.title}: {part.title}"
            assert len({one.name for one in part.styles}) == len(pairs)


def test_lines_of_a_figure_differ_in_colour_or_dash():
    names = [f"form-{number}" for number in range(8)]
    scores = [(size, 0.5, changes) for size in (4, 8) for changes in ({}, FAMILY_FIELDS)]
    runs = [build_run(recipe(name), *scores) for name in names]
    assert find_repeated_styles(draw_score_figure(runs)) == []
    alone = [(n, 0.5, {"problems": f"family-{i}", "family": "alone"}) for i in range(7) for n in (8, 12)]
    assert find_repeated_styles(draw_score_figure([build_run(recipe("many"), (8, 1.0), (12, 0.9), *alone)])) == []
    runs = [log_losses(recipe(name), [0.5, 0.1], [(10, {"8": 0.5, "12": 0.1})]) for name in names]
    assert find_repeated_styles(draw_loss_figure(runs)) == []
    sizes = [{"recipe": name, "model": name, "parameters": 9, "validation_loss": 1.0, "within": 1.0, "beyond": 0.5}
             for name in names]  # fmt: skip
    assert find_repeated_styles(draw_parameter_figure(sizes)) == []


def test_line_styles_never_repeat():
    looks = [line_style(number, name="") for number in range(100)]
    assert len({(one.colour, one.dash) for one in looks}) == 100
    twins = [line_style(number, twin, name="") for number in range(7) for twin in range(3)]
    assert len({(one.colour, one.dash) for one in twins}) == 21


@pytest.mark.parametrize(
    ("labels", "heading", "short_labels"),
    [
        (["ablation-parity-ours", "ablation-parity-once"], "full names: ablation-parity-…", ["ours", "once"]),
        (["ntp-parity", "fop-parity", "fop-loop-parity"], "full names: …-parity", ["ntp", "fop", "fop-loop"]),
        (["a-b", "a-b-c"], "full names: a-…", ["b", "b-c"]),
        (["same", "same"], "", ["same", "same"]),
        (["looped", "standard"], "", ["looped", "standard"]),
    ],
)
def test_common_parts_of_labels_are_shown_once(labels, heading, short_labels):
    assert shorten_labels(labels) == (heading, short_labels)


@pytest.mark.parametrize("width", ["column", "page"])
def test_figures_have_the_width_of_a_column_or_a_page_and_hold_all_their_text(width):
    names = [f"a-recipe-{name}" for name in ("of-ours", "of-others", "that-is-long")]
    runs = [build_run(recipe(name), (8, 1.0), (16, 0.5)) for name in names]
    depth = {"sizes": [8], "exact": [0.5, 1.0], "confidence": [-1.0, 0.0],
             "chosen": {rule: {"mean": 2, "low": 2, "high": 2} for rule in ("oracle", "batch", "example")}}  # fmt: skip
    for figure in (draw_score_figure(runs, width=width), draw_depth_figure([depth], "loops", width=width)):
        assert figure.get_figwidth() == WIDTHS[width]
        box = figure.get_tightbbox()
        assert box.x0 >= 0 and box.x1 <= WIDTHS[width]
    pairs = build_run(recipe("sums", task=lw.Addition()), ((8, 4), 1.0), ((4, 8), 0.5))
    assert draw_score_figure([pairs], width=width).get_figwidth() <= WIDTHS[width]


def test_the_figure_of_a_run_shows_uniform_problems_beside_the_worst_family():
    run = build_run(recipe("mine"), (8, 1.0), (16, 0.5), (8, 0.25, FAMILY_FIELDS), (16, 0.0, FAMILY_FIELDS))
    figure = draw_score_figure([run])
    (axes,) = figure.axes
    assert [*find_named_lines(axes)] == ["mine", "mine, worst family"]
    uniform, worst = find_named_lines(axes).values()
    assert (uniform.get_ydata().tolist(), worst.get_ydata().tolist()) == ([1.0, 0.5], [0.25, 0.0])
    assert uniform.get_color() == worst.get_color() and worst.is_dashed() and not uniform.is_dashed()
    assert axes.get_title(loc="left") == "Parity, trained on up to 8"
    content, size = figure._repr_png_()  # what a notebook shows
    assert content.startswith(b"\x89PNG") and size["width"] == 96 * WIDTHS["page"]


def test_a_line_joins_only_means_over_the_same_seeds():
    runs = [build_run(recipe("mine", seed=seed), (8, 1.0), (16, exact)) for seed, exact in enumerate((0.5, 0.9))]
    build_run(runs[0].recipe, (12, 0.1), (24, 0.2))
    (axes,) = draw_score_figure(runs).axes
    (line,) = find_named_lines(axes).values()
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([8, 16], [1.0, 0.7])
    apart = [dot for dot in axes.lines if dot.get_linestyle() == "None"]
    assert [(*dot.get_xdata(), *dot.get_ydata()) for dot in apart] == [(12, 0.1), (24, 0.2)]
    assert axes.get_xlim()[1] > 24 and "separate markers: fewer seeds" in axes.get_xlabel()
    assert "fewer seeds" not in draw_score_figure(runs[1:]).axes[0].get_xlabel()


def test_the_highlighted_recipe_has_a_wider_line():
    runs = [build_run(recipe(name), (8, 1.0), (TOP * 2, 0.5)) for name in ("some-other", "some-ours")]
    (axes,) = draw_length_figure(curves(runs), highlight="some-ours").axes
    assert find_named_lines(axes)["ours"].get_linewidth() > find_named_lines(axes)["other"].get_linewidth()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tasks", [(lw.Parity(), lw.Copy()), (lw.Parity(),)])
def test_a_figure_of_many_recipes_stays_readable(tasks, width):
    """Many recipes of several tasks have a panel per task, and a legend never covers a panel."""
    recipes = [recipe(f"{task.name}-method-{number}", task=task) for task in tasks for number in range(24)]
    runs = [build_run(one, (8, 1.0), (16, 0.5)) for one in recipes]
    figure = _draw_figures(runs, [], "Many", None, width)["lengths"]
    assert len(figure.axes) == len(tasks)
    figure.draw_without_rendering()
    bottom = min(axes.get_tightbbox().y0 for axes in figure.axes)
    for legend in figure.legends:
        assert legend.get_window_extent().y1 <= bottom + 1
    assert all(axes.get_window_extent().height / figure.dpi > 0.7 for axes in figure.axes)


def test_users_can_draw_figures_in_the_package_s_style(tmp_path):
    with lw.style("column"):
        figure = new_figure("column", 2)
        axes = figure.add_subplot()
        for height in range(35):
            axes.plot([0, 1], [height, height], label=str(height))
    assert find_repeated_styles(figure) == []
    (path,) = save(new_figure("column", 1), tmp_path / "mine", ("pdf",))
    assert path.read_bytes().startswith(b"%PDF")
    config.update("jaxtyping_disable", True)  # without type checks, as for users
    with pytest.raises(lw.UsageError, match="'column' or 'page', not 'half'"), lw.style("half"):
        pass


def test_the_running_mean_is_centred_and_follows_a_steep_fall_at_the_start():
    """The loss drops a thousandfold within the first hundredth of the steps, then varies little."""
    fall = [2.0**-step for step in range(200)]
    means = compute_running_geometric_mean(fall)
    assert means[:190] == pytest.approx(fall[:190], rel=1e-3)  # a trailing mean would lag
    losses = [2.0 * 10 ** (-step / 3) if step < 10 else 1e-3 * (1 + step % 2) for step in range(1000)]
    means = compute_running_geometric_mean(losses)
    assert means[0] == losses[0] and all(loss / 3 < mean < 3 * loss for mean, loss in zip(means, losses, strict=True))
    assert all(mean == pytest.approx(1e-3 * 2**0.5, rel=0.1) for mean in means[200:])


def test_published_figures_can_be_redrawn(tmp_path):
    run = build_run(recipe(), (8, 1.0), (16, 0.5), (8, 0.25, {"problems": "a-family"}))
    rows = [{"step": step, "loss": 1 / step, "exact": {"8": 0.5}} for step in (10, 20)]
    run.append("metrics", *rows)
    other = build_run(recipe("other", seed=1), (8, 0.5), (16, 0.25))
    publish([run, other], tmp_path / "first", highlight="other")
    done = command("report", tmp_path / "first", "--out", tmp_path / "again", "--json")
    again = [Path(name) for name in json.loads(done.stdout)["files"]]
    assert {path.name for path in again} == {"lengths.png", "loss.png"}
    for path in again:
        assert path.parent == tmp_path / "again" / "first"
        assert path.read_bytes() == (tmp_path / "first" / path.name).read_bytes()
    done = command("report", tmp_path / "first", run.folder)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "omit runs and --stopping" in done.stderr


def publish_task(task, folder):
    """Publish a study of one task: two methods with a second rule and a family, and one without scores."""
    further = [(16, 0.9, {"stopping": "Converged"}), (16, 0.8, FAMILY_FIELDS)]
    runs = [
        build_run(recipe(f"half-{name}-{task}"), (8, share), (16, share / 2), *further)
        for name, share in (("ntp", 0.5), ("loop", 1.0))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthwise.report.publish._draw_figures", lambda *_: {})
        publish([*runs, log_losses(recipe(f"half-none-{task}"), [1.0])], folder / task)


@pytest.mark.usefixtures("blank_figures")
def test_an_overview_has_a_panel_per_task_and_a_line_style_per_method(tmp_path):
    for task in ("parity", "binary-sum"):
        publish_task(task, tmp_path)
    groups = {name: read_published_runs(tmp_path / name) for name in ("parity", "binary-sum")}
    first, second = draw_overview_figure(groups, highlight="loop").axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["parity", "binary-sum"]
    for axes in (first, second):
        lines = find_named_lines(axes)
        assert [lines[name].get_ydata().tolist() for name in ("ntp", "loop")] == [[0.5, 0.25], [1.0, 0.5]]
        assert lines["loop"].get_linewidth() > lines["ntp"].get_linewidth()
        assert lines["loop"].get_color() == find_named_lines(first)["loop"].get_color() != lines["ntp"].get_color()


def test_an_overview_keeps_its_earlier_panels_and_can_be_redrawn(tmp_path):
    for task in ("parity", "copy"):
        publish_task(task, tmp_path / "first")
    (alone,) = publish_overview(["parity"], tmp_path / "first", title="Study", highlight="loop")
    about, figure = publish_overview(["copy", "parity"], tmp_path / "first", title="Study", highlight="loop")
    assert about == alone and json.loads(about.read_text())["panels"] == ["parity", "copy"]
    done = command("report", tmp_path / "first", "--out", tmp_path / "again", "--json")
    (again,) = map(Path, json.loads(done.stdout)["files"])
    assert again == tmp_path / "again" / "first" / "overview.png" and again.read_bytes() == figure.read_bytes()
    with pytest.raises(lw.UsageError, match="no scores to plot"):
        draw_overview_figure({"none": []})


def test_all_panels_use_the_same_labels_for_methods(tmp_path):
    full = [build_run(recipe(f"half-{name}-parity"), (8, 1.0), (16, 0.5)) for name in ("ntp", "loop", "loop-wo")]
    for few in (["loop"], ["loop", "loop-wo"]):
        runs = [build_run(recipe(f"half-{name}-unique-set"), (8, 1.0), (16, 0.25)) for name in few]
        axes = draw_overview_figure({"Parity": full, "Unique set": runs}).axes[1]
        assert [*find_named_lines(axes)] == few


@pytest.mark.usefixtures("blank_figures")
def test_an_overview_shows_scores_by_the_recipe_s_own_stopping_rule(tmp_path):
    """The order in which the stopping rules were measured does not matter."""
    exact = {"Oracle": 0.5, "Converged": 0.25}
    for name, order in (("first", [*exact]), ("last", [*exact][::-1])):
        of = [(size, exact[rule], {"stopping": rule}) for rule in order for size in (8, 16)]
        publish([build_run(recipe("half-loop-parity"), *of, folder=tmp_path / name)], tmp_path / "out" / name)
    groups = {name: read_published_runs(tmp_path / "out" / name) for name in ("first", "last")}
    for axes in draw_overview_figure(groups).axes:
        assert [0.5, 0.5] in [[*line.get_ydata()] for line in axes.lines]


def test_a_heat_map_of_several_recipes_is_refused():

    part = replace(recipe("one"), task=lw.Addition(10, "least"))
    exact = {"right": 1.0, "wrong": 0.0}
    runs = [build_run(replace(part, name=name), ((4, 8), share), ((2, 6), share)) for name, share in exact.items()]
    assert draw_score_figure(runs[:1])
    with pytest.raises(lw.UsageError, match="a heat map of one recipe can show: draw recipes separately"):
        draw_score_figure(runs)


def test_a_stopping_report_of_shipped_weights_does_not_change_their_folder(tmp_path):
    folder, out = tmp_path / "looped-parity", tmp_path / "out"
    shutil.copytree(SHIPPED_FOLDER / "looped-parity", folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    words = ["--stopping", "--lengths", "4", "--samples", "8", "--out", out, "--quiet"]
    assert command("report", folder, *words).returncode == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert (out / "stopping-looped-parity.png").exists()
