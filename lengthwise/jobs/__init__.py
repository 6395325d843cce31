"""Several trainings at once: a local pool, Slurm, Ray, sweeps."""
