"""Recipes, each defined by a function. Each docstring states the expected accuracy and the training cost."""
