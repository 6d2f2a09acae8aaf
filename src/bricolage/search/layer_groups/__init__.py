"""Which layers are computed together, a few rows at a time, so that what lies between them never leaves a buffer."""
