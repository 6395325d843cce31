"""Campaigns that try to break a run by kills, signals, races, failing disks and hostile input.

    python -m tests.torture [--times N] [--seed S] [--only kills,races]

A campaign is a module with two functions: ``list_cases(times)`` returns the names of its cases; ``run_case(case, rng,
folder)`` runs one of them in a folder of its own and returns its counts and ``faults``. ``rng`` is seeded by the case's
name, so that any case can be repeated alone.
"""
