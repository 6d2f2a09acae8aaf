"""Sparse networks whose rows are divided between processes."""
