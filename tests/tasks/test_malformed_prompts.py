"""Every task refuses malformed prompts in one line that names the fault."""

import pytest

import lengthwise as lw
from lengthwise.tasks.arithmetic import MultiOperandAddition, Multiplication
from lengthwise.tasks.bits import BinarySum, SquareRoot
from lengthwise.tasks.languages import Dyck, StackManipulation
from lengthwise.tasks.maze import Maze
from lengthwise.tasks.modular_arithmetic import BracketedArithmetic, SolveEquation
from lengthwise.tasks.recall import Recall
from lengthwise.tasks.sorting import LABELS, Sorting
from lengthwise.tasks.strings import MissingDuplicate, UniqueSet
from lengthwise.tasks.sudoku import Sudoku

LETTERS = " ".join("abcdefghijklmnopqrstuvwxyz")
MALFORMED_PROMPTS = [
    (lw.Addition(), "", ["1", "+", "1+", "+1", "1+2+3", "1++2", "1-2", "1+2=", "12 34"]),
    (Multiplication(), "", ["1", "*", "1*", "*1", "1*1*1", "1**1", "1+1", "1*2", "1 1", "-1*1"]),
    (Multiplication(), r"write two numbers with one '\*' between them, not '1\\n1'$", ["1\n1"]),
    (MultiOperandAddition(), r"write numbers with \+ between them", ["12++3"]),
    (BinarySum(), "'2' at position 3 is not one of: 0 1$", ["102"]),
    (BinarySum(), r"'\*' at position 2 is not one of: 0 1$", ["1*1"]),
    (SquareRoot(), "'2' at position 3 is not one of: 0 1$", ["102"]),
    (UniqueSet(3), "'d' at position 4 is not one of: a b c$", ["abcd"]),
    (UniqueSet(26), f"'A' at position 2 is not one of: {LETTERS}$", ["aA"]),
    (MissingDuplicate(), "is not a sequence written twice", ["0101", "01?0", "01?00"]),
    (Sorting(), "", ["A:", ":3", "A:1,A:2", "A:1,,B:2", "A1", "A:1;B:2", "AB:3", "A:1,B:x", "A:²"]),
    (
        Sorting(),
        "labels must be consecutive letters, .* instead of",
        [
            ",".join(f"{label}:7" for label in labels)
            for labels in ("Qe", "BA", "AC", "za", "aA", "AA", LABELS + "A")  # no problem has these
        ],
    ),
    (Dyck(), "a closing bracket has no open bracket of its kind", ["(]"]),
    (Recall(), "is not n pairs, then n letters", ["a3b1c"]),
    (StackManipulation(), "is not letters a and b, then actions", ["a-b"]),
    (BracketedArithmetic(), "needs one pair of brackets per operation", ["(1+2", "1+2", "+", "("]),
    (SolveEquation(), "is not an equation with one x", ["(x+x):1", "(1+2):3", "(1+2):x", "(1+x)", "(1+x):x"]),
    (Sudoku(), "4, 6 or 9 lines", ["1234/3412/2143", "1234/3412/2143/432", "12345/" * 5, "." * 20]),
    (Sudoku(), r"'5' is not one of: \. 1 2 3 4", ["5234/3412/2143/4321"]),
    (Sudoku(), "must have exactly one solution; this one has several", ["1.../..../..../...."]),
    (Sudoku(), "must have exactly one solution; this one has none", ["11../..../..../...."]),
    (Maze(), "where n is odd", ["#####/#S.G#/#####"]),
    (Maze(), "'x' at position 25 is not one of", ["#####/#S.G#/#.###/#...#/####x"]),
    (Maze(), "one S and one G", ["#####/#S..#/#.###/#...#/#####"]),
    (Maze(), "walls", ["#####/#S.G./#.###/#...#/#####"]),
    (Maze(), "one path from S to G", ["#####/#S.G#/#.#.#/#...#/#####", "#####/#S###/#####/##.G#/#####"]),
    (Maze(), "no cycle", ["#######/#S.G###/#######/#...###/#.#.###/#...###/#######"]),
]


@pytest.mark.parametrize(("task", "message", "prompts"), MALFORMED_PROMPTS)
def test_malformed_prompts_are_refused_in_one_line(task, message, prompts):
    for prompt in prompts:
        with pytest.raises(lw.UsageError, match=f"^{task.name}: .*{message}") as error:
            task.parse(prompt)
        assert "\n" not in str(error.value)
