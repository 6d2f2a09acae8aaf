"""Searches over the work graph: pure functions of numbers."""
