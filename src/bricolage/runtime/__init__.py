"""What runs: kernels bound to buffers, programs of kernels, and who owns the cores."""
