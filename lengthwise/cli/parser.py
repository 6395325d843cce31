"""The options of every verb. Nothing is imported here, so that ``--help`` need not wait for torch."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable
from typing import NoReturn

from lengthwise.base.errors import UsageError
from lengthwise.cli.flags import OPTIONS

EXAMPLES = {
    "demo": "train two models on short sums, test them on long ones",
    "solve looped-pairs 128+9": "answer at once, with weights that are shipped",
    "train looped-parity --seeds 3": "three seeds, measured at up to 5 times the length",
    "train looped-pairs model.width=32": "any field of a recipe can be changed",
    "train --from RUN steps=600": "go on from a run, up to step 600",
    "evaluate looped-pairs --lengths 8-100:4": "measure weights, or a run's folder",
    "sweep looped-parity model.width=32,64": "every value of a field, the best kept as a recipe",
    "attack looped-pairs": "search for problems that it gets wrong",
    "depth looped-pairs": "what do more loops do to its answer and state?",
    "verify looped-pairs": "is it what it says it is?",
    "check own_task": "is the task in own_task.py right?",
    "check problems.jsonl": "is this file a task?",
    "report runs/*": "tables, figures and CSV",
    "show RoPE": "a part and its fields; or a field: model.positions",
    "show looped-pairs --html page.html": "a page on which the model itself thinks",
}
_ABOUT = "Train small sequence models on short problems;\nsee whether they solve longer ones."
_COMPLETION = """completion: pip install 'lengthwise[complete]', then
  eval "$(register-python-argcomplete lengthwise)"
"""
_BESIDE = 108  # minimum columns for examples with descriptions beside them


class _Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors."""

    def error(self, message: str) -> NoReturn:
        from lengthwise.base.fields import suggest  # late, so that `--help` need not wait for it

        if wrong := re.search(r"VERB: invalid choice: '([^']*)'", message):
            message = f"there is no verb {wrong[1]!r}{suggest(wrong[1], verbs_of(self))}"
        self.exit(2, f"{UsageError(f'{self.prog}: {message}; see `{self.prog} --help`')}\n")


def verbs_of(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each verb, by its name."""
    return next(action.choices for action in top._actions if isinstance(action, argparse._SubParsersAction))


def _epilog() -> str:
    """Return examples, with descriptions beside them on a wide terminal, otherwise below."""
    widest = max(map(len, EXAMPLES))
    beside = shutil.get_terminal_size().columns >= _BESIDE
    lines = [f"  lengthwise {text:<{widest}}  {about}" if beside else f"  lengthwise {text}\n      {about}"
             for text, about in EXAMPLES.items()]  # fmt: skip
    return "\n".join(["examples:", *lines, "", _COMPLETION])


def parser() -> argparse.ArgumentParser:
    """Return the parser with all verbs and their options."""
    top = _Parser(
        prog="lengthwise",
        description=_ABOUT,
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="store_true", help="print the version")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)

    def verb(name: str, text: str, *options: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        for option in (*options, *["import"] * (name != "check")):  # `check` takes its modules as arguments
            flags = dict(OPTIONS[option])
            sub.add_argument(f"--{flags.pop('typed', option)}", **flags)
        return sub

    _learning(verb)
    _using(verb)
    return top


def _learning(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the verbs for listing and training."""
    sub = verb("demo", "train a looped and a standard model on sums of up to 8 digits; show how far each carries",
               "seed", "jobs", "steps", "out", "quiet", "json")  # fmt: skip
    # A size counts as solved only with 381 problems or more (`report/card.py`).
    sub.add_argument("--samples", type=int, default=400, metavar="N", help="fresh problems per length (default: 400)")
    sub = verb("list", "recipes, studies, shipped weights, parts and runs", "json")
    _several(sub, "words", "WORD", "only what has every word, each with a sentence")
    sub = verb(
        "show", "a recipe with its parameters, operations and an estimate of time; or a part, or a field", "json"
    )
    _show(sub)
    sub = verb("sample", "problems of a task", "seed-of-problems", "hard", "natural", "family", "json")
    _sample(sub)
    sub = verb("train", "train a recipe, or go on with a run; then evaluate it",
               "seed", "seeds", "stack", "jobs", "on", "dry-run", "measure", "wait", "lengths", "samples", "curve",
               "curve-samples", "stopping", "hard", "natural", "families", "far-families", "device", "matmul",
               "compile", "no-graphs", "threads",
               "save-every", "keep-state", "allow-divergence", "track", "quiet", "json")  # fmt: skip
    _recipe(sub)
    sub.add_argument(
        "--from", dest="parent", metavar="RUN", help="go on from its weights, with changed fields, e.g. steps=600"
    )


def _using(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the verbs for trained models."""
    sub = verb("evaluate", "exact match on fresh problems, length by length",
               "seed-of-problems", "wait", "lengths", "grid", "samples", "stopping", "loops", "hard", "natural",
               "family", "families", "uniform-only", "device", "threads", "quiet", "json")  # fmt: skip
    _evaluate(sub)
    sub = verb("attack", "search for problems that a model gets wrong, short ones first",
               "seed-of-problems", "lengths-to-attack", "seconds", "tries", "rule", "device", "threads",
               "json")  # fmt: skip
    sub.add_argument("weights", metavar="WEIGHTS", help="shipped weights by name, a folder, or hf:user/name")
    sub = verb("depth", "run looped weights beyond T(n): do they settle, and is the answer right?",
               "seed-of-problems", "lengths-of-depth", "device", "threads", "out", "json")  # fmt: skip
    sub.add_argument("weights", nargs="+", metavar="WEIGHTS", help="shipped weights by name, a folder, or hf:user/name")
    sub.add_argument("--more", type=int, default=100, metavar="K", help="loops beyond T(n) (default: 100)")
    sub.add_argument("--samples", type=int, default=64, metavar="N", help="fresh problems (default: 64)")
    sub = verb("verify", "measure what somebody else's weights are and do; spoofs are exposed",
               "lengths", "samples", "seconds", "device", "threads", "quiet", "json")  # fmt: skip
    _verify(sub)
    sub = verb(
        "check", "hold your own parts, recipes and studies to the laws of their kinds; or check a file of problems",
        "quiet", "json",
    )  # fmt: skip
    text = "e.g. own_task, for own_task.py in this folder; or problems.jsonl, a CSV file, or a data set's folder"
    sub.add_argument("import", nargs="+", metavar="MODULE", help=text)
    sub = verb("solve", "answer prompts, from arguments or from standard input, one a line",
               "rule", "device", "json")  # fmt: skip
    sub.add_argument("weights", metavar="WEIGHTS", help="shipped weights by name, a folder, or hf:user/name")
    _several(sub, "prompts", "PROMPT", "e.g. 128+9")
    sub = verb("push", "send a run's weights to the Hugging Face Hub, with a model card from its data", "json")
    _push(sub)
    sub = verb("export", "write trained weights as a graph for other programs: ONNX, torch.export", "quiet", "json")
    sub.add_argument("weights", metavar="WEIGHTS", help="shipped weights by name, a folder, or hf:user/name")
    sub.add_argument("--onnx", metavar="FILE", help="write this ONNX file")
    sub.add_argument("--program", metavar="FILE", help="write this file of torch.export (.pt2)")
    sub = verb("track", "send a run to a tracker: what it does not have yet", "json")
    sub.add_argument("runs", metavar="RUN", help="a run's folder")
    sub.add_argument("--to", action="append", required=True, metavar="NAME", help="tensorboard, trackio or wandb")
    sub = verb("ask", "exact match of a large language model, behind any OpenAI-compatible endpoint, length by length",
               "hard", "natural", "quiet", "json")  # fmt: skip
    _ask(sub)
    sub = verb("rasp", "an n-RASP-L program at work: the state after each round, which a looped model has to learn",
               "json")  # fmt: skip
    sub.add_argument("task", metavar="TASK", nargs="?", help="e.g. parity; left out, the programs there are")
    sub.add_argument("prompt", metavar="PROMPT", nargs="?", help="e.g. 10110")
    _several(sub, "changes", "name=value", "the task's fields, e.g. order=least")
    sub = verb("reproduce", "train and evaluate all of a study, then write its table and figures",
               "seeds", "stack", "jobs", "on", "dry-run", "measure", "curve-samples", "out", "device", "matmul",
               "compile", "no-graphs", "allow-divergence", "quiet", "json")  # fmt: skip
    _reproduce(sub)
    sub = verb("sweep", "train a recipe with several values of its fields; choose the best near the training lengths",
               "seeds", "jobs", "on", "dry-run", "measure", "samples", "out", "device", "matmul", "compile",
               "no-graphs", "allow-divergence", "quiet", "json")  # fmt: skip
    _sweep(sub)
    sub = verb("records", "the best published length generalization of each task, and ours beside it", "json")
    sub.add_argument("group", metavar="GROUP", nargs="?", help="e.g. parity; left out, all groups of tasks")
    sub = verb("report", "tables, figures and CSV of runs", "out", "quiet", "json")
    _report(sub)


def _show(sub: argparse.ArgumentParser) -> None:
    _recipe(sub, "; or a part (Transformer), or a field (model.positions); with --html, weights")
    sub.add_argument(
        "--html", metavar="FILE", help="write a page on which these weights think, loop by loop, in the browser"
    )
    sub.add_argument("--all", action="store_true", help="every field, with its meaning, not only those set otherwise")
    sub.add_argument("--measure", action="store_true", help="run some steps of training and evaluation, to time them")


def _sample(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("task", metavar="TASK", help="e.g. addition")
    sub.add_argument("size", metavar="SIZE", nargs="?", help="e.g. 5, or 5x3 for a task of two sizes")
    _several(sub, "changes", "name=value", "the task's fields, e.g. base=2")
    sub.add_argument("--count", type=int, metavar="N", help="how many (default: 5; with --lm-eval: 500 of each size)")
    sub.add_argument("--lengths", metavar="SIZES", help="several sizes, each problem of a uniform one: 1-20")
    parts = ("train", "validation", "test")
    sub.add_argument("--split", choices=parts, help="of one part of all prompts, which share none")
    sub.add_argument("--jsonl", action="store_true", help="a line of JSON per problem, as File(path=…) reads it")
    sub.add_argument("--lm-eval", metavar="FOLDER", help="write tasks for lm-evaluation-harness into a folder")


def _evaluate(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "weights", metavar="RUN", help="a run's folder, any folder of weights, shipped weights by name, or hf:user/name"
    )
    sub.add_argument(
        "--precision", type=float, metavar="H", help="end a length as soon as its 95 %% interval is ±H, e.g. 0.01"
    )
    sub.set_defaults(samples=None)
    text = "write each problem, the model's answer, right or wrong, loops and confidence, as JSON Lines"
    sub.add_argument("--rows", metavar="FILE", help=text)
    sub.add_argument("--anatomy", action="store_true", help="how answers go wrong: where, and on which problems")


def _verify(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("weights", metavar="WEIGHTS", help="weights, as for `evaluate`; or FILE.json, a record to check")
    sub.add_argument("--seed", type=int, metavar="N", help="seed of the problems (default: drawn anew, and recorded)")
    sub.add_argument("--minutes", type=float, default=6.0, metavar="M", help="processor time for scores (default: 6)")
    sub.add_argument("--retrain", action="store_true", help="train the recipe too, and compare")
    sub.add_argument("--out", metavar="FILE", help="where the record goes (default: NAME.verified.json)")


def _push(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("weights", metavar="RUN", help="a finished run, or a folder of weights")
    sub.add_argument("repository", metavar="USER/NAME", help="where to; it is made if it is not there")
    sub.add_argument("--controls", metavar="RUN", nargs="+", default=[], help="runs that the card compares it with")
    sub.add_argument("--license", metavar="ID", default="apache-2.0", help="of the weights (default: apache-2.0)")
    sub.add_argument("--private", action="store_true", help="if the repository is made: for its owner's eyes only")
    sub.add_argument("--dry-run", action="store_true", help="print the card, and send nothing")


def _report(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, and those of `ask`; or folders of results, to draw again"
    )
    sub.add_argument("--width", choices=("column", "page"), help="of figures: a column, or a page (default)")
    sub.add_argument("--formats", metavar="A,B", help="of figures: png (default), svg, pdf, or several: png,svg")
    sub.add_argument("--table", choices=("latex",), help="print one table of all recipes, seeds pooled, as LaTeX")
    sub.add_argument(
        "--html", metavar="FILE", help="write one page instead: all of it, and models that think, in a file"
    )
    sub.add_argument(
        "--matrix", action="store_true", help="architectures × tasks instead, of runs and published results"
    )
    sub.add_argument("--stopping", action="store_true", help="accuracy and confidence against loops, a figure per run")
    sub.add_argument("--lengths", metavar="SIZES", help="with --stopping: at which lengths (default: 1 and 2 times)")
    sub.add_argument("--samples", type=int, metavar="N", help="with --stopping: problems per length (default: 512)")
    sub.add_argument("--device", metavar="DEVICE", help="with --stopping: cpu, cuda, mps or auto (default)")


def _reproduce(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("study", metavar="STUDY", help="e.g. pairs, or looped")
    sub.add_argument("--tasks", metavar="A,B", help="of the study's tasks only these, or all")
    sub.add_argument(
        "--methods", "--mixer", metavar="A,B", help="of the study's methods only these, or mixers by class"
    )
    sub.add_argument("--sizes", metavar="A,B", help="of the study's sizes of models only these, or all")
    sub.add_argument("--scale", metavar="SCALE", help="cpu (default), half (of the range), or paper")
    sub.add_argument("--samples", type=int, metavar="N", help="fresh problems per length (default: the study's)")
    sub.add_argument("--publish", action="store_true", help="final tables: problems of a seed that nothing else uses")


def _sweep(sub: argparse.ArgumentParser) -> None:
    _recipe(sub)
    sub.add_argument(
        "--lengths", metavar="SIZES", help="where recipes are compared (default: the training length and 1.3 times it)"
    )
    sub.add_argument("--trials", type=int, metavar="N", help="search with Optuna, N trials in all, instead of a grid")


def _ask(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("task", metavar="TASK", help="e.g. addition")
    _several(sub, "changes", "name=value", "the task's fields, e.g. base=2")
    sub.add_argument("--endpoint", required=True, metavar="URL", help="its address, e.g. http://localhost:8000/v1")
    sub.add_argument("--model", required=True, metavar="NAME", help="the model, as the endpoint calls it")
    sub.add_argument("--key-variable", metavar="NAME", help="environment variable of the key (default: OPENAI_API_KEY)")
    sub.add_argument(
        "--like", metavar="RECIPE", help="ask just what models of this recipe, or this run, are measured on"
    )
    sub.add_argument(
        "--lengths", metavar="SIZES", help="8,16 or 1-20 or 2x4 (default: 1,2,4,8,16; with --like: as `evaluate`)"
    )
    sub.add_argument("--samples", type=int, default=100, metavar="N", help="fresh problems per length (default: 100)")
    sub.add_argument("--seed", type=int, metavar="N", help="seed of the problems (default: 0)")
    sub.add_argument("--limit", type=int, metavar="N", help="send at most N requests, those sent again included")
    sub.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests at a time (default: 8)")
    sub.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for a request (default: 60)")
    sub.add_argument(
        "--backoff", type=float, default=1.0, metavar="S", help="seconds before a second try, then doubled (default: 1)"
    )
    sub.add_argument("--dry-run", action="store_true", help="say how many requests and about how many tokens, and stop")
    sub.add_argument("--max-tokens", type=int, metavar="N", help="tokens of a reply, at most (default: no limit)")
    sub.add_argument(
        "--no-temperature", action="store_true", help="send no temperature, for models that refuse 0 (default: 0)"
    )
    sub.add_argument("--examples", type=int, default=0, metavar="N", help="show N short solved problems (default: 0)")
    sub.add_argument("--question", metavar="TEXT", help="what to ask, instead of the task's own sentence")
    sub.add_argument("--out", metavar="FOLDER", help="where replies and scores go (default: runs/ask-MODEL-TASK-ID)")


def _recipe(sub: argparse.ArgumentParser, further: str = "") -> None:
    text = f"a recipe's name, a recipe in a JSON file, or a run's folder{further}"
    sub.add_argument("recipe", metavar="RECIPE", help=text)
    _several(sub, "changes", "name=value", "changed fields, e.g. model.width=32 steps=500")


def _several(sub: argparse.ArgumentParser, name: str, metavar: str, text: str) -> None:
    """Add an argument of zero or more words. Without a default, argparse would list it as required."""
    sub.add_argument(name, nargs="*", default=[], metavar=metavar, help=text)
