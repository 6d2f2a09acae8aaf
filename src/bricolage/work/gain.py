"""What counts as a gain."""

LEAST_GAIN = 0.02
"""Share of the time: a challenger must save more than this, however sure it is."""
