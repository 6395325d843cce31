"""Recipes, each defined by a function. Many docstrings state the training cost or the expected accuracy."""
