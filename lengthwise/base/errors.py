"""The exceptions that a user is meant to see."""


class UsageError(ValueError):
    """An error that the user can correct. Its message is one line: what is wrong, and what would be right."""


class UnknownPart(UsageError):
    """A kind of part that nobody has imported. It may be a user's own."""


class Diverged(UsageError):
    """Training whose loss is no number any more. Its last finite checkpoint is kept."""


class Interrupted(Exception):
    """Training was asked to stop. Its checkpoint is written, and the same call goes on from there."""
