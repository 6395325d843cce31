"""Training: the loop, what it costs, several side by side, and following them."""
