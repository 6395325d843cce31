"""RASP-L, and the n-RASP-L programs that looped models have to learn.

    language   rows, places and the operations on them: what one layer of a causal transformer can do
    program    a program: prepare, a step taken T(n) times, finish; how it is run, and what it is checked for
    programs   one for each of the six tasks of Fan et al. 2025

RASP-L is a language of what transformers learn in a way that carries to longer inputs (Zhou et al. 2023). A task is
n-RASP-L if some step, a RASP-L program of fixed size, solves it when taken T(n) times (Fan et al. 2025, section 3).
"""
