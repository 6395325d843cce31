"""The exceptions that a user is meant to see."""


class UsageError(ValueError):
    """Something the user can put right. Its text is one line: what is wrong, and what would be right."""


class Interrupted(Exception):
    """Training was asked to stop; its checkpoint is written and the same call goes on from there."""
