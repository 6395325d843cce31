"""Evaluation of trained weights on new problems: answers, scores, and analyses of errors and depth."""
