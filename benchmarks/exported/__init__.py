"""Models that left Python, beside the C interfaces of other runtimes: see `__main__`."""
