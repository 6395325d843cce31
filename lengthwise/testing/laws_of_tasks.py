"""Laws of tasks: each problem has the requested size and form, and the answer of the reference algorithm."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.rng import stream
from lengthwise.base.types import Problems, UsageError
from lengthwise.experiment.problem_set import format_symbols
from lengthwise.tasks import Task
from lengthwise.tasks.family import Sampler
from lengthwise.testing.laws_of_parts import Broken

MAX_SIZE_ABOVE = {1: 40, 2: 14}  # by number of axes: a family's largest checked size minus the task's smallest size
ROW_COUNT = 64  # problems of each size: with so many, some answer should fill its slots
BETWEEN_COUNT = 9  # number of a family's checked sizes between the smallest and the largest
POOL_SIZE, MAX_ENUMERATED = 2000, 3000  # numbers of natural problems drawn, and of problems of a size enumerated


def every_answer_is_right(task: Task) -> None:
    """Every answer is the one that ``reference`` returns."""
    for name, problems in _draw_all_problems(task):
        for prompt, answer in decode_problems(task, problems):
            check_answer(task, name, prompt, answer)


def problems_have_requested_sizes(task: Task) -> None:
    """Each problem has the size that was requested for its row."""
    for name, sampler in _list_samplers(task):
        sizes = draw_family_sizes(task, name)
        problems = sampler(sizes, stream(0, "laws", name))
        if problems.sizes.tolist() != sizes.tolist():
            raise Broken(f"{name} problems of sizes {sizes[:3].tolist()} have the sizes {problems.sizes[:3].tolist()}")


def symbols_are_in_reads_and_writes(task: Task) -> None:
    """Prompts contain only symbols in ``reads``, and answers only symbols in ``writes``; with ``answers_each_symbol``,
    answers are as long as their prompts."""
    for name, problems in _draw_all_problems(task):
        for prompt, answer in decode_problems(task, problems):
            read, written = map(task.vocab.split, (prompt, answer))
            case = f"{name} problem {prompt!r} → {answer!r}"
            if task.reads and (undeclared := {*read} - {*task.reads}):
                raise Broken(f"{case} holds {min(undeclared)!r}, which `reads` lacks")
            if task.writes and (undeclared := {*written} - {*task.writes}):
                raise Broken(f"{case} holds {min(undeclared)!r}, which `writes` lacks")
            if task.answers_each_symbol and len(read) != len(written):
                raise Broken(f"{case} has an answer that is not as long as the prompt")


def rows_are_padded_with_zeros(task: Task) -> None:
    """Prompts and answers are rows of symbol ids with zeros after their ends. The longest row fills the last column,
    and no prompt is empty."""
    for name, problems in _draw_all_problems(task):
        if int(shortest := problems.prompt_length.min()) < 1:
            raise Broken(f"the shortest {name} prompt has length {shortest}: a prompt needs one symbol or more")
        if name == "uniform" and not problems.answer_length.any():
            raise Broken("uniform answers are all empty")
        for kind, row, length in (
            ("prompts", problems.prompt, problems.prompt_length),
            ("answers", problems.answer, problems.answer_length),
        ):
            if int(length.max()) != row.shape[1]:
                lengths = f"{name} {kind} of {row.shape[1]} columns have lengths {length.min()} to {length.max()}"
                raise Broken(f"{lengths}: the longest must fill the last column, so remove columns that no row reaches")
            if row[torch.arange(row.shape[1]) >= length[:, None]].any():
                raise Broken(f"{name} {kind} hold ids other than 0 after their ends")
            if row.numel() and not 0 <= int(row.min()) <= int(row.max()) < len(task.symbols):
                raise Broken(
                    f"{name} {kind} have ids {row.min()} to {row.max()}, but must be in 0 to {len(task.symbols) - 1}"
                )


def answers_fit_their_slots(task: Task) -> None:
    """No answer has more symbols than ``answer_slots`` returns."""
    for name, problems in _draw_all_problems(task):
        if (long := problems.answer_length > task.answer_slots(problems.sizes)).any():
            prompt, answer = decode_problems(task, problems)[int(long.long().argmax())]
            raise Broken(f"{name} problem {prompt!r} has the answer {answer!r}, which exceeds its slots")


def some_answer_fills_its_slots(task: Task) -> None:
    """At each small size some answer fills all of its slots: ``answer_slots`` is not too large."""
    sizes = draw_small_sizes(task, count=3, repeats=ROW_COUNT)
    samples = [sampler(sizes, stream(0, "laws", name)) for name, sampler in _list_samplers(task)]
    for size in sizes.unique(dim=0):
        rows = (sizes == size).all(1)
        longest = max(int(problems.answer_length[rows].max()) for problems in samples)
        if longest < (slots := int(task.answer_slots(size[None])[0])):
            raise Broken(f"size {tuple(size.tolist())} has {slots} slots, but no answer fills more than {longest}")


def rounds_are_whole_numbers(task: Task) -> None:
    """``rounds``, the number of rounds T(n) of each problem, is a whole number, 1 or more."""
    for name, problems in _draw_all_problems(task):
        rounds = problems.rounds
        if rounds.dtype != torch.long or int(rounds.min()) < 1:
            minimum = f"{rounds.dtype}, minimum {rounds.min()}"
            raise Broken(f"rounds of {name} problems have the type {minimum}: use torch.long, 1 or more")


def problems_depend_only_on_the_generator(task: Task) -> None:
    """The same generator gives the same problems, and a different generator gives different problems."""
    for name, sampler in _list_samplers(task):
        sizes = draw_family_sizes(task, name)
        first, again, other = (decode_problems(task, sampler(sizes, stream(seed, "laws"))) for seed in (0, 0, 1))
        if first != again:
            raise Broken(f"{name} problems differ between two calls with the same generator")
        if first == other and name in ("uniform", task.harder) and len(task.symbols) > 1:
            raise Broken(f"{name} problems are the same for two different generators")


def typed_prompts_are_parsed(task: Task) -> None:
    """``parse`` reads the text that ``to_text`` writes, and returns the same prompt, answer and rounds."""
    for name, problems in _draw_all_problems(task):
        for (prompt, answer), rounds in zip(decode_problems(task, problems), problems.rounds.tolist(), strict=True):
            typed = task.to_text(task.vocab.encode(prompt))
            parsed = task.parse(typed)
            if (read := decode_problems(task, parsed)) != [(prompt, answer)] or parsed.rounds.tolist() != [rounds]:
                case = f"{typed!r}, the {name} problem {prompt!r} → {answer!r} with {rounds} rounds"
                raise Broken(f"{case}, is parsed as {read} with rounds {parsed.rounds.tolist()}")


def other_text_is_rejected(task: Task) -> None:
    """``parse`` rejects text that is not a prompt with a one-line UsageError that contains the task's name."""
    for text in ("", "  ", "?", "1?0", "=", "$", "١"):
        if text.strip() and {*task.vocab.split(text)} <= {*(task.reads or task.symbols)}:
            continue  # the task's own symbols, so perhaps a problem
        try:
            task.parse(text)
        except UsageError as error:
            if task.name not in str(error) or "\n" in str(error):
                raise Broken(
                    f"{text!r} is rejected with {str(error)!r}, which must name {task.name} on one line"
                ) from None
        else:
            raise Broken(f"{text!r} is read as a problem, but must be rejected")


def question_describes_the_task(task: Task) -> None:
    """``question`` describes the task in a sentence on one line, without the symbol →."""
    question = task.question
    if len(question) <= 10 or not question.endswith((".", "?")) or "\n" in question or "→" in question:
        wanted = "a sentence on one line, of more than 10 characters, ending in . or ? and without →"
        raise Broken(f"the question (default: the class's docstring) is {question!r}; it must be {wanted}")


def natural_problems_are_as_requested(task: Task) -> None:
    """``sample_natural`` draws the requested number of correct problems, of all sizes in the range, and depends only on
    the generator."""
    smallest_sizes = task.list_smallest_sizes(5)
    low, high = smallest_sizes[min(1, len(smallest_sizes) - 1)], smallest_sizes[-1]
    problems, again = (task.sample_natural(POOL_SIZE, low, high, stream(0, "pool")) for _ in range(2))
    pairs = decode_problems(task, problems)
    if pairs != decode_problems(task, again):
        raise Broken("sample_natural gives different problems in a second call with an equally seeded generator")
    found, wanted = (len(pairs), int(problems.sizes.min()), int(problems.sizes.max())), (POOL_SIZE, low, high)
    if found != wanted:
        raise Broken(f"count, smallest and largest size of natural problems are {found}, not {wanted}")
    for prompt, answer in pairs:
        check_answer(task, "natural", prompt, answer)


def families_are_named(task: Task) -> None:
    """Each family has a unique name, in lower case with dashes, and a sentence that describes it."""
    names = [family.name for family in task.families]
    for family in task.families:
        wrong = family.name != family.name.lower() or " " in family.name or "_" in family.name
        reserved = family.name in ("uniform", "natural", "every")
        if wrong or names.count(family.name) > 1 or reserved:
            raise Broken(f"the family name {family.name!r} must be unique, unreserved, in lower case and with dashes")
        if not family.about.endswith(".") or "\n" in family.about or len(family.about) <= 8:
            raise Broken(f"the family {family.name} has the text {family.about!r}, which is not a sentence on one line")


def enumerate_lists_every_problem_once(task: Task) -> None:
    """``enumerate`` returns correct and distinct problems, among them every problem that ``sample`` draws."""
    size = [task.smallest] * len(task.axes)
    if (problems := task.enumerate(size, MAX_ENUMERATED)) is None:
        return
    pairs = decode_problems(task, problems)
    for prompt, answer in pairs:
        check_answer(task, "enumerated", prompt, answer)
    prompts = [prompt for prompt, _ in pairs]
    sample = task.sample(torch.tensor([size] * POOL_SIZE), stream(0, "every"))
    drawn = {prompt for prompt, _ in decode_problems(task, sample)}
    if len(set(prompts)) < len(prompts):
        raise Broken(f"enumerate lists {max(prompts, key=prompts.count)!r} more than once at size {tuple(size)}")
    if missing := drawn - set(prompts):
        raise Broken(
            f"enumerate lists {len(prompts)} problems of size {tuple(size)}, but `sample` also draws {min(missing)!r}"
        )


# Drawing problems


def check_answer(task: Task, kind: str, prompt: str, answer: str) -> None:
    """Raise Broken if a prompt's answer differs from that of ``reference``. ``kind`` describes the problem in the
    error, e.g. "uniform"."""
    if not isinstance(right := task.reference(prompt), str):
        raise Broken(f"reference must return text, not {type(right).__name__}")
    if right != answer:
        raise Broken(f"{kind} problem {prompt!r} has the answer {answer!r}, but reference returns {right!r}")


def decode_problems(task: Task, problems: Problems) -> list[tuple[str, str]]:
    """Return pairs (prompt, answer) as text, in the task's own symbols and order."""
    prompts = format_symbols(task, problems.prompt, problems.prompt_length)
    return list(zip(prompts, format_symbols(task, problems.answer, problems.answer_length), strict=True))


def draw_small_sizes(task: Task, count: int = 5, repeats: int = 8) -> Int[Tensor, "b axes"]:
    """Return the ``count`` smallest sizes (for two axes, all pairs of them), each ``repeats`` times, in random order,
    so that a task cannot rely on an order."""
    sizes = torch.tensor(task.list_smallest_sizes(count))
    rows = torch.cartesian_prod(*[sizes] * len(task.axes)).view(-1, len(task.axes)).repeat(repeats, 1)
    return rows[torch.randperm(len(rows), generator=stream(0, "order"))]


def _list_samplers(task: Task) -> list[tuple[str, Sampler]]:
    return [("uniform", task.sample), *((family.name, family.sample) for family in task.families)]


def draw_family_sizes(task: Task, name: str) -> Int[Tensor, "b axes"]:
    """Return sizes at which a family is checked: small sizes, which occur several times for uniform problems and the
    harder set. All other sets than the uniform one also get a large size and random sizes in between."""
    small = draw_small_sizes(task) if name in ("uniform", task.harder) else draw_small_sizes(task, count=3, repeats=1)
    if name == "uniform":
        return small
    low, axes = task.smallest, len(task.axes)
    high = min(task.largest or low + MAX_SIZE_ABOVE[axes], low + MAX_SIZE_ABOVE[axes])
    draw = stream(0, "sizes", name)
    between = task.replace_missing_sizes(torch.randint(low, high + 1, (BETWEEN_COUNT, axes), generator=draw), draw)
    ends = torch.tensor([low, task.round_to_valid_size(high)])[:, None].expand(-1, axes)
    return torch.cat([small, ends, between])


def _draw_all_problems(task: Task) -> Iterator[tuple[str, Problems]]:
    """Yield uniform problems and problems of every family, each with its name."""
    for name, sampler in _list_samplers(task):
        yield name, sampler(draw_family_sizes(task, name), stream(0, "laws", name))
