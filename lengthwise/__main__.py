"""Run ``python -m lengthwise`` and the command ``lengthwise``."""

from lengthwise.base import process

with process.exit_on_stop_signals():
    from lengthwise.cli.entry import main

if __name__ == "__main__":
    main()
