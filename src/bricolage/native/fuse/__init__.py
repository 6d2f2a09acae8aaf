"""Which tensors are computed together: fused kernels, what they store and where it lies, and what they cost.

A target is asked for its limits (`target`); how a kernel is computed is not known here.
"""
