"""Training steps divided inside their operators: traced, planned by `search.sharding`, and run by DTensor."""
