"""The language RASP-L, and n-RASP-L programs for the tasks of Fan et al. 2025.

    language   the operations, each of which one layer of a causal transformer can compute
    program    the form of a program (prepare, a step repeated T(n) times, finish), its execution and its checks
    programs   a program for each of the six tasks

RASP-L is a language of functions that transformers learn in a way that generalizes to longer inputs (Zhou et al. 2023).
A task is n-RASP-L if a RASP-L program of fixed size solves it when repeated T(n) times (Fan et al. 2025, section 3).
"""
