"""Neural-network modules that models share."""

from lengthwise.base.errors import UsageError
from lengthwise.base.fields import Config


def check_causal(spec: Config, causal: bool) -> None:
    """Raise UsageError unless the layout is causal: a part that reads from left to right needs this."""
    if not causal:
        raise UsageError(f"{type(spec).__name__} reads from left to right, so it needs a causal layout, e.g. NextToken")
