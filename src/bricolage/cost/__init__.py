"""Measuring in worker processes, the cost database, boundary costs, statistics."""
