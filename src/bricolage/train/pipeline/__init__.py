"""A training step as stages in a row: how it is cut, in which order passes run, and the best of both."""
