"""A plan of a training step as a file, and the processes that run it."""
