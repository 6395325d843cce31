"""Files of problems as tasks: reading, splitting, and reports of faults."""

import csv
import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from task_cases import assert_laws

import lengthwise as lw
from lengthwise.api.catalog import find_recipe
from lengthwise.cli import entry
from lengthwise.evaluation.attack import attack
from lengthwise.evaluation.families import enumerate_problems
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment import data
from lengthwise.experiment.data import choose_default_sizes
from lengthwise.nn.convolution import Convolution
from lengthwise.runs.folder import get_runs_folder
from lengthwise.tasks.problem_file import PARTS, STAND_INS, list_errors
from lengthwise.testing import laws_of_tasks
from lengthwise.testing.laws_of_tasks import decode_problems
from lengthwise.training.trainer import try_training
from lengthwise.training.validation import Validator

CPU = torch.device("cpu")
RECIPE = find_recipe("fop-loop-adaptive-copy")


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def generate_parities(lengths):
    for length in lengths:
        for number in range(2**length):
            prompt = f"{number:0{length}b}"
            yield {"prompt": prompt, "answer": str(prompt.count("1") % 2)}


def build_recipe(task, **changes):
    model = replace(RECIPE.model, width=16, heads=2, layers=1)
    given = {"lengths": lw.Uniform(top=8), "watch": lw.Watch(), "batch": 16, "steps": 3, "ema": 0.0, "model": model}
    return replace(RECIPE, task=task, **(given | changes))


@pytest.fixture(scope="module")
def parities(tmp_path_factory):
    """Return a file of all rows of 1 to 10 bits and their parities."""
    return lw.File(str(write_rows(tmp_path_factory.mktemp("bits") / "parity.jsonl", generate_parities(range(1, 11)))))


@pytest.mark.parametrize("name", ["parities", "walks", "grid_task"])
def test_files_satisfy_the_laws_of_tasks(name, request, monkeypatch):
    monkeypatch.setattr(laws_of_tasks, "POOL_SIZE", 600)
    assert_laws(request.getfixturevalue(name), monkeypatch)


def test_splits_are_disjoint_and_cover_all_problems(parities):
    parts = [parities.select_part(purpose) for purpose in PARTS]
    prompts = [
        {p for p, _ in decode_problems(part, part.sample_natural(4000, 1, 10, lw.stream(0, "pool")))} for part in parts
    ]
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == 2**11 - 2
    shares = [len(found) / (2**11 - 2) for found in prompts]
    assert shares == pytest.approx([10 / 13, 2 / 13, 1 / 13], abs=0.02)


@pytest.mark.parametrize("source", [None, lw.Finite(rows=300)], ids=["fresh", "fixed"])
def test_training_validation_and_tests_share_no_prompt(parities, source):
    recipe = build_recipe(
        parities, watch=lw.Watch(every=1, sizes=(8,), validation=50), **({"source": source} if source else {})
    )
    draw = partial(data.draw_recipe_problems, recipe, seed=0)
    if source:
        train = [data.draw_fixed_set(parities, recipe.lengths, source)]
    else:
        train = [data._draw_step_problems(recipe, step, step) for step in range(60)]
    validation = [data.draw_validation_problems(recipe, 200), draw(8, 100, step=3)]
    test = [*(draw(size, 100) for size in (7, 8, 10)), draw(9, 100, kind="natural")]
    test.append(enumerate_problems(recipe, (8,)))  # as families measure short sizes
    prompts = [{p for part in parts for p, _ in decode_problems(parities, part)} for parts in (train, validation, test)]
    assert len(prompts[0]) > 200 and min(map(len, prompts)) > 50 and sum(map(len, prompts)) == len(set.union(*prompts))


def test_no_problem_is_repeated_before_all_were_drawn_or_attacked(parities):
    there = len(parities.select_part("test").enumerate([9], 1000))
    for count in (there, 3 * there):
        problems = data.draw_recipe_problems(build_recipe(parities), 9, count, seed=0)
        assert len({p for p, _ in decode_problems(parities, problems)}) == there
    recipe = build_recipe(parities)
    found = attack(lw.Weights("own", recipe, recipe.build()), tries=10_000)
    tests = sum(len(parities.select_part("test").enumerate([size], 1000)) for size in range(1, 11))
    assert found["tries"] == tests and {row["origin"] for row in found["origins"]} == {"every"}


@given(st.sets(st.integers(1, 40), min_size=1), st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_missing_sizes_are_replaced_by_smaller_ones(tmp_path_factory, listed_sizes, requested_sizes):
    rows = [{"prompt": f"{number:030b}", "answer": "1", "size": size} for number, size in enumerate(listed_sizes)]
    task = lw.File(str(write_rows(tmp_path_factory.mktemp("gaps") / "gaps.jsonl", rows)))
    found = task.sample(torch.tensor(requested_sizes)[:, None], lw.stream(0, "gaps")).sizes[:, 0].tolist()
    for wanted, size in zip(requested_sizes, found, strict=True):
        assert size in listed_sizes and (size == wanted or wanted not in listed_sizes)
        assert size <= max(requested_sizes) or min(listed_sizes) > max(requested_sizes)


def test_missing_sizes_are_refused_and_left_out_of_default_sizes(tmp_path):
    rows = [row | {"size": 10 * len(row["prompt"])} for row in generate_parities(range(5, 10))]
    recipe = build_recipe(lw.File(str(write_rows(tmp_path / "tens.jsonl", rows))), lengths=lw.Uniform(top=60))
    assert choose_default_sizes(recipe) == [60, 90]
    with pytest.raises(lw.UsageError, match=r"no problems of size 8 left to measure; it has 50–90 in steps of 10$"):
        data.draw_recipe_problems(recipe, 8, 5, seed=0)
    watching = Validator(replace(recipe, watch=lw.Watch(every=1, sizes=(66, 69, 8), count=2)))
    assert list(watching.measure(recipe.build(), 0)["exact"]) == ["60", "50"]
    try_training(recipe, CPU)
    assert set(data._draw_step_problems(recipe, 0, 0).sizes[:, 0].tolist()) == {50, 60}
    assert recipe.task.answer_slots(torch.tensor([[7], [55], [90]])).tolist() == [1, 1, 1]


def test_a_recipe_s_id_depends_on_the_file_s_content_and_not_on_its_path(parities, tmp_path):
    moved = tmp_path / "elsewhere.jsonl"
    shutil.copy(parities.path, moved)
    assert build_recipe(lw.File(str(moved))).id == build_recipe(parities).id
    other = write_rows(tmp_path / "other.jsonl", [*generate_parities([3]), {"prompt": "11111", "answer": "1"}])
    assert build_recipe(lw.File(str(other))).id != build_recipe(parities).id
    with pytest.raises(lw.UsageError, match=f"its digest is .* had {parities.digest}"):
        lw.File(str(other), digest=parities.digest)
    read = type(RECIPE).read(build_recipe(parities).json())
    assert read == build_recipe(parities) and read.task.select_part("test") is parities.select_part("test")


def test_every_fault_is_reported_with_its_line(tmp_path):
    lines = [
        '{"prompt": "1", "answer": "1"}', "nonsense", '{"prompt": "1"}', '{"prompt": "", "answer": "1"}',
        '{"prompt": "2", "answer": "1", "size": 0}', '{"prompt": "1", "answer": "0"}', "[1]",
        '{"prompt": "4", "answer": "1", "split": "dev"}', '{"prompt": "5", "answer": "1", "split": "test"}',
        '{"prompt": "a\\u0000", "answer": "1"}',
    ]  # fmt: skip
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    faults = list_errors(path)
    assert [fault.partition(":")[0] for fault in faults] == [f"line {number}" for number in range(2, 11)]
    assert "another answer, size, rounds or split in line 1" in faults[4]
    for content, message in (
        ("\n".join(lines).encode(), r"bad.jsonl: line 2: not JSON"),
        (b'{"prompt": "1", "answer": "1"}\n\xff\n', "line 2: not UTF-8"),
        (b"\n", "bad.jsonl: the file has no problems"),
    ):
        path.write_bytes(content)
        with pytest.raises(lw.UsageError, match=message):
            lw.File(str(path))


def test_csv_json_lines_and_rows_in_memory_give_equal_problems(tmp_path):
    rows = [row | {"size": 3, "rounds": 7} for row in generate_parities([3, 4])]
    lines = lw.File.of(rows, tmp_path / "rows.jsonl")
    with open(tmp_path / "rows.csv", "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["size", "prompt", "answer", "rounds"])
        writer.writeheader()
        writer.writerows(rows)
    table = lw.File(str(tmp_path / "rows.csv"))
    one, other = (task.enumerate([3], 100) for task in (lines, table))
    assert decode_problems(lines, one) == decode_problems(table, other) and other.rounds.tolist() == [7] * 24
    (tmp_path / "bad.csv").write_text("prompt,answer,size\n1,1,1\n0,0,x\n", encoding="utf-8")
    with pytest.raises(lw.UsageError, match=r"bad.csv: line 3: size must be a whole number"):
        lw.File(str(tmp_path / "bad.csv"))


def test_a_data_set_is_read_with_its_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    one = datasets.Dataset.from_list(list(generate_parities([4, 5])))
    one.save_to_disk(str(tmp_path / "one"))
    for task in (lw.File(str(tmp_path / "one")), lw.File.of(one, tmp_path / "kept.jsonl")):
        assert len(task.enumerate([5], 100)) == 32
    both = datasets.DatasetDict({"train": one.select(range(40)), "test": one.select(range(40, 48))})
    both.save_to_disk(str(tmp_path / "both"))
    split = lw.File(str(tmp_path / "both"))
    assert [len(split.select_part("train").enumerate([size], 100)) for size in (4, 5)] == [16, 24]
    assert len(split.select_part("test").enumerate([5], 100)) == 8
    with pytest.raises(lw.UsageError, match="no problem falls into the validation part"):
        split.select_part("validation")


def test_prompts_may_contain_spaces_and_symbols_of_layouts(tmp_path):
    prompts = [f"{mark}a {mark}" for mark in STAND_INS]
    task = lw.File.of([{"prompt": p, "answer": p[::-1]} for p in prompts], tmp_path / "marks.jsonl")
    build_recipe(task)  # its layout accepts the symbols
    for prompt in prompts:
        problems = task.parse(prompt)
        assert task.to_text(problems.prompt[0]) == prompt and task.format(problems.answer[0]) == prompt[::-1]
    with pytest.raises(lw.UsageError, match="not a prompt of the file"):
        task.parse("aaa")


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """Return a file of walks in words, some of one letter, answered by the direction after every step."""
    order, rows = ("north", "east", "south", "west"), []
    for length in range(1, 8):
        for number in range(3**length):
            words = [("left", "right", "u")[number // 3**i % 3] for i in range(length)]
            steps = [{"left": 3, "right": 1, "u": 2}[word] for word in words]
            heads = [order[sum(steps[: i + 1]) % 4] for i in range(length)]
            rows.append({"prompt": " ".join(words), "answer": " ".join(heads)})
    path = write_rows(tmp_path_factory.mktemp("walks") / "walks.jsonl", rows)
    return lw.File(str(path), words=True)


def test_words_are_parsed_and_formatted_with_spaces(walks, tmp_path):
    assert walks.reads == ("left", "right", "u") and walks.writes == ("east", "north", "south", "west")
    problem = walks.parse("  left   left u ")
    assert problem.prompt_length.tolist() == problem.sizes[:, 0].tolist() == [3]
    assert walks.to_text(problem.prompt[0]) == "left left u"
    assert walks.format(problem.answer[0]) == "west south north" == walks.reference("left left u")
    with pytest.raises(lw.UsageError, match="'lift' at position 2 is not one of: left right u"):
        walks.parse("left lift")
    recipe = build_recipe(walks, layout=lw.Tagged())
    answer = lw.Solver(lw.Weights("own", recipe, recipe.build())).solve("left u")
    assert answer.right == "west east" and set(answer.text.split()) <= set(walks.writes)
    # Words of one letter are words too.
    task = lw.File.of([{"prompt": "a b", "answer": "b a"}, {"prompt": "b", "answer": "b"}], tmp_path / "letters.jsonl")
    task = replace(task, words=True)
    assert task.symbols == ("a", "b") and task.format(task.parse("a b").answer[0]) == "b a"


@pytest.fixture(scope="module")
def grid_task(tmp_path_factory):
    """Return a file of grids of two symbols, answered by the grid mirrored from left to right."""
    rows = []
    for side in range(1, 5):
        for number in range(min(2**side**2, 200)):
            symbols = [".x"[number >> i & 1] for i in range(side**2)]
            lines = ["".join(symbols[i : i + side]) for i in range(0, side**2, side)]
            rows.append({"prompt": "/".join(lines), "answer": "/".join(line[::-1] for line in lines)})
    return lw.File(str(write_rows(tmp_path_factory.mktemp("grids") / "mirrors.jsonl", rows)), grid=True)


def test_grids_are_parsed_and_formatted_line_by_line(grid_task):
    assert grid_task.listed_sizes == [1, 2, 3, 4] and grid_task.shape([3]) == (3, 3) and "/" not in grid_task.symbols
    problem = grid_task.parse("xx/.x")
    assert problem.sizes.tolist() == [[2]] and problem.prompt_length.tolist() == [4] and problem.rounds.tolist() == [2]
    assert grid_task.to_text(problem.prompt[0]) == "xx/.x" and grid_task.format(problem.answer[0]) == "xx/x."
    with pytest.raises(lw.UsageError, match=r": a prompt must be a square grid with / between its lines, e\.g\. 12/34"):
        grid_task.parse("xx/.")
    recipe = build_recipe(grid_task, layout=lw.Grid(), model=lw.Transformer(width=8, heads=2, mixer=Convolution()))
    solver = lw.Solver(lw.Weights("own", recipe, recipe.build()))
    assert solver.solve("xx/.x").right == "xx/x." and solver.solve("xx/.x").text.count("/") == 1
    unknown = solver.solve("x..../x..../x..../x..../x....")  # larger than all grids of the file
    assert unknown.right is None and unknown.text.count("/") == 4


def test_check_names_the_invalid_lines_of_grids_and_counts_words(tmp_path, capsys):
    def run_check(*words):
        code, shown = run_command("check", *words), capsys.readouterr()
        return code, " ".join((shown.out or shown.err).split())

    path, first = tmp_path / "grids.jsonl", {"prompt": "1", "answer": "1"}
    for row, message in (
        ({"prompt": "12/3", "answer": "12/34"}, "prompt must be a square grid"),
        ({"prompt": "12/34", "answer": "1"}, "answer must have as many lines as prompt"),
        ({"prompt": "12/34", "answer": "12/34", "size": 4}, "size must be the number of lines, 2, or be omitted"),
    ):
        write_rows(path, [first, row])
        with pytest.raises(lw.UsageError, match=f"line 2: {message}"):
            lw.File(str(path), grid=True)
        code, output = run_check(path, "--grid")
        assert code == 1 and f"line 2: {message}" in output
    for words, message in (
        ((path, "--grid", "--words"), "exclude each other"),
        (("json", "--grid"), "applies only to files"),
    ):
        code, output = run_check(*words)
        assert code == 2 and message in output
    texts = [("take the red one", "red one"), ("go left", "left"), ("go", "go")]
    path = write_rows(tmp_path / "words.jsonl", [{"prompt": prompt, "answer": answer} for prompt, answer in texts])
    code, output = run_check(path, "--words")
    assert code == 0 and "prompt 4 symbols, answer 2" in output and "6: go left one red take the" in output
    assert "1–2, 4" in output and lw.File(str(path), words=True).digest in output and "--words" not in output
    code, output = run_check(path)
    assert code == 0 and "prompt 16 symbols, answer 7" in output and "--words reads words" in output


def test_layouts_accept_a_file_by_the_form_of_its_answers(walks, parities):
    """Layouts take their vocabularies from the file; chance is the fraction of its most frequent answer symbol."""
    assert walks.answers_each_symbol and not parities.answers_each_symbol
    assert [vocab.symbols for vocab in lw.Tagged().vocabs(walks)] == [walks.reads, walks.writes]
    assert lw.Labelled().accepts(parities) and not lw.Labelled().accepts(walks) and not lw.Tagged().accepts(parities)
    answers = "".join(row["answer"] for row in generate_parities(range(1, 11)))
    assert lw.Labelled().chance(parities) == pytest.approx(max(answers.count("0"), answers.count("1")) / len(answers))
    for task, layout in ((walks, lw.Tagged()), (parities, lw.Labelled())):
        recipe = build_recipe(task, layout=layout, lengths=lw.Uniform(top=5))
        (score,) = evaluate(lw.Weights("own", recipe, try_training(recipe, CPU).model), [6], samples=20)
        assert score.scaled == pytest.approx((score.token_accuracy - score.chance) / (1 - score.chance))


@pytest.mark.parametrize("layout", [lw.FullOutput(), lw.FullOutput(causal=False), lw.NextToken()], ids=repr)
def test_empty_answers_are_trained_measured_and_solved(tmp_path, layout):
    """An empty answer is written as an end symbol alone; a layout without end symbols refuses empty answers."""
    rows = [{"prompt": f"{number:06b}", "answer": "1" * f"{number:06b}".count("11")} for number in range(64)]
    task = lw.File.of(rows, tmp_path / "counts.jsonl")
    assert task.parse("000000").answer_length.tolist() == [0] and task.format(task.parse("000000").answer[0]) == ""
    recipe = build_recipe(
        task, layout=layout, lengths=lw.Uniform(top=6), model=replace(RECIPE.model, width=32), steps=1
    )
    batch = layout.write(lw.Problems.join([task.parse("000000"), task.parse("110000")]), task)
    end = layout.end_id(task)
    assert [row[mask].tolist() for row, mask in zip(batch.targets, batch.loss_mask, strict=True)] == [[end], [1, end]]
    model = try_training(recipe, CPU).model
    (score,) = evaluate(lw.Weights("own", recipe, model), [6], samples=10)
    assert score.count == 10
    assert lw.Solver(lw.Weights("own", recipe, model)).solve("000000").right == ""
    mixed = lw.File.of([{"prompt": "0", "answer": ""}, {"prompt": "1", "answer": "1"}], tmp_path / "mixed.jsonl")
    with pytest.raises(lw.UsageError, match="an answer of one symbol"):
        lw.Labelled().write(mixed.enumerate([1], 5), mixed)


@pytest.mark.parametrize("layout", [lw.FullOutput(), lw.NextToken(), lw.Tagged(), lw.Labelled()], ids=repr)
def test_a_prompt_that_is_not_in_the_file_is_answered_without_a_right_answer(tmp_path, walks, layout):
    parities = lw.File.of(generate_parities(range(1, 6)), tmp_path / "few.jsonl")
    task, prompt = (walks, "left u u u u u u u left u") if isinstance(layout, lw.Tagged) else (parities, "0110110")
    recipe = build_recipe(task, layout=layout)
    answer = lw.Solver(lw.Weights("own", recipe, recipe.build())).solve(prompt)
    assert (answer.right, answer.correct, answer.perplexity) == (None, None, None)
    size = 10 if task is walks else 7
    assert "right" not in answer._repr_html_() and answer.loops == int(recipe.loops.planned(torch.tensor([size])))
    sized = lw.File.of([row | {"size": 2} for row in generate_parities([3])], tmp_path / "sized.jsonl")
    with pytest.raises(lw.UsageError, match="and so are its size and rounds"):
        lw.Solver(lw.Weights("own", build_recipe(sized), build_recipe(sized).build())).solve("01")


@pytest.mark.parametrize("count", [128, 200, 40_000])
def test_files_of_any_number_of_symbols_are_trained_on_and_measured(tmp_path, count):
    known = [chr(code) for code in range(0x3400, 0x20000) if chr(code).isprintable()][:count]
    rows = [{"prompt": "".join(known[i : i + 50]), "answer": known[i], "size": 8} for i in range(0, count, 50)]
    rows += [{"prompt": known[i] + known[0], "answer": known[-1], "size": 7} for i in range(100)]
    task = lw.File.of(rows, tmp_path / "symbols.jsonl")
    assert len(task.symbols) == count
    recipe = build_recipe(task)
    assert int(data.draw_batch(recipe, 0)[0].inputs.tokens.max()) < count + 2
    drawn = decode_problems(task, data._draw_step_problems(recipe, 0, 0))
    assert {*drawn} <= {(row["prompt"], row["answer"]) for row in rows}
    (score,) = evaluate(lw.Weights("own", recipe, try_training(recipe, CPU).model), [7], samples=5)
    assert score.count == 5


def run_command(*arguments):
    """Run ``lengthwise`` with these arguments and return its exit status."""
    return entry._run(entry.parse(list(map(str, arguments))))


def test_the_command_line_checks_trains_on_measures_attacks_and_reports_a_file(
    tmp_path, monkeypatch, capsys, blank_figures
):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "problems.jsonl", generate_parities(range(1, 10)))
    assert run_command("check", "problems.jsonl") == 0 and "1,022 different" in capsys.readouterr().out
    few = ["steps=4", "batch=4", "watch.every=0", "lengths=Uniform(top=6)", "--samples", 8, "--quiet"]
    assert run_command("train", "looped-parity", "task=File(path=problems.jsonl)", "name=mine", *few) == 0
    (folder,) = (tmp_path / "runs").glob("mine-*") if (tmp_path / "runs").exists() else get_runs_folder().glob("mine-*")
    capsys.readouterr()
    assert run_command("evaluate", folder, "--lengths", "6,9", "--samples", 8, "--json", "--quiet") == 0
    assert [row["sizes"] for row in json.loads(capsys.readouterr().out)] == [[6], [9]]
    assert run_command("attack", folder, "--tries", 20, "--json") == 0
    assert run_command("report", folder, "--out", tmp_path / "report", "--quiet") == 0
    assert run_command("evaluate", folder, "--lengths", "12", "--quiet") == 2
    assert "no problems of size 12 left to measure" in capsys.readouterr().err
    with open("problems.jsonl", "a", encoding="utf-8") as file:
        file.write("{}\n")
    assert run_command("check", "problems.jsonl") == 1 and "line 1023" in capsys.readouterr().out
    assert run_command("evaluate", folder, "--quiet") == 2 and "line 1023" in capsys.readouterr().err
