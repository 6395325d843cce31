"""Recipes: functions that return one. A function's docstring states what to expect of it, and what that cost."""

from lengthwise.base.callable import lists_itself

lists_itself(__name__)  # lw.recipes()
