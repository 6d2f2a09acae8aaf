"""Search over rewrites: the cheapest of many equal graphs, by backtracking or by equality saturation."""
