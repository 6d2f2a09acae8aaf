"""Extraction: the cheapest acyclic graph that an e-graph holds, shared nodes paid once."""
