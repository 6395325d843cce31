"""``python -m lengthwise``, and the command ``lengthwise``."""

from lengthwise.base import lifeline

with lifeline.leaving():
    from lengthwise.cli import main

if __name__ == "__main__":
    main()
