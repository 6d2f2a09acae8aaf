"""Requests to an executable: a queue, batches, and streams that run them."""
