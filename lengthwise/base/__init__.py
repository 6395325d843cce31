"""Types, random-number streams, vocabularies, row helpers, and dataclasses as JSON: used by every other folder."""
