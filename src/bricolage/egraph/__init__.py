"""E-graphs: many equal graphs in one structure, and the cheapest acyclic one among them."""
