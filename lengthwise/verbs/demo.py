"""The demo."""

from lengthwise.demo import demo as run

__all__ = ["run"]
