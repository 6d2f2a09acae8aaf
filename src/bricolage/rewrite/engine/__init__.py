"""Where rules match a graph, and what they make of it."""
