"""A model of costs learnt from the database of measurements: what a region takes on a backend that has not run it."""
