"""Substitutions of graphs: rules, e-graphs, and proofs that both sides are equal."""
