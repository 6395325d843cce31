"""Every task in several configurations, and helpers for tests of tasks."""

import torch
from conftest import LONG

import lengthwise as lw
from lengthwise.base.fields import find_part_classes
from lengthwise.experiment.recipe import import_parts
from lengthwise.tasks.arithmetic import Multiplication
from lengthwise.tasks.maze import Maze
from lengthwise.tasks.modular_arithmetic import BracketedArithmetic, SolveEquation
from lengthwise.tasks.sudoku import Sudoku
from lengthwise.testing import laws_of_tasks
from lengthwise.testing.laws import list_laws

ADDITIONS = [
    lw.Addition(base, order, equal_lengths, leading_zeros)
    for base, order, equal_lengths, leading_zeros in [
        (10, "most", False, False), (10, "least", False, False), (10, "most", True, False), (10, "least", True, True),
        (10, "most", False, True), (2, "least", True, True), (2, "most", False, False), (3, "least", False, True),
        (7, "most", True, True), (9, "least", True, False),
    ]
]  # fmt: skip
# Further tasks are held to the same laws in their default configuration.
import_parts()
DECIMAL = Multiplication(10, "least", "least", False)
MULTIPLICATIONS = [Multiplication(), DECIMAL, Multiplication(10, "most", "most", False), Multiplication(7, "most")]
VARIED_TASKS = [lw.Parity(), lw.Copy(), lw.Copy(10), lw.Copy(36), *ADDITIONS, *MULTIPLICATIONS]
# A few additions and multiplications that cover every pair of options.
FEW_TASKS = [lw.Parity(), lw.Copy(), lw.Copy(36), ADDITIONS[0], *ADDITIONS[7:], *MULTIPLICATIONS[:3]]
TASKS = VARIED_TASKS + [
    kind() for kind in find_part_classes(lw.Task).values() if kind not in {lw.File, *map(type, VARIED_TASKS)}
]
CASES = TASKS if LONG else [task for task in TASKS if task in FEW_TASKS or task not in VARIED_TASKS]


def shrink_sizes(task, monkeypatch):
    """Make the laws try fewer sizes, and fewer and smaller problems of tasks that are slow to draw or parse."""
    if LONG:
        monkeypatch.setattr(laws_of_tasks, "BETWEEN_COUNT", 200)
    elif isinstance(task, (Maze, BracketedArithmetic, SolveEquation, Sudoku)):
        monkeypatch.setattr(laws_of_tasks, "MAX_SIZE_ABOVE", {1: 4 if isinstance(task, Maze) else 12})
        monkeypatch.setattr(laws_of_tasks, "BETWEEN_COUNT", 3)
        monkeypatch.setattr(laws_of_tasks, "POOL_SIZE", 100)


def assert_laws(task, monkeypatch):
    """Check a task against all laws, on problems that are drawn once. Only a fourth of the prompts are parsed, because
    parsing is slow."""
    shrink_sizes(task, monkeypatch)
    draws = list(laws_of_tasks._draw_all_problems(task))
    parsed = [(name, problems.take(slice(None, None, 1 if LONG else 4))) for name, problems in draws]
    for law in list_laws(type(task)):
        given = parsed if law is laws_of_tasks.typed_prompts_are_parsed else draws
        monkeypatch.setattr(laws_of_tasks, "_draw_all_problems", lambda _, given=given: given)
        law(task)


def sample(task, sizes, is_hard=False, seed=0):
    """Draw uniform or, with ``is_hard``, hard problems of these sizes."""
    sizes, draw = torch.tensor(sizes), lw.stream(seed, "test", repr(task))
    return task.sample_hard(sizes, draw) if is_hard else task.sample(sizes, draw)


def list_sizes(task, count=5, repeats=8):
    """Return the ``count`` smallest sizes (for two axes, all pairs of them), each ``repeats`` times."""
    return laws_of_tasks.draw_small_sizes(task, count, repeats).tolist()


def to_texts(task, problems):
    """Return prompts and answers as text, in the task's own symbols and order."""
    prompts, answers = zip(*laws_of_tasks.decode_problems(task, problems), strict=True)
    return list(prompts), list(answers)
