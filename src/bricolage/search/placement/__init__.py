"""Placements of regions on backends: exact, by dynamic and integer programming, and evolutionary."""
