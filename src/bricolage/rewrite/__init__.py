"""Changing the graph without changing the answer."""
