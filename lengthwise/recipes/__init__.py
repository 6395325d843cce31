"""Recipes: functions that return one. A function's docstring states what to expect of it, and what that cost."""
