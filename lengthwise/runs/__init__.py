"""Run folders: rows, weights, checkpoints."""
