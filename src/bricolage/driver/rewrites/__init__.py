"""Rewriting a model by itself: by rules or for one backend, and checked against float64."""
