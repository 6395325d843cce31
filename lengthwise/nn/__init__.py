"""Neural-network modules that models share."""

from lengthwise.base.errors import UsageError
from lengthwise.base.fields import Config


def check_causal(spec: Config, causal: bool) -> None:
    """Raise UsageError if the layout is not causal; called for parts that read from left to right."""
    if not causal:
        raise UsageError(f"{type(spec).__name__} reads from left to right, so it needs a causal layout, e.g. NextToken")
