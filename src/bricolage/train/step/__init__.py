"""A training step: the file that describes it, its data, and the module made ready."""
