"""Searches over the work graph, and for few among many changes: pure functions of numbers."""
