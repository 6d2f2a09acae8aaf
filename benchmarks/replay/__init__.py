"""Process replay: what is decided for a fixed list of models with pinned costs, as text by which commits are compared."""
