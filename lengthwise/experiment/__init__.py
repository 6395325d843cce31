"""Recipes: the configuration of a training run, its parts, and its batches as a pure function of the step."""
