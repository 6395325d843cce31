"""Recipes: functions that return one. Each docstring states the expected accuracy and the training cost."""
