"""Train several runs at once, on this machine, Slurm or Ray; and run sweeps."""
