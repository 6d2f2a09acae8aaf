"""Measuring: worker processes, interleaved rounds, races, statistics, and the database of what was found."""
