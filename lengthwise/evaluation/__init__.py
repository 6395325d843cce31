"""Weights and fresh problems: answers, scores, and what they look like inside."""
