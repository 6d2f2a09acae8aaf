"""Which operators go to which device, so that the busiest device of a full pipeline has the least to do."""
