"""Policies: one file each, and the list of them by name."""
