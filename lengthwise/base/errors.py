"""Exceptions for users, and the safe display of foreign text in their messages."""

LONGEST = 2000  # maximum characters of a message


class UsageError(ValueError):
    """An error that the user can correct. Its message is one line: what is wrong, and how to correct it.

    Messages quote names and files, so control characters are removed here.
    """

    def __init__(self, message: object = "") -> None:
        text = remove_controls(str(message))
        super().__init__(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


class UnknownPart(UsageError):
    """The kind of a part that no imported module defines; a user's module may define it."""


class NotImported(UsageError):
    """A file names a part that no imported module defines. The command line imports modules by ``--import``."""


class Diverged(UsageError):
    """Training whose loss became NaN or infinite. Its last finite checkpoint is kept."""


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop. Its checkpoint is written, and the same call resumes from it.

    It is a ``KeyboardInterrupt``, not an ``Exception``: a loop that skips failed models must stop here, not train the
    next one.
    """


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, numpy or any of torch's allocators means that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS))


_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "bad_alloc")


def remove_controls(text: str) -> str:
    """Return foreign text as one printable line: control characters are removed, which disables escape sequences."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def message_of(error: BaseException) -> str:
    """Return an error's text. The ``__str__`` of a user's own error class may fail."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be printed"


def quote_value(value: object, *, quoted: bool = True, longest: int = 80) -> str:
    """Return a foreign value as text of at most ``longest`` characters, to be quoted in an error."""
    try:
        text = repr(value) if quoted or not isinstance(value, str) else value
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number of thousands of digits"
    except Exception:  # raised by the `__repr__` of a user's own class
        return f"a {type(value).__name__}"
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
