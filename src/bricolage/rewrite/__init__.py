"""Graph substitutions: rules and the driver that applies them, proofs of them, and e-graphs."""
