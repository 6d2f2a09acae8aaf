"""Operators of a training step on unlike devices."""
