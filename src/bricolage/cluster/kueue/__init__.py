"""Kueue from outside: an admission-check controller that lets workloads in by a policy."""
