"""Laws that every part keeps: what `check` and our own tests use."""
