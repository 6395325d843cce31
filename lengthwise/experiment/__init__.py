"""Recipes, the configurations of training runs; their parts; and their batches as a pure function of the step."""
