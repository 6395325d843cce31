"""Weights are downloaded and pushed over HTTP, by the Hub's own client, which talks to a local server."""

import base64
import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import command

from lengthwise.api.catalog import find_recipe
from lengthwise.base.errors import UsageError
from lengthwise.base.results import Score
from lengthwise.report.card import build_model_card
from lengthwise.runs import hub
from lengthwise.runs.folder import SHIPPED_FOLDER
from lengthwise.runs.hub import download_weights, parse_address, push_weights
from lengthwise.runs.run import Run, load

hub_http = pytest.importorskip("huggingface_hub.utils._http", reason="the extra `hub` is not installed")
hub_constants = pytest.importorskip("huggingface_hub.constants")

COMMIT, OTHER = "1" * 40, "2" * 40
TOKEN = "hf_sEcReTsEcReTsEcReT"
SOURCE_FOLDER = SHIPPED_FOLDER / "looped-pairs"


def compute_git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Hub:
    """A simulated Hub with one repository, u/pairs; ``fault`` is the error that it simulates."""

    def __init__(self):
        self.files = {path.name: path.read_bytes() for path in SOURCE_FOLDER.iterdir()}
        self.files |= {"modeling.py": b"raise SystemExit('it runs')", "state.pt": b"\x80\x04", "big.bin": b"0"}
        self.fault, self.asked, self.tokens, self.sent = "", [], set(), []
        self.old = []  # the files of u/new, to which weights are sent

    def compute_digest(self, name):
        content = self.files[name]
        return hashlib.sha256(content).hexdigest() if name.endswith("safetensors") else compute_git_hash(content)

    def describe_file(self, name):
        content = self.files[name]
        size = 10**12 if self.fault == "huge" and name == "model.safetensors" else len(content)
        lfs = {"sha256": self.compute_digest(name), "oid": self.compute_digest(name), "size": size, "pointerSize": 100}
        own = {"oid": compute_git_hash(content), "blobId": compute_git_hash(content), "size": size}
        return {"type": "file", "path": name, "rfilename": name} | own | ({"lfs": lfs} if "safet" in name else {})

    def get(self, path):
        """Return the status, headers and body of the answer to a request."""
        route, _, _ = path.partition("?")
        if self.fault.isdigit():
            return int(self.fault), {"X-Error-Message": f"no, {TOKEN}", "Retry-After": "0"}, b"{}"
        if route.endswith(("/revision/gone", "/revision/gone/")):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        if route.startswith("/api/models/u/new/tree/"):
            old = [{"type": "file", "path": name, "size": 1, "oid": "1"} for name in self.old]
            return 200, {}, json.dumps(old).encode()
        if not route.startswith(("/api/models/u/pairs", "/u/pairs/resolve/")):
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if route.startswith("/api/models/u/pairs/tree/"):
            return 200, {}, json.dumps([self.describe_file(name) for name in self.files]).encode()
        if route.startswith("/api/models/"):
            told = {"id": "u/pairs", "sha": OTHER if "old" in route else COMMIT, "private": False, "downloads": 0}
            return 200, {}, json.dumps(told | {"siblings": [self.describe_file(name) for name in self.files]}).encode()
        name = route.rpartition("/")[2]
        headers = {"ETag": f'"{self.compute_digest(name)}"', "X-Repo-Commit": route.split("/")[4]}
        content = self.files[name]
        if self.fault == "other":
            content = content[:-1] + bytes([content[-1] ^ 1])
        return 200, headers, content

    def post(self, path, body):
        if self.fault.isdigit():
            return int(self.fault), {"X-Error-Message": f"no, {TOKEN}"}, b"{}"
        if path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            told = {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]}
            return 200, {}, json.dumps(told).encode()
        if path.partition("?")[0].endswith("/commit/main"):
            self.sent = [json.loads(line) for line in body.decode().splitlines()]
            told = {"commitUrl": f"{self.address}/u/new/commit/{'3' * 40}", "commitOid": "3" * 40, "hookOutput": ""}
            return 200, {}, json.dumps(told).encode()
        return 200, {}, json.dumps({"url": f"{self.address}/u/new", "id": "u/new", "name": "u/new"}).encode()


@pytest.fixture(scope="module")
def server():
    """Start a local server that answers from its attribute ``hub``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status, headers, content, *, body=True):
            # A truncated file: the body is shorter than its Content-Length.
            cut = 7 if self.server.hub.fault == "short" and "/resolve/" in self.path else 0
            self.send_response(status)
            for name, value in ({"Content-Type": "application/json"} | headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content[: len(content) - cut])
                self.close_connection = bool(cut)

        def read_request(self):
            self.server.hub.asked.append(self.path)
            self.server.hub.tokens.add(self.headers.get("Authorization"))
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def do_GET(self):
            self.read_request()
            self.answer(*self.server.hub.get(self.path))

        def do_HEAD(self):
            self.read_request()
            self.answer(*self.server.hub.get(self.path), body=False)

        def do_POST(self):
            self.answer(*self.server.hub.post(self.path, self.read_request()))

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield one
        one.shutdown()
        hub_http.close_session()


@pytest.fixture
def fake_hub(server, tmp_path, monkeypatch):
    server.hub = Hub()
    server.hub.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", server.hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub_constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(hub_http.time, "sleep", lambda _: None)  # between retries
    return server.hub


def is_free_of_token(folder):
    """Return whether no file below this folder contains the token."""
    return not any(TOKEN.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


# Fetching


def test_weights_from_the_hub_give_the_same_answer_as_the_shipped_weights(fake_hub, tmp_path):
    done = command("solve", "hf:u/pairs", "4821973650128839+9178026349871162")
    assert (done.returncode, done.stdout, done.stderr) == (0, "14000000000000001\n", "")
    assert fake_hub.tokens == {f"Bearer {TOKEN}"} and is_free_of_token(tmp_path)
    assert not [path for path in fake_hub.asked if "modeling" in path or "state.pt" in path or "big" in path]
    assert load("hf:u/pairs").name == "u/pairs"


def test_a_verification_record_names_the_weights_from_the_hub(fake_hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lengthwise.verify.verification.PERTURBED_PROBLEMS", 8)
    words = ["--lengths", "2", "--samples", "4", "--seconds", "0.001", "--minutes", "0.05", "--quiet"]
    assert command("verify", "hf:u/pairs", *words).returncode in (0, 1)
    record = json.loads((tmp_path / "u-pairs.verified.json").read_text())
    assert record["about"]["name"] == "u/pairs"


def test_a_downloaded_revision_is_found_in_the_cache_without_a_network(fake_hub, monkeypatch):
    folder = download_weights(f"hf:u/pairs@{COMMIT}")
    assert folder == download_weights("hf:u/pairs") and folder.name == COMMIT
    assert download_weights("hf:u/pairs@old").name == OTHER
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where no server listens
    assert download_weights("hf:u/pairs") == download_weights(f"hf:u/pairs@{COMMIT}") == folder
    with pytest.raises(UsageError, match="the Hub cannot be reached, and the cache has no complete copy"):
        download_weights("hf:u/others")


MESSAGES_BY_FAULT = {
    "401": "does not know this token",
    "429": "too many requests",
    "500": "the Hub answered with status 500",
    "huge": "its model.safetensors has 1,000 GB; the limit is 2 GB",
    "other": "damaged download: config.json, model.safetensors",
    "short": "the connection to the Hub failed",
}


@pytest.mark.parametrize(("fault", "message"), MESSAGES_BY_FAULT.items())
def test_a_fault_of_the_hub_is_reported_in_one_line(fault, message, fake_hub, tmp_path):
    fake_hub.fault = fault
    done = command("solve", "hf:u/pairs", "1+1")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1 and TOKEN not in done.stderr
    assert is_free_of_token(tmp_path)
    fake_hub.fault = ""
    assert command("solve", "hf:u/pairs", "1+1").stdout == "2\n", "a damaged file was cached"


def test_missing_repositories_and_malformed_names_are_refused(fake_hub):
    del fake_hub.files["model.safetensors"]
    missing = {"hf:u/nothing": "no such repository", "hf:u/pairs@gone": "no such revision"}
    for name, what in (missing | {"hf:u/pairs": "no model.safetensors, so these are not weights"}).items():
        with pytest.raises(UsageError, match=f"there is {what}"):
            load(name)
    for name in ("hf:pairs", "hf:../../etc"):
        with pytest.raises(UsageError, match="written hf:user/name"):
            load(name)


def test_a_recipe_that_names_foreign_code_is_refused(fake_hub):
    tree = json.loads(fake_hub.files["config.json"])
    tree["model"] = {"kind": "os.system"}
    fake_hub.files["config.json"] = json.dumps(tree).encode()
    with pytest.raises(UsageError, match="import its module first"):
        load("hf:u/pairs")


def test_if_the_extra_is_missing_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"pip install 'lengthwise\[hub\]'"):
        download_weights("hf:u/pairs")


# Sending


def test_pushed_files_equal_the_local_files(fake_hub, tmp_path):
    done = command("push", "looped-pairs", "u/new", "--json")
    assert done.returncode == 0, done.stderr
    sent = {line["value"]["path"]: line["value"] for line in fake_hub.sent if line["key"] == "file"}
    assert set(sent) == {*hub.HUB_FILES, "README.md"}
    for name in hub.HUB_FILES:
        assert base64.b64decode(sent[name]["content"]) == (SOURCE_FOLDER / name).read_bytes()
    card = base64.b64decode(sent["README.md"]["content"]).decode()
    assert "| 24 | 1.000" in card and "lengthwise verify hf:u/new" in card and "2409.15647" not in card
    assert TOKEN not in done.stdout + done.stderr + card


def test_a_push_deletes_scores_of_earlier_weights(fake_hub, tmp_path):
    fake_hub.old = [*hub.HUB_FILES, "notes.txt"]
    bare = tmp_path / "bare"
    shutil.copytree(SOURCE_FOLDER, bare)
    (bare / "scores.jsonl").unlink()
    assert command("push", bare, "u/new", "--json").returncode == 0
    assert [line["value"]["path"] for line in fake_hub.sent if line["key"] == "deletedFile"] == ["scores.jsonl"]


def test_a_refused_push_is_reported_in_one_line(fake_hub):
    fake_hub.fault = "403"
    done = command("push", "looped-pairs", "u/new")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and TOKEN not in done.stderr


def test_a_model_card_lists_controls_and_starts_with_yaml(tmp_path):
    yaml = pytest.importorskip("yaml")
    one = shutil.copytree(SHIPPED_FOLDER / "halting-parity", tmp_path / "one")
    done = command("push", one, "u/new", "--controls", one, "--license", "mit", "--dry-run")
    head = yaml.safe_load(done.stdout.split("---\n")[1])
    assert head["license"] == "mit" and "parity" in head["tags"]
    assert head["model-index"][0]["results"][0]["metrics"][0]["type"] == "exact_match"
    assert "## Controls" in done.stdout
    assert "not a licence id" in command("push", one, "u/new", "--license", "x y").stderr


def test_a_model_card_ignores_families_that_were_measured_alone():
    run = Run.of(find_recipe("looped-parity"))
    for problems, size, how in (("runs", 8, {"family": "alone"}), ("runs", 12, {}), ("ones", 12, {})):
        row = Score("parity", "w", "Oracle", problems, (size,), 100, 0.5, 0.5, 0.5, 8.0).row()
        run.append("scores", row | how)
    card = build_model_card(run, "u/new", license_="mit", example="1", controls=[])
    assert "ones, of 2" in card and "of 1" not in card


def test_addresses_are_parsed_and_a_push_with_a_revision_is_refused():
    assert parse_address("hf:u/name@v1.0") == ("u/name", "v1.0") and parse_address("u/name") == ("u/name", None)
    with pytest.raises(UsageError, match="newest revision"):
        push_weights(SOURCE_FOLDER, "u/name@v1", "")
