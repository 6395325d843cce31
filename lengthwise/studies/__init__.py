"""Functions that return a study: recipes that belong together, what they are measured on, and their figures."""
