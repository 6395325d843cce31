"""Campaigns that try to break a run: by kills, signals, races, disks that fail, and hostile input.

    python -m tests.torture [--times N] [--seed S] [--only kills,races]

A campaign is a module with ``plan(times)``, the names of its cases, and ``play(name, draw, folder)``, which plays one
of them in a folder of its own and returns its counts, with ``faults`` among them. ``draw`` is seeded by the case's
name, so that any case can be played again alone.
"""
