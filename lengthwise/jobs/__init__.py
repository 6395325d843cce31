"""Train several runs at once: local pool, Slurm, Ray, and sweeps."""
