"""The driver: from a graph and its variants to the plan that ships, stage by stage."""
