"""``python -m lengthwise``."""

from lengthwise.cli import main

if __name__ == "__main__":
    main()
