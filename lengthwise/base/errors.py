"""The exceptions that a user is meant to see."""


class UsageError(ValueError):
    """An error that the user can correct. Its message is one line: what is wrong, and what would be right."""


class Diverged(UsageError):
    """Training whose loss is no number any more. Its last finite checkpoint is kept."""


class Interrupted(Exception):
    """Training was asked to stop. Its checkpoint is written, and the same call goes on from there."""
