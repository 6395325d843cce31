"""Exceptions for users, and the safe display of foreign text in error messages."""

MAX_MESSAGE_CHARACTERS = 2000


class UsageError(ValueError):
    """Raised for a mistake that the user can correct. The one-line message states what is wrong and what would be
    right; control characters in quoted names are removed."""

    def __init__(self, message: object = "") -> None:
        text = remove_controls(str(message))
        super().__init__(text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[: MAX_MESSAGE_CHARACTERS - 1]}…")


class Diverged(UsageError):
    """Raised when a training loss becomes NaN or infinite. The last finite checkpoint is kept."""


class Interrupted(KeyboardInterrupt):
    """Raised when a signal stops training, after saving; the same call resumes it. It is not an ``Exception``, so
    that it also ends a loop that skips failed models."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, numpy or any of torch's allocators means that memory ran out."""
    signs = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "bad_alloc")
    text = str(error).lower()
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(sign in text for sign in signs))


def remove_controls(text: str) -> str:
    """Return foreign text as one printable line, without control characters, so escape sequences have no effect."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def quote_value(value: object, *, max_length: int = 80) -> str:
    """Return a foreign value as text of at most ``max_length`` characters, to be quoted in an error."""
    text = repr(value)
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
