"""Training: the loop, its cost, parallel runs, and progress displays."""
