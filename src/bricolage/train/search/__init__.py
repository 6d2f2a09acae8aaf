"""Hyper-parameters found by search, whose trials are trained as one."""
