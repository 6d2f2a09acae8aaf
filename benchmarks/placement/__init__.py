"""Searches for placements on backends and on devices, and for precisions."""
