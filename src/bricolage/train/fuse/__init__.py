"""Many models trained as one (HFTA): lanes of a sweep share each operator's call, and each comes out as if trained alone."""
