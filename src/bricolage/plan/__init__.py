"""Plans as frozen dataclasses that round-trip through JSON, and artifacts that carry them."""
