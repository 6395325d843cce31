"""Training: the loop, one step, its cost, and several seeds or processes at once."""
