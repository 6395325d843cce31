"""The command ``ask``: measure a large language model on a task's problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.text import Text

from lengthwise.api import UsageError, catalog
from lengthwise.ask.client import Key, RequestOptions, collect_replies, import_client
from lengthwise.ask.inquiry import Inquiry, InquiryRun, Item, draw_items, estimate_tokens, score_replies
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import Count, NotNegative, Positive, Seed, Size, Whole
from lengthwise.cli.console import err, print_result, warn
from lengthwise.cli.options import choose_kind, find_recipe, parse_sizes
from lengthwise.cli.shared import Argument, KindOptions, OutputOptions, ProgressOptions, Words
from lengthwise.experiment.data import choose_default_sizes
from lengthwise.experiment.resources import estimate_problems
from lengthwise.report.tables import build_language_model_table


@dataclass(kw_only=True)
class Options(KindOptions, OutputOptions, ProgressOptions):
    """Measure exact match of a large language model, behind any OpenAI-compatible endpoint, length by length."""

    task: Argument  # TASK: e.g. addition
    changes: Words = ()  # name=value: the task's fields, e.g. base=2
    endpoint: str  # URL: the endpoint's address, e.g. http://localhost:8000/v1
    model: str  # NAME: the endpoint's name for the model
    key_variable: str | None = None  # NAME: environment variable of the key (default: OPENAI_API_KEY)
    like: str | None = None  # RECIPE: ask the problems on which models of this recipe, or this run, are measured
    lengths: str | None = None  # SIZES: 8,16 or 1-20 or 2x4 (default: 1,2,4,8,16; with --like: as `evaluate`)
    samples: Size = 100  # N: fresh problems per length (default: 100)
    seed: Seed | None = None  # N: seed of the problems (default: 0)
    limit: Whole | None = None  # N: send at most N requests, including retries
    concurrency: Size = 8  # N: number of concurrent requests (default: 8)
    timeout: Positive = 60.0  # S: seconds for a request (default: 60)
    backoff: NotNegative = 1.0  # S: seconds before the second try, doubled for each further try (default: 1)
    dry_run: bool = False  # print the number of requests and an estimate of tokens, and stop
    max_tokens: Count | None = None  # N: maximum number of tokens per reply (default: no limit)
    no_temperature: bool = False  # send no temperature, for models that refuse 0 (default: send 0)
    examples: Whole = 0  # N: show N short solved problems (default: 0)
    question: str | None = None  # TEXT: the question to ask (default: the task's own)
    out: str | None = None  # FOLDER: where replies and scores go (default: runs/ask-MODEL-TASK-ID)


def run(args: Options) -> int:
    """Ask a model for the answers to fresh problems; return 1 if some prompts have no reply yet, else 0."""
    inquiry, sizes = _build_inquiry(args)
    key = Key.read(args.key_variable)
    request_options = RequestOptions(key, args.limit, args.concurrency, args.timeout, args.backoff)
    largest = max((size if isinstance(size, tuple) else (size,) for size in sizes), key=sum)
    description = f"{args.samples} problems at each of {len(sizes)} sizes"
    estimate_problems(args.samples * len(sizes), largest).check(description)
    items = draw_items(inquiry, sizes, args.samples)
    if args.dry_run:  # nothing is sent, no folder is created
        inquiry_run = InquiryRun.locate(inquiry, Path(args.out) if args.out else None)
        replies = inquiry_run.replies()
        missing_answers = {item.prompt: item.right for item in items if item.prompt not in replies}
        missing = dict(islice(missing_answers.items(), args.limit))
        tokens = estimate_tokens(inquiry, missing)
        result = {"requests": len(missing), "replies": len(replies)} | tokens
        costs = f"about {tokens['prompt_tokens']:,} tokens in and {tokens['completion_tokens']:,} out"
        limit_text = f"; at most {len(missing) * args.max_tokens:,} out" if args.max_tokens else ""
        text = f"{_format_requests(len(missing))}, {costs}{limit_text}, further tries not counted"
        return print_result(args, result, Text(text))
    import_client()  # fails here, before a folder is created, if it is not installed
    is_new = not InquiryRun.locate(inquiry, Path(args.out) if args.out else None).folder.exists()
    inquiry_run = InquiryRun.of(inquiry, Path(args.out) if args.out else None)
    with inquiry_run.lock(folder_kind="inquiry"):  # otherwise two concurrent calls would both pay for the same replies
        try:
            return _ask(args, inquiry_run, items, request_options)
        except UsageError:
            if is_new:
                inquiry_run.remove_if_empty()
            raise


def _ask(args: Options, inquiry_run: InquiryRun, items: Sequence[Item], request_options: RequestOptions) -> int:
    """Ask for the missing replies; print and save the scores. Return 1 if some prompts have no reply yet, else 0."""
    inquiry = inquiry_run.inquiry
    inquiry_run.rows("scores")  # raises for a damaged file, before replies are paid for
    tokens_before = inquiry_run.sum_token_counts()
    prompts = {item.prompt for item in items}
    done = len(prompts & inquiry_run.replies().keys())
    with Progress(quiet=args.quiet, console=err) as progress:
        line = progress.add_line("replies", len(prompts), done)
        outcome = collect_replies(
            inquiry_run, items, request_options, lambda new, sent: line.update(done + new, _format_requests(sent))
        )
    rows, tokens = score_replies(inquiry, items, inquiry_run.replies()), inquiry_run.sum_token_counts()
    inquiry_run.save_scores(rows)
    spent = {name: tokens[name] - tokens_before[name] for name in tokens}
    result = {"run": str(inquiry_run.folder), "scores": rows, "unfinished": outcome.missing_count}
    result |= {"requests": outcome.request_count, "tokens": tokens, "tokens_of_this_call": spent}
    tokens_now, in_all = (f"{count['prompt_tokens']:,} + {count['completion_tokens']:,}" for count in (spent, tokens))
    summary = f"{_format_requests(outcome.request_count)}, tokens in and out: {tokens_now}"
    summary += f"; with earlier calls: {in_all}\n{inquiry_run.folder}"
    print_result(args, result, *([build_language_model_table(rows)] if rows else []), Text(summary, overflow="fold"))
    if outcome.missing_count:
        counted = f"{outcome.missing_count} of {len(prompts)} prompts have no reply"
        warn(f"{counted} ({outcome.reason}); the same command continues from here")
    return 1 if outcome.missing_count else 0


def _build_inquiry(args: Options) -> tuple[Inquiry, Sequence[Any]]:
    """Return the inquiry and its sizes; with --like, the sizes on which a recipe's models are measured."""
    sizes = parse_sizes(args.lengths) if args.lengths else None
    task = catalog.find_task(args.task, args.changes)
    choices: dict[str, Any] = {"question": args.question, "seed": args.seed or 0}
    choices |= {"problems": choose_kind(args, task), "examples": args.examples, "max_tokens": args.max_tokens}
    choices |= {"temperature": None} if args.no_temperature else {}
    if args.like is None:
        default_lengths = (task.round_to_valid_size(size) for size in (1, 2, 4, 8, 16) if size >= task.smallest)
        sizes = sizes or list(dict.fromkeys(default_lengths)) or [task.smallest]
        return Inquiry.of(args.endpoint, args.model, task, **choices), sizes
    recipe = find_recipe(args.like, [])
    if args.changes or recipe.task.name != task.name:
        advice = f"the recipe's task is used unchanged: give {recipe.task.name}, without changes"
        raise UsageError(f"--like {args.like}: {advice}")
    choices |= {"bottom": recipe.lengths.bottom, "source": recipe.source}
    choices |= {"top": recipe.lengths.top} if choices["problems"] == "natural" else {}
    inquiry = Inquiry.of(args.endpoint, args.model, recipe.task, **choices)
    return inquiry, [recipe.sizes(size) for size in sizes or choose_default_sizes(recipe)]


def _format_requests(count: int) -> str:
    return f"{count} request{'s' * (count != 1)}"
