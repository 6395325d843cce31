"""The exceptions that a user is meant to see, and how text that did not come from us is shown in them."""

LONGEST = 2000  # characters of a message


class UsageError(ValueError):
    """An error that the user can correct. Its message is one line: what is wrong, and what would be right.

    Messages quote names and files, so whatever they quote is made fit for a terminal here.
    """

    def __init__(self, message: object = "") -> None:
        text = clean(str(message))
        super().__init__(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


class UnknownPart(UsageError):
    """A kind of part that nobody has imported. It may be a user's own."""


class NotImported(UsageError):
    """A file names a part that no imported module defines. The command line imports modules by ``--import``."""


class Diverged(UsageError):
    """Training whose loss is no number any more. Its last finite checkpoint is kept."""


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop. Its checkpoint is written, and the same call goes on from there.

    As Ctrl-C is, it is no ``Exception``: a loop that passes over what fails must stop here, not train the next model.
    """


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: an error of Python's own, of numpy's, or of torch's allocator for any device."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS))


_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "bad_alloc")


def clean(text: str) -> str:
    """Foreign text that can be printed on one line: control characters, escape sequences with them, are left out."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def message_of(error: BaseException) -> str:
    """The text of an error, which may be of a user's own class and fail to give one."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be printed"


def quote_value(value: object, *, quoted: bool = True, longest: int = 80) -> str:
    """A foreign value as an error quotes it, shortened."""
    try:
        text = repr(value) if quoted or not isinstance(value, str) else value
    except ValueError:  # Python writes out no number of thousands of digits
        return "a number of thousands of digits"
    except Exception:  # of an object of a user's own
        return f"a {type(value).__name__}"
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
