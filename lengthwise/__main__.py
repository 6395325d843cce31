"""``python -m lengthwise``, and the command ``lengthwise``."""

from lengthwise.base import signals

with signals.exit_on_stop_signals():
    from lengthwise.cli.entry import main

if __name__ == "__main__":
    main()
