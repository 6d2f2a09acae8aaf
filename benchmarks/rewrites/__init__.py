"""Rewriting: what rules and searches leave of a model and gain, beside other tools; extraction from e-graphs."""
