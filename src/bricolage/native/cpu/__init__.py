"""How fused kernels are computed on a CPU: C for one instruction set, its compilation, and the library that comes of it."""
