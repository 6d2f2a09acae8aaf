"""The registration interface, the registry, and one file for each backend."""
