"""Ask a language model over HTTP: a local server answers, and simulates the failures of real endpoints."""

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import command

from lengthwise.api import catalog
from lengthwise.ask import client
from lengthwise.ask.client import Key
from lengthwise.ask.inquiry import ANSWER_ONLY_TEXT, Inquiry, InquiryRun, draw_items, is_leniently_right, judge_reply
from lengthwise.base import process
from lengthwise.base.fields import find_part_classes
from lengthwise.base.types import UsageError, wilson_interval
from lengthwise.experiment.data import choose_default_sizes, draw_fresh_problems, draw_recipe_problems
from lengthwise.experiment.recipe import import_parts
from lengthwise.experiment.source import Finite
from lengthwise.runs.folder import get_runs_folder
from lengthwise.tasks import Task, to_kebab_case

TEST_KEY = "sk-proj-Aa0Bb1Cc2Dd3Ee4Ff5Gg6"
import_parts()


# The endpoint


class Endpoint(ThreadingHTTPServer):
    """A server whose n-th answer to a prompt is ``script(prompt, n)``: the text of a reply, or a function that is
    called with the request's handler."""

    daemon_threads = True
    request_queue_size = 64  # the default of 5 would refuse requests on a busy machine

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.lock, self.gone = script, threading.Lock(), threading.Event()
        self.asked, self.times, self.bodies, self.headers, self.running, self.most = Counter(), [], [], [], 0, 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):
        pass  # the client has disconnected


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"].split("\n\n")[-1]
        with server.lock:
            server.asked[prompt] += 1
            count = server.asked[prompt]
            server.times.append(time.monotonic())
            server.bodies.append(body | {"path": self.path})
            server.headers.append(self.headers)
            server.running += 1
            server.most = max(server.most, server.running)
        try:
            reply = server.script(prompt, count)
            reply(self) if callable(reply) else self.reply(reply)
        finally:
            with server.lock:
                server.running -= 1

    def reply(self, content, **fields):
        usage = {"prompt_tokens": 30, "completion_tokens": 2, "total_tokens": 32}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        self.send(200, json.dumps({"model": "served-1", "choices": [choice], "usage": usage} | fields))

    def send(self, status, text, content_type="application/json", **headers):
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def send_fault(self, status, message="trouble", **headers):
        self.send(status, json.dumps({"error": {"message": message, "type": "x", "code": "y"}}), **headers)

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    """Return a function that starts an endpoint with a script, without loading TLS certificates, which is slow."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    started = []

    def start(script):
        server = Endpoint(script)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.gone.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def set_test_key(monkeypatch):
    """Set a test key, and hide the user's own keys, which must not be sent anywhere."""
    for name in [name for name in os.environ if name.startswith("OPENAI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", TEST_KEY)


def compute_sum(prompt):
    return str(sum(map(int, prompt.split("+"))))


def answer_correctly(prompt, _):
    return compute_sum(prompt)


def build_arguments(url, *options, task="addition"):
    return ["ask", task, "--endpoint", url, "--model", "org/a model", "--backoff", "0.01", *map(str, options)]


def run_cli(*arguments):
    """Run a command; return its exit status, stdout and stderr."""
    done = command(*arguments)
    return done.returncode, done.stdout, done.stderr


def run_cli_json(*arguments, code=0):
    """Run a command with --json, check its exit status and stderr, and return the parsed stdout."""
    status, out, err = run_cli(*arguments, "--json")
    assert (status, len(err.splitlines())) == (code, code != 0), err
    return json.loads(out)


def run_failing(*arguments):
    """Run a command that must fail without any output, and return its one line on standard error."""
    status, out, err = run_cli(*arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1), (status, out, err)
    assert err.startswith("lengthwise: ")
    return err


def format_prompts(task, problems):
    lengths = problems.prompt_length.tolist()
    return [task.to_text(prompt[:length]) for prompt, length in zip(problems.prompt, lengths, strict=True)]


def read_replies(result):
    path = Path(result["run"]) / "replies.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# Prompts and scores


def test_ask_scores_a_model_on_the_problems_of_evaluate(endpoint, runs):
    replies = {1: lambda _: "0", 2: lambda _: "1", 3: lambda prompt: f"The answer is **{compute_sum(prompt)}**."}
    server = endpoint(lambda prompt, _: replies.get(len(server.asked), compute_sum)(prompt))
    options = ["--lengths", "3,5", "--samples", 20, "--seed", 7, "--concurrency", 1]
    result = run_cli_json(*build_arguments(server.url, *options))
    assert [row["sizes"] for row in result["scores"]] == [[3, 3], [5, 5]]
    task = catalog.find_task("addition")
    for row in result["scores"]:
        prompts = format_prompts(task, draw_fresh_problems(task, row["sizes"], 20, seed=7))
        assert all(server.asked[prompt] == 1 for prompt in prompts)
    assert sum(server.asked.values()) == 40 == result["requests"]
    first, second = result["scores"]
    assert [first[name] for name in ("exact", "lenient", "count", "asked", "chatter")] == [0.85, 0.9, 20, 20, 1]
    assert (first["low"], first["high"]) == wilson_interval(0.85, 20)
    facts = [first[name] for name in ("task", "weights", "problems", "seed")]
    assert facts == ["addition", "org/a model", "uniform", 7]
    assert second["exact"] == second["token_accuracy"] == second["whole_row"] == 1
    assert 0.8 < first["token_accuracy"] < 1
    assert result["tokens"] == result["tokens_of_this_call"] == {"prompt_tokens": 1200, "completion_tokens": 80}
    folder = Path(result["run"])
    assert folder.parent == runs and re.fullmatch("ask-org-a-model-addition-[0-9a-f]{10}", folder.name)
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["asked.json", "replies.jsonl", "scores.jsonl"]
    assert [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()] == result["scores"]


def test_prompts_follow_the_recipe_given_by_like(endpoint, tmp_path):
    """With ``--like``, prompts have the recipe's sizes and distribution and are not in its fixed training set. Natural
    problems beyond the training lengths start above them."""
    changes = ["task=Multiplication(base=10)", "lengths=Natural(top=4,bottom=2)", "source=Finite(rows=64)"]
    path = tmp_path / "recipe.json"
    recipe = catalog.find_recipe("fop-parity", changes)
    path.write_text(recipe.json())
    server = endpoint(lambda prompt, _: str(math.prod(map(int, prompt.split("*")))))
    arguments = build_arguments(server.url, "--like", path, "--samples", 12, "--natural", task="multiplication")
    rows = run_cli_json(*arguments, "--lengths", "3,7")["scores"]
    found = [(row["sizes"], row["problems"], row["exact"]) for row in rows]
    assert found == [([3, 3], "natural", 1), ([7, 7], "natural", 1)]
    typed = [
        format_prompts(recipe.task, draw_recipe_problems(recipe, size, 12, seed=0, kind="natural")) for size in (3, 7)
    ]
    assert set(server.asked) == {*typed[0], *typed[1]} and min(len(prompt) for prompt in typed[1]) >= 5 + 1 + 5
    rows = run_cli_json(*arguments)["scores"]
    assert [row["sizes"] for row in rows] == [[size] * 2 for size in choose_default_sizes(recipe)]
    for other in (["addition"], ["multiplication", "base=10"]):
        line = run_failing(*build_arguments(server.url, "--like", path, *other[1:], task=other[0]))
        assert "give multiplication, without changes" in line
    assert "not both" in run_failing(*arguments, "--hard")


@pytest.mark.parametrize(
    "name", ["addition order=least", *(to_kebab_case(kind) for kind in find_part_classes(Task) if kind != "File")]
)
def test_replies_in_the_usual_notation_are_judged_right_for_every_task(name):
    """Prompts and right answers are in the usual notation, most significant digit first, and such replies score 1."""
    task = catalog.find_task(name.split()[0], name.split()[1:])
    smallest, *_, fifth = task.list_smallest_sizes(5)
    sizes = [(size,) * len(task.axes) if isinstance(size, int) else size for size in (smallest, fifth)]
    for item in draw_items(Inquiry.of("http://x/v1", "m", task), sizes, 5):
        problems = task.parse(item.prompt)
        answer = task.format(problems.answer[0, : int(problems.answer_length)])
        assert judge_reply(task, answer, item.right)["correct"]
        assert "addition" not in name or item.right == compute_sum(item.prompt)


def test_default_lengths_are_possible_for_the_task(endpoint):
    task = catalog.find_task("expression")
    server = endpoint(lambda prompt, _: task.reference(prompt))
    result = run_cli_json("ask", "--endpoint", server.url, "--model", "m", "--samples", 8, "expression")
    assert [(row["sizes"], row["exact"]) for row in result["scores"]] == [([4], 1), ([8], 1), ([16], 1)]
    rows = read_replies(result)
    assert any(row["right"].startswith("-") for row in rows) and all(row["answer"] == row["right"] for row in rows)
    assert server.bodies[0]["messages"][0]["content"].startswith("Answer the math question. Reply")


def test_problems_from_a_file_may_have_long_prompts_and_empty_answers(endpoint, tmp_path):
    path, server = tmp_path / "own.jsonl", endpoint(lambda *_: "")
    for answer, sizes in (("1", []), ("", ["--lengths", 20])):
        rows = [{"prompt": f"{number:020b}", "answer": answer} for number in range(400)]
        rows += [] if answer else [{"prompt": "1", "answer": "1"}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        arguments = ["ask", "file", f"path={path}", "--endpoint", server.url, "--model", "m", "--samples", 8, *sizes]
        (row,) = run_cli_json(*arguments)["scores"]
        assert row["sizes"] == [20] and row["exact"] == row["token_accuracy"] == (answer == "")


def test_only_the_whole_answer_is_right():
    found = {"42": "42", " 42\n": "42", "43": "43", "042": "042", "+42": "+42"}
    found |= dict.fromkeys(("42.", "4,2", "4 2", "-42", "４２", "It is 42", "\\boxed{42}", ""))
    for reply, answer in found.items():
        row = judge_reply(catalog.find_task("addition"), reply, "42")
        assert row == {"said": reply, "answer": answer, "correct": answer == "42"}
    assert judge_reply(catalog.find_task("addition"), "-3\n", "-3")["correct"]


LENIENTLY_RIGHT_REPLIES = {
    "addition": {
        "137": ["The answer is **137**.", "128+9 = 137", "\\boxed{137}", "+137", "0137", "137"],
        "1234567": ["1,234,567", "$1{,}234{,}567$"],
    },
    "addition order=least": {"1004": ["So 1,004"]},
    "multiplication": {"110": ["It is 0110."]},
    "multiplication base=10": {"9801": ["9,801"]},
    "binary-sum": {"100": ["**0100**"]},
    "expression": {"-12": ["It is \N{MINUS SIGN}12."], "-3": ["It is -3."]},
    "sorting": {"B,A": ["In ascending order: B,A."]},
    "parity": {"0": ["There are 2 ones, so: 0"]},
    "sudoku": {"4213/3124/1342/2431": ["Solved: **4213/3124/1342/2431**", "4213/3124/1342/2431"]},
    "file path=words.jsonl words=true": {"dog cat": ["It is: dog cat.", "**dog cat**"]},
}
WRONG_REPLIES = ["First 137, or rather 138", "The answer is 13.7", "I cannot add.", "", "137, no: 136", "1,37"]


def test_a_lenient_score_takes_the_last_possible_answer_of_a_reply(tmp_path, monkeypatch):

    monkeypatch.chdir(tmp_path)
    Path("words.jsonl").write_text('{"prompt": "cat dog", "answer": "dog cat"}\n', encoding="utf-8")
    for name, answers in LENIENTLY_RIGHT_REPLIES.items():
        task = catalog.find_task(name.split()[0], name.split()[1:])
        for right, replies in answers.items():
            assert all(is_leniently_right(task, reply, right) for reply in replies), (name, replies)
    assert not any(is_leniently_right(catalog.find_task("addition"), reply, "137") for reply in WRONG_REPLIES)
    assert not is_leniently_right(catalog.find_task("expression"), "It is 3.", "-3")
    assert is_leniently_right(catalog.find_task("multiplication"), "011", "11")  # leading zeros of numbers alone
    assert not is_leniently_right(catalog.find_task("copy"), "011", "0011")
    assert not is_leniently_right(catalog.find_task("sorting"), "In ascending order: A,B.", "B,A")


def test_a_dry_run_sends_nothing_and_creates_no_folder(endpoint, runs):
    server = endpoint(answer_correctly)
    verb, task, *options = build_arguments(server.url, "--lengths", "2,4", "--samples", 10)
    arguments = [verb, *options, task]  # options may stand anywhere
    plan = run_cli_json(*arguments, "--dry-run")
    assert (plan["requests"], server.asked.total(), runs.exists()) == (20, 0, False)
    assert plan["prompt_tokens"] > 20 * 20 and plan["completion_tokens"] >= 40
    assert run_cli_json(*arguments, "--dry-run", "--limit", 5)["requests"] == 5
    text = run_cli(*arguments, "--dry-run", "--max-tokens", 7)[1]
    assert "20 requests, about" in text and "at most 140 out" in text
    run_cli_json(*build_arguments(server.url, "--lengths", "2", "--samples", 10))
    assert run_cli_json(*arguments, "--dry-run")["requests"] == 10


def test_requests_follow_the_options(endpoint):
    server = endpoint(answer_correctly)
    one = ["--lengths", "2", "--samples", 1]
    for options in ([], ["--no-temperature", "--max-tokens", 9], ["--examples", 2]):
        run_cli_json(*build_arguments(server.url, *one, *options))
    plain, free, shown = server.bodies
    (prompt,) = server.asked
    content = f"Answer the math question. {ANSWER_ONLY_TEXT}\n\n{prompt}"
    assert plain["messages"] == [{"role": "user", "content": content}]
    assert [plain[name] for name in ("path", "model", "temperature")] == ["/v1/chat/completions", "org/a model", 0]
    assert server.headers[0]["Authorization"] == f"Bearer {TEST_KEY}" and "max_tokens" not in plain
    assert ("temperature" in free, free["max_tokens"]) == (False, 9)
    *turns, last = shown["messages"]
    assert [message["role"] for message in turns] == ["user", "assistant"] * 2 and [last] == plain["messages"]
    for question, answer in zip(turns[::2], turns[1::2], strict=True):
        assert compute_sum(question["content"].split("\n\n")[-1]) == answer["content"]
    assert "--max-tokens must be 1 or more" in run_failing(*build_arguments(server.url, "--max-tokens", 0))
    assert "--examples must be 0 to 100" in run_failing(*build_arguments(server.url, "--examples", 101))


def test_an_empty_reply_is_wrong(endpoint):
    silent = '{"choices": [{"message": {"role": "assistant"}, "finish_reason": "length"}]}'
    server = endpoint(lambda *_: (lambda handler: handler.send(200, silent)) if len(server.asked) == 1 else None)
    result = run_cli_json(*build_arguments(server.url, "--lengths", "2", "--samples", 3, "--concurrency", 1))
    assert [row["finish"] for row in read_replies(result)] == ["length", "stop", "stop"]
    assert (result["scores"][0]["exact"], result["scores"][0]["chatter"]) == (0, 3)
    assert [row["said"] for row in read_replies(result)] == [""] * 3


def test_a_prompt_that_occurs_twice_is_asked_once_and_counts_twice(endpoint):
    server = endpoint(lambda prompt, _: "1" if prompt == "01" else "x")
    result = run_cli_json(*build_arguments(server.url, "--lengths", "2", "--samples", 50, task="parity"))
    assert server.asked == dict.fromkeys(["00", "01", "10", "11"], 1)
    problems = draw_fresh_problems(catalog.find_task("parity"), [2], 50, seed=0)
    assert result["scores"][0]["exact"] == problems.prompt.tolist().count([0, 1]) / 50


def test_the_default_output_is_a_table(endpoint):
    server = endpoint(lambda prompt, n: compute_sum(prompt) if prompt[0] < "5" else "hm")
    status, out, err = run_cli(*build_arguments(server.url, "--lengths", "2,3", "--samples", 10))
    assert (status, err) == (0, "")
    for part in ("95 % interval", "2x2", "3x3", "chatter", "20 requests", "600 + 40", "org/a model, addition", "ask-"):
        assert part in out


# Temporary failures


def reply_after_the_timeout(handler):
    handler.server.gone.wait(1.5)
    handler.reply("late")


def reply_byte_by_byte(handler):
    """Send single bytes in quick succession until the timeout has passed."""
    end = b'{"choices": [{"message": {"content": "late"}}]}'
    handler.send_response(200)
    handler.send_header("Content-Length", str(40 + len(end)))
    handler.end_headers()
    for _ in range(40):
        handler.server.gone.wait(0.05)
        handler.wfile.write(b" ")
    handler.wfile.write(end)


def hang_up(handler):
    handler.close_connection = True
    handler.connection.shutdown(2)


def send_half_of_a_reply(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


ENDPOINT_FAULTS = {
    "500": lambda handler: handler.send_fault(500),
    "503, a page": lambda handler: handler.send(503, "<html>busy</html>", "text/html"),
    "429": lambda handler: handler.send_fault(429, Retry_After=f"Mon, 01 Jan 2020 00:00:00 +{10**20}"),
    "slow": reply_after_the_timeout,
    "slower": reply_byte_by_byte,
    "hung up": hang_up,
    "cut short": send_half_of_a_reply,
    "garbage": lambda handler: handler.send(200, '{"choices": [{"mess'),
    "a page": lambda handler: handler.send(200, "<html>hello</html>", "text/html; charset=idna"),
    "a list": lambda handler: handler.send(200, "[1]"),
    "deep": lambda handler: handler.send(200, "[" * 100_000),
    "no choices": lambda handler: handler.send(200, '{"choices": []}'),
    "no message": lambda handler: handler.send(200, '{"choices": [{"message": "5"}]}'),
    "choices of null": lambda handler: handler.send(200, '{"choices": null, "error": "x"}'),
    "no text": lambda handler: handler.reply(["parts"]),
}


@pytest.mark.parametrize("fault", ENDPOINT_FAULTS)
def test_a_request_that_fails_once_is_repeated(endpoint, fault):
    server = endpoint(lambda prompt, n: ENDPOINT_FAULTS[fault] if n == 1 else compute_sum(prompt))
    late = fault in {"slow", "slower"}
    timeout = 0.5 if late else 30
    result = run_cli_json(*build_arguments(server.url, "--lengths", "3", "--samples", 3, "--timeout", timeout))
    assert result["scores"][0]["exact"] == 1
    tries = [row["tries"] for row in read_replies(result)]
    # On a busy machine a reply may be late for another reason, and is asked for once more.
    assert min(tries) == 2 if late else set(tries) == {2}
    assert sorted(server.asked.values()) == sorted(tries) and result["requests"] == sum(tries)


def test_a_request_is_repeated_after_the_wait_that_the_endpoint_asks_for(endpoint):
    later = lambda handler: handler.send_fault(429, Retry_After="1")  # noqa: E731
    server = endpoint(lambda prompt, n: later if n == 1 else compute_sum(prompt))
    run_cli_json(*build_arguments(server.url, "--lengths", "3", "--samples", 1))
    first, second = server.times
    assert 0.85 < second - first < 10


def test_a_rate_limit_delays_all_requests(endpoint):
    first = []

    def script(prompt, _):
        if not first:
            first.append(prompt)
            return lambda handler: handler.send_fault(429, Retry_After="0.6")
        time.sleep(0.1)
        return compute_sum(prompt)

    server = endpoint(script)
    run_cli_json(*build_arguments(server.url, "--lengths", "3", "--samples", 4, "--concurrency", 2))
    assert sum(moment - server.times[0] < 0.55 for moment in server.times) == 2


# Permanent failures


def test_unanswered_prompts_are_reported_and_asked_again(endpoint):
    healed = False
    bad = lambda prompt: prompt[0] in "123" and not healed  # noqa: E731
    server = endpoint(lambda prompt, _: ENDPOINT_FAULTS["500"] if bad(prompt) else compute_sum(prompt))
    arguments = build_arguments(server.url, "--lengths", "3", "--samples", 20, "--concurrency", 20)
    status, out, err = run_cli(*arguments)
    left = sum(bad(prompt) for prompt in server.asked)
    assert status == 1 and 0 < left < 20
    assert re.fullmatch(
        rf"lengthwise: {left} of 20 prompts have no reply \(.*500: trouble\); the same command continues .*\n", err
    )
    assert f"{20 - left} of 20" in out
    (folder,) = Path(os.environ["LENGTHWISE_RUNS"]).iterdir()
    assert not (folder / "scores.jsonl").exists()  # half measured
    before, healed = Counter(server.asked), True
    assert set((before - Counter(dict.fromkeys(before, 1))).values()) == {client.MAX_TRIES - 1}
    result = run_cli_json(*arguments)
    assert result["requests"] == left and result["scores"][0]["exact"] == 1
    assert sum((server.asked - before).values()) == left
    again = run_cli_json(*arguments)
    assert again["requests"] == 0 and again["scores"] == result["scores"]
    assert len((folder / "scores.jsonl").read_text().splitlines()) == 1


def test_waits_between_attempts_grow_and_vary_at_random(endpoint, monkeypatch):
    drawn = []
    monkeypatch.setattr(client.random, "uniform", lambda *ends: drawn.append(ends) or 2.0)
    server = endpoint(lambda prompt, n: ENDPOINT_FAULTS["500"] if n < 5 else compute_sum(prompt))
    run_cli_json(*build_arguments(server.url, "--lengths", "3", "--samples", 1, "--backoff", 0.02))
    assert set(drawn) == {(0.5, 1)}
    for (before, after), least in zip(pairwise(server.times), (0.04, 0.08, 0.16, 0.32), strict=True):
        assert least <= after - before < least + 1


def test_requests_to_a_dead_endpoint_end_early(endpoint):
    server = endpoint(lambda *_: ENDPOINT_FAULTS["500"])
    status, _, err = run_cli(*build_arguments(server.url, "--lengths", "4", "--samples", 50, "--concurrency", 2))
    assert status == 1 and len(err.splitlines()) == 1 and "50 of 50" in err
    assert sum(server.asked.values()) <= 4 * client.MAX_TRIES
    url = server.url
    server.shutdown()
    server.server_close()
    status, out, err = run_cli(*build_arguments(url, "--lengths", "4", "--samples", 50, "--json"))
    assert status == 1 and len(err.splitlines()) == 1 and "onnect" in err
    assert json.loads(out)["requests"] < 3 * 8  # eight at a time: two of each in vain, others under way


QUOTA_MESSAGES = {"insufficient_quota": "the quota is used up (429: pay)", "x": "pay; it asks to wait 7200 s"}


@pytest.mark.parametrize(("error_type", "message"), QUOTA_MESSAGES.items())
def test_a_quota_that_is_used_up_or_a_wait_of_hours_ends_the_command(endpoint, error_type, message):
    body = json.dumps({"error": {"message": "pay", "type": error_type, "code": error_type}})
    server = endpoint(lambda *_: lambda handler: handler.send(429, body, Retry_After="7200"))
    status, _, err = run_cli(*build_arguments(server.url, "--lengths", "4", "--samples", 20, "--concurrency", 1))
    assert status == (2 if error_type == "insufficient_quota" else 1) and message in err and len(err.splitlines()) == 1
    assert sum(server.asked.values()) == 1


PERMANENT_ERRORS = {401: "the key in OPENAI_API_KEY is refused", 402: "needs payment", 403: "forbids"}
PERMANENT_ERRORS |= {404: "no model org/a model", 308: "moved", 422: "no temperature, please"}


@pytest.mark.parametrize("status", PERMANENT_ERRORS)
def test_permanent_errors_stop_at_once(endpoint, status):
    elsewhere = endpoint(answer_correctly)
    refuse = lambda handler: handler.send_fault(status, "no temperature, please", Location=f"{elsewhere.url}/x")  # noqa: E731
    server = endpoint(lambda *_: refuse)
    line = run_failing(*build_arguments(server.url, "--lengths", "4", "--samples", 50, "--concurrency", 4))
    assert PERMANENT_ERRORS[status] in line and str(status) in line
    assert sum(server.asked.values()) <= 4 and not elsewhere.asked
    assert not any(get_runs_folder().glob("*"))


def test_a_refused_prompt_does_not_affect_others(endpoint):
    refuse = lambda handler: handler.send_fault(400, "filtered")  # noqa: E731
    server = endpoint(lambda prompt, _: refuse if len(server.asked) in (3, 4, 5, 6) else compute_sum(prompt))
    result = run_cli_json(*build_arguments(server.url, "--lengths", "4", "--samples", 20, "--concurrency", 1), code=1)
    assert (result["unfinished"], result["requests"]) == (4, 20)


def test_the_key_comes_from_a_variable_and_a_local_endpoint_needs_none(endpoint, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    server = endpoint(answer_correctly)
    arguments = build_arguments(server.url, "--lengths", "3", "--samples", 1)
    assert "no variable of that name" in run_failing(*arguments, "--key-variable", "MINE")
    monkeypatch.setenv("MINE", "mine-0123456789\n")
    run_cli_json(*arguments, "--key-variable", "MINE")
    run_cli_json(*arguments, "--seed", 1)
    sent = [headers["Authorization"] for headers in server.headers]
    assert sent == ["Bearer mine-0123456789", "Bearer none"]
    server.script = lambda *_: lambda handler: handler.send_fault(401)
    assert "set OPENAI_API_KEY, or name another" in run_failing(*arguments, "--seed", 2)


# Invalid arguments


def test_invalid_arguments_are_refused_before_anything_is_sent(endpoint, monkeypatch, runs):
    server = endpoint(answer_correctly)

    def read_refusal(*options, task="addition"):
        line = run_failing(*build_arguments(server.url, *options, task=task))
        assert not server.asked and not runs.exists()
        return line

    assert "did you mean addition" in read_refusal(task="additon")
    assert "bass" in read_refusal("bass=2")
    wrong = {"--limit": -1, "--concurrency": 0, "--timeout": "nan", "--backoff": "inf", "--samples": 0, "--model": " "}
    for option, value in wrong.items():
        assert option in read_refusal(option, value)
    assert "sizes" in read_refusal("--lengths", "none")
    assert "axis" in read_refusal("--lengths", "2x2", task="parity")
    assert "omit --hard" in read_refusal("--hard", task="parity")
    hosts = "localhost:8000", "ftp://x/v1", "http://", "http://x:port/v1", "https://me:pass@x/v1", "http://x/?key=pass"
    for url in (*hosts, "http://x:99999/v1", "http://[x]/v1", "http://x\x07/v1"):
        line = read_refusal("--endpoint", url)
        assert "--endpoint: give an address such as http://localhost:8000/v1" in line and "=pass" not in line
        assert "pass@" not in line
    assert Inquiry.of("HTTP://[2001:DB8::1]:80/v1/@x", "m", catalog.find_task("parity")).endpoint.endswith("/@x")
    for name in ("sk-proj-abc123", "gsk_9aB8cD7eF6", "AKIA0123456789ABCDEF"):
        assert name not in (line := read_refusal("--key-variable", name)) and "the variable's name, not the key" in line
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "openai", None)
        assert "pip install" in read_refusal()
    assert "--endpoint: " in run_failing(*build_arguments("http://999.1.1.1/v1"))  # which the client's library refuses


def test_a_folder_holds_one_inquiry(endpoint, tmp_path):
    server = endpoint(answer_correctly)
    position = tmp_path / "place"
    arguments = ["--lengths", "3", "--samples", "3"]
    assert run_cli_json(*build_arguments(server.url, *arguments, "--out", position))["run"] == str(position)
    other = build_arguments(server.url, *arguments, "--out", position, "--seed", 1, "--dry-run")
    assert "an inquiry with other settings" in run_failing(*other)
    for change in (["--seed", 1], ["--model", "other"], ["base=3"], ["--question", "Well?"], ["--hard"]):
        changed = build_arguments(server.url, *arguments, *change)
        assert "inquiry with other settings" in run_failing(*changed, "--out", position)
        assert run_cli_json(*changed)["requests"] == 3  # in a folder of its own
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    assert "other files" in run_failing(*build_arguments(server.url, *arguments, "--out", run))
    assert [path.name for path in run.iterdir()] == ["config.json"]


def test_a_call_does_not_remove_a_new_inquiry_that_another_call_has_locked(endpoint, runs, monkeypatch):
    """One call has created the inquiry's folder, but has no reply yet; a second call cannot lock it."""

    def refuse_lock(*_, **_options):
        raise UsageError("process 1 works on this inquiry")

    monkeypatch.setattr(InquiryRun, "lock", refuse_lock)
    arguments = build_arguments(endpoint(answer_correctly).url, "--lengths", "3", "--samples", 3)
    assert "works on this inquiry" in run_failing(*arguments) and [*runs.glob("*/asked.json")]


def test_further_lengths_and_problems_are_added_to_the_same_folder(endpoint):
    server = endpoint(answer_correctly)
    first = run_cli_json(*build_arguments(server.url, "--lengths", "3", "--samples", 3))
    second = run_cli_json(*build_arguments(server.url + "/", "--lengths", "3,4", "--samples", 3))
    assert first["run"] == second["run"] and second["requests"] == 3
    assert second["tokens"] == {"prompt_tokens": 180, "completion_tokens": 12}
    assert second["tokens_of_this_call"] == {"prompt_tokens": 90, "completion_tokens": 6}


# Limits


def test_no_more_requests_are_sent_than_allowed(endpoint):
    server = endpoint(lambda prompt, n: ENDPOINT_FAULTS["500"] if n == 1 else compute_sum(prompt))
    arguments = build_arguments(server.url, "--lengths", "4", "--samples", 20)
    result = run_cli_json(*arguments, "--limit", 0, code=1)
    assert (result["requests"], result["unfinished"], result["scores"]) == (0, 20, [])
    result = run_cli_json(*arguments, "--limit", 7, code=1)
    assert sum(server.asked.values()) == 7 == result["requests"]
    assert result["unfinished"] == 20 - len(read_replies(result))
    status, _, err = run_cli(*arguments, "--limit", 9)
    assert status == 1 and "--limit 9 is reached" in err and "of 20 prompts have no reply" in err
    assert sum(server.asked.values()) == 16
    result = run_cli_json(*arguments, "--limit", 100)
    assert result["unfinished"] == 0 and result["scores"][0]["exact"] == 1


def test_requests_run_concurrently_up_to_the_allowed_number(endpoint):
    meeting = threading.Barrier(5, timeout=5)  # opens when five requests wait
    server = endpoint(lambda prompt, _: (meeting.wait(), compute_sum(prompt))[1])
    options = ["--lengths", "3,4x5-6", "--samples", 5, "--concurrency", 5, "--hard"]
    result = run_cli_json(*build_arguments(server.url, *options))
    assert [(row["sizes"], row["exact"]) for row in result["scores"]] == [([3, 3], 1), ([4, 5], 1), ([4, 6], 1)]
    assert server.most == 5


# Resuming


def start_command(*arguments):
    command = [sys.executable, "-m", "lengthwise", *map(str, arguments)]
    environment = {**os.environ, "OPENAI_LOG": "debug"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_a_killed_command_resumes_without_repeating_requests(endpoint, runs):
    """After SIGKILL the same command sends the missing prompts. The debug log of the client library omits the key."""
    gate, reached = threading.Event(), threading.Event()

    def script(prompt, _):
        if len(server.asked) > 12:
            reached.set()
            gate.wait(10)
        return compute_sum(prompt)

    server = endpoint(script)
    arguments = build_arguments(server.url, "--lengths", "5", "--samples", 30, "--concurrency", 4, "--quiet")
    process = start_command(*arguments)
    try:
        assert reached.wait(60)
        replies = wait_for_lines(runs, 12)
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert "DEBUG" in err and TEST_KEY not in err + out and not find_files_with_key(runs)
    finished = {row["prompt"]: row for row in map(json.loads, replies.read_text().splitlines())}
    under_way = set(server.asked) - set(finished)
    assert len(finished) == 12 and 1 <= len(under_way) <= 4
    with replies.open("ab") as file:
        file.write(b'{"sizes": [5, 5], "prompt": "1+')  # as a kill within a line leaves it
    gate.set()
    result = run_cli_json(*arguments)
    rows = read_replies(result)
    assert [row for row in rows if row["prompt"] in finished] == list(finished.values())
    assert len(rows) == 30 and result["requests"] == 18 and result["scores"][0]["exact"] == 1
    assert all(server.asked[prompt] == 1 for prompt in finished)
    assert all(count <= 2 for count in server.asked.values())


def wait_for_lines(runs, count):
    for _ in range(500):
        found = list(runs.glob("*/replies.jsonl"))
        if found and found[0].read_bytes().count(b"\n") >= count:
            return found[0]
        time.sleep(0.02)
    raise AssertionError("no replies were kept")


def test_damaged_files_are_reported_before_any_request_is_paid(endpoint):
    server = endpoint(answer_correctly)
    arguments = build_arguments(server.url, "--lengths", "3", "--samples", 3)
    folder = Path(run_cli_json(*arguments)["run"])
    for name in ("scores", "replies"):
        kept = (folder / f"{name}.jsonl").read_text()
        (folder / f"{name}.jsonl").write_text(kept + "{\n")
        assert f"{name}.jsonl: line {kept.count(chr(10)) + 1}: not JSON" in run_failing(*arguments, "--samples", 4)
        (folder / f"{name}.jsonl").write_text(kept)
    (folder / "asked.json").write_text("{")
    assert "asked.json" in run_failing(*arguments, "--samples", 4)
    assert sum(server.asked.values()) == 3


@pytest.mark.parametrize("count", [10**99, -1, 2.5, "many", True])
def test_an_implausible_token_count_is_stored_as_zero(endpoint, count):
    usage = {"usage": {"prompt_tokens": count, "completion_tokens": 10**9}}
    server = endpoint(lambda prompt, _: lambda handler: handler.reply(compute_sum(prompt), **usage))
    arguments = build_arguments(server.url, "--lengths", "3", "--samples", 1)
    result = run_cli_json(*arguments)
    (row,) = read_replies(result)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (0, 10**9)


# The key


def find_files_with_key(folder):
    return [path for path in folder.rglob("*") if path.is_file() and TEST_KEY[8:20].encode() in path.read_bytes()]


def echo_key(status):
    text = f"bad key {TEST_KEY}; Bearer {TEST_KEY}, '{TEST_KEY}'"
    if status == "page":
        return lambda handler: handler.send(502, f"<html>{TEST_KEY} <b>{TEST_KEY}</b></html>", "text/html")
    if status == "long":
        return lambda handler: handler.send_fault(500, "x" * 230 + " " + TEST_KEY)
    if status == "detail":
        return lambda handler: handler.send(500, json.dumps({"detail": [{"input": text}]}))
    return lambda handler: handler.send_fault(status, text)


@pytest.mark.parametrize("status", [400, 401, 404, 429, "page", "long", "detail"])
def test_an_echoed_key_is_neither_printed_nor_stored(endpoint, runs, status):
    server = endpoint(lambda *_: echo_key(status))
    code, out, err = run_cli(*build_arguments(server.url, "--lengths", "4", "--samples", 2))
    assert code in (1, 2) and len(err.splitlines()) == 1
    assert not any(TEST_KEY[i : i + 12] in out + err for i in range(len(TEST_KEY) - 12))
    assert not find_files_with_key(runs)
    assert "bad key [key]" in err or status not in (400, 404)


def test_a_key_in_a_reply_is_masked(endpoint, runs):
    server = endpoint(lambda *_: lambda handler: handler.reply(f"Your key is {TEST_KEY}!", model=TEST_KEY))
    result = run_cli_json(*build_arguments(server.url, "--lengths", "4", "--samples", 2))
    assert [row["said"] for row in read_replies(result)] == ["Your key is [key]!"] * 2
    assert not find_files_with_key(runs) and TEST_KEY not in json.dumps(result)


def test_a_malformed_key_is_not_printed(endpoint, runs, monkeypatch):
    server = endpoint(answer_correctly)
    assert TEST_KEY not in repr(Key.read(None))
    for value in (f"{TEST_KEY}\nX-More: 1", f"{TEST_KEY} {TEST_KEY}", f"{TEST_KEY}é"):
        monkeypatch.setenv("OPENAI_API_KEY", value)
        assert TEST_KEY not in run_failing(*build_arguments(server.url))
    assert not runs.exists() and not server.asked


@pytest.mark.parametrize("value", ["", "0", "no", "-"])
def test_a_placeholder_for_a_key_masks_nothing(endpoint, monkeypatch, value):
    monkeypatch.setenv("OPENAI_API_KEY", value)
    result = run_cli_json(*build_arguments(endpoint(lambda *_: "100 no - 0").url, "--lengths", "3", "--samples", 1))
    assert read_replies(result)[0]["said"] == "100 no - 0"


# Importing, and reports


def test_an_inquiry_is_read_back(tmp_path):
    task = catalog.find_task("multiplication", ["base=10"])
    inquiry = Inquiry.of("https://x.example/v1/", "m", task, seed=3, problems="hard", source=Finite(9))
    InquiryRun.of(inquiry, tmp_path / "a")
    assert InquiryRun.open(tmp_path / "a").inquiry == inquiry and inquiry.endpoint == "https://x.example/v1"
    with pytest.raises(UsageError, match=r"asked\.json"):
        InquiryRun.open(tmp_path)


def test_list_shows_inquiries(endpoint):
    server = endpoint(answer_correctly)
    folder = Path(run_cli_json(*build_arguments(server.url, "--lengths", "3", "--samples", 2))["run"])
    spoiled = folder.with_name("ask-spoiled")
    spoiled.mkdir()
    (spoiled / "asked.json").write_text("{}")
    found = json.loads(run_cli("list", "--json")[1])["asked"]
    assert found[folder.name] == "org/a model on addition, 2 replies"
    assert set(found) == {folder.name, spoiled.name} and "asked.json" not in found[spoiled.name]


@pytest.mark.parametrize("signal_number", process.STOP_SIGNALS)
def test_a_stop_signal_ends_the_event_loop_without_an_error(signal_number, capsys):
    async def stop_and_sleep():
        os.kill(os.getpid(), signal_number)
        await asyncio.sleep(20)

    before = signal.signal(signal_number, signal.default_int_handler)  # nohup has the tests ignore SIGHUP
    try:
        assert asyncio.run(client._run_until_signal(stop_and_sleep()))
    finally:
        signal.signal(signal_number, before)
    assert not asyncio.run(client._run_until_signal(asyncio.sleep(0)))
    assert capsys.readouterr() == ("", "")


def test_an_inquiry_is_locked_and_repeated_replies_count_their_tokens(endpoint, monkeypatch):
    held = []

    @contextlib.contextmanager
    def record_lock(folder, **options):
        held.append((folder.folder.name, options["folder_kind"]))
        yield

    monkeypatch.setattr(InquiryRun, "lock", record_lock)
    found = run_cli_json(*build_arguments(endpoint(answer_correctly).url, "--lengths", "1", "--samples", "2"))
    assert held == [(Path(found["run"]).name, "inquiry")]
    folder = InquiryRun.open(Path(found["run"]))
    before = folder.sum_token_counts()
    folder.append("replies", folder.rows("replies")[0])
    assert all(folder.sum_token_counts()[name] > count for name, count in before.items())
