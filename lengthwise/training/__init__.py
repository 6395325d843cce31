"""Training: the loop, one step, its cost, several seeds or processes at once."""
