"""bricolage: the fastest verified way to run a deep-learning model on this machine."""

__version__ = "0.1.0"
