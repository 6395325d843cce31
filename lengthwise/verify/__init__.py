"""Weights from elsewhere: are they what they are said to be?"""
