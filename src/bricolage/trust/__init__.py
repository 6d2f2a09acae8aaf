"""Faults: which change of a program makes its answer wrong, and the least model that shows it."""
