"""What everything stands on: the types that flow, randomness by address, symbols, rows, and dataclasses as JSON."""
