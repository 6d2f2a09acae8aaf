"""Placements on devices that a network learns to propose, next to those that searches prove."""
