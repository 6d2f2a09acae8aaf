"""Costs that were measured: what they are, and the database that keeps them. `measure` writes it, `perf` and decisions read it."""
