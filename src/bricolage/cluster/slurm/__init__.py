"""Slurm from outside: what its commands say, what a policy would do with it, and `scontrol` to do so."""
