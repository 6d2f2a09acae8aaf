"""Which algorithm computes a kernel: one file for each, and the table of all of them (`algorithm_table`)."""
