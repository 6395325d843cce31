"""Weights on the Hugging Face Hub: ``hf:user/name``, or ``hf:user/name@revision``.

Four files of a repository are read, by name; no file can run code. Each file must match the digest that the Hub lists.
Files are kept in the Hub's own cache, where they are available offline. Error messages never quote a server's
response, which could contain the token.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from lengthwise.base.errors import UsageError
from lengthwise.base.extras import import_library
from lengthwise.base.files import read_bytes, remove, write

HUB_PREFIX = "hf:"
REQUIRED_FILES = ("config.json", "model.safetensors")
HUB_FILES = (*REQUIRED_FILES, "about.json", "scores.jsonl")
MAX_FILE_BYTES = 2 * 10**9  # maximum size of a file: about a thousand times the shipped weights
NAME_PATTERN = r"[A-Za-z0-9][\w.-]{0,95}"
STATUS_TEXTS = {
    401: "the Hub does not know this token; set HF_TOKEN to another",
    403: "this token does not allow access",
    429: "too many requests to the Hub; try again in a few minutes",
}


class HubAddress(NamedTuple):
    """A repository on the Hub and its revision."""

    repository: str  # user/name
    revision: str | None = None  # a commit, branch or tag; None: the latest of the main branch

    def __str__(self) -> str:
        return f"{HUB_PREFIX}{self.repository}" + (f"@{self.revision}" if self.revision else "")


def parse_address(text: str) -> HubAddress:
    """Parse the address ``hf:user/name`` or ``hf:user/name@revision``. Raises UsageError if its form is wrong."""
    match = re.fullmatch(rf"(?:{HUB_PREFIX})?({NAME_PATTERN}/{NAME_PATTERN})(?:@([\w./-]{{1,200}}))?", text)
    if not match:
        raise UsageError(f"{text}: a repository on the Hub is written hf:user/name or hf:user/name@revision")
    return HubAddress(match[1], match[2])


def download_weights(text: str) -> Path:
    """Download the weights at an address, or find them in the cache if the Hub cannot be reached, and return their
    folder. Raises UsageError if the repository does not exist, if the Hub cannot be reached and the cache has no copy,
    or if a file does not match its digest."""
    address, hub = parse_address(text), import_library("huggingface_hub", "hub")
    endpoint = os.environ.get("HF_ENDPOINT")
    with _silence_progress(), _translate_errors(address):
        digests: dict[str, str] = {}  # by file; empty if the Hub cannot be reached
        with suppress(ConnectionError, *_list_http_errors()[1:]):
            api = hub.HfApi(endpoint=endpoint)
            info = api.model_info(address.repository, revision=address.revision, files_metadata=True)
            files = {file.rfilename: file for file in info.siblings or [] if file.rfilename in HUB_FILES}
            for name in REQUIRED_FILES:
                if name not in files:
                    raise UsageError(f"{address}: there is no {name}, so these are not weights of Lengthwise")
            for name, file in files.items():
                if (file.size or 0) > MAX_FILE_BYTES:
                    size = f"its {name} has {file.size / 1e9:,.0f} GB"
                    raise UsageError(f"{address}: {size}; the limit is {MAX_FILE_BYTES / 1e9:.0f} GB")
                digests[name] = file.lfs.sha256 if file.lfs else file.blob_id
        options = {"revision": address.revision, "allow_patterns": HUB_FILES, "max_workers": 1, "endpoint": endpoint}
        folder = Path(hub.snapshot_download(address.repository, **options, local_files_only=not digests))
    damaged = []
    for path in filter(Path.exists, map(folder.joinpath, HUB_FILES)):
        content = read_bytes(path, MAX_FILE_BYTES)
        git_digest = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        # The Hub lists SHA-256 or, for small files, git's own digest; the cache names files after their digests.
        expected = digests.get(path.name) or path.resolve().name
        if expected not in (git_digest, hashlib.sha256(content).hexdigest()):
            damaged.append(path.name)
            remove(path.resolve())
            remove(path)
    if damaged:
        raise UsageError(f"{address}: damaged download: {', '.join(damaged)}; try again")
    return folder


def push_weights(folder: Path, text: str, model_card: str, *, private: bool = False) -> str:
    """Upload the weights of a folder, with a model card, to the address ``text``, and return the commit's URL. The
    repository is created if needed. Raises UsageError if the Hub refuses."""
    address = parse_address(text)
    if address.revision:
        raise UsageError(f"{address}: an upload becomes the newest revision; omit @{address.revision}")
    hub = import_library("huggingface_hub", "hub")
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    with tempfile.TemporaryDirectory() as copy_folder, _silence_progress(), _translate_errors(address):
        for name in HUB_FILES:
            if (folder / name).exists():
                write(Path(copy_folder) / name, read_bytes(folder / name, MAX_FILE_BYTES))
        write(Path(copy_folder) / "README.md", model_card.encode())
        api.create_repo(address.repository, private=private, exist_ok=True)
        # Delete files of an earlier upload, such as scores, which are not of these weights.
        options = {"commit_message": "Upload weights", "delete_patterns": list(HUB_FILES)}
        commit = api.upload_folder(repo_id=address.repository, folder_path=copy_folder, **options)
    return commit.commit_url


@contextmanager
def _silence_progress() -> Iterator[None]:
    """Suppress the library's progress bars and warnings during a ``with`` block."""
    utils = import_library("huggingface_hub.utils", "hub")
    bars, level = utils.are_progress_bars_disabled(), utils.logging.get_verbosity()
    utils.disable_progress_bars()
    utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        utils.logging.set_verbosity(level)
        if not bars:
            utils.enable_progress_bars()


@contextmanager
def _translate_errors(address: HubAddress) -> Iterator[None]:
    """Turn errors of the Hub's library in a ``with`` block into UsageErrors that begin with the address."""
    errors = import_library("huggingface_hub.errors", "hub")
    try:
        yield
    except errors.GatedRepoError:
        raise UsageError(f"{address}: ask its owner for access, then set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise UsageError(f"{address}: there is no such revision") from None
    except errors.RepositoryNotFoundError:
        raise UsageError(f"{address}: there is no such repository; if it is private, set HF_TOKEN") from None
    except errors.HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        raise UsageError(f"{address}: {STATUS_TEXTS.get(status, f'the Hub answered with status {status}')}") from None
    except (errors.LocalEntryNotFoundError, ConnectionError, *_list_http_errors()[1:]):
        raise UsageError(f"{address}: the Hub cannot be reached, and the cache has no complete copy") from None
    except UsageError:
        raise
    except (OSError, ValueError, _list_http_errors()[0]) as error:
        raise UsageError(f"{address}: the connection to the Hub failed ({type(error).__name__}); try again") from None


def _list_http_errors() -> tuple[type[Exception], ...]:
    """Return the error classes of the HTTP library that huggingface_hub uses: any transport error, failed connections
    and timeouts."""
    library = getattr(import_library("huggingface_hub.utils._http", "hub"), "httpx2", None)
    library = library or import_library("httpx", "hub")
    return library.TransportError, library.ConnectError, library.TimeoutException
