"""Faults injected at random moments, and what must hold after each: nothing lost, nothing torn, nothing left behind."""
