"""A recipe and its parts, and batch i of it as a pure function."""
