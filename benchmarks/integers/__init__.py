"""Networks in integers, ours beside those of other tools: `python -m benchmarks.integers`."""
